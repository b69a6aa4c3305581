"""Layers on blocks of several types: one for each type of edges, and what they make of a node added up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from kgdist.base.errors import UsageError
from kgdist.graphs.in_memory import Graph
from kgdist.graphs.schema import Schema
from kgdist.graphs.structure import EType
from kgdist.sampling.blocks import Block

Aggregate = Callable[[torch.Tensor], torch.Tensor]  # [layers, nodes, ...] -> [nodes, ...]
AGGREGATES: dict[str, Aggregate] = {
    "sum": lambda made: made.sum(0),
    "mean": lambda made: made.mean(0),
    "max": lambda made: made.amax(0),
    "min": lambda made: made.amin(0),
    "stack": lambda made: made.transpose(0, 1),
}


class HeteroGraphConv(torch.nn.Module):
    """A layer for each type of edges; what several of them make of a destination node is aggregated.

    `layer(block, {type: rows})` -> {type: rows of the destinations}, of the types that some edges may lead to. Types of edges
    that have no layer, or whose sources have no rows, carry nothing.

    Args:
        mods: middle name of an edge type -> layer.
        aggregate: "sum", "mean", "max", "min", or "stack", which keeps them apart: [nodes, layers, ...].

    Raises UsageError for another aggregate.
    """

    def __init__(self, mods: Mapping[str, torch.nn.Module], aggregate: str = "sum") -> None:
        super().__init__()
        if aggregate not in AGGREGATES:
            raise UsageError(f"aggregate={aggregate!r}: there are {', '.join(AGGREGATES)}")
        self.aggregate = aggregate
        self.names = list(mods)
        self.mods = torch.nn.ModuleList(mods.values())  # a ModuleDict takes no names with a dot

    def forward(
        self, graph: Block | Graph, inputs: Mapping[str, torch.Tensor] | tuple[Mapping[str, torch.Tensor], ...], **how: Any
    ) -> dict[str, torch.Tensor]:
        """Rows of destinations by type; `inputs` are rows of sources by type, or a pair (sources, destinations)."""
        sources, destinations = inputs if isinstance(inputs, tuple) else (inputs, None)
        made: dict[str, list[torch.Tensor]] = {}
        for etype in graph.canonical_etypes:
            name, rows = etype[1], sources.get(etype[0])
            if name not in self.names or rows is None:
                continue
            if destinations is None:
                if etype[2] not in sources:
                    continue
                count = graph.num_dst_nodes(etype[2]) if isinstance(graph, Block) else graph.num_nodes(etype[2])
                own = sources[etype[2]][:count]
            else:
                own = destinations[etype[2]]
            layer = self.mods[self.names.index(name)]
            made.setdefault(etype[2], []).append(layer(of_one_type(graph, etype), (rows, own), **how))
        return {ntype: AGGREGATES[self.aggregate](torch.stack(found)) for ntype, found in made.items()}


def of_one_type(graph: Block | Graph, etype: EType) -> Block:
    """The edges of one type as a block of their own, whose nodes are places in the block, or nodes of the graph."""
    if not isinstance(graph, Block):
        nodes = {ntype: torch.arange(graph.num_nodes(ntype)) for ntype in graph.ntypes}
        edges, ids = graph.edges(etype), torch.arange(graph.num_edges(etype))
        counts = {ntype: graph.num_nodes(ntype) for ntype in graph.ntypes}
    else:
        nodes = {ntype: graph.srcnodes(ntype) for ntype in graph.ntypes}
        edges, ids = graph.edges(etype), torch.arange(graph.num_edges(etype), device=graph.device)
        counts = {ntype: graph.num_dst_nodes(ntype) for ntype in graph.ntypes}
    ends = dict.fromkeys((etype[0], etype[2]))
    return Block(Schema(list(ends), [etype]), {n: nodes[n] for n in ends}, counts, {etype: edges}, {etype: ids})
