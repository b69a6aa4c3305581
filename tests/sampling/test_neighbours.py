"""Frontiers and blocks: subsets of the in-edges of the right sizes, the same whatever else is asked, typed as untyped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kgdist
from kgdist.base.errors import UsageError
from kgdist.graphs.in_memory import Graph, graph, heterograph
from kgdist.graphs.structure import EID, NID, Draw
from kgdist.sampling import (
    Block,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    in_subgraph,
    sample_etype_neighbors,
    sample_neighbors,
    to_block,
)
from kgdist.sampling.parcels import packed, unpacked
from tests.graphs.worlds import KNOWS, LIKES, NEVER, OWNS, graphs, random_graph, typed_graph

UNSEEN = ("_N", "_E", "_N")


def edge_list(g: Graph, etype: Any = None) -> list[tuple[int, int, int]]:
    """(id, source, destination) of a frontier's edges."""
    u, v = g.edges(etype)
    return list(zip(g.edges[g.to_canonical_etype(etype)].data[EID].tolist(), u.tolist(), v.tolist(), strict=True))


def in_edges(g: Graph, nodes: Any, etype: Any = None) -> list[tuple[int, int, int]]:
    """The same of all edges that lead to some nodes, looked for one by one."""
    sources, destinations = g.edges_of(etype)
    ends = enumerate(zip(sources.tolist(), destinations.tolist(), strict=True))
    return [(edge, source, destination) for edge, (source, destination) in ends if destination in set(nodes)]


def original(block: Block, etype: Any = None) -> list[tuple[int, int, int]]:
    """(id, source, destination) of a block's edges, in the graph's ids."""
    etype = block.schema.etype(etype)
    u, v = block.edges(etype)
    sources, destinations = block.srcnodes[etype[0]].data[NID][u], block.dstnodes[etype[2]].data[NID][v]
    return list(zip(block.edges[etype].data[EID].tolist(), sources.tolist(), destinations.tolist(), strict=True))


def same(one: Block, other: Block) -> bool:
    """Whether two blocks have the same nodes and edges in the same order."""
    return one.canonical_etypes == other.canonical_etypes and all(
        original(one, etype) == original(other, etype) for etype in one.canonical_etypes
    )


@given(graphs(), st.integers(-1, 6), st.booleans(), st.booleans(), st.data())
@settings(max_examples=50)
def test_a_frontier_is_a_part_of_the_in_edges(g: Graph, fanout: int, replace: bool, out: bool, data: st.DataObject) -> None:
    nodes = data.draw(st.lists(st.integers(0, g.num_nodes() - 1), unique=True))
    left_out = data.draw(st.lists(st.integers(0, g.num_edges() - 1), max_size=5) if g.num_edges() else st.just([]))
    part = sample_neighbors(g, nodes, fanout, "out" if out else "in", exclude_edges=left_out, replace=replace, seed=1)
    sources, destinations = g.edges_of()
    here = sources if out else destinations
    open_edges = np.isin(here, nodes) & ~np.isin(np.arange(g.num_edges()), left_out)
    drawn = part.edata[EID].numpy()
    assert part.num_nodes() == g.num_nodes()
    assert open_edges[drawn].all()
    assert [each.tolist() for each in part.edges()] == [sources[drawn].tolist(), destinations[drawn].tolist()]
    degree = np.bincount(here[open_edges], minlength=g.num_nodes())
    want = np.where(degree > 0, fanout, 0) if replace and fanout >= 0 else np.minimum(degree, fanout) if fanout >= 0 else degree
    assert np.bincount(here[drawn], minlength=g.num_nodes()).tolist() == [
        int(want[node]) if node in nodes else 0 for node in range(g.num_nodes())
    ]
    if not replace:
        assert len(set(drawn.tolist())) == len(drawn)


