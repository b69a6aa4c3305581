"""A graph in memory: what it is made of comes back, its parts are parts, and what is not there is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given

import kgdist
from kgdist.base.errors import UsageError
from kgdist.graphs.in_memory import Graph, graph, heterograph
from kgdist.graphs.structure import EID, NID, Draw, Question, compressed
from tests.graphs.worlds import KNOWS, LIKES, NEVER, graphs, random_graph, typed_graph

ETYPE = ("_N", "_E", "_N")


@given(graphs())
def test_in_edges_and_out_edges_are_the_edges(g: Graph) -> None:
    sources, destinations = g.edges_of()
    for out, here, there in ((False, destinations, sources), (True, sources, destinations)):
        answer = g.neighbours([Question(ETYPE, np.arange(g.num_nodes()), -1, out=out)], Draw(0))[0]
        order = np.argsort(here, kind="stable")
        assert answer.edges.tolist() == order.tolist()
        assert answer.ends.tolist() == there[order].tolist()
        assert answer.counts.tolist() == np.bincount(here, minlength=g.num_nodes()).tolist()
    assert g.in_degrees().tolist() == np.bincount(destinations, minlength=g.num_nodes()).tolist()
    assert g.out_degrees().tolist() == np.bincount(sources, minlength=g.num_nodes()).tolist()


@given(graphs())
def test_edges_sorted_by_destination_need_no_ids(g: Graph) -> None:
    sources, destinations = g.edges_of()
    order = np.argsort(destinations, kind="stable")
    edges = compressed(sources[order], destinations[order], g.num_nodes(), g.num_nodes())
    assert edges.ids is None
    found = edges.find_edges(np.arange(len(order)))
    assert [each.tolist() for each in found] == [sources[order].tolist(), destinations[order].tolist()]


@given(graphs())
def test_edges_are_listed_in_every_form_and_order(g: Graph) -> None:
    sources, destinations = (each.tolist() for each in g.edges_of())
    by_id = list(zip(sources, destinations, range(g.num_edges()), strict=True))
    for order, expected in (("eid", by_id), ("srcdst", sorted(by_id)), (None, by_id)):
        u, v, ids = g.edges(form="all", order=order)
        assert list(zip(u.tolist(), v.tolist(), ids.tolist(), strict=True)) == expected
        assert [each.tolist() for each in g.edges("uv", order, etype="_E")] == [u.tolist(), v.tolist()]
        assert g.edges("eid", order).tolist() == ids.tolist() and ids.dtype == torch.int64


def test_edges_are_listed_by_type() -> None:
    g = typed_graph()
    for etype in g.canonical_etypes:
        for found in (g.edges(etype), g.edges(etype[1]), g.edges(etype=etype), g.edges("uv", etype=etype[1])):
            assert [each.tolist() for each in found] == [each.tolist() for each in g.edges_of(etype)]
        assert g.edges("eid", etype=etype).tolist() == list(range(g.num_edges(etype)))
    assert g.nodes(ntype="thing").tolist() == list(range(12))
    for wrong, message in (
        (lambda: g.edges("all"), "of which edge type"),
        (lambda: g.edges("ids", etype=LIKES), "one of uv, eid, all"),
        (lambda: g.edges("uv", "dst", LIKES), "sorted by eid or srcdst"),
        (lambda: g.edges("hates"), "no edge type 'hates'"),
    ):
        with pytest.raises(UsageError, match=message):
            wrong()


def test_the_graph_of_one_edge_type_shares_its_data() -> None:
    g = typed_graph()
    for name, etype in (("likes", LIKES), (KNOWS, KNOWS)):
        part = g[name]
        assert part.canonical_etypes == [etype] and part.ntypes == list(dict.fromkeys(etype[::2]))
        assert all(part.num_nodes(ntype) == g.num_nodes(ntype) for ntype in part.ntypes)
        assert [each.tolist() for each in part.edges()] == [each.tolist() for each in g.edges(etype)]
        assert part.in_degrees().tolist() == g.in_degrees(etype=etype).tolist()
        part.nodes["person"].data[etype[1]] = torch.ones(30)
        part.edata["w"] = torch.arange(part.num_edges())
        assert g.nodes["person"].data[etype[1]] is part.nodes["person"].data[etype[1]]
        assert g.edges[etype].data["w"] is part.edata["w"]
    with pytest.raises(UsageError, match="no edge type 'hates'"):
        g["hates"]


@given(graphs())
def test_an_edge_subgraph_has_these_edges_and_their_ends(g: Graph) -> None:
    g.ndata["x"], g.edata["w"] = torch.arange(g.num_nodes()) * 10, torch.arange(g.num_edges()) * 100
    chosen = list(range(0, g.num_edges(), 2))
    sources, destinations = g.find_edges(chosen)
    part = g.edge_subgraph(chosen)
    u, v = part.edges()
    assert part.ndata[NID][u].tolist() == sources.tolist()
    assert part.ndata[NID][v].tolist() == destinations.tolist()
    assert part.ndata[NID].tolist() == sorted({*sources.tolist(), *destinations.tolist()})
    assert part.edata[EID].tolist() == chosen
    assert part.ndata["x"].tolist() == (part.ndata[NID] * 10).tolist()
    assert part.edata["w"].tolist() == [each * 100 for each in chosen]
    whole = g.edge_subgraph(chosen, relabel_nodes=False)
    assert [each.tolist() for each in whole.edges()] == [sources.tolist(), destinations.tolist()]
    assert whole.ndata["x"] is g.ndata["x"]
    assert NID not in whole.ndata


def test_types_are_found_by_three_names_or_by_one() -> None:
    g = typed_graph()
    assert g.ntypes == ["a", "c", "person", "thing"]
    assert g.canonical_etypes == sorted(g.canonical_etypes)
    assert g.to_canonical_etype("likes") == g.to_canonical_etype(LIKES) == LIKES
    assert (g.num_nodes(), g.num_nodes("thing"), g.num_edges(), g.num_edges("likes")) == (46, 12, 330, 200)
    twice = heterograph({("u", "likes", "v"): ([0], [0]), ("v", "likes", "u"): ([0], [0])})
    for call, words in (
        (lambda: g.num_edges("hates"), "there is no edge type 'hates': there are a:b:c, person:knows:person"),
        (lambda: g.num_nodes("dog"), "there is no node type 'dog': there are a, c, person, thing"),
        (lambda: g.edges_of(), "of which edge type"),
        (lambda: g.in_subgraph([1]), "of which node type"),
        (lambda: twice.num_edges("likes"), r"which edge type is 'likes'\? There are u:likes:v, v:likes:u"),
    ):
        with pytest.raises(UsageError, match=words):
            call()


def test_data_belongs_to_nodes_and_edges() -> None:
    g = random_graph()
    g.ndata["feat"] = np.ones((60, 3), np.float32)
    g.edata["w"] = list(range(500))
    assert g.ndata["feat"].dtype == torch.float32
    assert g.nodes["_N"].data["feat"] is g.ndata["feat"]
    assert g.edges["_E"].data["w"].tolist() == list(range(500))
    for frame, column, words in (
        (g.ndata, torch.ones(59), r"'bad' has the shape \(59,\): node data has a row for each of 60"),
        (g.edata, torch.ones(60), "edge data has a row for each of 500"),
        (g.ndata, torch.tensor(1.0), r"the shape \(\)"),
    ):
        with pytest.raises(UsageError, match=words):
            frame["bad"] = column
    typed = typed_graph()
    typed.ndata["x"] = {"person": torch.zeros(30), "thing": torch.ones(12)}
    assert set(typed.ndata["x"]) == {"person", "thing"}
    assert typed.nodes["thing"].data["x"].sum() == 12
    typed.edata["w"] = {"likes": torch.zeros(200)}
    assert list(typed.edata["w"]) == [LIKES]
    assert list(typed.ndata) == ["x"]
    del typed.ndata["x"]
    assert "x" not in typed.nodes["thing"].data
    with pytest.raises(UsageError, match="give a dictionary of type to data"):
        typed.ndata["x"] = torch.zeros(30)
    with pytest.raises(KeyError):
        typed.edata["nothing"]


def test_triples_become_one_type_of_edges() -> None:
    g = kgdist.Graph.from_triples([0, 2, 1], [1, 0, 1], [2, 2, 0], num_entities=5, num_relations=2)
    assert (g.num_nodes(), g.num_edges()) == (5, 3)
    assert (g.edata["etype"].dtype, g.edata["etype"].tolist()) == (torch.int32, [1, 0, 1])
    with pytest.raises(UsageError, match="there is no relation 2"):
        kgdist.Graph.from_triples([0], [2], [1], 5, 2)
    with pytest.raises(UsageError, match="three arrays"):
        kgdist.Graph.from_triples([0])


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: graph(([0, 5], [1, 1]), num_nodes=5), "there is no node 5: they are numbered 0 to 4"),
        (lambda: graph(([0, -1], [1, 1])), "there is no node -1"),
        (lambda: graph(([0, 1], [1])), "2 sources and 1 destinations"),
        (lambda: graph(([0.5], [1])), "sources are whole numbers in one row, not float64"),
        (lambda: graph(([[0]], [[1]])), r"of the shape \(1, 1\)"),
        (lambda: graph([0, 1, 2]), "given as"),
        (lambda: heterograph({("a", "b"): ([0], [0])}), "a type of edges has three names"),
        (lambda: heterograph({LIKES: ([0], [0])}, {"person": 3}), "there is no node type 'thing'"),
        (lambda: heterograph({LIKES: ([0], [9]), KNOWS: ([], [])}, {"person": 3, "thing": 3}), "no node of type thing 9"),
        (lambda: graph(([0], [1]), num_nodes="3"), "num_nodes: must be an integer >= 0, not '3'"),
        (lambda: graph(([0], [1]), num_nodes=3.0), "num_nodes: must be an integer >= 0, not 3.0"),
        (lambda: graph(([0], [1]), num_nodes={"_N": 3}), "num_nodes: must be an integer >= 0"),
        (
            lambda: heterograph({LIKES: ([0], [0])}, {"person": 3, "thing": -3}),
            "nodes of type thing: must be an integer",
        ),
        (lambda: heterograph([LIKES]), "a graph is made of dictionaries"),  # type: ignore[arg-type]
        (lambda: heterograph({("a", None, "b"): ([0], [1])}), "a type of edges has three names"),  # type: ignore[dict-item]
        (lambda: graph((torch.ones(3) > 0, [0, 1, 2])), "sources are whole .* of a mask, give torch.nonzero"),
        (lambda: random_graph().edges[np.array([1, 2])], "there is no edge type array"),
        (lambda: random_graph().ndata.update(x=["a"] * 60), "'x': a list makes no tensor of numbers"),
        (lambda: random_graph().ndata.update(x=None), "'x': a NoneType makes no tensor of numbers"),
        (lambda: random_graph().find_edges([500]), "there is no edge 500: they are numbered 0 to 499"),
        (lambda: random_graph().in_degrees([60]), "there is no node 60"),
        (lambda: random_graph().in_subgraph([60]), "there is no node 60: they are numbered 0 to 59"),
        (lambda: random_graph().edge_subgraph([-1]), "there is no edge -1"),
        (lambda: typed_graph().in_subgraph({"c": [0]}), "there is no node 0: there are none"),
    ],
)
def test_what_is_no_graph_is_refused_in_one_line(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        make()
    assert "\n" not in str(error.value)


def test_ids_come_as_anything() -> None:
    want = graph(([0, 1], [1, 2])).edges_of()
    for make in (
        torch.tensor,
        np.array,
        tuple,
        lambda ids: torch.tensor(ids, dtype=torch.int32),
        lambda ids: np.array(ids, np.uint8),
    ):
        g = graph((make([0, 1]), make([1, 2])))
        assert [each.tolist() for each in g.edges_of()] == [each.tolist() for each in want]
        assert [each.dtype for each in g.edges_of()] == [np.int64, np.int64]
    assert graph(([], []), num_nodes=3).num_nodes() == 3
    assert graph(([], [])).num_nodes() == 0
    assert repr(graph(([0], [1]))) == "Graph(2 nodes, 1 edge)"
    assert "a:b:c: 0" in repr(typed_graph())
    g = heterograph({("a", "r", "b"): ([0], [1])})
    g.nodes["a"].data["x"] = torch.zeros(1)
    assert repr(g.ndata) == "{'a': {x: (1,) torch.float32}}" and repr(g.nodes["a"]) == "data={x: (1,) torch.float32}"
    assert typed_graph().in_degrees(etype=NEVER).tolist() == []


def test_the_package_offers_the_names_that_users_know() -> None:
    import kgdist as dgl

    g = dgl.graph(([0, 1], [1, 2]))
    assert isinstance(g, dgl.Graph)
    assert dgl.NID == dgl.EID == "_ID"
    assert dgl.heterograph({("_N", "_E", "_N"): ([0], [1])}).is_homogeneous
    block = dgl.to_block(dgl.sampling.sample_neighbors(g, [2], 1), [2])
    assert block.srcdata[dgl.NID].tolist() == [2, 1]
    assert dgl.dataloading.NeighborSampler is dgl.sampling.MultiLayerNeighborSampler
    assert dgl.dataloading.negative_sampler.Uniform(1).k == 1
