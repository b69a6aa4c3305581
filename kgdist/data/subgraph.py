"""The part of a data set that some of its entities span, as the files of another one with ids of its own.

It has the triples of train between these entities, the relations of those, and what valid has of both. Names stay. Memory: a few
bytes an entity, and a piece of the triples.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from kgdist.data.dataset import Dataset
from kgdist.data.names import as_binary, parts
from kgdist.data.vocabulary import Vocabulary

FORMAT, FILES = "udd_hrt", ("entities.tsv", "relations.tsv", "train.parquet", "valid.parquet")  # --format, --data_files
_COLUMNS = ("head", "relation", "tail")
_PIECE = 1 << 20  # triples looked at once


class Subgraph:
    """What entities span; `kept` bool[entities] says which, each of them with a triple of train. There is a valid split."""

    def __init__(self, dataset: Dataset, kept: np.ndarray) -> None:
        self._dataset, self._kept = dataset, kept
        self._links = np.ones(len(dataset.relations), bool)  # those that train has here, once it has been looked through
        met = np.zeros(len(dataset.relations), bool)
        self.train = 0  # triples
        for triples, _ in self._pieces("train"):
            met[triples[:, 1]] = True
            self.train += len(triples)
        self._links = met
        self.valid = sum(len(triples) for triples, _ in self._pieces("valid"))

    @property
    def entities(self) -> int:
        """How many."""
        return int(self._kept.sum())

    def _pieces(self, split: str) -> Iterator[tuple[np.ndarray, np.ndarray | None]]:
        """What it has of a split, in order: int32[n, 3] with the ids of the data set, float32[n] weights if there are any."""
        found = self._dataset.splits[split]
        for start in range(0, len(found), _PIECE):
            triples = found.array[start : start + _PIECE]
            rows = np.flatnonzero(self._kept[triples[:, 0]] & self._kept[triples[:, 2]] & self._links[triples[:, 1]])
            yield triples[rows], None if found.weights is None else found.weights[start : start + _PIECE][rows]

    def write(self, folder: Path) -> None:
        """Fill an empty folder with `FILES`."""
        number = []
        for name, vocabulary, kept in (
            ("entities", self._dataset.entities, self._kept),
            ("relations", self._dataset.relations, self._links),
        ):
            Vocabulary(*parts(as_binary(vocabulary.take(np.flatnonzero(kept))))).write_tsv(folder / f"{name}.tsv")
            number.append(np.cumsum(kept, dtype=np.int32) - 1)
        for split in ("train", "valid"):
            weighted = self._dataset.splits[split].weights is not None
            fields = [(name, pa.int32()) for name in _COLUMNS] + [("weight", pa.float32())] * weighted
            with parquet.ParquetWriter(folder / f"{split}.parquet", pa.schema(fields)) as file:
                for triples, weights in self._pieces(split):
                    columns = [number[place % 2][triples[:, place]] for place in range(3)]
                    columns += [weights] if weights is not None else []
                    file.write_table(pa.table(columns, schema=file.schema))
