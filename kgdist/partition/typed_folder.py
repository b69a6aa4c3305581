"""The partition of a graph of several types: what its partition.json says, and the folder opened, all arrays memory-mapped.

    partition.json                see kgdist.partition.manifest; this is format 2
    nodes.<t>.ids.npy             int[n], the original id of each own node of node type number t, by place
    nodes.<t>.feature.<f>.npy     a row for each own node; partition.json has the feature's name
    halo.<t>.npy                  int64[.] ascending, nodes of others that own nodes are reached from within some hops
    edges.<e>.starts.npy          int64[n + 1], of edge type number e: where the in-edges of each own node begin
    edges.<e>.sources.npy         int[E], the source of each
    edges.<e>.ids.npy             int[E], the original id of each own edge, by place
    edges.<e>.feature.<f>.npy     a row for each own edge

An edge lives with its destination, so all in-edges of a node are with its owner, and an edge's id is its place, counted from the
first of its partition. Nodes are written in new ids, counted through all partitions, in 4 bytes where that is enough.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, counted
from kgdist.base.files import PathLike, sha256, sha256_of_json
from kgdist.partition.manifest import KINDS, NAME, Files, Manifest
from kgdist.partition.typed_book import EdgeType, PartitionBook
from kgdist.partition.typed_graph import STORED

Shape = tuple[int, ...]
Described = dict[str, tuple[str, Shape]]  # name of a feature -> a key of STORED, the shape of a row


def whole(count: int) -> np.dtype:
    """The integers that ids below `count` are kept in."""
    return np.dtype(np.int32 if count <= 1 << 31 else np.int64)


@dataclass(frozen=True)
class GraphInCommon:
    """What is the same in every partition of a graph."""

    FORMAT: ClassVar[int] = 2
    KIND: ClassVar[str] = KINDS[2]

    name: str
    method: str
    objective: str
    seed: int
    hops: int  # how far the halo goes
    trainers: int  # on each machine, that the nodes are divided among
    book: PartitionBook
    on_nodes: dict[str, Described]
    on_edges: dict[EdgeType, Described]
    sizes: dict[str, Any]  # see `kgdist.partition.typed_sizes.TypedSizes`
    contents: tuple[str, ...]  # `digest_of` the files of each partition

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name,
            "method": self.method,
            "objective": self.objective,
            "seed": self.seed,
            "hops": self.hops,
            "trainers": self.trainers,
            "book": self.book.to_json(),
            "on_nodes": [listed(self.on_nodes[ntype]) for ntype in self.book.ntypes],
            "on_edges": [listed(self.on_edges[etype]) for etype in self.book.canonical_etypes],
            "sizes": self.sizes,
            "contents": list(self.contents),
        }

    @classmethod
    def from_json(cls, value: Any) -> GraphInCommon:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for what is no such thing."""
        book = PartitionBook.from_json(value["book"])
        found = cls(
            str(value["name"]),
            str(value["method"]),
            str(value["objective"]),
            int(value["seed"]),
            int(value["hops"]),
            int(value["trainers"]),
            book,
            dict(zip(book.ntypes, map(described, value["on_nodes"]), strict=True)),
            dict(zip(book.canonical_etypes, map(described, value["on_edges"]), strict=True)),
            dict(value["sizes"]),
            tuple(str(content) for content in value["contents"]),
        )
        if found.to_json() != value or len(found.contents) != book.parts:
            raise ValueError("its numbers contradict one another")
        return found

    @property
    def graph(self) -> str:
        """sha256 of all of it, in hex."""
        return sha256_of_json(self.to_json())


def listed(features: Described) -> list[list[Any]]:
    """Plain data, in order."""
    return [[name, dtype, list(shape)] for name, (dtype, shape) in features.items()]


def described(value: Any) -> Described:
    """The inverse of `listed`. Raises ValueError."""
    found = {str(name): (str(dtype), tuple(int(length) for length in shape)) for name, dtype, shape in value}
    if any(dtype not in STORED or min(shape, default=0) < 0 for dtype, shape in found.values()):
        raise ValueError("features that cannot be")
    return found


