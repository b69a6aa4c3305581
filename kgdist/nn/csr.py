"""What layers need of a block or a graph: its edges as a compressed matrix, and its rows as sources and destinations.

PyG's layers take a sparse matrix in place of a list of edges. Torch's product with one makes no row for each edge: forward and
backward, SAGEConv's mean takes a half to a sixth of the time of gathering and scattering on blocks of 256 features (EPYC, one
thread), three quarters with 64, and twice the time, a millisecond, on a graph of 2,708 nodes with 16.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch

from kgdist.base.errors import UsageError, counted
from kgdist.graphs.in_memory import Graph
from kgdist.sampling.blocks import Block

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta", category=UserWarning)

Rows = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class Edges(NamedTuple):
    """The edges of one type, those of a destination side by side."""

    sources: torch.Tensor  # int64[E], places among the sources
    destinations: torch.Tensor  # int64[E], ascending
    num_sources: int
    num_destinations: int
    order: torch.Tensor | None  # int64[E], where each edge stood; None: where it is

    def in_degrees(self) -> torch.Tensor:
        """int64[destinations]."""
        return torch.bincount(self.destinations, minlength=self.num_destinations)

    def out_degrees(self) -> torch.Tensor:
        """int64[sources]."""
        return torch.bincount(self.sources, minlength=self.num_sources)

    def ordered(self, values: torch.Tensor) -> torch.Tensor:
        """Values [E, ...] of edges as these lie here."""
        return values if self.order is None else values[self.order]

    def edge_index(self) -> torch.Tensor:
        """int64[2, E], sources over destinations."""
        return torch.stack((self.sources, self.destinations))

    def matrix(self, weights: torch.Tensor) -> torch.Tensor:
        """The sparse matrix [destinations, sources] of weights [E] in the order of these edges."""
        starts = torch.zeros(self.num_destinations + 1, dtype=torch.int64, device=self.sources.device)
        torch.cumsum(self.in_degrees(), 0, out=starts[1:])
        size = (self.num_destinations, self.num_sources)
        return torch.sparse_csr_tensor(starts, self.sources, weights, size, check_invariants=False)


def edges_of(graph: Block | Graph, etype: Any = None) -> Edges:
    """The edges of one type of a block or a graph. Raises UsageError where it has several types and none is said."""
    etype = graph.schema.etype(etype)
    sources, destinations = graph.edges(etype)
    if isinstance(graph, Block):
        counts = graph.num_src_nodes(etype[0]), graph.num_dst_nodes(etype[2])
    else:
        counts = graph.num_nodes(etype[0]), graph.num_nodes(etype[2])
    order = None
    if len(destinations) and bool((destinations[1:] < destinations[:-1]).any()):  # as a graph's edges may lie
        order = torch.argsort(destinations, stable=True)
        sources, destinations = sources[order], destinations[order]
    return Edges(sources, destinations, *counts, order)


def rows_of(edges: Edges, x: Rows) -> tuple[torch.Tensor, torch.Tensor]:
    """(rows of sources, rows of destinations): of a pair these, of one tensor the destinations are its first rows.

    Raises UsageError for another number of rows.
    """
    sources, destinations = x if isinstance(x, tuple) else (x, x[: edges.num_destinations])
    for noun, rows, count in (
        ("source", sources, edges.num_sources),
        ("destination", destinations, edges.num_destinations),
    ):
        if len(rows) != count:
            raise UsageError(f"{counted(len(rows), 'row')} for {counted(count, f'{noun} node')}: give each node its own")
    return sources, destinations


def refuse_lonely(edges: Edges, layer: str) -> None:
    """Raises UsageError for destinations that no edge leads to, whose result would be nothing but zeros."""
    if edges.num_destinations and bool((lonely := edges.in_degrees() == 0).any()):
        raise UsageError(
            f"{layer}: no edge leads to {int(lonely.sum())} of {counted(len(lonely), 'node')}: "
            "add loops by kgdist.add_self_loop, or say allow_zero_in_degree=True"
        )