def test_a_blocks_edges_are_listed_in_every_form_and_order() -> None:
    block = to_block(
        sample_neighbors(typed_graph(), {"thing": [3, 1, 8], "person": [4, 0]}, -1), {"thing": [3, 1, 8], "person": [4, 0]}
    )
    for etype in block.canonical_etypes:
        u, v, ids = block.edges("all", etype=etype)
        assert [u.tolist(), v.tolist()] == [each.tolist() for each in block.edges(etype)]
        assert ids.tolist() == block.edges("eid", etype=etype).tolist() == list(range(block.num_edges(etype)))
        listed = zip(*(each.tolist() for each in block.edges("all", "srcdst", etype)), strict=True)
        assert list(listed) == sorted(zip(u.tolist(), v.tolist(), ids.tolist(), strict=True))


def test_a_seed_of_the_process_says_what_is_drawn_and_leaves_that_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.sampling.neighbours._generator", [])
    g = random_graph()

    def drawn() -> list[list[int]]:
        return [sample_neighbors(g, range(60), 2).edata[EID].tolist() for _ in range(3)]

    torch.manual_seed(0)
    expected = drawn()
    torch.manual_seed(0)
    kgdist.seed(5)
    first, second = drawn(), drawn()
    assert first != expected and first != second and first[0] != first[1]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    kgdist.seed(5)
    assert [drawn(), drawn()] == [first, second]
    kgdist.seed(6)
    assert drawn() != first
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(UsageError, match="seed: must be an integer"):
        kgdist.seed(0.5)  # type: ignore[arg-type]


@given(graphs())
def test_all_neighbours_are_the_in_subgraph(g: Graph) -> None:
    nodes = list(range(0, g.num_nodes(), 2))
    want = in_edges(g, nodes)
    for part in (sample_neighbors(g, nodes, -1), in_subgraph(g, nodes), g.in_subgraph(nodes), sample_neighbors(g, nodes, 99)):
        assert sorted(edge_list(part)) == want
    _, _, (block,) = MultiLayerFullNeighborSampler(1).sample(g, nodes)
    assert sorted(original(block)) == want


