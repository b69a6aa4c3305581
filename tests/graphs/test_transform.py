"""Graphs with loops, without them, with edges both ways: against lists of pairs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kgdist
from kgdist.base.errors import UnknownName, UsageError
from tests.graphs.worlds import KNOWS, LIKES, OWNS, typed_graph

PAIRS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=20)


def of(pairs: list[tuple[int, int]]) -> kgdist.Graph:
    """A graph of six nodes, whose nodes and edges carry numbers."""
    sources, destinations = zip(*pairs, strict=True) if pairs else ((), ())
    made = kgdist.graph((list(sources), list(destinations)), num_nodes=6)
    made.ndata["x"] = torch.arange(6.0)
    made.edata["w"] = torch.arange(10, 10 + len(pairs))
    return made


def pairs_of(g: kgdist.Graph) -> list[tuple[int, int]]:
    sources, destinations = g.edges_of()
    return list(zip(sources.tolist(), destinations.tolist(), strict=True))


@given(PAIRS)
def test_loops_come_after_the_edges(pairs: list[tuple[int, int]]) -> None:
    g = of(pairs)
    made = kgdist.add_self_loop(g, fill_data=3)
    assert pairs_of(made) == pairs + [(node, node) for node in range(6)]
    assert made.edata["w"].tolist() == g.edata["w"].tolist() + [3] * 6
    assert made.ndata["x"].tolist() == g.ndata["x"].tolist()


@given(PAIRS)
def test_without_loops_the_others_stay(pairs: list[tuple[int, int]]) -> None:
    made = kgdist.remove_self_loop(of(pairs))
    kept = [(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1]]
    assert pairs_of(made) == [pair for _, pair in kept]
    assert made.edata["w"].tolist() == [10 + number for number, _ in kept]


@given(PAIRS, st.booleans())
def test_reverse_edges_are_in_the_order_of_theirs(pairs: list[tuple[int, int]], exclude_self: bool) -> None:
    made = kgdist.add_reverse_edges(of(pairs), copy_edata=True, exclude_self=exclude_self)
    turned = [(number, pair) for number, pair in enumerate(pairs) if pair[0] != pair[1] or not exclude_self]
    assert pairs_of(made) == pairs + [(v, u) for _, (u, v) in turned]
    assert made.edata["w"].tolist() == [10 + number for number in [*range(len(pairs)), *(number for number, _ in turned)]]
    assert "w" not in kgdist.add_reverse_edges(of(pairs)).edata


@given(PAIRS)
def test_both_ways_is_the_set_of_both_ways(pairs: list[tuple[int, int]]) -> None:
    made = kgdist.to_bidirected(of(pairs), copy_ndata=True)
    assert pairs_of(made) == sorted({*pairs, *((v, u) for u, v in pairs)})
    assert made.ndata["x"].tolist() == list(range(6)) and not made.edata


def test_other_types_stay_as_they_are_and_edges_between_two_types_have_no_loops() -> None:
    g = kgdist.heterograph({("a", "likes", "b"): ([0, 1], [1, 0]), ("a", "knows", "a"): ([0], [1])})
    g.edges["likes"].data["w"] = torch.tensor([1.0, 2.0])
    made = kgdist.add_self_loop(g, etype="knows")
    assert made.num_edges("knows") == 3 and made.edges["likes"].data["w"].tolist() == [1.0, 2.0]
    for call in (lambda: kgdist.add_self_loop(g, etype="likes"), lambda: kgdist.add_reverse_edges(g)):
        with pytest.raises(UsageError, match="a:likes:b lead to nodes of another type"):
            call()


def test_types_become_one_and_are_kept_as_numbers() -> None:
    g = typed_graph()
    for number, ntype in enumerate(g.ntypes):
        g.nodes[ntype].data["x"] = torch.arange(2.0 * g.num_nodes(ntype)).reshape(-1, 2) + 1000 * number
    for etype in g.canonical_etypes:
        g.edges[etype].data["w"] = torch.rand(g.num_edges(etype))
    made, nodes, edges = kgdist.to_homogeneous(g, ndata=["x"], edata=["w"], return_count=True)  # type: ignore[misc]
    assert nodes == [g.num_nodes(each) for each in g.ntypes] and edges == [g.num_edges(each) for each in g.canonical_etypes]
    whole = [(number, node) for number, ntype in enumerate(g.ntypes) for node in range(g.num_nodes(ntype))]
    assert list(zip(made.ndata[kgdist.NTYPE].tolist(), made.ndata[kgdist.NID].tolist(), strict=True)) == whole
    assert made.ndata["x"].tolist() == [g.nodes[g.ntypes[number]].data["x"][node].tolist() for number, node in whole]
    place = 0
    u, v = made.edges()
    for number, etype in enumerate(g.canonical_etypes):
        for edge, ends in enumerate(zip(*(each.tolist() for each in g.edges_of(etype)), strict=True)):
            found = [whole[side[place]] for side in (u, v)]
            assert found == [(g.ntypes.index(etype[end]), node) for end, node in zip((0, 2), ends, strict=True)]
            assert (made.edata[kgdist.ETYPE][place], made.edata[kgdist.EID][place]) == (number, edge)
            assert made.edata["w"][place] == g.edges[etype].data["w"][edge]
            place += 1
    assert place == made.num_edges()
    assert {made.ndata[kgdist.NTYPE].dtype, made.edata[kgdist.ETYPE].dtype, made.edata[kgdist.EID].dtype} == {torch.int64}
    plain = kgdist.to_homogeneous(g, store_type=False)
    assert isinstance(plain, kgdist.Graph) and [*plain.ndata, *plain.edata] == [kgdist.NID, kgdist.EID]


def test_data_that_cannot_be_one_column_are_refused() -> None:
    g = typed_graph()
    g.nodes["a"].data["x"] = torch.zeros(4)
    with pytest.raises(UnknownName, match="no data 'x'"):
        kgdist.to_homogeneous(g, ndata=["x"])
    for ntype in g.ntypes[1:]:
        g.nodes[ntype].data["x"] = torch.zeros(g.num_nodes(ntype), 2)
    with pytest.raises(UsageError, match="'x' is of several dtypes or shapes"):
        kgdist.to_homogeneous(g, ndata=["x"])


@given(PAIRS, st.lists(st.integers(0, 5), unique=True), st.booleans())
def test_a_subgraph_of_nodes_has_all_edges_between_them(pairs: list[tuple[int, int]], nodes: list[int], mask: bool) -> None:
    g = of(pairs)
    if mask:
        nodes = sorted(nodes)
    part = kgdist.node_subgraph(g, torch.tensor([node in nodes for node in range(6)]) if mask else nodes)
    among = [number for number, (u, v) in enumerate(pairs) if u in nodes and v in nodes]
    assert part.num_nodes() == len(nodes) and part.ndata[kgdist.NID].tolist() == nodes
    assert part.ndata["x"].tolist() == nodes
    assert [(nodes[u], nodes[v]) for u, v in pairs_of(part)] == [pairs[number] for number in among]
    assert part.edata[kgdist.EID].tolist() == among and part.edata["w"].tolist() == [10 + number for number in among]
    whole = kgdist.node_subgraph(g, nodes, relabel_nodes=False)
    assert pairs_of(whole) == [pairs[number] for number in among] and [*whole.ndata] == ["x"]
    assert whole.ndata["x"] is g.ndata["x"] and whole.edata[kgdist.EID].tolist() == among
    assert [*kgdist.node_subgraph(g, nodes, store_ids=False).ndata] == ["x"]


def test_a_subgraph_of_typed_nodes_has_none_of_other_types() -> None:
    g = typed_graph()
    part = kgdist.node_subgraph(g, {"person": [7, 2, 9, 1], "thing": np.arange(5)})
    assert {ntype: part.num_nodes(ntype) for ntype in part.ntypes} == {"a": 0, "c": 0, "person": 4, "thing": 5}
    for etype, sources, destinations in (
        (LIKES, [7, 2, 9, 1], range(5)),
        (OWNS, [7, 2, 9, 1], range(5)),
        (KNOWS, *[[7, 2, 9, 1]] * 2),
    ):
        ends = list(zip(*(each.tolist() for each in g.edges_of(etype)), strict=True))
        expected = [number for number, (u, v) in enumerate(ends) if u in sources and v in destinations]
        assert part.edges[etype].data[kgdist.EID].tolist() == expected
        found = zip(*(each.tolist() for each in part.edges_of(etype)), strict=True)
        assert [(sources[u], destinations[v]) for u, v in found] == [ends[number] for number in expected]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([1, 1], "stands more than once"),
        ([6], "there is no node 6 of type _N: they are numbered 0 to 5"),
        ([-1], "there is no node -1"),
        ([True, False], r"a mask of the shape \(2,\), but there are 6 nodes"),
        ({"a": [0]}, "there is no node type 'a'"),
    ],
)
def test_nodes_that_make_no_subgraph_are_refused(nodes: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kgdist.node_subgraph(of([(0, 1)]), nodes)
