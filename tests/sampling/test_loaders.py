"""Loaders: every node and edge once an epoch, the same batches whoever makes them, nothing left behind, one line for a death."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import UsageError, WorkerError
from kgdist.dataloading import negative_sampler
from kgdist.graphs.in_memory import Graph, heterograph
from kgdist.graphs.structure import EID, NID, Draw
from kgdist.sampling import (
    DataLoader,
    DistDataLoader,
    EdgeDataLoader,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NodeDataLoader,
    as_edge_prediction_sampler,
)
from kgdist.sampling.loaders import SplitSizes
from tests.graphs.worlds import KNOWS, LIKES, OWNS, random_graph, typed_graph

SAMPLER = MultiLayerNeighborSampler([3, 2])


def told(value: Any) -> Any:
    """A batch as plain lists."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): told(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    if isinstance(value, Graph):
        return [[told(value.edges(etype)), told(dict(value.edges[etype].data))] for etype in value.canonical_etypes] + [
            told(dict(value.nodes[ntype].data)) for ntype in value.ntypes
        ]
    return [[told(value.edges(etype)), told(dict(value.edges[etype].data))] for etype in value.canonical_etypes] + [
        told(dict(value.srcnodes[ntype].data)) for ntype in value.ntypes
    ]


@pytest.mark.parametrize("shuffle, drop_last", [(False, False), (True, False), (True, True)])
def test_an_epoch_has_every_node_once(shuffle: bool, drop_last: bool) -> None:
    nids = torch.arange(0, 60, 2)
    loader = NodeDataLoader(random_graph(), nids, SAMPLER, batch_size=8, shuffle=shuffle, drop_last=drop_last, seed=1)
    epochs = [[seeds.tolist() for _, seeds, _ in loader] for _ in range(2)]
    for epoch in epochs:
        assert [len(batch) for batch in epoch] == ([8, 8, 8] if drop_last else [8, 8, 8, 6])
        assert len(epoch) == len(loader)
        seen = [node for batch in epoch for node in batch]
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(nids.tolist())
        assert drop_last or sorted(seen) == nids.tolist()
    assert (epochs[0] != epochs[1]) == shuffle


def loaders(kind: str, **how: Any) -> DataLoader:
    """A loader of each kind, on a graph of one type or several."""
    if kind == "nodes":
        return NodeDataLoader(random_graph(), torch.arange(60), SAMPLER, batch_size=16, shuffle=True, seed=4, **how)
    if kind == "typed nodes":
        indices = {"person": torch.arange(30), "thing": np.arange(12)}
        return NodeDataLoader(typed_graph(), indices, SAMPLER, batch_size=16, shuffle=True, seed=4, **how)
    if kind == "edges":
        return EdgeDataLoader(
            random_graph(), torch.arange(500), SAMPLER, batch_size=100, shuffle=True, seed=4, exclude="self",
            negative_sampler=negative_sampler.Uniform(2), **how,
        )  # fmt: skip
    sampler = as_edge_prediction_sampler(SAMPLER, negative_sampler=negative_sampler.GlobalUniform(3))
    return DataLoader(typed_graph(), {"likes": range(200), KNOWS: range(90)}, sampler, batch_size=90, seed=4, **how)


@pytest.mark.parametrize("kind", ["nodes", "typed nodes", "edges", "typed edges"])
def test_batches_do_not_depend_on_who_makes_them(kind: str) -> None:
    alone = loaders(kind, num_workers=0)
    want = [[told(batch) for batch in alone] for _ in range(2)]
    shared = loaders(kind, num_workers=2)
    assert [[told(batch) for batch in shared] for _ in range(2)] == want
    assert want[0] != want[1]
    resumed = loaders(kind, num_workers=1)
    resumed.set_epoch(1, batch=2)
    assert [told(batch) for batch in resumed] == want[1][2:]


def test_edges_are_brought_into_order_once_for_all_workers() -> None:
    loader = loaders("typed nodes", num_workers=2)
    for _ in loader:
        pass
    assert isinstance(loader.graph, Graph)
    assert {LIKES, OWNS, KNOWS} <= loader.graph._in.keys()


def test_a_loader_left_early_leaves_nothing_behind() -> None:
    for _ in loaders("nodes", num_workers=2):
        break
    batches = iter(loaders("edges", num_workers=2))
    next(batches)
    del batches


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_clear_error() -> None:
    def kill(ids: torch.Tensor) -> torch.Tensor:
        if 5 in ids:
            os.kill(os.getpid(), signal.SIGKILL)
        return ids

    loader = DistDataLoader(torch.arange(100), 2, collate_fn=kill, num_workers=2)
    with pytest.raises(WorkerError, match="a process that makes batches has died .*: is there too little memory") as error:
        list(loader)
    assert "\n" not in str(error.value)


