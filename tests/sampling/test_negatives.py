"""Negatives: which candidates a positive meets, on which side, and which of them do not count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.data.batches import Positives
from kgdist.sampling.negatives import ChunkedNegatives


def positives(size: int, entities: int = 50, seed: int = 0) -> Positives:
    rng = np.random.default_rng(seed)
    return Positives(rng.integers(entities, size=size), rng.integers(5, size=size), rng.integers(entities, size=size), None)


@given(size=st.integers(1, 40), chunk=st.integers(1, 16), degree=st.booleans(), step=st.integers(0, 9))
def test_shapes_sides_and_ranges(size: int, chunk: int, degree: bool, step: int) -> None:
    batch = ChunkedNegatives(50, chunk, degree, seed=1).batch(step, positives(size))
    chunks = -(-size // chunk)
    assert batch.negatives.shape == (chunks, chunk * (2 if degree else 1))
    assert batch.negatives.min() >= 0 and batch.negatives.max() < 50
    assert batch.side is (Side.TAIL if step % 2 == 0 else Side.HEAD)  # DGL-KE counts from 1: odd steps replace tails
    assert len(batch) == size


@given(size=st.integers(1, 40), chunk=st.integers(1, 16), step=st.integers(0, 1))
def test_in_batch_candidates_are_the_chunks_own_and_the_own_positive_is_masked(size: int, chunk: int, step: int) -> None:
    batch = ChunkedNegatives(50, chunk, True, seed=1).batch(step, positives(size))
    true, mask = batch.side.pick(batch.heads, batch.tails), batch.masked
    assert mask is not None
    for i in range(size):
        row = batch.negatives[i // chunk]
        assert set(row[:chunk]) == set(true[i // chunk * chunk : (i // chunk + 1) * chunk])
        for column, candidate in enumerate(row):
            assert mask[i, column] == (column < chunk and candidate == true[i])


def test_draws_follow_from_seed_rank_and_step() -> None:
    def draw(seed: int, rank: int, step: int) -> bytes:
        return ChunkedNegatives(50, 8, False, seed, rank).batch(step, positives(8)).negatives.tobytes()

    assert draw(1, 0, 3) == draw(1, 0, 3)
    assert len({draw(1, 0, 3), draw(2, 0, 3), draw(1, 1, 3), draw(1, 0, 5)}) == 4


def test_uniform_negatives_are_uniform() -> None:
    sampler = ChunkedNegatives(20, 100, False, seed=0)
    counts = np.bincount(
        np.concatenate([sampler.batch(step, positives(100)).negatives.ravel() for step in range(100)]), minlength=20
    )
    expected = counts.sum() / 20
    assert ((counts - expected) ** 2 / expected).sum() < 45  # chi-square with 19 degrees of freedom: p of about .0007


def test_without_in_batch_candidates_nothing_is_masked() -> None:
    assert ChunkedNegatives(50, 8, False, 0).batch(0, positives(8)).masked is None


@pytest.mark.parametrize("degree", [False, True])
def test_sorting_keeps_triples_and_weights_together(degree: bool) -> None:
    heads, relations, tails = positives(30)[:3]
    weights, numbers = np.arange(30, dtype=np.float32), np.arange(30) + 7
    batch = ChunkedNegatives(50, 8, degree, 0, sort=True).batch(5, Positives(heads, relations, tails, weights, numbers))
    assert batch.weights is not None and (np.diff(batch.relations) >= 0).all()
    assert batch.numbers is not None and np.array_equal(batch.numbers, batch.weights + 7) and batch.step == 5
    before = set(zip(heads, relations, tails, weights, strict=True))
    assert set(zip(batch.heads, batch.relations, batch.tails, batch.weights, strict=True)) == before


def test_negatives_of_one_machine_are_its_own_entities() -> None:
    everywhere, own = (ChunkedNegatives(20, 8, False, seed=1, first=first) for first in (0, 30))
    for step in range(4):
        batches = [sampler.batch(step, positives(16)) for sampler in (everywhere, own)]
        assert (batches[0].negatives + 30 == batches[1].negatives).all()
        assert batches[1].negatives.min() >= 30 and batches[1].negatives.max() < 50
