"""How large the partitions of a graph are, and how far their halos reach: counted from the files that were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.files import load_npy, write_npy
from kgdist.base.log import bar
from kgdist.kernels import arrange as loops
from kgdist.partition.graph import PIECE, uneven
from kgdist.partition.typed_book import PartitionBook

Numbers = list[list[int]]  # one row for each type or class, with a number for each partition


@dataclass(frozen=True)
class TypedSizes:
    """Numbers by type and partition."""

    nodes: Numbers  # owned, by node type
    halo: Numbers  # nodes of others that own nodes are reached from within some hops, by node type
    edges: Numbers  # owned, by edge type
    cut: Numbers  # own edges whose source is another partition's, by edge type
    class_nodes: Numbers  # nodes of each class, where several were evened out
    class_edges: Numbers  # edges that lead to them

    def to_json(self) -> dict[str, Any]:
        """Plain data, with what it comes to."""
        total = self.total()
        return {**asdict(self), "balance": {what: uneven(total[what]) for what in ("nodes", "edges")}}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TypedSizes:
        """The inverse of `to_json`."""
        return cls(**{key: numbers for key, numbers in value.items() if key != "balance"})

    def total(self) -> dict[str, list[int]]:
        """nodes, halo, edges and cut of each partition, of all types."""
        found, parts = {}, len(self.nodes[0])
        for what, numbers in (("nodes", self.nodes), ("halo", self.halo), ("edges", self.edges), ("cut", self.cut)):
            found[what] = np.array(numbers, np.int64).reshape(-1, parts).sum(axis=0).tolist()
        return found

    def table(self) -> str:
        """For people."""
        total = self.total()
        rows = [(str(p), *(f"{each[p]:,}" for each in total.values())) for p in range(len(total["nodes"]))]
        names = ("partition", *total)
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)]
        edges, cut = sum(total["edges"]), sum(total["cut"])
        lines.append(
            f"cut: {cut:,} of {edges:,} edges ({100 * cut / max(1, edges):.1f} %); largest partition / average: "
            f"{uneven(total['nodes']):.3f} of nodes, {uneven(total['edges']):.3f} of edges"
        )
        if self.class_nodes:
            worst = [max(map(uneven, numbers)) for numbers in (self.class_nodes, self.class_edges)]
            lines.append(f"the same within {len(self.class_nodes)} classes, at most: {worst[0]:.3f} and {worst[1]:.3f}")
        return "\n".join(lines)


def recount(book: PartitionBook, folders: Sequence[Path], classes: np.ndarray | None = None) -> TypedSizes:
    """What the files in `folders`, one for each partition, hold. `classes` int[nodes]: by original id, through all types."""
    cut: Numbers = []
    for e, etype in enumerate(book.canonical_etypes):
        cut.append([])
        for part, folder in enumerate(folders):
            low, high = book.nodes[etype[0]][part : part + 2]
            sources = load_npy(folder / f"edges.{e}.sources.npy", mmap=True)
            pieces = (sources[start : start + PIECE] for start in range(0, len(sources), PIECE))
            cut[-1].append(sum(int(((piece < low) | (piece >= high)).sum()) for piece in pieces))
    of_classes = _of_classes(book, folders, classes) if classes is not None else np.zeros((2, 0, book.parts), np.int64)
    return TypedSizes(
        [np.diff(starts).tolist() for starts in book.nodes.values()],
        [[len(load_npy(folder / f"halo.{t}.npy", mmap=True)) for folder in folders] for t in range(len(book.nodes))],
        [np.diff(starts).tolist() for starts in book.edges.values()],
        cut,
        of_classes[0].tolist(),
        of_classes[1].tolist(),
    )


def _of_classes(book: PartitionBook, folders: Sequence[Path], classes: np.ndarray) -> np.ndarray:
    """int64[2, classes, k]: nodes, and edges that lead to them."""
    count = int(classes.max(initial=-1)) + 1
    found, first = np.zeros((2, count, book.parts), np.int64), 0
    for t, ntype in enumerate(book.ntypes):
        for part, folder in enumerate(folders):
            own = classes[first + load_npy(folder / f"nodes.{t}.ids.npy", mmap=True).astype(np.int64)]
            found[0, :, part] += np.bincount(own, minlength=count)
            for e, etype in enumerate(book.canonical_etypes):
                if etype[2] == ntype:
                    degrees = np.diff(load_npy(folder / f"edges.{e}.starts.npy", mmap=True))
                    found[1, :, part] += np.bincount(own, weights=degrees, minlength=count).astype(np.int64)
        first += book.num_nodes(ntype)
    return found


def halo(book: PartitionBook, folders: Sequence[Path], part: int, hops: int) -> list[np.ndarray]:
    """int64[.] ascending for each node type: nodes of others that edges lead from to own nodes, or in `hops` steps.

    Memory: two bytes for each node.
    """
    ntypes, etypes = book.ntypes, book.canonical_etypes
    seen = [np.zeros(book.num_nodes(ntype), np.uint8) for ntype in ntypes]
    for t, ntype in enumerate(ntypes):
        seen[t][slice(*book.nodes[ntype][part : part + 2])] = 1
    done = [marks.copy() for marks in seen]
    for hop in range(hops):
        if hop == 0:
            for e, etype in enumerate(etypes):
                sources = load_npy(folders[part] / f"edges.{e}.sources.npy", mmap=True)
                loops.mark(sources, seen[ntypes.index(etype[0])])
            continue
        new = [np.flatnonzero(marks & ~before & 1) for marks, before in zip(seen, done, strict=True)]
        done = [marks.copy() for marks in seen]
        for e, etype in enumerate(etypes):
            rows, target = new[ntypes.index(etype[2])], seen[ntypes.index(etype[0])]
            bounds = np.searchsorted(rows, book.nodes[etype[2]])
            for other, folder in enumerate(folders):
                local = rows[bounds[other] : bounds[other + 1]] - book.nodes[etype[2]][other]
                if len(local):
                    arrays = (load_npy(folder / f"edges.{e}.{name}.npy", mmap=True) for name in ("starts", "sources"))
                    loops.mark_rows(*arrays, local, target)
    for t, ntype in enumerate(ntypes):
        seen[t][slice(*book.nodes[ntype][part : part + 2])] = 0
    return [np.flatnonzero(marks) for marks in seen]


def write_halos(book: PartitionBook, folders: Sequence[Path], hops: int) -> None:
    """Write halo.<t>.npy of each partition into its folder."""
    for part, folder in enumerate(bar(folders, desc="halo nodes", unit=" folder")):
        for t, nodes in enumerate(halo(book, folders, part, hops)):
            write_npy(folder / f"halo.{t}.npy", nodes)
