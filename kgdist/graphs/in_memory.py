"""A graph in the memory of this process: typed nodes and edges, with data; and how it is made of arrays or of triples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError, counted
from kgdist.base.integers import integer
from kgdist.data.dataset import Dataset
from kgdist.graphs.frames import EdgeView, Frame, Frames, NodeView, looked_at
from kgdist.graphs.ids import as_array, as_ids, by_type
from kgdist.graphs.schema import EDGES, NODES, Schema
from kgdist.graphs.structure import (
    EID,
    NID,
    NOTHING,
    Answer,
    Draw,
    EType,
    InEdges,
    Neighbourhood,
    Question,
    check_ids,
    compressed,
)

Ends = tuple[np.ndarray, np.ndarray]  # the sources and destinations of edges, in the order of their ids


class Graph:
    """Nodes and directed edges of one type or several; ids count from 0 within each type.

    In-edges by destination, and out-edges by source, are made of the edges when they are first asked for: 12 bytes an edge each
    (4 where the edges are sorted so already), which processes forked later share.

    Args:
        edges: edge type -> (sources, destinations), int32[E] or int64[E] each, in the order of the edges' ids. Not copied.
        num_nodes: node type -> how many there are.

    Raises UsageError for an end that is no node, and for a type of edges between nodes of no type.
    """

    def __init__(self, edges: Mapping[EType, Ends], num_nodes: Mapping[str, int]) -> None:
        self.schema = Schema(list(num_nodes), edges)
        self._num_nodes = dict(num_nodes)
        self._ends = dict(edges)
        for etype, (sources, destinations) in edges.items():
            kind = f" of type {':'.join(etype)}" if len(edges) > 1 else ""
            if len(sources) != len(destinations):
                raise UsageError(f"edges{kind} have {len(sources)} sources and {len(destinations)} destinations: give each both")
            for ntype, ends in ((etype[0], sources), (etype[2], destinations)):
                check_ids(f"node of type {ntype}" if len(num_nodes) > 1 else "node", ends, num_nodes[self.schema.ntype(ntype)])
        self._on_nodes = {ntype: Frame(count, "node") for ntype, count in num_nodes.items()}
        self._on_edges = {etype: Frame(len(ends[0]), "edge") for etype, ends in edges.items()}
        self._in: dict[EType, InEdges] = {}
        self._out: dict[EType, InEdges] = {}

    @classmethod
    def from_triples(
        cls,
        heads: Any,
        relations: Any = None,
        tails: Any = None,
        num_entities: int | None = None,
        num_relations: int | None = None,
    ) -> Graph:
        """A graph of triples, as three arrays int[T] or as a `Dataset`'s training triples: one type of nodes, one of edges.

        Relations are `edata['etype']`, int32[T]. Where numbers are not given, they are those of the ids that occur.
        """
        if isinstance(heads, Dataset):
            data = heads
            heads, relations, tails = data.train.array.T
            num_entities, num_relations = len(data.entities), len(data.relations)
        if relations is None or tails is None:
            raise UsageError("triples are three arrays (heads, relations, tails), or a data set")
        made = graph((heads, tails), num_nodes=num_entities)
        kinds = as_ids(relations, "relations")
        if num_relations is not None:
            check_ids("relation", kinds, num_relations)
        made.edata["etype"] = kinds.astype(np.int32)
        return made

    def __getitem__(self, etype: Any) -> Graph:
        """The graph of one edge type and the nodes it joins: `g["follows"]`. Their data are those of this graph, not copies."""
        etype = self.schema.etype(etype)
        part = Graph({etype: self._ends[etype]}, {ntype: self._num_nodes[ntype] for ntype in dict.fromkeys(etype[::2])})
        part._on_nodes = {ntype: self._on_nodes[ntype] for ntype in part.ntypes}
        part._on_edges = {etype: self._on_edges[etype]}
        part._in, part._out = self._in, self._out
        return part

    # What there is.

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types."""
        return self.schema.ntypes

    @property
    def etypes(self) -> list[str]:
        """Middle names of the edge types."""
        return [name for _, name, _ in self.schema.etypes]

    @property
    def canonical_etypes(self) -> list[EType]:
        """The edge types, by three names."""
        return self.schema.etypes

    @property
    def is_homogeneous(self) -> bool:
        """Whether there is one type of nodes and one of edges."""
        return len(self.ntypes) == 1 and len(self.schema.etypes) == 1

    def to_canonical_etype(self, etype: Any) -> EType:
        """The three names of an edge type. Raises UsageError where there is no such type, or more than one."""
        return self.schema.etype(etype)

    def num_nodes(self, ntype: str | None = None) -> int:
        """Nodes of a type, or of all."""
        return sum(self._num_nodes.values()) if ntype is None else self._num_nodes[self.schema.ntype(ntype)]

    def num_edges(self, etype: Any = None) -> int:
        """Edges of a type, or of all."""
        if etype is None:
            return sum(len(sources) for sources, _ in self._ends.values())
        return len(self._ends[self.schema.etype(etype)][0])

    number_of_nodes, number_of_edges = num_nodes, num_edges

    @property
    def ndata(self) -> Frame | Frames[str]:
        """Data of nodes by name; of several types, a dictionary by type under each name."""
        return looked_at(self._on_nodes, self.schema.ntype)

    @property
    def edata(self) -> Frame | Frames[EType]:
        """Data of edges by name; of several types, a dictionary by type under each name."""
        return looked_at(self._on_edges, self.schema.etype)

    @property
    def nodes(self) -> NodeView:
        """`g.nodes[type].data`; called, the ids of a type."""
        return NodeView(self._on_nodes, self.schema.ntype)

    @property
    def edges(self) -> EdgeView:
        """`g.edges[etype].data`; called, (sources, destinations) int64[E] each by edge id, or other forms: see `EdgeView`."""
        return EdgeView(self._on_edges, self.schema.etype, self._edges_of)

    def _edges_of(self, etype: EType) -> tuple[torch.Tensor, torch.Tensor]:
        sources, destinations = self.edges_of(etype)
        return torch.from_numpy(sources), torch.from_numpy(destinations)

    def edges_of(self, etype: Any = None) -> Ends:
        """Sources and destinations, int64[E] each, by edge id."""
        sources, destinations = self._ends[self.schema.etype(etype)]
        return sources.astype(np.int64, copy=False), destinations.astype(np.int64, copy=False)

    def __repr__(self) -> str:
        if self.is_homogeneous:
            return f"Graph({counted(self.num_nodes(), 'node')}, {counted(self.num_edges(), 'edge')})"
        nodes = ", ".join(f"{ntype}: {count}" for ntype, count in self._num_nodes.items())
        edges = ", ".join(f"{':'.join(etype)}: {len(ends[0])}" for etype, ends in self._ends.items())
        return f"Graph(nodes {nodes}; edges {edges})"

    # Its structure.

    def in_edges_of(self, etype: Any = None) -> InEdges:
        """The edges of a type by destination."""
        etype = self.schema.etype(etype)
        if etype not in self._in:
            sources, destinations = self._ends[etype]
            self._in[etype] = compressed(sources, destinations, self._num_nodes[etype[0]], self._num_nodes[etype[2]])
        return self._in[etype]

    def out_edges_of(self, etype: Any = None) -> InEdges:
        """The edges of a type by source: `sources` are then destinations."""
        etype = self.schema.etype(etype)
        if etype not in self._out:
            sources, destinations = self._ends[etype]
            self._out[etype] = compressed(destinations, sources, self._num_nodes[etype[2]], self._num_nodes[etype[0]])
        return self._out[etype]

    def neighbours(self, questions: Sequence[Question], draw: Draw) -> list[Answer]:
        """The edges that the nodes of each question draw. Raises UsageError for ids, types and features that are not there."""
        answers = []
        for question in questions:
            etype = self.schema.etype(question.etype)
            edges = self.out_edges_of(etype) if question.out else self.in_edges_of(etype)
            weights = None
            if question.prob is not None:
                if question.prob not in self._on_edges[etype]:
                    there = ", ".join(self._on_edges[etype]) or "none"
                    raise UsageError(f"edges of type {':'.join(etype)} have no data {question.prob!r}: they have {there}")
                weights = as_array(self._on_edges[etype][question.prob])
            answers.append(edges.neighbours(question, draw, self.schema.numbers[etype], weights))
        return answers

    def in_degrees(self, v: Any = None, etype: Any = None) -> torch.Tensor:
        """int64[n], the edges of a type that lead to each of these nodes, or to all."""
        edges = self.in_edges_of(etype)
        return torch.from_numpy(np.diff(edges.starts) if v is None else edges.degrees(as_ids(v)))

    def out_degrees(self, u: Any = None, etype: Any = None) -> torch.Tensor:
        """int64[n], the edges of a type that leave each of these nodes, or all."""
        edges = self.out_edges_of(etype)
        return torch.from_numpy(np.diff(edges.starts) if u is None else edges.degrees(as_ids(u)))

    def find_edges(self, eid: Any, etype: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and destinations int64[n] of edges by id. Raises UsageError for an id that is none."""
        sources, destinations = self._ends[self.schema.etype(etype)]
        ids = as_ids(eid)
        check_ids("edge", ids, len(sources))
        return torch.from_numpy(sources[ids].astype(np.int64)), torch.from_numpy(destinations[ids].astype(np.int64))

    def in_subgraph(self, nodes: Any) -> Graph:
        """All edges that lead to these nodes, among all nodes; `edata[EID]` are their ids here."""
        wanted = by_type(nodes, self.schema)
        asked = [etype for etype in self.schema.etypes if etype[2] in wanted]
        answers = self.neighbours([Question(etype, wanted[etype[2]], -1) for etype in asked], Draw(0))
        return frontier(self, {etype: (wanted[etype[2]], answer) for etype, answer in zip(asked, answers, strict=True)})

    def edge_subgraph(self, edges: Any, relabel_nodes: bool = True) -> Graph:
        """These edges with their ends, which are numbered anew in ascending order (`ndata[NID]` are their ids here), or among all
        nodes. `edata[EID]` are the edges' ids here; data comes along.

        Args:
            edges: ids, or a dictionary of edge type to ids.
        """
        wanted = edges if isinstance(edges, Mapping) else {self.schema.etype(None): edges}
        chosen = {self.schema.etype(etype): as_ids(ids) for etype, ids in wanted.items()}
        chosen = {etype: chosen.get(etype, NOTHING) for etype in self.schema.etypes}
        ends = {}
        for etype, ids in chosen.items():
            check_ids("edge", ids, len(self._ends[etype][0]), kind=f" of type {':'.join(etype)}")
            ends[etype] = (self._ends[etype][0][ids], self._ends[etype][1][ids])
        kept = {ntype: np.arange(count) for ntype, count in self._num_nodes.items()}
        if relabel_nodes:
            for ntype in kept:
                met = [side for etype, pair in ends.items() for side, kind in zip(pair, etype[::2], strict=True) if kind == ntype]
                kept[ntype] = np.unique(np.concatenate([NOTHING, *met]))
            ends = {
                etype: (np.searchsorted(kept[etype[0]], sources), np.searchsorted(kept[etype[2]], destinations))
                for etype, (sources, destinations) in ends.items()
            }
        part = Graph(ends, {ntype: len(ids) for ntype, ids in kept.items()})
        for ntype, frame in part._on_nodes.items():
            at = torch.from_numpy(kept[ntype])
            frame.update({name: column[at] if relabel_nodes else column for name, column in self._on_nodes[ntype].items()})
            if relabel_nodes:
                frame[NID] = at
        for etype, frame in part._on_edges.items():
            at = torch.from_numpy(chosen[etype])
            frame.update({name: column[at] for name, column in self._on_edges[etype].items()})
            frame[EID] = at
        return part


def graph(data: Any, num_nodes: int | None = None) -> Graph:
    """A graph of one type of nodes and one of edges.

    Args:
        data: two tensors, arrays or lists of node ids; the first edge leads from the first of the one to the first of the other.
        num_nodes: where not given, up to the largest id.

    Raises UsageError for ids that are negative or not below `num_nodes`.
    """
    return heterograph({EDGES: data}, None if num_nodes is None else {NODES: integer("num_nodes", num_nodes, 0)})


def heterograph(data_dict: Mapping[EType, Any], num_nodes_dict: Mapping[str, int] | None = None) -> Graph:
    """A graph of several types, which stand in alphabetical order.

    Args:
        data_dict: (type of sources, name, type of destinations) -> (sources, destinations), as for `graph`.
        num_nodes_dict: node type -> how many; where not given, up to the largest id.

    Raises UsageError for names that are not three, and for ids that are negative or too large.
    """
    if not isinstance(data_dict, Mapping) or not isinstance(num_nodes_dict, Mapping | None):
        raise UsageError("a graph is made of dictionaries: of edge type to (sources, destinations), and of node type to number")
    edges: dict[EType, Ends] = {}
    for etype, data in data_dict.items():
        if not isinstance(etype, tuple) or len(etype) != 3 or not all(isinstance(name, str) for name in etype):
            raise UsageError(f"{etype!r}: a type of edges has three names: (type of sources, name, type of destinations)")
        if not isinstance(data, Sequence | np.ndarray | torch.Tensor) or len(data) != 2:
            raise UsageError(f"edges of type {':'.join(etype)} are given as (sources, destinations)")
        edges[etype] = as_ids(data[0], "sources"), as_ids(data[1], "destinations")
    if num_nodes_dict is None:
        largest: dict[str, int] = {}
        for etype, ends in edges.items():
            for ntype, ids in zip(etype[::2], ends, strict=True):
                largest[ntype] = max(largest.get(ntype, 0), int(ids.max(initial=-1)) + 1)
        num_nodes_dict = largest
    counts = {ntype: integer(f"number of nodes of type {ntype}", count, 0) for ntype, count in num_nodes_dict.items()}
    return Graph({etype: edges[etype] for etype in sorted(edges)}, {ntype: counts[ntype] for ntype in sorted(counts)})


def frontier(whole: Neighbourhood, drawn: Mapping[EType, tuple[np.ndarray, Answer]], out: bool = False) -> Graph:
    """The graph of edges that were drawn by nodes int64[n] of each type, among all nodes; `edata[EID]` are the edges' ids."""
    edges: dict[EType, Ends] = {etype: (NOTHING, NOTHING) for etype in whole.canonical_etypes}
    for etype, (nodes, answer) in drawn.items():
        asking = np.repeat(nodes, answer.counts)
        edges[etype] = (asking, answer.ends) if out else (answer.ends, asking)
    made = Graph(edges, {ntype: whole.num_nodes(ntype) for ntype in whole.ntypes})
    for etype in edges:
        made.edges[etype].data[EID] = torch.from_numpy(drawn[etype][1].edges if etype in drawn else NOTHING)
    return made
