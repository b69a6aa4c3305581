"""Layers on blocks of several types: each type of edges alone, and then added up."""

from __future__ import annotations

import pytest
import torch

import kgdist
import kgdist.nn as dglnn
from kgdist.sampling.neighbours import in_subgraph, to_block

EDGES = {
    ("paper", "cites", "paper"): ([0, 1, 3, 4, 4], [1, 2, 0, 0, 3]),
    ("author", "writes", "paper"): ([0, 1, 1, 2], [0, 0, 2, 4]),
    ("paper", "appears", "venue"): ([0, 1, 2], [0, 0, 1]),
}
WIDTHS = {"paper": 4, "author": 3, "venue": 2}
NODES = {"paper": 5, "author": 3, "venue": 2}


def world() -> tuple[kgdist.Graph, dict[str, torch.Tensor], dglnn.HeteroGraphConv]:
    generator = torch.Generator().manual_seed(0)
    rows = {ntype: torch.randn(NODES[ntype], width, generator=generator) for ntype, width in WIDTHS.items()}
    layers = {name: dglnn.SAGEConv((WIDTHS[u], WIDTHS[v]), 6, "mean") for u, name, v in EDGES}
    return kgdist.heterograph(EDGES, NODES), rows, dglnn.HeteroGraphConv(layers)


@pytest.mark.parametrize("aggregate", ["sum", "mean", "max", "min", "stack"])
def test_each_type_of_edges_has_its_layer(aggregate: str) -> None:
    g, rows, layer = world()
    layer.aggregate = aggregate
    made = layer(g, rows)
    alone = {
        etype: layer.mods[layer.names.index(etype[1])](
            kgdist.heterograph({etype: EDGES[etype]}, {n: NODES[n] for n in {etype[0], etype[2]}}),
            (rows[etype[0]], rows[etype[2]]),
        )
        for etype in EDGES
    }
    papers = torch.stack([alone[etype] for etype in sorted(EDGES) if etype[2] == "paper"])
    whole = {"sum": papers.sum(0), "mean": papers.mean(0), "max": papers.amax(0), "min": papers.amin(0)}
    torch.testing.assert_close(made["paper"], papers.transpose(0, 1) if aggregate == "stack" else whole[aggregate])
    venues = alone[("paper", "appears", "venue")]
    torch.testing.assert_close(made["venue"], venues.unsqueeze(1) if aggregate == "stack" else venues)
    assert set(made) == {"paper", "venue"}


def test_a_block_of_all_neighbours_makes_what_the_graph_makes() -> None:
    g, rows, layer = world()
    seeds = {"paper": torch.tensor([2, 0]), "venue": torch.tensor([1])}
    block = to_block(in_subgraph(g, seeds), seeds)
    given = {ntype: rows[ntype][block.srcnodes[ntype].data[kgdist.NID]] for ntype in NODES}
    made, whole = layer(block, given), layer(g, rows)
    torch.testing.assert_close(made["paper"], whole["paper"][seeds["paper"]])
    torch.testing.assert_close(made["venue"], whole["venue"][seeds["venue"]])
    pair = given, {ntype: given[ntype][: block.num_dst_nodes(ntype)] for ntype in NODES}
    torch.testing.assert_close(layer(block, pair)["paper"], made["paper"])


def test_edges_without_a_layer_or_rows_carry_nothing() -> None:
    g, rows, layer = world()
    cites = dglnn.HeteroGraphConv({"cites": layer.mods[layer.names.index("cites")]})
    assert set(cites(g, rows)) == {"paper"}
    torch.testing.assert_close(cites(g, rows)["paper"], layer(g, {"paper": rows["paper"]})["paper"])
