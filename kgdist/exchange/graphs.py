"""A graph on its way into another format, piece by piece, and the writing of it, whole or not at all.

Triples keep their order, names their bytes. A name that the layout cannot hold is refused by file and line. What a line is in
each layout, and which names it can hold, is said in layouts.py and ntriples.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError, OptionError
from kgdist.base.log import bar, log
from kgdist.data.dataset import Dataset, Triples
from kgdist.data.read.lines import suffix
from kgdist.exchange.folder import export_folder
from kgdist.version import __version__

PIECE = 1 << 17  # triples written at once
NOUNS = ("head", "relation", "tail")


class Unfit(Exception):
    """Some names cannot be written; `ids` int[k], and why."""

    def __init__(self, ids: np.ndarray, why: str) -> None:
        super().__init__(why)
        self.ids, self.why = ids, why

    @classmethod
    def check(cls, ids: np.ndarray, unfit: Any, why: str) -> None:
        """Raise Unfit for the ids where pa.BooleanArray `unfit` says so."""
        found = ids[np.asarray(unfit.to_numpy(zero_copy_only=False), bool)]
        if found.size:
            raise cls(found, why)


Words = Callable[[np.ndarray], Any]  # different ids, int[u] -> how each is written, pa.LargeStringArray[u]; raises Unfit


class Piece(NamedTuple):
    """Consecutive triples of a split."""

    split: str
    first: int  # number of the first one, from 0
    triples: np.ndarray  # int32[b, 3]
    weights: np.ndarray | None  # float32[b]


@dataclass(frozen=True)
class Graph:
    """What is written: a data set, and the files its splits came from, for errors."""

    dataset: Dataset
    files: Mapping[str, Path]
    header: bool = False
    tick: Callable[[int], object] = lambda triples: None

    def pieces(self, split: str) -> Iterator[Piece]:
        """The triples of a split, in order."""
        found: Triples = self.dataset.splits[split]
        for start in range(0, len(found), PIECE):
            stop = min(start + PIECE, len(found))
            yield Piece(split, start, found.array[start:stop], None if found.weights is None else found.weights[start:stop])
            self.tick(stop - start)

    def column(self, piece: Piece, column: int, words: Words) -> Any:
        """One column of triples as text, pa.LargeStringArray[b]. Raises DataError for a name that cannot be written."""
        ids, places = np.unique(piece.triples[:, column], return_inverse=True)
        try:
            return words(ids).take(pa.array(places))  # each different id is spelled once
        except Unfit as unfit:
            raise self._refusal(piece, column, unfit) from unfit

    def _refusal(self, piece: Piece, column: int, unfit: Unfit) -> DataError:
        """The error for the first triple of `piece` whose `column` holds a name that cannot be written."""
        ids = piece.triples[:, column]
        row = int(np.flatnonzero(np.isin(ids, unfit.ids))[0])
        vocabulary = self.dataset.relations if column == 1 else self.dataset.entities
        name = vocabulary[int(ids[row])]
        what = f"{NOUNS[column]} {name if len(name) <= 80 else name[:77] + '...'!r} {unfit.why}"
        path, number = self.files.get(piece.split, Path(piece.split)), piece.first + row + 1
        if suffix(path) in (".nt", ".parquet", ".pq"):  # a triple is no line there
            return DataError(path, f"triple {number}: {what}")
        return DataError(path, what, line=number + self.header)


Writer = Callable[[Graph, Path], None]


def convert(graph: Graph, name: str, write: Writer, out: Path, *, force: bool = False) -> list[Path]:
    """Write the folder `out` and return its files. Memory: a piece of the graph, and its vocabularies.

    Raises DataError (a name that the layout cannot hold), OptionError (weights that it cannot), UsageError (`out` is there, and
    not `force`), KgdistError (disk full); then `out` is as it was.
    """
    dataset = graph.dataset
    splits = {split: len(triples) for split, triples in dataset.splits.items()}
    sizes = {"entities": len(dataset.entities), "relations": len(dataset.relations), "splits": splits}
    about = {"format": name, "kgdist_version": __version__, "dataset": dataset.name, **sizes}
    with bar(total=sum(splits.values()), desc=f"writing {name}", unit=" triples") as progress:
        ticking = Graph(dataset, graph.files, graph.header, progress.update)
        with export_folder(out, about, force=force) as folder:
            write(ticking, folder)
    return sorted(out.iterdir())


def refuse_weights(graph: Graph, name: str) -> None:
    """Raise OptionError if a split has weights, for a layout without a place for them."""
    if any(triples.weights is not None for triples in graph.dataset.splits.values()):
        raise OptionError("--output_format", f"{name} has no place for the weights of triples; use raw_udd, udd or parquet")


def warn_unused(graph: Graph) -> None:
    """Say how many names stand in no triple: a layout without dictionaries loses them."""
    used = [np.zeros(len(vocabulary), bool) for vocabulary in (graph.dataset.entities, graph.dataset.relations)]
    for split in graph.dataset.splits:
        for piece in Graph(graph.dataset, graph.files).pieces(split):
            used[0][piece.triples[:, 0]] = used[1][piece.triples[:, 1]] = used[0][piece.triples[:, 2]] = True
    lost = [int((~seen).sum()) for seen in used]
    if any(lost):
        log.warning("%d entities and %d relations stand in no triple; this layout has no place for them", *lost)