def test_a_worker_that_is_killed_before_its_batches_are_taken_is_the_same_error() -> None:
    """What it has made lies in memory that only it can hand over."""

    def last(ids: torch.Tensor) -> torch.Tensor:
        if 0 in ids:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return ids

    before = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # other loaders may have set torch's, which would raise
    batches = iter(DistDataLoader(torch.arange(100), 2, collate_fn=last, num_workers=1))
    next(batches)
    time.sleep(1)
    signal.signal(signal.SIGCHLD, before)
    with pytest.raises(WorkerError, match="a process that makes batches has died .*: is there too little memory"):
        list(batches)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_worker_refuses_is_refused_in_the_same_line(workers: int) -> None:
    loader = NodeDataLoader(random_graph(), [3, 3], SAMPLER, batch_size=2, num_workers=workers)
    with pytest.raises(UsageError) as error:
        list(loader)
    assert str(error.value) == "node 3 stands more than once among the seeds: give each once"


@pytest.mark.parametrize("workers", [0, 1])
def test_data_comes_along_where_the_sampler_says_so(workers: int) -> None:
    g = random_graph()
    g.ndata["feat"], g.ndata["label"] = torch.arange(120).reshape(60, 2) * 0.5, torch.arange(60) % 7
    sampler = MultiLayerNeighborSampler([3, 2], prefetch_node_feats=["feat"], prefetch_labels=["label"])
    for input_nodes, seeds, blocks in NodeDataLoader(g, range(60), sampler, batch_size=25, num_workers=workers, device="cpu"):
        assert blocks[0].srcdata["feat"].tolist() == g.ndata["feat"][input_nodes].tolist()
        assert blocks[-1].dstdata["label"].tolist() == g.ndata["label"][seeds].tolist()
    lost = MultiLayerNeighborSampler([1], prefetch_labels=["nothing"])
    with pytest.raises(UsageError, match="no node data 'nothing'"):
        list(NodeDataLoader(g, [1], lost))


def test_data_of_the_next_batch_is_sent_for_before_this_one_is_used() -> None:
    told_of: list[str] = []

    class Far:
        """A column that lies elsewhere."""

        def prefetch(self, ids: torch.Tensor) -> Any:
            told_of.append(f"sent for {ids.tolist()}")
            return lambda: torch.zeros(len(ids))

    g = random_graph()
    g.nodes["_N"].data._columns["far"] = Far()  # type: ignore[assignment]
    sampler = MultiLayerFullNeighborSampler(1, prefetch_labels=["far"])
    for _, seeds, _ in NodeDataLoader(g, [50, 51, 52], sampler):
        told_of.append(f"used {seeds.tolist()}")
    assert told_of == ["sent for [50]", "sent for [51]", "used [50]", "sent for [52]", "used [51]", "used [52]"]


def test_pairs_are_the_edges_and_share_their_nodes() -> None:
    g = random_graph()
    loader = EdgeDataLoader(g, range(500), SAMPLER, batch_size=64, shuffle=True, negative_sampler=negative_sampler.Uniform(3))
    seen = []
    for input_nodes, positive, negative, blocks in loader:
        ids = positive.edata[EID]
        seen += ids.tolist()
        nodes = blocks[-1].dstdata[NID]
        assert positive.ndata[NID].tolist() == negative.ndata[NID].tolist() == nodes.tolist()
        u, v = positive.edges()
        assert [nodes[u].tolist(), nodes[v].tolist()] == told(g.find_edges(ids))
        assert negative.num_edges() == 3 * len(ids)
        assert nodes[negative.edges()[0]].tolist() == nodes[u].repeat_interleave(3).tolist()
        assert input_nodes.tolist() == blocks[0].srcdata[NID].tolist()
    assert sorted(seen) == list(range(500))


@pytest.mark.parametrize("exclude", [None, "self", "reverse_id", "reverse_types"])
def test_excluded_edges_carry_no_messages(exclude: str | None) -> None:
    g = typed_graph()
    full = MultiLayerFullNeighborSampler(2)
    reverse = {LIKES: np.arange(200)[::-1].copy()}
    how: dict[str, Any] = {"reverse_eids": reverse} if exclude == "reverse_id" else {}
    if exclude == "reverse_types":
        how = {"reverse_etypes": {LIKES: OWNS}}
    chosen = np.arange(0, 30)
    left_out = {None: {}, "self": {LIKES: chosen}, "reverse_id": {LIKES: [*chosen, *(199 - chosen)]}}
    want = left_out.get(exclude, {LIKES: chosen, OWNS: chosen})
    ((_, _, blocks),) = EdgeDataLoader(g, {LIKES: chosen}, full, batch_size=100, exclude=exclude, **how)
    whole = full.sample(g, {ntype: blocks[-1].dstnodes[ntype].data[NID] for ntype in g.ntypes}, draw=Draw(0))[2][-1]
    for etype in g.canonical_etypes:
        gone = set(np.asarray(want.get(etype, []), int).tolist())
        assert all(gone.isdisjoint(block.edges[etype].data[EID].tolist()) for block in blocks)
        assert set(blocks[-1].edges[etype].data[EID].tolist()) == set(whole.edges[etype].data[EID].tolist()) - gone


