"""A block: the edges by which messages of one layer travel, from source nodes to destination nodes, under numbers of its own.

The destinations come first among the sources, so a layer finds what a node had before at the same place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.graphs.frames import EdgeView, Frame, Frames, NodeView, looked_at
from kgdist.graphs.schema import Schema
from kgdist.graphs.structure import NID, NOTHING, Answer, EType
from kgdist.kernels.hashing import numbered


class Block:
    """Edges from source nodes to destination nodes; a type's destinations are its first sources.

    `srcdata[NID]` and `dstdata[NID]` int64 are the nodes' ids in the graph, `edata[EID]` int64 the edges'; of several types, they
    are dictionaries by type, and `srcnodes[type].data`, `dstnodes[type].data`, `edges[etype].data` are those of one.

    Args:
        src_nodes: node type -> int64[n_src], ids in the graph, the destinations first.
        num_dst: node type -> how many of these are destinations.
        edges: edge type -> (int64[E], int64[E]), the places of sources and destinations among these.
        edge_ids: edge type -> int64[E], ids in the graph.
    """

    is_block = True

    def __init__(
        self,
        schema: Schema,
        src_nodes: Mapping[str, torch.Tensor],
        num_dst: Mapping[str, int],
        edges: Mapping[EType, tuple[torch.Tensor, torch.Tensor]],
        edge_ids: Mapping[EType, torch.Tensor],
    ) -> None:
        self.schema = schema
        self._edges = dict(edges)
        self._src, self._dst, self._on = {}, {}, {}
        for ntype, nodes in src_nodes.items():
            self._src[ntype] = _frame(nodes, "source")
            self._dst[ntype] = _frame(nodes[: num_dst[ntype]], "destination")
        for etype, ids in edge_ids.items():
            self._on[etype] = _frame(ids, "edge")

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types."""
        return self.schema.ntypes

    srctypes = dsttypes = ntypes

    @property
    def etypes(self) -> list[str]:
        """Middle names of the edge types."""
        return [name for _, name, _ in self.canonical_etypes]

    @property
    def canonical_etypes(self) -> list[EType]:
        """The edge types, by three names."""
        return list(self._edges)

    @property
    def srcdata(self) -> Frame | Frames[str]:
        """Data of the source nodes."""
        return looked_at(self._src, self.schema.ntype)

    @property
    def dstdata(self) -> Frame | Frames[str]:
        """Data of the destination nodes."""
        return looked_at(self._dst, self.schema.ntype)

    @property
    def edata(self) -> Frame | Frames[EType]:
        """Data of the edges."""
        return looked_at(self._on, self.schema.etype)

    @property
    def srcnodes(self) -> NodeView:
        """`srcnodes[type].data`; called, the places 0, 1, ... of source nodes."""
        return NodeView(self._src, self.schema.ntype, self.device)

    @property
    def dstnodes(self) -> NodeView:
        """`dstnodes[type].data`; called, the places 0, 1, ... of destination nodes."""
        return NodeView(self._dst, self.schema.ntype, self.device)

    @property
    def edges(self) -> EdgeView:
        """`edges[etype].data`; called, (sources, destinations) int64[E] each, as places among the block's nodes, or other forms:
        see `EdgeView`."""
        return EdgeView(self._on, self.schema.etype, self._edges.__getitem__, self.device)

    def num_src_nodes(self, ntype: str | None = None) -> int:
        """Source nodes of a type, or of all."""
        return _rows(self._src, ntype, self.schema.ntype)

    def num_dst_nodes(self, ntype: str | None = None) -> int:
        """Destination nodes of a type, or of all."""
        return _rows(self._dst, ntype, self.schema.ntype)

    def num_edges(self, etype: Any = None) -> int:
        """Edges of a type, or of all."""
        return _rows(self._on, etype, self.schema.etype)

    number_of_src_nodes, number_of_dst_nodes, number_of_edges = num_src_nodes, num_dst_nodes, num_edges

    @property
    def edge_index(self) -> torch.Tensor:
        """int64[2, E], sources over destinations: what PyG calls so. Of a block of one edge type."""
        return torch.stack(self._edges[self.schema.etype(None)])

    def in_degrees(self, nodes: Any = None, etype: Any = None) -> torch.Tensor:
        """int64[n], the edges that lead to destination nodes, by place; all of them if none are named."""
        etype = self.schema.etype(etype)
        degrees = torch.bincount(self._edges[etype][1], minlength=self.num_dst_nodes(etype[2]))
        return degrees if nodes is None else degrees[torch.as_tensor(nodes)]

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return next(iter(self._src.values()))[NID].device

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Block:
        """The same on another device."""
        moved = object.__new__(Block)
        moved.schema = self.schema
        moved._edges = {
            etype: (u.to(device, non_blocking=non_blocking), v.to(device, non_blocking=non_blocking))
            for etype, (u, v) in self._edges.items()
        }
        moved._src = {ntype: frame.to(device, non_blocking) for ntype, frame in self._src.items()}
        moved._dst = {ntype: frame.to(device, non_blocking) for ntype, frame in self._dst.items()}
        moved._on = {etype: frame.to(device, non_blocking) for etype, frame in self._on.items()}
        return moved

    def __repr__(self) -> str:
        return f"Block({self.num_src_nodes()} source nodes, {self.num_dst_nodes()} destination nodes, {self.num_edges()} edges)"


def _frame(ids: torch.Tensor, what: str) -> Frame:
    frame = Frame(len(ids), what)
    frame[NID] = ids
    return frame


def _rows(frames: Mapping[Any, Frame], kind: Any, find: Any) -> int:
    return sum(frame.rows for frame in frames.values()) if kind is None else frames[find(kind)].rows


def check_once(nodes: np.ndarray, places: np.ndarray) -> None:
    """Raises UsageError for seeds that repeat: their `places` among the different ones are not 0, 1, ..."""
    repeated = places != np.arange(len(places))
    if repeated.any():
        raise UsageError(f"node {nodes[places[repeated.argmax()]]} stands more than once among the seeds: give each once")


def assemble(schema: Schema, seeds: Mapping[str, np.ndarray], answers: Mapping[EType, Answer]) -> Block:
    """The block of what `seeds` int64[n] of each type have drawn, the answers in their order."""
    src_nodes, num_dst, edges, edge_ids = {}, {}, {}, {}
    for ntype in schema.ntypes:
        own = seeds.get(ntype, NOTHING)
        leaving = [etype for etype in schema.etypes if etype[0] == ntype and etype in answers]
        nodes, (first, *places) = numbered([own, *(answers[etype].ends for etype in leaving)])
        check_once(nodes, first)
        src_nodes[ntype], num_dst[ntype] = torch.from_numpy(nodes), len(own)
        for etype, sources in zip(leaving, places, strict=True):
            counts = answers[etype].counts
            destinations = np.repeat(np.arange(len(counts)), counts)
            edges[etype] = torch.from_numpy(sources), torch.from_numpy(destinations)
            edge_ids[etype] = torch.from_numpy(answers[etype].edges)
    none = torch.from_numpy(NOTHING)
    return Block(
        schema,
        src_nodes,
        num_dst,
        {etype: edges.get(etype, (none, none)) for etype in schema.etypes},
        {etype: edge_ids.get(etype, none) for etype in schema.etypes},
    )
