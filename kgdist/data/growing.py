"""A graph that grows: triples by name, among entities that are known and others that get the next ids.

Those that are known keep theirs, so the rows of a trained run stay where they are. Relations do not grow: no model has rows for
new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError
from kgdist.data.build import ByVocabulary, Encoder, look_up, number_by_appearance, stacked
from kgdist.data.memory import COLUMNS
from kgdist.data.names import Interner, as_binary
from kgdist.data.read.columns import Rows, Spec
from kgdist.data.read.formats import read_rows
from kgdist.data.read.lines import check_file
from kgdist.data.vocabulary import Vocabulary

PIECE = 1 << 18  # triples written at once


class Growing:
    """Rows of names -> ids. Entities that are not known get the next ids as they come; all relations must be known."""

    def __init__(self, entities: Vocabulary, relations: Vocabulary, where: str) -> None:
        """`where` says to the user what knows the relations."""
        self._given, self._where = (entities, relations), where
        self._entities = Interner("entities")
        self._entities.add(as_binary(entities.take(np.arange(len(entities)))))

    def add(self, names: Sequence[str]) -> None:
        """Entities that need no triples. Those that are there already stay as they are."""
        values = as_binary(pa.array(names, pa.large_string()).unique())
        self._entities.add(values.filter(pa.array(self._entities.find(values) < 0)))

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        """int32[n, 3]. Raises DataError with the line of a relation that is not known."""
        (relations,) = look_up(path, rows, "r", self._given, ("", self._where))
        heads, tails = number_by_appearance(self._entities, [rows.heads, rows.tails])
        return stacked(heads, relations, tails)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Entities, those that were known first, and relations. Nothing can be added from then on."""
        return Vocabulary(*self._entities.finish()), self._given[1]


def read_named(path: Path, spec: Spec, encoder: Encoder) -> np.ndarray:
    """int32[T, 3] of a file of triples by name. Raises DataError (file:line), also for a file without any."""
    check_file(path, "triples")
    found = [encoder.encode(path, rows) for rows in read_rows(path, spec)]
    if not sum(map(len, found)):
        raise DataError(path, f"holds no triples, expected lines of {spec.expected(3)}")
    return np.concatenate(found)


def known_names(entities: Vocabulary, relations: Vocabulary, where: tuple[str, str]) -> Encoder:
    """What reads triples whose names all are known; `where` says to the user what knows them."""
    return ByVocabulary(entities, relations, where)


def among(triples: np.ndarray, known: np.ndarray) -> np.ndarray:
    """bool[T], which rows of int32[T, 3] are in int32[K, 3]."""
    ours, others = (_rows(rows) for rows in (triples, known))
    return np.asarray(np.isin(ours, others))


def without(triples: np.ndarray, known: np.ndarray) -> np.ndarray:
    """The different rows of int32[T, 3] that are not in int32[K, 3], in their order."""
    first = np.sort(np.unique(_rows(triples), return_index=True)[1])
    return np.asarray(triples[first[~among(triples[first], known)]])


def _rows(triples: np.ndarray) -> np.ndarray:
    return np.asarray(np.ascontiguousarray(triples, np.int32).view(np.dtype((np.void, 12))).ravel())


def write_named(folder: Path, splits: Mapping[str, Sequence[np.ndarray]], entities: Vocabulary, relations: Vocabulary) -> None:
    """Write `<split>.parquet` of names into a folder, which is a data set of the format built_in then.

    `splits`: parts int[T, 3] of each, one after another. Memory: the names of some hundred thousand triples.
    """
    from pyarrow import parquet  # only here: it loads a large library

    schema = pa.schema([(column, pa.large_string()) for column in COLUMNS])
    for split, parts in splits.items():
        with parquet.ParquetWriter(folder / f"{split}.parquet", schema) as file:
            for part in parts:
                for start in range(0, len(part), PIECE):
                    heads, links, tails = part[start : start + PIECE].T
                    columns = [entities.take(heads), relations.take(links), entities.take(tails)]
                    file.write_table(pa.table(columns, schema=schema))
