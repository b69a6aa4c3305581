"""Which entities a relation has at each end: its domain, that is its heads, and its range, its tails.

They are those of its triples (the local closed world of Krompass, Baier and Tresp 2015), or all entities of the types that these
have. Memory: 4 bytes for each entity of each relation and end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kgdist.base.integers import distinct
from kgdist.base.types import Side
from kgdist.data.known import among


class _Rows(NamedTuple):
    """Ids of some rows, in compressed rows."""

    starts: np.ndarray  # int64[rows + 1]
    ids: np.ndarray  # int32[.], ascending within a row

    @classmethod
    def of(cls, pairs: np.ndarray, rows: int) -> _Rows:
        """From int64[n], row * 2^32 + id, in any order and more than once; they are sorted in place."""
        pairs = distinct(pairs)
        starts = np.searchsorted(pairs, np.arange(rows + 1, dtype=np.int64) << 32)
        return cls(starts, (pairs & 0xFFFFFFFF).astype(np.int32))

    def rows(self) -> np.ndarray:
        """int64[n], the row of each id."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int64), np.diff(self.starts))

    def through(self, other: _Rows) -> _Rows:
        """The rows of `other` that the ids are numbers of, put together."""
        counts = np.diff(other.starts)[self.ids]
        places = np.repeat(other.starts[self.ids] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        rows = np.repeat(self.rows(), counts)
        return _Rows.of(rows << 32 | other.ids[places], len(self.starts) - 1)


class Domains:
    """The entities of all relations at both ends."""

    def __init__(self, rows: dict[Side, _Rows]) -> None:
        self._rows = rows

    @classmethod
    def of(cls, triples: np.ndarray, relations: int) -> Domains:
        """Of int[T, 3] triples. Takes 24 bytes a triple, for a moment."""
        columns = {Side.HEAD: 0, Side.TAIL: 2}
        links = triples[:, 1].astype(np.int64) << 32
        return cls({side: _Rows.of(links | triples[:, column], relations) for side, column in columns.items()})

    def typed(self, types: np.ndarray, entities: int) -> Domains:
        """All entities that have a type which one of these has; `types` int[n, 2] are pairs of entity and type."""
        wide, count = types.astype(np.int64), int(types[:, 1].max(initial=-1)) + 1
        of_entity = _Rows.of(wide[:, 0] << 32 | wide[:, 1], entities)
        of_type = _Rows.of(wide[:, 1] << 32 | wide[:, 0], count)
        return Domains({side: rows.through(of_entity).through(of_type) for side, rows in self._rows.items()})

    def within(self, allowed: np.ndarray) -> Domains:
        """Those that bool[entities] allows."""
        found = {}
        for side, rows in self._rows.items():
            kept = allowed[rows.ids]
            found[side] = _Rows.of(rows.rows()[kept] << 32 | rows.ids[kept], len(rows.starts) - 1)
        return Domains(found)

    def sizes(self, side: Side) -> np.ndarray:
        """int64[R]: how many entities each relation has there."""
        return np.diff(self._rows[side].starts)

    def entities(self, side: Side, relation: int) -> np.ndarray:
        """int32[.], ascending: those of one relation."""
        starts, ids = self._rows[side]
        return ids[starts[relation] : starts[relation + 1]]

    def pick(self, side: Side, relations: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """int64[n]: of each of the relations int[n], the entity of that number int[n], counted from 0."""
        starts, ids = self._rows[side]
        return np.asarray(ids[starts[relations] + numbers], np.int64)

    def has(self, side: Side, relations: np.ndarray, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """bool[G, N]: whether each relation int64[G] has the candidates there that are in the row int64[G] of int64[C, N]."""
        out = np.empty((len(relations), candidates.shape[1]), np.bool_)
        starts, ids = self._rows[side]
        among(ids, starts[relations], starts[relations + 1], rows, candidates, out)
        return out
