"""A DistGraph says of its structure and features what the whole graph says, on any number of partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.base.errors import UsageError
from kgdist.distributed.current import storage, use
from kgdist.distributed.dist_graph import DistGraph
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.tensor import DistTensor
from kgdist.graphs.in_memory import Graph
from kgdist.graphs.structure import EID, NID, Draw, Question
from kgdist.sampling.loaders import NodeDataLoader
from kgdist.sampling.samplers import MultiLayerNeighborSampler
from tests.distributed.worlds import Etype, World, world

ONE: Etype = ("_N", "_E", "_N")
NODES = {"a": 30, "b": 7, "empty": 0}
EDGES: dict[Etype, int] = {
    ("a", "r", "b"): 40,
    ("b", "s", "a"): 60,
    ("a", "t", "a"): 90,
    ("a", "s", "b"): 3,
    ("a", "none", "empty"): 0,
}


@pytest.fixture(params=[1, 2, 5])
def typed(request: pytest.FixtureRequest) -> Iterator[tuple[DistGraph, World]]:
    use(here := Standalone())
    made = world(request.param, NODES, EDGES)
    made.hold("g", here)
    here.open_graph = lambda name, part_config: here.graphs[name]  # type: ignore[method-assign]
    yield DistGraph("g"), made
    use(Standalone())


@pytest.fixture(params=[1, 2, 5])
def plain(request: pytest.FixtureRequest) -> Iterator[tuple[DistGraph, World]]:
    use(here := Standalone())
    made = world(request.param, {"_N": 40}, {ONE: 150})
    made.hold("g", here)
    here.open_graph = lambda name, part_config: here.graphs[name]  # type: ignore[method-assign]
    yield DistGraph("g"), made
    use(Standalone())


def test_types_and_counts(typed: tuple[DistGraph, World]) -> None:
    graph, _ = typed
    assert graph.ntypes == list(NODES) and graph.canonical_etypes == list(EDGES) and graph.etypes == ["r", "s", "t", "s", "none"]
    assert {each: graph.num_nodes(each) for each in NODES} == NODES and graph.number_of_nodes() == sum(NODES.values())
    assert {each: graph.num_edges(each) for each in EDGES} == EDGES and graph.number_of_edges() == sum(EDGES.values())
    assert graph.num_edges("t") == 90 == graph.num_edges(("a", "t", "a"))
    assert [graph.get_ntype_id(each) for each in NODES] == [0, 1, 2] and graph.get_etype_id("t") == 2
    assert (graph.device, graph.idtype, graph.rank()) == (torch.device("cpu"), torch.int64, 0)
    assert graph.get_node_partition_policy("b").get_size() == 7
    assert graph.get_edge_partition_policy("t").policy_str == "edge~a:t:a"


def test_edges_are_found_by_id(typed: tuple[DistGraph, World]) -> None:
    graph, made = typed
    for etype, count in EDGES.items():
        ids = np.random.default_rng(1).permutation(np.arange(count).repeat(2))
        for given in (ids, ids.tolist(), torch.from_numpy(ids)):
            sources, destinations = graph.find_edges(given, etype)
            assert torch.equal(sources, torch.from_numpy(made.ends[etype][0][ids])) and sources.dtype == torch.int64
            assert torch.equal(destinations, torch.from_numpy(made.ends[etype][1][ids]))


def test_degrees_are_counted(typed: tuple[DistGraph, World]) -> None:
    graph, made = typed
    for etype in EDGES:
        sources, destinations = made.ends[etype]
        expected = np.bincount(destinations, minlength=NODES[etype[2]])
        assert graph.in_degrees(etype=etype).tolist() == expected.tolist()  # type: ignore[union-attr]
        out = np.bincount(sources, minlength=NODES[etype[0]])
        assert graph.out_degrees(etype=etype).tolist() == out.tolist()  # type: ignore[union-attr]
    assert graph.in_degrees([5, 2, 5], "r").tolist() == np.bincount(made.ends["a", "r", "b"][1], minlength=7)[[5, 2, 5]].tolist()  # type: ignore[union-attr]
    assert graph.in_degrees(3, "r") == graph.in_degrees([3], "r")[0] and isinstance(graph.in_degrees(3, "r"), int)  # type: ignore[index]
    assert graph.out_degrees(3, "r") == graph.out_degrees([3], "r")[0]  # type: ignore[index]


def test_degrees_of_slices_and_masks_are_theirs(plain: tuple[DistGraph, World]) -> None:
    graph, _ = plain
    chosen = torch.arange(40) < 3
    for degrees in (graph.in_degrees, graph.out_degrees):
        assert degrees(slice(3)).tolist() == degrees([0, 1, 2]).tolist() == degrees(chosen).tolist()  # type: ignore[union-attr]


def test_a_seed_is_not_counted_from_the_end(plain: tuple[DistGraph, World]) -> None:
    graph, _ = plain
    for ask in (
        lambda: NodeDataLoader(graph, [3, -1], MultiLayerNeighborSampler([2])),
        lambda: MultiLayerNeighborSampler([2]).sample(graph, [-1]),
        lambda: graph.sample_neighbors([-1], 2, edge_dir="out"),
    ):
        with pytest.raises(UsageError, match="there is no node -1"):
            ask()


def test_features_by_new_id_are_those_by_original_id(typed: tuple[DistGraph, World]) -> None:
    graph, made = typed
    for each, count in NODES.items():
        originals = torch.from_numpy(made.originals[each])
        expected = torch.stack([originals, originals**2], 1).float()
        assert torch.equal(graph.nodes[each].data["x"][:], expected)
        assert torch.equal(graph.ndata["x"][each][list(range(count))[::-1]], expected.flip(0))
    for etype in EDGES:
        assert torch.equal(graph.edges[etype].data["w"][:], torch.from_numpy(made.edge_features[etype]["w"]))
        assert torch.equal(graph.edata["w"][etype][:], graph.edges[etype].data["w"][:])
    assert graph.node_attr_schemes("a") == {"x": ((2,), torch.float32)} and graph.edge_attr_schemes("r") == {
        "w": ((), torch.float32)
    }


def test_features_are_written_across_partitions(plain: tuple[DistGraph, World]) -> None:
    graph, _ = plain
    expected = graph.ndata["x"][:]
    expected[[3, 39, 3]] = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    graph.ndata["x"][[3, 39, 3]] = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    graph.edata["w"][:] = 2
    expected[3] = torch.tensor([5.0, 6])
    assert torch.equal(graph.ndata["x"][:], expected) and graph.edata["w"][:].tolist() == [2] * 150
    assert torch.equal(graph.ndata["x"].local_partition, expected)


def test_tensors_are_assigned(plain: tuple[DistGraph, World]) -> None:
    graph, _ = plain
    tensor = DistTensor((graph.number_of_nodes(), 10), torch.float32, name="test")
    graph.ndata["feat"] = tensor
    assert (
        graph.ndata["feat"] is tensor and tensor.name == "test" and sorted(graph.ndata) == ["feat", "x"] and len(graph.ndata) == 2
    )
    assert graph.node_attr_schemes()["feat"] == ((10,), torch.float32)
    del graph.ndata["feat"]
    with pytest.raises(KeyError, match="feat"):
        graph.ndata["feat"]
    with pytest.raises(UsageError, match="'feat' of the nodes .*: put a DistTensor there, and write the rows of a Tensor"):
        graph.ndata["feat"] = torch.zeros(40, 2)
    with pytest.raises(UsageError, match="has other rows"):
        graph.edata["feat"] = tensor


def test_tensors_of_several_types_are_assigned(typed: tuple[DistGraph, World]) -> None:
    graph, _ = typed
    tensors = {
        each: DistTensor((graph.num_nodes(each),), torch.int8, part_policy=graph.get_node_partition_policy(each)) for each in "ab"
    }
    graph.ndata["mark"] = tensors
    assert (
        graph.ndata["mark"] == tensors
        and graph.nodes["b"].data["mark"] is tensors["b"]
        and "mark" not in graph.nodes["empty"].data
    )
    assert sorted(graph.ndata) == ["mark", "x"] and len(graph.ndata) == 2
    del graph.ndata["mark"]
    assert "mark" not in graph.nodes["a"].data
    with pytest.raises(KeyError, match="mark"):
        graph.ndata["mark"]
    with pytest.raises(UsageError, match="give a dictionary of type to data"):
        graph.ndata["mark"] = tensors["a"]
    edges = DistTensor((90,), torch.int8)
    graph.edata["mark"] = {"t": edges}
    assert graph.edges["t"].data["mark"] is edges


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda g: g.num_nodes("c"), "there is no node type 'c': there are a, b, empty"),
        (lambda g: g.nodes["c"], "there is no node type 'c'"),
        (lambda g: g.get_ntype_id(None), "of which node type\\? There are a, b, empty"),
        (lambda g: g.to_canonical_etype("x"), "there is no edge type 'x'"),
        (lambda g: g.to_canonical_etype("s"), "which edge type is 's'\\? There are b:s:a, a:s:b"),
        (lambda g: g.to_canonical_etype(("a", "r", "a")), "there is no edge type"),
        (lambda g: g.in_degrees([1]), "of which edge type\\? There are"),
        (lambda g: g.find_edges([40], "r"), "row 40 is not there, there are 40 rows"),
        (lambda g: g.in_degrees([7], "r"), "nodes of type b .* row 7 is not there"),
        (lambda g: g.out_degrees(30, "r"), "nodes of type a .* row 30 is not there"),
    ],
)
def test_what_is_not_there_is_refused(typed: tuple[DistGraph, World], ask: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(typed[0])


def test_several_graphs_are_open_at_once(plain: tuple[DistGraph, World]) -> None:
    graph, _ = plain
    here = storage()
    assert isinstance(here, Standalone)
    world(3, {"_N": 11}, {ONE: 20}, seed=5).hold("other", here)
    other = DistGraph("other")
    assert (graph.num_nodes(), other.num_nodes()) == (40, 11)
    assert DistTensor((11,), torch.int8).part_policy.graph == "other" and DistTensor((40,), torch.int8).part_policy.graph == "g"


def in_memory(made: World) -> Graph:
    """The same graph, with the same ids."""
    whole = Graph(made.ends, {each: int(bounds[-1]) for each, bounds in made.nodes.items()})
    for etype in made.edges:
        whole.edges[etype].data["w"] = made.edge_features[etype]["w"]
        whole.edges[etype].data["mask"] = made.edge_features[etype]["w"] > 0.5
    return whole


def masked(graph: DistGraph) -> None:
    """Give the edges a mask that bears another name than its tensor."""
    for etype in graph.canonical_etypes:
        mask = DistTensor((graph.num_edges(etype),), torch.bool, part_policy=graph.get_edge_partition_policy(etype))
        mask[:] = graph.edges[etype].data["w"][:] > 0.5
        graph.edges[etype].data["mask"] = mask


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("prob", [None, "w", "mask"])
@pytest.mark.parametrize("replace", [False, True])
def test_neighbours_are_those_of_the_whole_graph(
    typed: tuple[DistGraph, World], replace: bool, prob: str | None, out: bool
) -> None:
    graph, made = typed
    whole, rng = in_memory(made), np.random.default_rng(3)
    masked(graph)
    for fanout in (1, 3, -1):
        questions = []
        for etype in EDGES:
            nodes = rng.integers(0, max(1, NODES[etype[0 if out else 2]]), 12 * bool(NODES[etype[0 if out else 2]]))
            gone = rng.permutation(EDGES[etype])[:9] if fanout == 3 else None
            questions.append(Question(etype, nodes, fanout, replace, prob, out, gone))
        draw = Draw(7, fanout + 1, 1)
        for ours, theirs in zip(graph.neighbours(questions, draw), whole.neighbours(questions, draw), strict=True):
            for mine, other in zip(ours, theirs, strict=True):
                assert mine.tolist() == other.tolist()


def test_questions_of_both_directions_and_several_types_are_answered_in_order(typed: tuple[DistGraph, World]) -> None:
    graph, made = typed
    questions = [Question(("a", "t", "a"), np.arange(30)[::-1], 2, out=bool(number % 2)) for number in range(3)]
    questions += [Question(("b", "s", "a"), np.array([4, 4, 9]), -1), Question(("a", "r", "b"), np.empty(0, np.int64), 5)]
    answers = graph.neighbours(questions, Draw(1, 2, 3))
    for ours, theirs in zip(answers, in_memory(made).neighbours(questions, Draw(1, 2, 3)), strict=True):
        assert all(np.array_equal(mine, other) for mine, other in zip(ours, theirs, strict=True))
    with pytest.raises(UsageError, match="edges of type a:t:a have no data 'x': they have w"):
        graph.neighbours([questions[0]._replace(prob="x")], Draw(0, 0, 0))


def test_subgraphs_have_the_edges_of_the_whole(plain: tuple[DistGraph, World]) -> None:
    graph, made = plain
    sources, destinations = made.ends[ONE]
    for found, wanted in (
        (graph.in_subgraph([3, 39, 7]), np.flatnonzero(np.isin(destinations, [3, 39, 7]))),
        (graph.edge_subgraph([5, 140, 9], relabel_nodes=False), np.array([5, 140, 9])),
    ):
        ids = found.edata[EID].numpy()
        assert sorted(ids) == sorted(wanted)
        u, v = (torch.as_tensor(end) for end in found.edges_of())
        assert u.tolist() == sources[ids].tolist() and v.tolist() == destinations[ids].tolist()
    small = graph.edge_subgraph([5, 140, 9])
    u, v = (torch.as_tensor(end).long() for end in small.edges_of())
    assert small.ndata[NID][u].tolist() == sources[[5, 140, 9]].tolist() and small.edata[EID].tolist() == [5, 140, 9]
    assert small.ndata[NID][v].tolist() == destinations[[5, 140, 9]].tolist()


def test_blocks_are_those_of_the_whole_graph(plain: tuple[DistGraph, World]) -> None:
    graph, made = plain
    sampler = MultiLayerNeighborSampler([4, 2])
    batches = [list(NodeDataLoader(g, torch.arange(40), sampler, batch_size=16, seed=5)) for g in (graph, in_memory(made))]
    assert len(batches[0]) == len(batches[1]) == 3
    for (inputs, seeds, blocks), (others, theirs, whole) in zip(*batches, strict=True):
        assert torch.equal(inputs, others) and torch.equal(seeds, theirs)
        for block, other in zip(blocks, whole, strict=True):
            assert torch.equal(block.edata[EID], other.edata[EID]) and torch.equal(block.edge_index, other.edge_index)
