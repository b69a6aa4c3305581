"""PyG's loaders over our graphs: batches are parts of the graph, and all neighbours make what the whole graph makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_geometric.nn as pyg
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.utils import trim_to_layer

import kgdist
import kgdist.nn as kgnn
from kgdist.base.errors import UsageError

N, E, WIDTH = 60, 240, 5


def world(seed: int = 0) -> kgdist.Graph:
    """A graph with loops and repeated edges, whose nodes and edges say who they are."""
    torch.manual_seed(seed)
    g = kgdist.graph((torch.randint(N, (E,)), torch.randint(N, (E,))), num_nodes=N)
    g.ndata["x"], g.ndata["y"] = torch.randn(N, WIDTH), torch.arange(N)
    g.edata["etype"], g.edata["who"] = torch.randint(3, (E,)), torch.arange(E)
    return g


def typed() -> kgdist.Graph:
    """Authors write papers, papers cite papers and are read by authors; venues know nobody."""
    torch.manual_seed(1)
    counts = {"author": 20, "paper": 30, "venue": 2}
    kinds = [("author", "writes", "paper"), ("paper", "cites", "paper"), ("paper", "read", "author"), ("venue", "owns", "venue")]
    edges = {
        kind: (torch.randint(counts[kind[0]], (many,)), torch.randint(counts[kind[2]], (many,)))
        for kind, many in zip(kinds, (60, 80, 40, 0), strict=True)
    }
    g = kgdist.heterograph(edges, counts)
    for ntype in g.ntypes:
        g.nodes[ntype].data["x"], g.nodes[ntype].data["y"] = torch.randn(counts[ntype], WIDTH), torch.arange(counts[ntype])
    g.edges["cites"].data["who"] = torch.arange(80)
    return g


def nodes(g: kgdist.Graph, counts: Any, ids: Any, **how: Any) -> NodeLoader:
    sampler = {name: how.pop(name) for name in ("replace", "prob") if name in how}
    return NodeLoader(kgnn.pyg_stores(g), kgnn.PyGNeighborSampler(g, counts, **sampler), input_nodes=ids, **how)


def pairs_of(kind: tuple[str, str, str]) -> LinkLoader:
    g = typed()
    seeds = torch.stack(g.edges("writes"))
    return LinkLoader(kgnn.pyg_stores(g), kgnn.PyGNeighborSampler(g, [2]), edge_label_index=(kind, seeds))


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_are_parts_of_the_graph(workers: int) -> None:
    g, met = world(), []
    loader = nodes(
        g, [3, 2], torch.arange(40), batch_size=16, shuffle=True, num_workers=workers, transform=kgnn.with_edge_data(g, "who")
    )
    for batch in loader:
        met += batch.n_id[: batch.batch_size].tolist()
        assert len(set(batch.n_id.tolist())) == batch.num_nodes and torch.equal(batch.y, batch.n_id)
        assert torch.equal(batch.x, g.ndata["x"][batch.n_id]) and torch.equal(batch.who, batch.e_id)
        sources, destinations = g.find_edges(batch.e_id)
        assert torch.equal(batch.n_id[batch.edge_index], torch.stack([sources, destinations]))
        assert len(set(batch.e_id.tolist())) == len(batch.e_id)
        drew = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        first, second = batch.num_sampled_nodes[:2]
        have = g.in_degrees(batch.n_id)
        assert torch.equal(drew[:first], have[:first].clamp(max=3))
        assert torch.equal(drew[first : first + second], have[first : first + second].clamp(max=2))
        assert sum(batch.num_sampled_nodes) == batch.num_nodes and sum(batch.num_sampled_edges) == len(batch.e_id)
    assert sorted(met) == list(range(40))


def test_all_neighbours_make_what_the_whole_graph_makes() -> None:
    g = world()
    edge_index = torch.stack(g.edges())
    models = [pyg.GraphSAGE(WIDTH, 8, 2, 4), pyg.GAT(WIDTH, 8, 2, 4, heads=2), pyg.GIN(WIDTH, 8, 2, 4)]
    convolution = pyg.RGCNConv(WIDTH, 4, 3)
    for batch in nodes(g, [-1, -1], torch.arange(N), batch_size=25, transform=kgnn.with_edge_data(g, "etype")):
        seeds = batch.n_id[: batch.batch_size]
        for model in models:
            model.eval()
            made = model(batch.x, batch.edge_index)[: batch.batch_size]
            torch.testing.assert_close(made, model(g.ndata["x"], edge_index)[seeds], rtol=1e-4, atol=1e-5)
            trimmed = model(
                batch.x,
                batch.edge_index,
                num_sampled_nodes_per_hop=batch.num_sampled_nodes,
                num_sampled_edges_per_hop=batch.num_sampled_edges,
            )
            torch.testing.assert_close(trimmed[: batch.batch_size], made, rtol=1e-4, atol=1e-5)
        alone = convolution(batch.x, batch.edge_index, batch.etype)[: batch.batch_size]
        torch.testing.assert_close(alone, convolution(g.ndata["x"], edge_index, g.edata["etype"])[seeds], rtol=1e-4, atol=1e-5)


def test_all_neighbours_of_several_types_make_what_the_whole_graph_makes() -> None:
    g = typed()
    model = pyg.to_hetero(pyg.GraphSAGE(WIDTH, 8, 2, 4), (g.ntypes, g.canonical_etypes))
    whole = {etype: torch.stack(g.edges(etype)) for etype in g.canonical_etypes}
    rows = {ntype: g.nodes[ntype].data["x"] for ntype in g.ntypes}
    expected = model(rows, whole)["paper"]
    transform = kgnn.with_edge_data(g, "who")
    for batch in nodes(g, [-1, -1], ("paper", torch.arange(30)), batch_size=12, transform=transform):
        size = batch["paper"].batch_size
        assert torch.equal(batch["cites"].who, batch["cites"].e_id)
        assert all(torch.equal(batch[ntype].y, batch[ntype].n_id) for ntype in g.ntypes)
        for etype in g.canonical_etypes:
            local = batch[etype].edge_index
            ends = torch.stack([batch[etype[0]].n_id[local[0]], batch[etype[2]].n_id[local[1]]])
            assert torch.equal(ends, torch.stack(g.find_edges(batch[etype].e_id, etype)))
        given = {etype: batch[etype].edge_index for etype in whole}
        made = model(batch.x_dict, given)["paper"][:size]
        torch.testing.assert_close(made, expected[batch["paper"].n_id[:size]], rtol=1e-4, atol=1e-5)
        papers = batch["paper"]
        hops = papers.num_sampled_nodes, batch["cites"].num_sampled_edges
        kept, _, _ = trim_to_layer(1, *hops, papers.x, batch["cites"].edge_index)
        assert len(kept) == sum(batch["paper"].num_sampled_nodes[:2])


def test_numbers_by_type_of_edges() -> None:
    g = typed()
    counts = {"writes": [2, 0], "cites": [0, 3], "read": [-1, -1], "owns": [0, 0]}
    for batch in nodes(g, counts, ("paper", torch.arange(30)), batch_size=30):
        assert batch["writes"].num_sampled_edges[1] == 0 and batch["cites"].num_sampled_edges[0] == 0
        drew = torch.bincount(batch["writes"].edge_index[1], minlength=30)
        assert torch.equal(drew, g.in_degrees(batch["paper"].n_id, "writes").clamp(max=2))


def test_pairs_bring_the_neighbours_of_both_ends() -> None:
    g = world()
    seeds = torch.stack(g.edges())[:, :50]
    sampler = kgnn.PyGNeighborSampler(g, [-1])
    loader = LinkLoader(kgnn.pyg_stores(g), sampler, edge_label_index=(None, seeds), neg_sampling="binary", batch_size=20)
    met = []
    for batch in loader:
        positive = batch.edge_label == 1
        met.append(batch.n_id[batch.edge_label_index[:, positive]])
        assert positive.sum() == (~positive).sum() == len(batch.input_id)
        ends = batch.edge_label_index.unique()
        drew = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
        assert torch.equal(drew[ends], g.in_degrees(batch.n_id[ends]))
    assert torch.equal(torch.cat(met, 1), seeds)


def test_pairs_of_a_type_are_all_of_them_where_none_are_named() -> None:
    g = typed()
    kind = ("author", "writes", "paper")
    loader = LinkLoader(
        kgnn.pyg_stores(g), kgnn.PyGNeighborSampler(g, [2]), edge_label_index=kind, neg_sampling="triplet", batch_size=60
    )
    (batch,) = loader
    found = batch["author"].n_id[batch["author"].src_index], batch["paper"].n_id[batch["paper"].dst_pos_index]
    assert torch.equal(torch.stack(found), torch.stack(g.edges(kind)))
    assert len(batch["paper"].dst_neg_index) == 60


def test_draws_follow_torchs_generator() -> None:
    g = world()

    def drawn(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [batch.e_id for batch in nodes(g, [2, 2], torch.arange(N), batch_size=20, replace=True, shuffle=True)]

    assert all(torch.equal(a, b) for a, b in zip(drawn(3), drawn(3), strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(drawn(3), drawn(4), strict=True))


def test_a_mask_says_which_edges_may_be_drawn() -> None:
    g = world()
    g.edata["open"] = g.edata["etype"] == 1
    for batch in nodes(g, [-1, -1], torch.arange(20), batch_size=20, prob="open"):
        assert len(batch.e_id) and bool((g.edata["etype"][batch.e_id] == 1).all())


def test_features_are_read_and_written_by_the_store() -> None:
    g = world()
    store, _ = kgnn.pyg_stores(g)
    assert [(attr.group_name, attr.attr_name) for attr in store.get_all_tensor_attrs()] == [(None, "x"), (None, "y")]
    assert torch.equal(store[None, "x", None], g.ndata["x"]) and store.get_tensor_size(None, "x") == (N, WIDTH)
    store[None, "y", torch.tensor([1, 2])] = torch.tensor([7, 8])
    assert g.ndata["y"][:4].tolist() == [0, 7, 8, 3]
    store[None, "z", None] = torch.ones(N)
    assert g.ndata["z"].sum() == N
    del store[None, "z"]
    assert "z" not in g.ndata and store.get_tensor_size(None, "z") is None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: next(iter(nodes(world(), [2], ("_N", torch.arange(3))))), "of this graph, name no type"),
        (lambda: next(iter(nodes(typed(), [2], torch.arange(3)))), "name one of author, paper, venue"),
        (
            lambda: next(iter(nodes(typed(), [2], ("people", torch.arange(3))))),
            "type 'people', which is not one of author, paper, venue",
        ),
        (lambda: next(iter(pairs_of(("author", "reads", "paper")))), r"which is not one of \('author', 'writes', 'paper'\), "),
        (lambda: next(iter(nodes(world(), [2], torch.tensor([1, 1]), batch_size=2))), "node 1 stands more than once"),
        (lambda: next(iter(nodes(world(), [2], torch.tensor([N])))), f"there is no node {N}"),
        (lambda: next(iter(nodes(world(), [2], torch.arange(3), input_time=torch.arange(3)))), "leave the times"),
        (lambda: kgnn.PyGNeighborSampler(typed(), {"cites": [1]}), "num_neighbors says nothing of edges of type author:writes"),
        (lambda: kgnn.PyGNeighborSampler(typed(), {"unknown": [1]}), "there is no edge type 'unknown'"),
        (
            lambda: kgnn.PyGNeighborSampler(typed(), {"cites": [1], "writes": [1, 2], "read": [1], "owns": [1]}),
            "every type has as many hops",
        ),
        (lambda: kgnn.pyg_stores(world())[1].put_edge_index((None, None), None, "coo"), "are those it was made with"),
        (lambda: kgnn.pyg_stores(world())[1].remove_edge_index(None, "coo"), "the edges of a graph stay"),
    ],
)
def test_what_cannot_be_is_said(call: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        call()
