"""The graph that partition_graph divides: what it must offer, its edges as triples piece by piece, its data as columns of rows.

Methods see one graph whose nodes are counted through all types, as triples (source, 0, destination); these are made as they are
asked for, so that no copy of the edges is held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.errors import DataError, UsageError
from kgdist.data.dataset import Dataset
from kgdist.data.read.arrays import mapped
from kgdist.graphs.ids import as_array
from kgdist.partition.typed_book import EdgeType

# What rows of data may hold, as torch names it -> what NumPy keeps of it on disk.
STORED = {
    **{name: np.dtype(name) for name in ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "bool")},
    "bfloat16": np.dtype("int16"),  # its bits: NumPy has no such type
}


class Typed(Protocol):
    """A graph of several node and edge types; ids count from 0 within each."""

    @property
    def ntypes(self) -> Sequence[str]:
        """Names of the node types."""

    @property
    def canonical_etypes(self) -> Sequence[EdgeType]:
        """The edge types by three names."""

    def num_nodes(self, ntype: str | None = None) -> int:
        """Of a type, or of all."""

    def num_edges(self, etype: Any = None) -> int:
        """Of a type, or of all."""

    def edges_of(self, etype: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Sources and destinations, int[E] each, by edge id."""

    @property
    def nodes(self) -> Any:
        """`nodes[ntype].data`: name -> rows, one for each node: a tensor, or a `Column`."""

    @property
    def edges(self) -> Any:
        """`edges[etype].data`, likewise."""


class Column(NamedTuple):
    """Data of nodes or edges: rows by id, read as they are wanted."""

    dtype: str  # a key of STORED
    shape: tuple[int, ...]  # of a row
    take: Callable[[np.ndarray], np.ndarray]  # int64[m] -> STORED[dtype][m, *shape]

    @classmethod
    def of(cls, name: str, values: Any, rows: int) -> Column:
        """Of a tensor, an array or a column, which is shared and not copied. Raises UsageError for what cannot be kept."""
        if isinstance(values, Column):
            return values
        array, dtype = (values, values.dtype.name) if isinstance(values, np.ndarray) else _array_of(name, values)
        if dtype not in STORED:
            raise UsageError(f"{name!r} is of {dtype}, which no partition can hold: convert it to one of {', '.join(STORED)}")
        if array.ndim == 0 or len(array) != rows:
            raise UsageError(f"{name!r} has the shape {list(array.shape)}, but there are {rows} to have a row each")
        return cls(dtype, array.shape[1:], lambda ids: array.take(ids, axis=0))

    @property
    def row_bytes(self) -> int:
        """Bytes of one row on disk."""
        return int(np.prod(self.shape, dtype=np.int64)) * STORED[self.dtype].itemsize


class OfType(NamedTuple):
    """What `graph.nodes[type]` gives."""

    data: Mapping[str, Any]


class Assembled:
    """A graph of arrays that are there already, in memory or mapped.

    Args:
        nodes: node type -> how many.
        ends: edge type -> sources and destinations, int[E] each, by edge id.
        on_nodes, on_edges: type -> name -> rows.
    """

    def __init__(
        self,
        nodes: Mapping[str, int],
        ends: Mapping[EdgeType, tuple[np.ndarray, np.ndarray]],
        on_nodes: Mapping[str, Mapping[str, Any]],
        on_edges: Mapping[EdgeType, Mapping[str, Any]],
    ) -> None:
        self._nodes, self._ends = dict(nodes), dict(ends)
        self.ntypes, self.canonical_etypes = list(nodes), list(ends)
        self.nodes = {ntype: OfType(on_nodes.get(ntype, {})) for ntype in nodes}
        self.edges = {etype: OfType(on_edges.get(etype, {})) for etype in ends}

    def num_nodes(self, ntype: str | None = None) -> int:
        """See Typed."""
        return sum(self._nodes.values()) if ntype is None else self._nodes[ntype]

    def num_edges(self, etype: Any = None) -> int:
        """See Typed."""
        return sum(len(sources) for sources, _ in self._ends.values()) if etype is None else len(self._ends[etype][0])

    def edges_of(self, etype: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """See Typed."""
        return self._ends[self.canonical_etypes[0] if etype is None else etype]


def of_triples(dataset: Dataset, features: Sequence[str] = ()) -> Assembled:
    """The training triples of a data set as a graph of one type of nodes, entities, and one of edges: its relations are the data
    `etype` int32 of the edges, its weights `weight` float32.

    `features` are NAME=FILE.npy, a row for each entity by its id. Raises DataError for a file that does not fit.
    """
    nodes, train = len(dataset.entities), dataset.train
    on_nodes = {}
    for name, _, file in (feature.partition("=") for feature in features):
        array = mapped(Path(file))
        if len(array) != nodes:
            raise DataError(file, f"has {len(array)} rows, and {dataset.name} has {nodes} entities")
        on_nodes[name] = array
    on_edges = {"etype": train.array[:, 1]} | ({} if train.weights is None else {"weight": train.weights})
    etype = ("_N", "_E", "_N")
    return Assembled({"_N": nodes}, {etype: (train.array[:, 0], train.array[:, 2])}, {"_N": on_nodes}, {etype: on_edges})


def _array_of(name: str, values: Any) -> tuple[np.ndarray, str]:
    """A tensor's memory, and the name of its dtype. Raises UsageError for what makes no dense tensor."""
    try:
        tensor = torch.as_tensor(values).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name!r} is a {type(values).__name__} that makes no tensor of numbers: make it one") from error
    if tensor.layout != torch.strided:
        raise UsageError(f"{name!r} is sparse, which no partition can hold: give its .to_dense(), or leave it out")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return (tensor.view(torch.int16) if dtype == "bfloat16" else tensor).numpy(), dtype


