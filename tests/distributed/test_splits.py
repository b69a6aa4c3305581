"""Splits: the shares of all trainers are the set, disjoint, even, and of the own machine as far as that goes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import UsageError
from kgdist.distributed.splits import Mask, edge_split, even_batches, node_split, own, shares
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.tensor import DistTensor
from kgdist.sampling.loaders import SplitSizes
from tests.distributed.places import as_trainer, standalone

NODES, EDGES = (4, 0, 7, 1), (5, 9, 0, 7)
COUNT = sum(NODES)


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=5), per_group=st.integers(1, 4))
@settings(max_examples=300, deadline=None)
def test_shares_are_the_set_even_and_local_first(counts: list[int], per_group: int) -> None:
    trainers, total = len(counts) * per_group, sum(counts)
    found = [shares(counts, per_group, rank) for rank in range(trainers)]
    pairs = [(group, int(place)) for share in found for group, places in share for place in places]
    assert sorted(pairs) == [(group, place) for group, count in enumerate(counts) for place in range(count)]
    sizes = [sum(len(places) for _, places in share) for share in found]
    assert max(sizes) - min(sizes) <= 1
    for group, count in enumerate(counts):
        ranks = range(group * per_group, (group + 1) * per_group)
        local = sum(len(places) for rank in ranks for where, places in found[rank] if where == group)
        assert local == min(count, sum(sizes[rank] for rank in ranks)), "no machine gives away what its own trainers can take"
    assert total == 0 or max(sizes) == -(-total // trainers)


@given(counts=st.lists(st.integers(0, 30), min_size=1, max_size=5), per_group=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_without_evenness_each_machine_deals_out_its_own(counts: list[int], per_group: int) -> None:
    for group, count in enumerate(counts):
        found = [own(counts, per_group, group * per_group + number) for number in range(per_group)]
        assert {where for share in found for where, _ in share} == {group}
        places = [int(place) for share in found for _, places in share for place in places]
        assert sorted(places) == list(range(count))
        sizes = [len(share[0][1]) for share in found]
        assert max(sizes) - min(sizes) <= 1


@st.composite
def sets(draw: st.DrawFn) -> tuple[list[bool], int, str, bool]:
    """A mask of the nodes, trainers of a machine, what the mask is, and whether shares are even."""
    mask = draw(st.lists(st.booleans(), min_size=COUNT, max_size=COUNT))
    return (
        mask,
        draw(st.integers(1, 3)),
        draw(st.sampled_from(["DistTensor", "uint8", "tensor", "array", "list"])),
        draw(st.booleans()),
    )


def made(mask: list[bool], kind: str) -> Mask:
    if kind in ("DistTensor", "uint8"):
        tensor = DistTensor((len(mask),), torch.bool if kind == "DistTensor" else torch.uint8)
        tensor[:] = mask
        return tensor
    return {"tensor": torch.tensor, "array": np.array, "list": list}[kind](mask)  # type: ignore[no-any-return, operator]


@given(case=sets())
@settings(max_examples=150, deadline=None)
def test_any_mask_is_split(case: tuple[list[bool], int, str, bool]) -> None:
    mask, per_machine, kind, even = case
    trainers = per_machine * len(NODES)
    with standalone(NODES, EDGES) as storage:
        assert isinstance(storage, Standalone)
        chosen = made(mask, kind)
        found = []
        for rank in range(trainers):
            with as_trainer(storage, rank, trainers, len(NODES)):
                share = node_split(chosen, force_even=even)
                assert torch.equal(share, node_split(chosen, rank=rank, force_even=even)), "the same whoever asks, and again"
            assert share.dtype == torch.int64 and torch.equal(share, share.sort().values)
            found.append(share)
        assert sorted(torch.cat(found).tolist()) == np.flatnonzero(mask).tolist()
        sizes = [len(share) for share in found]
        if even:
            assert all(SplitSizes.of(share) == (min(sizes), max(sizes)) for share in found) and max(sizes) - min(sizes) <= 1
            for batch in range(1, 6):
                assert len({-(-len(even_batches(share)) // batch) for share in found if len(share)}) <= 1
        else:
            policy = next(iter(storage.policies))
            for rank, share in enumerate(found):
                assert (policy.owners(share.numpy()) == rank // per_machine).all()


def test_one_process_has_the_whole_set() -> None:
    with standalone(NODES, EDGES):
        mask = DistTensor((COUNT,), torch.bool)
        mask[[1, 5, 11]] = True
        assert node_split(mask).tolist() == [1, 5, 11]
        edges = DistTensor((sum(EDGES),), torch.bool)
        edges[[0, 20]] = True
        assert edge_split(edges).tolist() == [0, 20] == edge_split(edges[:]).tolist()


@given(mask=st.lists(st.booleans(), min_size=COUNT, max_size=COUNT), seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_trainer_ids_say_whose_a_node_is(mask: list[bool], seed: int) -> None:
    whose = np.random.default_rng(seed).integers(0, 4, COUNT)
    with standalone((6, 6), EDGES) as storage:
        assert isinstance(storage, Standalone)
        found = []
        for rank in range(4):
            with as_trainer(storage, rank, 4, 2):
                found.append(node_split(mask, node_trainer_ids=whose))
                alone = node_split(mask, node_trainer_ids=whose, force_even=False)
            assert alone.tolist() == np.flatnonzero(np.array(mask) & (whose == rank)).tolist()
            assert (whose[found[-1]] == rank).sum() == min(len(alone), len(found[-1]))
        assert sorted(torch.cat(found).tolist()) == np.flatnonzero(mask).tolist()
        assert len({len(share) for share in found}) <= 2


def test_nobodys_random_numbers_are_touched() -> None:
    with standalone(NODES, EDGES) as storage:
        assert isinstance(storage, Standalone)
        mask = DistTensor((COUNT,), torch.bool, init_func=lambda shape, dtype: torch.ones(shape, dtype=dtype))
        before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
        with as_trainer(storage, 1, 4, 2):
            pass
        with as_trainer(storage, 5, 8, 4):
            node_split(mask)
        assert torch.equal(torch.get_rng_state(), before[0]) and np.random.get_state()[1].tolist() == before[1]  # type: ignore[index, union-attr]


def test_batches_are_made_even_by_ids_that_come_again() -> None:
    ids = torch.tensor([3, 5, 8])
    assert even_batches(ids, 4).tolist() == [3, 5, 8, 3] and even_batches(ids, 8).tolist() == [3, 5, 8, 3, 5, 8, 3, 5]
    assert even_batches(ids, 2) is ids and even_batches(ids) is ids and even_batches(ids[:0]).tolist() == []
    with pytest.raises(UsageError, match="this trainer has no ids and another one has 2"):
        even_batches(ids[:0], 2)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"nodes": np.ones(COUNT + 1, bool)}, f"a mask for node_split: {COUNT + 1} rows are as many as no type"),
        ({"nodes": np.ones((COUNT, 1), bool)}, "a mask has one dimension"),
        ({"nodes": np.arange(COUNT)}, "look like ids, and id 0 would be left out"),
        ({"nodes": None}, "a mask says true or false of each node, and is not a NoneType"),
        ({"ntype": "nope"}, "there is no type 'nope'; there are the nodes of type _N"),
        ({"partition_book": "g"}, "partition_book is what g.get_partition_book"),
        ({"rank": "0"}, "rank: must be an integer .* not '0'"),
        ({"rank": 1}, "rank: must be an integer >= 0 and <= 0, not 1"),
        ({"rank": -1}, "rank: must be an integer .* not -1"),
        ({"node_trainer_ids": np.zeros(3, int)}, "trainer ids of shape \\(3,\\)"),
        ({"node_trainer_ids": np.full(COUNT, 7)}, "trainer ids 7 to 7, but there are 1 trainers"),
    ],
)
def test_splits_that_cannot_be_are_refused(wrong: dict[str, Any], message: str) -> None:
    with standalone(NODES, EDGES):
        with pytest.raises(UsageError, match=message):
            node_split(**{"nodes": np.ones(COUNT, bool)} | wrong)
        with pytest.raises(UsageError, match="its rows are not nodes; take the other one"):
            node_split(DistTensor((sum(EDGES),), torch.bool))
        with pytest.raises(UsageError, match="its rows are not nodes of type 'nope'; omit the type"):
            node_split(DistTensor((COUNT,), torch.bool), ntype="nope")
        assert len(node_split(np.ones(COUNT, bool), ntype="_N")) == COUNT
        for etype in ("_E", ("_N", "_E", "_N"), "_N:_E:_N"):
            assert len(edge_split(np.ones(sum(EDGES), bool), etype=etype)) == sum(EDGES)
