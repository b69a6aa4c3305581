"""The partition book of a typed graph: which partition owns which nodes and edges, of every type.

Ids count from 0 within each type, and each partition owns one contiguous range of each, so a type's book is where its ranges
begin. Homogeneous ids count all types together, partition by partition and within it type by type, as DGL numbers them; they are
computed, and stored nowhere. The book holds no edges and reads no files. Relations of a knowledge graph are no types: they are
dealt out by kgdist.partition.book.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError, counted
from kgdist.base.integers import int64, integer

EdgeType = tuple[str, str, str]  # type of the sources, name, type of the destinations
Ids = torch.Tensor | np.ndarray | Sequence[int] | int
SEPARATOR = ":"  # between the three names of an edge type in JSON, as in DGL's


class PartitionBook:
    """Which partition owns which ids, and back; ids out of range are refused.

    Args:
        nodes: node type -> int64[k+1]: partition p owns the ids starts[p]:starts[p+1].
        edges: canonical edge type -> int64[k+1], likewise.
        part: the partition of who holds the book, `partid`.

    Raises ValueError unless all starts ascend from 0 and are of one length, and edge types join node types.
    """

    def __init__(self, nodes: Mapping[str, np.ndarray], edges: Mapping[EdgeType, np.ndarray], part: int = 0) -> None:
        self.nodes, self.edges, self.partid = dict(nodes), dict(edges), part
        every = [*self.nodes.values(), *self.edges.values()]
        if not self.nodes or len({len(starts) for starts in every}) != 1 or not 0 <= part < len(every[0]) - 1:
            raise ValueError("a partition book needs node types, and starts of one length for its partitions")
        for starts in every:
            if starts.dtype != np.int64 or starts.ndim != 1 or starts[0] != 0 or (np.diff(starts) < 0).any():
                raise ValueError("a partition book must hold int64 starts that ascend from 0")
        for etype in self.edges:
            if len(etype) != 3 or not {etype[0], etype[2]} <= set(self.nodes):
                raise ValueError(f"edge type {etype} joins node types that are not there")
        self._all_nodes, self._all_edges = (homogeneous(list(each.values()), self.parts) for each in (self.nodes, self.edges))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionBook) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        nodes = {ntype: int(starts[-1]) for ntype, starts in self.nodes.items()}
        edges = {etype: int(starts[-1]) for etype, starts in self.edges.items()}
        return f"PartitionBook({counted(self.parts, 'partition')}, partid={self.partid}, nodes={nodes}, edges={edges})"

    def of(self, part: int) -> PartitionBook:
        """The same book in the hands of another partition."""
        return PartitionBook(self.nodes, self.edges, part)

    # ---- what there is

    @property
    def parts(self) -> int:
        """k, the number of partitions."""
        return len(next(iter(self.nodes.values()))) - 1

    def num_partitions(self) -> int:
        """k, the number of partitions."""
        return self.parts

    @property
    def ntypes(self) -> list[str]:
        """Names of the node types; a type's number is its place."""
        return list(self.nodes)

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        """The edge types by three names; a type's number is its place."""
        return list(self.edges)

    @property
    def etypes(self) -> list[str]:
        """The middle names of the edge types."""
        return [name for _, name, _ in self.edges]

    def num_nodes(self, ntype: str | None = None) -> int:
        """Nodes of a type in all partitions, or of all types."""
        return sum(int(starts[-1]) for starts in ([self.node_starts(ntype)] if ntype is not None else self.nodes.values()))

    def num_edges(self, etype: str | EdgeType | None = None) -> int:
        """Edges of a type in all partitions, or of all types."""
        return sum(int(starts[-1]) for starts in ([self.edge_starts(etype)] if etype is not None else self.edges.values()))

    number_of_nodes, number_of_edges = num_nodes, num_edges

    def metadata(self) -> list[dict[str, int]]:
        """For each partition `machine_id`, and `num_nodes` and `num_edges` of all types that it owns."""
        nodes, edges = (self._owned(each) for each in (self.nodes, self.edges))
        return [{"machine_id": p, "num_nodes": int(nodes[p]), "num_edges": int(edges[p])} for p in range(self.parts)]

    def to_canonical_etype(self, etype: str | EdgeType) -> EdgeType:
        """The three names of an edge type. Raises UsageError for one that is not there, or for a name that several types have."""
        if not isinstance(etype, str):
            found = [each for each in self.edges if each == tuple(etype)]
        else:
            found = [each for each in self.edges if etype == each[1]]
        if len(found) != 1:
            there = ", ".join(map(SEPARATOR.join, found or self.edges)) or "none"
            wrong = f"several edge types are called {etype!r}" if found else f"there is no edge type {etype!r}"
            raise UsageError(f"{wrong}: give the three names of one of {there}")
        return found[0]

    # ---- owners

    def nid2partid(self, nids: Ids, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: the partition that owns each node."""
        return self._owners(self.node_starts(ntype), nids, "node")

    def eid2partid(self, eids: Ids, etype: str | EdgeType | None = None) -> torch.Tensor:
        """int64[n]: the partition that owns each edge."""
        return self._owners(self.edge_starts(etype), eids, "edge")

    def partid2nids(self, partid: int, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: the nodes that a partition owns, ascending."""
        return self._range(self.node_starts(ntype), partid)

    def partid2eids(self, partid: int, etype: str | EdgeType | None = None) -> torch.Tensor:
        """int64[n]: the edges that a partition owns, ascending."""
        return self._range(self.edge_starts(etype), partid)

    def nid2localnid(self, nids: Ids, partid: int, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: the place of each node among those that the partition owns. Raises UsageError for one that it does not."""
        return self._local(self.node_starts(ntype), nids, partid, "node")

    def eid2localeid(self, eids: Ids, partid: int, etype: str | EdgeType | None = None) -> torch.Tensor:
        """int64[n]: the place of each edge among those that the partition owns. Raises UsageError for one that it does not."""
        return self._local(self.edge_starts(etype), eids, partid, "edge")

    # ---- homogeneous ids

    def map_to_per_ntype(self, ids: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[n] each: the number of the type and the id within it of homogeneous node ids."""
        return apart(self._all_nodes, list(self.nodes.values()), as_array(ids), "node")

    def map_to_per_etype(self, ids: Ids) -> tuple[torch.Tensor, torch.Tensor]:
        """int64[n] each: the number of the type and the id within it of homogeneous edge ids."""
        return apart(self._all_edges, list(self.edges.values()), as_array(ids), "edge")

    def map_to_homo_nid(self, ids: Ids, ntype: str | None = None) -> torch.Tensor:
        """int64[n]: the homogeneous id of nodes of a type."""
        starts = self.node_starts(ntype)
        return together(self._all_nodes, self.ntypes.index(ntype or self.ntypes[0]), starts, as_array(ids), "node")

    def map_to_homo_eid(self, ids: Ids, etype: str | EdgeType | None = None) -> torch.Tensor:
        """int64[n]: the homogeneous id of edges of a type."""
        starts = self.edge_starts(etype)
        number = 0 if etype is None else self.canonical_etypes.index(self.to_canonical_etype(etype))
        return together(self._all_edges, number, starts, as_array(ids), "edge")

    # ---- as plain data

    def to_json(self) -> dict[str, list[Any]]:
        """Plain data, types in order; `from_json` reads it."""
        return {
            "nodes": [[ntype, starts.tolist()] for ntype, starts in self.nodes.items()],
            "edges": [[list(etype), starts.tolist()] for etype, starts in self.edges.items()],
        }

    @classmethod
    def from_json(cls, value: Any, part: int = 0) -> PartitionBook:
        """The inverse of `to_json`. Raises ValueError for what is no book."""
        try:
            nodes = {str(ntype): integers(starts) for ntype, starts in value["nodes"]}
            edges = {(str(s), str(name), str(d)): integers(starts) for (s, name, d), starts in value["edges"]}
            found = cls(nodes, edges, part)
        except (KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a partition book ({error})") from error
        if found.to_json() != value:
            raise ValueError("a type appears twice in a partition book, or is not called by text")
        return found

    # ---- within

    def node_starts(self, ntype: str | None) -> np.ndarray:
        """int64[k + 1] of a node type; of the only one for None. Raises UsageError for none or several."""
        if ntype is None and len(self.nodes) != 1:
            raise UsageError(f"there are several node types: say one of {', '.join(self.nodes)}")
        if ntype is not None and ntype not in self.nodes:
            raise UsageError(f"there is no node type {ntype!r}: there are {', '.join(self.nodes)}")
        return self.nodes[self.ntypes[0] if ntype is None else ntype]

    def edge_starts(self, etype: str | EdgeType | None) -> np.ndarray:
        """The same of an edge type."""
        if etype is None and len(self.edges) != 1:
            raise UsageError(f"say which edge type: one of {', '.join(map(SEPARATOR.join, self.edges)) or 'none'}")
        return self.edges[self.canonical_etypes[0] if etype is None else self.to_canonical_etype(etype)]

    def _owned(self, kinds: Mapping[Any, np.ndarray]) -> np.ndarray:
        return sum((np.diff(starts) for starts in kinds.values()), start=np.zeros(self.parts, np.int64))

    def _owners(self, starts: np.ndarray, ids: Ids, noun: str) -> torch.Tensor:
        array = inside(as_array(ids), int(starts[-1]), noun)
        return torch.from_numpy(np.searchsorted(starts[1:], array, side="right"))

    def _bounds(self, starts: np.ndarray, partid: int) -> tuple[int, int]:
        partid = integer("partid", partid, 0, self.parts - 1)
        return int(starts[partid]), int(starts[partid + 1])

    def _range(self, starts: np.ndarray, partid: int) -> torch.Tensor:
        return torch.arange(*self._bounds(starts, partid))

    def _local(self, starts: np.ndarray, ids: Ids, partid: int, noun: str) -> torch.Tensor:
        low, high = self._bounds(starts, partid)
        array = as_array(ids)
        strange = (array < low) | (array >= high)
        if strange.any():
            raise UsageError(f"{noun} {array[strange][0]} is not of partition {partid}, which owns {low}:{high}")
        return torch.from_numpy(array - low)


def as_array(ids: Ids) -> np.ndarray:
    """int64[n] of ids as users give them; one number is one id. Raises UsageError for what are no integers in one row."""
    given = np.atleast_1d(ids.detach().cpu().numpy() if isinstance(ids, torch.Tensor) else np.asarray(ids))
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        raise UsageError(f"ids must be integers in one row, not {given.dtype} of shape {given.shape}")
    return int64(given, "ids")


def integers(values: Any) -> np.ndarray:
    """int64[n] of a list of JSON. Raises ValueError for one that holds anything else."""
    if any(type(value) is not int for value in values):
        raise ValueError("a partition book must hold integers")
    return np.array(values, np.int64)


def inside(ids: np.ndarray, count: int, noun: str) -> np.ndarray:
    """`ids` int64[n], all of them in 0..count-1. Raises UsageError naming the first that is not."""
    strange = (ids < 0) | (ids >= count)
    if strange.any():
        raise UsageError(f"there is no {noun} {ids[strange][0]}: there are {count}, counted from 0")
    return ids


def homogeneous(kinds: Sequence[np.ndarray], parts: int) -> np.ndarray:
    """int64[k * types + 1]: where the homogeneous ids of each partition and type begin, types side by side within a partition."""
    counts = np.array([np.diff(starts) for starts in kinds], np.int64).reshape(len(kinds), parts)
    starts = np.zeros(counts.size + 1, np.int64)
    np.cumsum(counts.T.reshape(-1), out=starts[1:])
    return starts


def apart(every: np.ndarray, kinds: Sequence[np.ndarray], ids: np.ndarray, noun: str) -> tuple[torch.Tensor, torch.Tensor]:
    """int64[n] each: number of the type and id within it, of homogeneous ids; `every` is `homogeneous` of `kinds`."""
    cell = np.searchsorted(every[1:], inside(ids, int(every[-1]), noun), side="right")
    part, number = cell // max(1, len(kinds)), cell % max(1, len(kinds))
    first = np.array([starts[:-1] for starts in kinds], np.int64)
    within = ids - every[cell] + (first[number, part] if len(ids) else 0)
    return torch.from_numpy(number), torch.from_numpy(within)


def together(every: np.ndarray, number: int, starts: np.ndarray, ids: np.ndarray, noun: str) -> torch.Tensor:
    """int64[n], the inverse of `apart` for one type, whose ranges begin at `starts`."""
    part = np.searchsorted(starts[1:], inside(ids, int(starts[-1]), noun), side="right")
    types = (len(every) - 1) // (len(starts) - 1)
    return torch.from_numpy(every[part * types + number] + ids - starts[part])