def test_global_negatives_are_no_edges() -> None:
    g = random_graph()
    sources, destinations = negative_sampler.GlobalUniform(4)(g, torch.arange(500))
    pairs = list(zip(sources.tolist(), destinations.tolist(), strict=True))
    there = set(zip(*(each.tolist() for each in g.edges_of()), strict=True))
    assert 1000 < len(pairs) == len(set(pairs)) <= 2000
    assert not there & set(pairs)
    assert all(u != v for u, v in pairs)
    torch.manual_seed(3)
    assert len(negative_sampler.GlobalUniform(4, exclude_self_loops=False, replace=True)(g, torch.arange(500))[0]) > len(pairs)


def test_a_function_may_draw_the_negatives() -> None:
    def constant(g: Graph, eids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.full_like(eids, 58), torch.full_like(eids, 59)

    loader = EdgeDataLoader(random_graph(), range(10), SAMPLER, batch_size=10, negative_sampler=constant)
    ((_, _, negative, _),) = loader
    assert negative.ndata[NID][torch.stack(negative.edges())].tolist() == [[58] * 10, [59] * 10]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_of_anything(workers: int) -> None:
    names = [f"name {each}" for each in range(7)]
    assert list(DistDataLoader(names, 3, num_workers=workers)) == [names[:3], names[3:6], names[6:]]
    ids = torch.arange(10) * 10
    made = DistDataLoader(ids, 4, collate_fn=lambda rows: (rows, rows.sum()), drop_last=True, queue_size=1, num_workers=workers)
    assert told(list(made)) == [[[0, 10, 20, 30], 60], [[40, 50, 60, 70], 220]]
    shuffled = [told(list(DistDataLoader(ids, 4, shuffle=True, seed=2, num_workers=each))) for each in (0, 2)]
    assert shuffled[0] == shuffled[1]
    assert sorted(sum(shuffled[0], start=[])) == ids.tolist()  # noqa: RUF017


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda g: NodeDataLoader(g, [1], SAMPLER, batch_size=0), "batch_size: must be an integer >= 1, not 0"),
        (lambda g: NodeDataLoader(g, [1], SAMPLER, num_workers=-1), "num_workers: must be an integer >= 0, not -1"),
        (lambda g: NodeDataLoader(g, [1], SAMPLER, batch_size="4"), "batch_size: must be an integer >= 1, not '4'"),
        (lambda g: NodeDataLoader(g, [1], SAMPLER, seed=1.5), "seed: must be an integer, not 1.5"),
        (lambda g: NodeDataLoader(g, [1, -1], SAMPLER), "there is no node -1: they are numbered 0 to 59"),
        (lambda g: NodeDataLoader(g, np.array([2**64 - 1], np.uint64), SAMPLER), "indices: 18446744073709551615 is too large"),
        (lambda g: NodeDataLoader(g, torch.ones(60, dtype=torch.bool), SAMPLER), r"of a mask, give torch.nonzero"),
        (lambda g: NodeDataLoader(None, [1], SAMPLER), "a graph is needed, not a NoneType: make one by kgdist.graph"),
        (lambda g: NodeDataLoader(g, [1], [2, 3]), r"a sampler is needed, not \[2, 3\]: make one"),
        (lambda g: NodeDataLoader(g, [1], 5), "a sampler is needed, not 5"),
        (lambda g: NodeDataLoader(g, [1], MultiLayerNeighborSampler), "a sampler is needed, not <class"),
        (lambda g: EdgeDataLoader(g, [1], [2]), r"a sampler is needed, not \[2\]"),
        (lambda g: MultiLayerNeighborSampler(5), r"fanouts=5: give a list, one number for each layer: \[5\]"),
        (lambda g: MultiLayerNeighborSampler("25,10"), "fanouts='25,10': give a list"),
        (lambda g: MultiLayerNeighborSampler([2], prefetch_labels={"a": ["x"]}), "prefetch_labels=.*: give a list of names"),
        (lambda g: DistDataLoader(None, 1), "a NoneType is asked for by no number"),
        (lambda g: DistDataLoader({"a": 1}, 1), "a dict is asked for by no number"),
        (lambda g: DistDataLoader([1], 1, collate_fn=5), "collate_fn=5: give a function"),
        (lambda g: DistDataLoader([1], 1, queue_size=0), "queue_size: must be an integer >= 1, not 0"),
        (lambda g: NodeDataLoader(g, [0.5], SAMPLER), "indices are whole numbers"),
        (lambda g: NodeDataLoader(g, {"dog": [1]}, SAMPLER), "there is no node type 'dog'"),
        (lambda g: EdgeDataLoader(g, {"dog": [1]}, SAMPLER), "there is no edge type 'dog'"),
        (lambda g: EdgeDataLoader(g, [1], SAMPLER, exclude="all"), "exclude='all'"),
        (lambda g: EdgeDataLoader(g, [1], SAMPLER, exclude="reverse_id"), "goes with reverse_eids"),
        (lambda g: EdgeDataLoader(g, [1], SAMPLER, reverse_etypes={}), "goes with reverse_etypes"),
        (lambda g: negative_sampler.Uniform(0), "k: must be an integer >= 1, not 0"),
        (lambda g: EdgeDataLoader(g, [500], SAMPLER), "there is no edge 500: they are numbered 0 to 499"),
        (
            lambda g: list(EdgeDataLoader(g, [9], SAMPLER, exclude="reverse_id", reverse_eids=[1])),
            "there is no reverse of edge 9",
        ),
    ],
)
def test_what_no_loader_is_made_of_is_refused(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(random_graph())


def test_one_name_is_a_name_and_no_letters() -> None:
    assert MultiLayerNeighborSampler([2], prefetch_node_feats="feat").prefetch_node_feats == ("feat",)


def test_integers_of_numpy_are_integers() -> None:
    g = random_graph()
    ours, theirs = (
        NodeDataLoader(g, range(60), SAMPLER, batch_size=kind(7), seed=kind(3), num_workers=kind(0), shuffle=True)
        for kind in (int, np.int64)
    )
    assert [told(batch[1]) for batch in ours] == [told(batch[1]) for batch in theirs]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.bool, torch.int8, torch.float64])