@pytest.mark.parametrize("fanout, ids", [(4, [3, 7]), (-1, [7]), (2, [3])])
def test_what_a_node_draws_does_not_depend_on_its_company(fanout: int, ids: list[int]) -> None:
    g = random_graph()
    alone = [each for node in ids for each in edge_list(sample_neighbors(g, [node], fanout, seed=5))]
    together = edge_list(sample_neighbors(g, list(range(60)), fanout, seed=5))
    backwards = edge_list(sample_neighbors(g, list(range(59, -1, -1)), fanout, seed=5))
    assert [each for each in together if each[2] in ids] == alone
    assert sorted(backwards) == sorted(together)
    assert edge_list(sample_neighbors(g, [3], 3, seed=6)) != edge_list(sample_neighbors(g, [3], 3, seed=5))
    repeated = edge_list(sample_neighbors(g, [3, 3], fanout, seed=5))
    assert repeated[: len(repeated) // 2] == repeated[len(repeated) // 2 :]


def test_without_a_seed_torch_says_it() -> None:
    g = random_graph()
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(edge_list(sample_neighbors(g, [3, 7], 5)) + edge_list(sample_neighbors(g, [3, 7], 5)))
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0][: len(drawn[0]) // 2] != drawn[0][len(drawn[0]) // 2 :]


@given(graphs(), st.integers(-1, 4), st.data())
@settings(max_examples=50)
def test_a_blocks_destinations_are_its_first_sources(g: Graph, fanout: int, data: st.DataObject) -> None:
    seeds = data.draw(st.permutations(range(g.num_nodes())))[: data.draw(st.integers(0, g.num_nodes()))]
    part = sample_neighbors(g, seeds, fanout, seed=3)
    block = to_block(part, seeds)
    assert block.dstdata[NID].tolist() == seeds
    assert block.srcdata[NID][: len(seeds)].tolist() == seeds
    sources = block.srcdata[NID].tolist()
    assert len(set(sources)) == len(sources)
    assert sources == list(dict.fromkeys([*seeds, *part.edges_of()[0].tolist()]))  # others as they first occur
    assert original(block) == edge_list(part)
    assert block.edge_index.tolist() == [each.tolist() for each in block.edges()]
    assert block.in_degrees().tolist() == [len([1 for _, _, v in edge_list(part) if v == seed]) for seed in seeds]
    assert (block.num_src_nodes(), block.num_dst_nodes(), block.num_edges()) == (len(sources), len(seeds), part.num_edges())
    assert same(MultiLayerNeighborSampler([fanout]).sample(g, seeds, draw=Draw(3))[2][0], block)
    assert same(block.to("cpu"), block)
    assert same(unpacked(packed([block]))[0], block)


@given(graphs())
def test_without_seeds_a_block_leads_to_all_that_edges_lead_to(g: Graph) -> None:
    block = to_block(g)
    assert block.dstdata[NID].tolist() == list(dict.fromkeys(g.edges_of()[1].tolist()))
    assert [edge[0] for edge in original(block)] == list(range(g.num_edges()))


def test_layers_hang_together_and_the_last_fan_out_is_next_to_the_seeds() -> None:
    g = random_graph()
    input_nodes, seeds, blocks = MultiLayerNeighborSampler([7, 2]).sample(g, torch.tensor([3, 7, 55]), draw=Draw(1))
    assert seeds.tolist() == [3, 7, 55]
    assert blocks[1].in_degrees().tolist() == [2, 2, 0]
    assert int(blocks[0].in_degrees().max()) == 7
    assert blocks[0].dstdata[NID].tolist() == blocks[1].srcdata[NID].tolist()
    assert input_nodes.tolist() == blocks[0].srcdata[NID].tolist()
    hop = {seed: {edge for edge, _, v in original(blocks[0]) if v == seed} for seed in (3, 7)}
    near = {seed: {edge for edge, _, v in original(blocks[1]) if v == seed} for seed in (3, 7)}
    assert not near[3] <= hop[3] or not near[7] <= hop[7]  # each hop draws anew


def test_typed_graphs_draw_along_every_type() -> None:
    g = typed_graph()
    seeds = {"thing": [0, 5, 11], "person": [29, 1]}
    part = sample_neighbors(g, seeds, {"likes": 3, "owns": -1, "knows": 0, NEVER: 5}, seed=2)
    assert sorted(edge_list(part, "owns")) == in_edges(g, [0, 5, 11], OWNS)
    assert set(edge_list(part, "likes")) < set(in_edges(g, [0, 5, 11], LIKES))
    assert part.num_edges("knows") == part.num_edges("b") == 0
    assert {part.num_nodes(ntype): ntype for ntype in part.ntypes} == {30: "person", 12: "thing", 4: "a", 0: "c"}
    block = to_block(part, seeds)
    assert same(
        MultiLayerNeighborSampler([{"likes": 3, "owns": -1, "knows": 0, NEVER: 5}]).sample(g, seeds, draw=Draw(2))[2][0], block
    )
    for ntype in g.ntypes:
        own = seeds.get(ntype, [])
        assert block.dstnodes[ntype].data[NID].tolist() == own == block.srcnodes[ntype].data[NID][: len(own)].tolist()
    for etype in (LIKES, OWNS, KNOWS):
        assert original(block, etype) == edge_list(part, etype)
    assert set(block.srcdata[NID]) == set(g.ntypes)
    assert block.num_edges("likes") == part.num_edges("likes")
    assert block.srcnodes("person").tolist() == list(range(block.num_src_nodes("person")))
    assert same(unpacked(packed((block, {"x": 1})))[0], block)
    with pytest.raises(UsageError, match="fan-out of edges of type person:knows:person is not said"):
        sample_neighbors(g, seeds, {"likes": 3, "owns": 3, NEVER: 1})


def test_one_type_under_another_name_is_the_same() -> None:
    plain = random_graph()
    sources, destinations = plain.edges_of()
    typed = heterograph({("x", "to", "x"): (sources, destinations), ("y", "to", "y"): ([0], [0])}, {"x": 60, "y": 1})
    for replace in (False, True):
        sampler = MultiLayerNeighborSampler([4, 3], replace=replace)
        want = sampler.sample(plain, [3, 7, 9], draw=Draw(1, 2))[2]
        found = sampler.sample(typed, {"x": [3, 7, 9]}, draw=Draw(1, 2))[2]
        for one, other in zip(want, found, strict=True):
            assert original(one) == original(other, ("x", "to", "x"))
            assert other.num_edges(("y", "to", "y")) == 0


@pytest.mark.slow
def test_edges_are_drawn_by_a_feature() -> None:
    g = random_graph()
    g.edata["keep"] = torch.arange(500) % 2 == 0
    g.edata["weight"] = (torch.arange(500) % 3).to(torch.bfloat16)
    for name, allowed in (("keep", lambda edge: edge % 2 == 0), ("weight", lambda edge: edge % 3 > 0)):
        everything = edge_list(sample_neighbors(g, range(60), -1, prob=name, seed=1))
        assert sorted(edge for edge, _, _ in everything) == [edge for edge in range(500) if allowed(edge)]
        some = sample_neighbors(g, range(60), 3, prob=name, seed=1)
        assert all(allowed(edge) for edge, _, _ in edge_list(some))
        _, _, (block,) = MultiLayerNeighborSampler([3], prob=name).sample(g, range(60), draw=Draw(1))
        assert original(block) == edge_list(some)


def test_weights_whose_sum_is_no_number_draw_as_smaller_ones() -> None:
    star = graph((np.arange(600), np.full(600, 600)), num_nodes=601)
    small = 1 + torch.rand(600, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    star.edata["small"], star.edata["large"] = small, small * 2.0**1015
    assert torch.isinf(star.edata["large"].sum())
    drawn = [edge_list(sample_neighbors(star, [600], 2000, prob=name, replace=True, seed=1)) for name in ("small", "large")]
    assert drawn[0] == drawn[1] and len({edge for edge, _, _ in drawn[0]}) > 500


@pytest.mark.parametrize("out", [False, True])
def test_kinds_of_edges_have_fan_outs_of_their_own(out: bool) -> None:
    rng = np.random.default_rng(3)
    ends = random_graph().edges_of()
    g = Graph.from_triples(ends[0], rng.integers(0, 4, 500), ends[1], 60, 4)
    g.edata["keep"] = torch.arange(500) % 5 > 0
    kinds, there = g.edata["etype"].numpy(), g.edges_of()[0 if out else 1]
    fanout = {0: 2, 1: -1, 2: 0, 3: 1}
    for prob in (None, "keep"):
        part = sample_etype_neighbors(g, range(60), fanout, "out" if out else "in", prob, seed=1)
        drawn = part.edata[EID].numpy()
        assert len(set(drawn.tolist())) == len(drawn)
        open_edges = np.ones(500, bool) if prob is None else g.edata["keep"].numpy()
        assert open_edges[drawn].all()
        for node in range(60):
            for kind, most in fanout.items():
                count = int((open_edges & (there == node) & (kinds == kind)).sum())
                assert int(((there[drawn] == node) & (kinds[drawn] == kind)).sum()) == (min(count, most) if most >= 0 else count)
    direction = "out" if out else "in"
    alone = [each for node in (3, 5) for each in edge_list(sample_etype_neighbors(g, [node], [1, 1, 1, 1], direction, seed=2))]
    whole = edge_list(sample_etype_neighbors(g, [3, 5], 1, direction, seed=2))
    assert alone == whole
    with pytest.raises(UsageError, match="edges of kind 3 is not said"):
        sample_etype_neighbors(g, range(60), [1, 1, 1])
    with pytest.raises(UsageError, match="no data 'colour'"):
        sample_etype_neighbors(g, [3], 1, etype="colour")
    with pytest.raises(UsageError, match="without replacement"):
        sample_etype_neighbors(g, [3], 1, replace=True)
    gone = whole[0][0]
    assert gone not in [edge for edge, *_ in edge_list(sample_etype_neighbors(g, [3, 5], -1, direction, exclude_edges=[gone]))]


def test_of_several_edge_types_these_are_the_kinds() -> None:
    g = typed_graph()
    fanout = dict.fromkeys(g.canonical_etypes, 1) | {KNOWS: 2}
    nodes = {ntype: range(g.num_nodes(ntype)) for ntype in g.ntypes}
    for replace in (False, True):
        part = sample_etype_neighbors(g, nodes, fanout, replace=replace, seed=4)
        same = sample_neighbors(g, nodes, fanout, replace=replace, seed=4)
        for etype in g.canonical_etypes:
            assert edge_list(part, etype) == edge_list(same, etype)
            assert part.num_edges(etype) == 0 or int(part.in_degrees(etype=etype).max()) == fanout[etype]


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda g: sample_neighbors(g, [60], 3), "there is no node 60: they are numbered 0 to 59"),
        (lambda g: sample_neighbors(g, [-1], 3), "there is no node -1"),
        (lambda g: sample_neighbors(g, [1], -2), r"fanout \(-1: all\): must be an integer >= -1, not -2"),
        (lambda g: sample_neighbors(g, [1, 2], 2**62, replace=True), "a fan-out of 4611686018427387904 for 2 nodes: .* or -1"),
        (lambda g: sample_neighbors(g, [1], 2**64), "at most, or -1 for all"),
        (lambda g: sample_neighbors(g, [1], 2, edge_dir="up"), "edge_dir='up'"),
        (lambda g: sample_neighbors(g, [1], 2.5), r"fanout \(-1: all\): must be an integer >= -1, not 2.5"),
        (lambda g: sample_neighbors(g, [1], "2"), "must be an integer >= -1, not '2'"),
        (lambda g: sample_neighbors(g, [1], 2, exclude_edges=[-1]), "there is no edge -1 of type .* to leave out"),
        (lambda g: sample_neighbors(g, [1], 2, exclude_edges=[500]), "there is no edge 500 .* they are numbered 0 to 499"),
        (lambda g: sample_neighbors(g, [1], 2, exclude_edges=torch.ones(500) > 0), "edges to leave out are .* torch.nonzero"),
        (lambda g: to_block(None), "a graph is needed, not a NoneType"),
        (lambda g: MultiLayerNeighborSampler([2]).sample(None, [1]), "a graph is needed, not a NoneType"),
        (lambda g: g.ndata["feat"], "node: there is no data 'feat', there is none"),
        (lambda g: typed_graph().ndata["nope"], "there is no data 'nope' of any type"),
        (lambda g: g.in_degrees(slice(3)), "ids are whole numbers in one row, not a slice"),
        (lambda g: sample_neighbors(g, [1], 2, prob="w"), "edges of type _N:_E:_N have no data 'w': they have none"),
        (lambda g: sample_neighbors(g, {"dog": [1]}, 2), "there is no node type 'dog'"),
        (lambda g: sample_neighbors(g, [0.5], 2), "whole numbers"),
        (lambda g: to_block(g, [3, 7, 3]), "node 3 stands more than once among the seeds"),
        (lambda g: to_block(sample_neighbors(g, [3, 7], 2), [3]), "an edge leads to node 7, which is not among dst_nodes"),
        (lambda g: MultiLayerNeighborSampler([2]).sample(g, [4, 4]), "node 4 stands more than once"),
        (lambda g: MultiLayerNeighborSampler([]).sample(g, [4]), "no fan-outs"),
        (lambda g: MultiLayerNeighborSampler([2], prob="a", mask="b"), "by 'a' or by 'b', not by both"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_line(call: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        call(random_graph())
    assert "\n" not in str(error.value)