class LocalPartition:
    """One partition of a graph. Ids are new ids everywhere, counted through all partitions; arrays are mapped from files.

    Attributes:
        book: who owns what; `partid` is this partition.
        graph: one digest, equal for all partitions that belong together.
        starts, sources: by edge type, int64[n + 1] and int[E]; the in-edges of own nodes.
        halo: by node type, int64[.] ascending.
        node_ids, edge_ids: by type, int[.]; original ids of own nodes and edges.
        node_features, edge_features: by type and name, tensors of a row for each own node or edge. What is written to them stays
            in this process.
    """

    def __init__(self, folder: Path, manifest: Manifest[GraphInCommon]) -> None:
        common, part = manifest.common, manifest.part
        self.folder, self.manifest, self.part, self.name = folder, manifest, part, common.name
        self.graph = common.graph
        self.book = book = common.book.of(part)
        own = {kind: int(starts[part + 1] - starts[part]) for kind, starts in chain(book.nodes.items(), book.edges.items())}
        self.starts, self.sources = dict[EdgeType, np.ndarray](), dict[EdgeType, np.ndarray]()
        self.node_ids, self.edge_ids = dict[str, np.ndarray](), dict[EdgeType, np.ndarray]()
        self.halo = dict[str, np.ndarray]()
        self.node_features, self.edge_features = dict[str, dict[str, torch.Tensor]](), dict[EdgeType, dict[str, torch.Tensor]]()
        for t, ntype in enumerate(book.ntypes):
            self.node_ids[ntype] = self._map(f"nodes.{t}.ids.npy", whole(book.num_nodes(ntype)), (own[ntype],))
            self.halo[ntype] = self._map(f"halo.{t}.npy", np.dtype(np.int64), (int(common.sizes["halo"][t][part]),))
            self.node_features[ntype] = self._features(f"nodes.{t}", common.on_nodes[ntype], own[ntype])
        for e, etype in enumerate(book.canonical_etypes):
            self.starts[etype] = self._map(f"edges.{e}.starts.npy", np.dtype(np.int64), (own[etype[2]] + 1,))
            self.sources[etype] = self._map(f"edges.{e}.sources.npy", whole(book.num_nodes(etype[0])), (own[etype],))
            self.edge_ids[etype] = self._map(f"edges.{e}.ids.npy", whole(book.num_edges(etype)), (own[etype],))
            self.edge_features[etype] = self._features(f"edges.{e}", common.on_edges[etype], own[etype])
            starts = self.starts[etype]
            if starts[0] != 0 or starts[-1] != own[etype] or (starts[1:] < starts[:-1]).any():  # loops read what they say
                file, wanted = folder / f"edges.{e}.starts.npy", f"0 to {own[etype]}, the edges of type {':'.join(etype)}"
                raise CheckpointError(f"{file}: damaged, it does not ascend from {wanted}; make or copy the partitions again")

    @classmethod
    def open(cls, folder: PathLike, *, verify: bool = False) -> LocalPartition:
        """Map a folder that partition_graph wrote; sizes are compared, and with `verify` every byte (a second for each GB).

        Raises CheckpointError naming the file that is missing or is not as it was written.
        """
        path = Path(folder)
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such folder; partition_graph makes it, and kgdist-copy sends it")
        manifest = Manifest.read(path, GraphInCommon)
        manifest.check(path, verify=verify)
        try:
            return cls(path, manifest)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise CheckpointError(f"{path / NAME}: damaged ({error}); make the partitions again") from error

    @property
    def parts(self) -> int:
        """k, the number of partitions."""
        return self.book.parts

    def num_nodes(self, ntype: str | None = None) -> int:
        """Own nodes of a type, or of all; halo nodes are not among them."""
        return self._own(self.book.nodes.values() if ntype is None else [self.book.node_starts(ntype)])

    def num_edges(self, etype: str | EdgeType | None = None) -> int:
        """Own edges of a type, or of all: those that lead to own nodes."""
        return self._own(self.book.edges.values() if etype is None else [self.book.edge_starts(etype)])

    number_of_nodes, number_of_edges = num_nodes, num_edges

    def __repr__(self) -> str:
        own = f"{counted(self.num_nodes(), 'node')}, {counted(self.num_edges(), 'edge')}"
        return f"LocalPartition({self.name!r}, partition {self.part} of {self.parts}: {own}; {str(self.folder)!r})"

    def range(self, kind: str | EdgeType) -> tuple[int, int]:
        """The first id of own nodes or edges of a type, and the one after the last."""
        starts = self.book.nodes[kind] if isinstance(kind, str) else self.book.edges[kind]
        return int(starts[self.part]), int(starts[self.part + 1])

    def files(self) -> Files:
        """Name -> (bytes, sha256) of every file of the folder, partition.json among them."""
        file = self.folder / NAME
        return {**self.manifest.files, NAME: (file.stat().st_size, sha256(file))}

    def _own(self, every: Iterable[np.ndarray]) -> int:
        return sum(int(starts[self.part + 1] - starts[self.part]) for starts in every)

    def _map(self, name: str, dtype: np.dtype, shape: Shape) -> np.ndarray:
        return self.manifest.map(self.folder, name, dtype, shape)

    def _features(self, stem: str, features: Described, rows: int) -> dict[str, torch.Tensor]:
        found = {}
        for number, (name, (dtype, shape)) in enumerate(features.items()):
            array = self._map(f"{stem}.feature.{number}.npy", STORED[dtype], (rows, *shape))
            tensor = torch.from_numpy(array)
            found[name] = tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor
        return found
