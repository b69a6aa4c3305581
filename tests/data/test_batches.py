"""Batches: every epoch visits every triple once, however the work is divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.data.batches import Batches, relation_shares
from kgdist.data.dataset import Triples


def triples(count: int) -> Triples:
    ids = np.arange(count, dtype=np.int32)
    return Triples(np.stack([ids, ids % 7, ids + 1], axis=1), np.arange(count, dtype=np.float32) + 1)


@given(count=st.integers(1, 200), size=st.integers(1, 50), world=st.integers(1, 4), epoch=st.integers(0, 3))
def test_an_epoch_of_all_processes_is_every_triple_once(count: int, size: int, world: int, epoch: int) -> None:
    if count < world:
        return
    seen: list[int] = []
    for rank in range(world):
        batches = Batches(triples(count), size, seed=3, rank=rank, world=world)
        for number in range(batches.steps_per_epoch):
            heads, relations, tails, weights, numbers = batches.at(epoch * batches.steps_per_epoch + number)
            assert 1 <= len(heads) <= size
            assert weights is not None and (weights == heads + 1).all()
            assert numbers is not None and (numbers == heads).all()
            assert (relations == heads % 7).all() and (tails == heads + 1).all()
            seen += heads.tolist()
    assert sorted(seen) == list(range(count))


def test_epochs_differ_and_seeds_differ_and_steps_repeat() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        return Batches(triples(100), 100, seed=seed).at(epoch).heads.tolist()

    assert order(0, 0) == order(0, 0)
    assert len({tuple(order(0, 0)), tuple(order(0, 1)), tuple(order(1, 0))}) == 3


def test_a_process_without_triples_is_refused() -> None:
    with pytest.raises(ValueError, match="process 0 of 4 has no triples"):
        Batches(triples(3), 10, seed=0, rank=0, world=4)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=300), st.integers(1, 4))
def test_relation_shares_are_disjoint_whole_and_even(relations: list[int], world: int) -> None:
    array = np.array(relations, np.int32)
    shares = relation_shares(array, world)
    assert sorted(np.concatenate(shares).tolist()) == list(range(len(array)))
    for value in range(10):
        holders = [rank for rank, share in enumerate(shares) if (array[share] == value).any()]
        count = int((array == value).sum())
        assert len(holders) <= 1 or count > len(array) / world
    # No process has more than twice its fair share (plus a triple of rounding for every relation split).
    assert max(len(share) for share in shares) <= 2 * len(array) / world + 10


def test_owned_triples_are_the_only_ones_seen() -> None:
    owned = np.array([5, 6, 50, 99])
    batches = Batches(triples(100), 3, seed=0, rank=1, world=2, owned=owned)
    heads = [head for step in range(batches.steps_per_epoch) for head in batches.at(step).heads.tolist()]
    assert sorted(heads) == owned.tolist()