class Joined:
    """The edges of all types as one sequence of triples (source, 0, destination), types one after the other; nodes are counted
    through all types, in the order of `ntypes`.

    Raises UsageError for 2^31 nodes and more: each method keeps 50 bytes a node, and ids of 4 bytes.
    """

    def __init__(self, graph: Typed) -> None:
        self.first, count = {}, 0
        for ntype in graph.ntypes:
            self.first[ntype] = count
            count += graph.num_nodes(ntype)
        if count >= 1 << 31:
            raise UsageError(f"{count:,} nodes are too many to be divided on one machine: fewer than {1 << 31:,} can be")
        self.num_nodes = count
        self._spans, self._length = [], 0
        for etype in graph.canonical_etypes:
            sources, destinations = graph.edges_of(etype)
            self._spans.append((self._length, sources, destinations, self.first[etype[0]], self.first[etype[2]]))
            self._length += len(sources)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, piece: slice) -> np.ndarray:
        """int32[., 3]."""
        start, stop, _ = piece.indices(self._length)
        triples = np.zeros((max(0, stop - start), 3), np.int32)
        for begin, sources, destinations, source, destination in self._spans:
            low, high = max(start, begin), min(stop, begin + len(sources))
            if low < high:
                here, there = triples[low - start : high - start], slice(low - begin, high - begin)
                for column, ends, first in ((0, sources, source), (2, destinations, destination)):
                    here[:, column] = ends[there]
                    if first:
                        here[:, column] += first
        return triples


def classes_of(graph: Typed, balance_ntypes: Any) -> np.ndarray | None:
    """int64[nodes], counted through all types: the class of each node; None where there is one class.

    `balance_ntypes` are classes int or bool[n] of the nodes where there is one type, or a dictionary of these by type; the types
    themselves are classes, and what is said of one divides it further. Raises UsageError for what does not fit the graph.
    """
    if not isinstance(balance_ntypes, Mapping) and balance_ntypes is not None and len(graph.ntypes) != 1:
        types = ", ".join(graph.ntypes)
        raise UsageError(f"balance_ntypes: give a dictionary of node type to classes; the types are {types}")
    alone = {} if balance_ntypes is None else {graph.ntypes[0]: balance_ntypes}
    given: dict[str, Any] = dict(balance_ntypes) if isinstance(balance_ntypes, Mapping) else alone
    if strange := set(given) - set(graph.ntypes):
        raise UsageError(f"balance_ntypes: there is no node type {min(strange)!r}: there are {', '.join(graph.ntypes)}")
    found, count = [np.zeros(0, np.int64)], 0
    for ntype in graph.ntypes:
        nodes = graph.num_nodes(ntype)
        own = np.zeros(nodes, np.int64)
        if ntype in given:
            values = as_array(given[ntype])
            if values.shape != (nodes,) or values.dtype.kind not in "iub":
                shape = f"{values.dtype}{list(values.shape)}"
                raise UsageError(f"balance_ntypes: {shape} for {nodes} nodes of type {ntype}: give an integer or bool for each")
            own = np.unique(values, return_inverse=True)[1].reshape(-1).astype(np.int64)
        found.append(own + count)
        count += int(own.max(initial=0)) + 1
    return np.concatenate(found) if count > 1 else None
