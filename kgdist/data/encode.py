"""Rows of names or ids -> int32[n, 3] (head, relation, tail). Three ways: ids by first appearance, ids from given
vocabularies, ids as they stand.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError
from kgdist.data.interner import Interner
from kgdist.data.names import as_binary
from kgdist.data.read.rows import NOUNS, Rows, shown
from kgdist.data.vocabulary import Vocabulary


class Encoder(Protocol):
    """Turns the rows of all splits, in order, into ids, and knows the vocabularies in the end."""

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        """int32[n, 3] of rows of the file `path`. Raises DataError with the line."""
        ...

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """Entities and relations."""
        ...


class ById:
    """The rows hold ids, in range already."""

    def __init__(self, entities: Vocabulary, relations: Vocabulary) -> None:
        self._vocabularies = (entities, relations)

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        return _stack(*(column.to_numpy(zero_copy_only=False) for column in rows[:3]))

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return self._vocabularies


class ByVocabulary:
    """The rows hold names that must all be known; `where` says to the user what knows them."""

    def __init__(self, entities: Vocabulary, relations: Vocabulary, where: tuple[str, str]) -> None:
        self._vocabularies = (entities, relations)
        self._where = where

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        unknown: list[tuple[int, str]] = []
        columns = []
        for letter, column in zip("hrt", rows[:3], strict=True):
            ids = self._vocabularies[letter == "r"].find(column.dictionary)
            codes = column.indices.to_numpy()
            if len(ids) and ids.min() < 0:
                row = int(np.flatnonzero(ids[codes] < 0)[0])
                name = shown(column.dictionary[int(codes[row])])
                unknown.append((row, f"{NOUNS[letter]} {name} is not in {self._where[letter == 'r']}"))
            columns.append(ids[codes])
        if unknown:
            row, message = min(unknown, key=lambda found: found[0])
            raise DataError(path, message, line=rows.place(row))
        return _stack(*columns)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return self._vocabularies


class ByAppearance:
    """The rows hold names, numbered as they come: row by row, the head before the tail, as DGL-KE does."""

    def __init__(self) -> None:
        self._entities, self._relations = Interner("entities"), Interner("relations")

    def encode(self, path: Path, rows: Rows) -> np.ndarray:
        heads, tails = _number(self._entities, [rows.heads, rows.tails])
        (relations,) = _number(self._relations, [rows.relations])
        return _stack(heads, relations, tails)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        return Vocabulary(*self._entities.finish()), Vocabulary(*self._relations.finish())


def _number(interner: Interner, columns: list[Any]) -> list[np.ndarray]:
    """int64[n] ids for each dictionary<string>[n] column, new names numbered row by row, columns in order within a row."""
    codes = [column.indices.to_numpy() for column in columns]
    names = [as_binary(column.dictionary) for column in columns]
    found = [interner.find(each) for each in names]
    new = [np.flatnonzero(each < 0) for each in found]
    if any(each.size for each in new):
        firsts = []  # for each new name, where in reading order it is met first
        for place, (column, ids) in enumerate(zip(codes, found, strict=True)):
            rows = np.flatnonzero(ids[column] < 0)[::-1]
            first = np.empty(len(ids), np.int64)
            first[column[rows]] = rows * len(columns) + place
            firsts.append(first[new[place]])
        order = np.argsort(np.concatenate(firsts))
        fresh = pa.concat_arrays([each.take(pa.array(which)) for each, which in zip(names, new, strict=True)])
        distinct = fresh.take(pa.array(order)).dictionary_encode()  # a name may be new in both columns
        ids = np.empty(len(order), np.int64)
        ids[order] = interner.add(distinct.dictionary)[distinct.indices.to_numpy()]
        start = 0
        for each, which in zip(found, new, strict=True):
            each[which] = ids[start : start + len(which)]
            start += len(which)
    return [ids[column] for ids, column in zip(found, codes, strict=True)]


def _stack(heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> np.ndarray:
    triples = np.empty((len(heads), 3), np.int32)
    triples[:, 0], triples[:, 1], triples[:, 2] = heads, relations, tails
    return triples