def test_rows_keep_their_dtype(dtype: torch.dtype) -> None:
    rows = torch.arange(12).reshape(6, 2).to(dtype)
    batches = list(DistDataLoader(rows, 4))
    assert all(batch.dtype == dtype for batch in batches) and torch.equal(torch.cat(batches), rows)


@pytest.mark.parametrize(("own", "drop_last", "sizes"), [(4, False, [4, 1]), (5, False, [4, 1]), (4, True, [4]), (3, False, [3])])
def test_trainers_go_over_equally_many_batches_of_a_split(own: int, drop_last: bool, sizes: list[int]) -> None:
    """Those that share gradients wait for one another: one that has a node less has one of its nodes again."""
    ids = torch.arange(own)
    ids.split_sizes = SplitSizes(4, 5) if own > 3 else SplitSizes(3, 4)  # type: ignore[attr-defined]
    for shuffle in (False, True):
        given = list(DistDataLoader(ids, 4, shuffle=shuffle, drop_last=drop_last, seed=1))
        assert [len(batch) for batch in given] == sizes
        assert set(torch.cat(given).tolist()) == set(range(own)) or drop_last


def test_shares_of_several_types_make_equally_many_batches() -> None:
    """Three trainers with (11, 4), (10, 4) and (10, 3) nodes of two types, batches of 7."""
    batches = set()
    for own in ((11, 4), (10, 4), (10, 3)):
        shares = {}
        for kind, count, (least, most) in zip("ab", own, ((10, 11), (3, 4)), strict=True):
            shares[kind] = torch.arange(count)
            shares[kind].split_sizes = SplitSizes(least, most)  # type: ignore[attr-defined]
        g = heterograph({("a", "to", "b"): (torch.arange(4), torch.arange(4))}, {"a": 11, "b": 4})
        loader = NodeDataLoader(g, shares, MultiLayerNeighborSampler([2]), batch_size=7, seed=1)
        assert len(list(loader)) == len(loader)
        batches.add(len(loader))
    assert batches == {3}


def test_one_node_of_a_type_is_given_as_a_number() -> None:
    g = heterograph({("a", "to", "b"): (torch.arange(4), torch.arange(4))}, {"a": 11, "b": 4})
    ((_, seeds, _),) = NodeDataLoader(g, {"a": 5, "b": [0, 3]}, MultiLayerNeighborSampler([2]), batch_size=7)
    assert {kind: ids.tolist() for kind, ids in seeds.items()} == {"a": [5], "b": [0, 3]}


def test_a_trainer_without_a_share_is_refused() -> None:
    nothing = torch.arange(0)
    nothing.split_sizes = SplitSizes(0, 1)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="nothing to go over, and another one has 1: take fewer trainers"):
        DistDataLoader(nothing, 4)
