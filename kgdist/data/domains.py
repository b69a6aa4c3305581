"""Which entities a relation has at each end: its domain, that is its heads, and its range, its tails.

They are those of its triples (the local closed world of Krompass, Baier and Tresp 2015), or all entities of the types that these
have. Entities that have the same types make a class, and a relation has whole classes then: of five million entities of one type
each, a relation that has a type needs one number, not a million. Memory: 4 bytes for each entity of each relation and end, with
types 12 for each class of each relation and end, and 8 an entity.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from kgdist.base.integers import distinct
from kgdist.base.types import Side
from kgdist.data.known import among

AT_ONCE = 1 << 22  # ids looked at together where rows are put together


class Rows(NamedTuple):
    """Ids of some rows, in compressed rows."""

    starts: np.ndarray  # int64[rows + 1]
    ids: np.ndarray  # int32[.], ascending within a row

    @classmethod
    def of(cls, pairs: np.ndarray, rows: int) -> Rows:
        """From int64[n], row * 2^32 + id, in any order and more than once; they are sorted in place."""
        pairs = distinct(pairs)
        starts = np.searchsorted(pairs, np.arange(rows + 1, dtype=np.int64) << 32)
        return cls(starts, (pairs & 0xFFFFFFFF).astype(np.int32))

    def rows(self) -> np.ndarray:
        """int64[n], the row of each id."""
        return np.repeat(np.arange(len(self.starts) - 1, dtype=np.int64), np.diff(self.starts))

    def row(self, number: int) -> np.ndarray:
        """int32[.], ascending: the ids of one row."""
        return self.ids[self.starts[number] : self.starts[number + 1]]

    def through(self, other: Rows) -> Rows:
        """The rows of `other` that the ids are numbers of, put together; a few at a time, for they may be many and the same."""
        count = len(self.starts) - 1
        many = np.append(0, np.cumsum(np.diff(other.starts)[self.ids]))[self.starts]  # int64[rows + 1], before each row
        bounds = [0]
        while bounds[-1] < count:
            stop = int(np.searchsorted(many, many[bounds[-1]] + AT_ONCE, "right")) - 1
            bounds.append(min(max(stop, bounds[-1] + 1), count))
        parts = [self._through(other, start, stop) for start, stop in itertools.pairwise(bounds)]
        sizes = [np.diff(part.starts) for part in parts]
        return Rows(
            np.cumsum(np.concatenate([[0], *sizes])), np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)])
        )

    def _through(self, other: Rows, start: int, stop: int) -> Rows:
        ids = self.ids[self.starts[start] : self.starts[stop]]
        counts = np.diff(other.starts)[ids]
        places = np.repeat(other.starts[ids] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        own = np.repeat(np.arange(stop - start, dtype=np.int64), np.diff(self.starts[start : stop + 1]))
        return Rows.of(np.repeat(own, counts) << 32 | other.ids[places], stop - start)

    def turned(self, count: int) -> Rows:
        """The rows that each of so many ids is in."""
        return Rows.of(self.ids.astype(np.int64) << 32 | self.rows(), count)

    def kept(self, those: np.ndarray) -> Rows:
        """Without the ids that bool[n] does not name."""
        before = np.append(0, np.cumsum(those))
        return Rows(before[self.starts], self.ids[those])

    def alike(self) -> np.ndarray:
        """int64[rows]: a number of each row, the same for rows of the same ids, without gaps."""
        counts, found, above = np.diff(self.starts), np.zeros(len(self.starts) - 1, np.int64), 1
        for place in range(int(counts.max(initial=0))):
            longer = np.flatnonzero(counts > place)
            values, numbers = np.unique(found[longer] << 32 | self.ids[self.starts[longer] + place], return_inverse=True)
            found[longer] = above + numbers
            above += len(values)
        return np.unique(found, return_inverse=True)[1]


class _Classes(NamedTuple):
    """Classes of entities, none of which is in two."""

    of: np.ndarray  # int[entities], the class of each, -1 for none
    members: Rows  # of each class


class Domains:
    """The entities of all relations at both ends."""

    def __init__(self, rows: dict[Side, Rows], classes: _Classes | None = None) -> None:
        self._rows, self._classes = rows, classes  # of each relation its classes; None: every entity is one
        self._before: dict[Side, np.ndarray] = {}  # int64[n + 1], how many entities the classes before each have
        if classes is not None:
            sizes = np.diff(classes.members.starts)
            self._before = {side: np.append(0, np.cumsum(sizes[each.ids])) for side, each in rows.items()}

    @classmethod
    def of(cls, triples: np.ndarray, relations: int) -> Domains:
        """Of int[T, 3] triples. Takes 24 bytes a triple, for a moment."""
        columns = {Side.HEAD: 0, Side.TAIL: 2}
        links = triples[:, 1].astype(np.int64) << 32
        return cls({side: Rows.of(links | triples[:, column], relations) for side, column in columns.items()})

    def typed(self, types: np.ndarray, entities: int) -> Domains:
        """All entities that have a type which one of these has; `types` int[n, 2] are pairs of entity and type."""
        wide, count = types.astype(np.int64), int(types[:, 1].max(initial=-1)) + 1
        of_entity = Rows.of(wide[:, 0] << 32 | wide[:, 1], entities)
        of = of_entity.alike().astype(np.int32)
        one_each = Rows(np.arange(entities + 1), of)  # the class of each entity
        members = one_each.turned(int(of.max(initial=-1)) + 1)
        of_class = Rows(np.arange(len(members.starts)), members.ids[members.starts[:-1]]).through(
            of_entity
        )  # as one has, all have
        of_type = of_class.turned(count)
        rows = {side: each.through(one_each).through(of_class).through(of_type) for side, each in self._rows.items()}
        return Domains(rows, _Classes(of, members))

    def within(self, allowed: np.ndarray) -> Domains:
        """Those that bool[entities] allows."""
        if self._classes is not None:
            of, members = self._classes
            return Domains(self._rows, _Classes(np.where(allowed, of, -1), members.kept(allowed[members.ids])))
        return Domains({side: rows.kept(allowed[rows.ids]) for side, rows in self._rows.items()})

    def sizes(self, side: Side) -> np.ndarray:
        """int64[R]: how many entities each relation has there."""
        starts = self._rows[side].starts
        return np.diff(starts if self._classes is None else self._before[side][starts])

    def entities(self, side: Side, relation: int) -> np.ndarray:
        """int32[.], ascending: those of one relation."""
        found = self._rows[side].row(relation)
        if self._classes is None:
            return found
        return np.sort(np.concatenate([np.empty(0, np.int32), *map(self._classes.members.row, found)]))

    def pick(self, side: Side, relations: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """int64[n]: of each of the relations int[n], the entity of that number int[n], counted from 0, in any order."""
        starts, ids = self._rows[side]
        if self._classes is None:
            return np.asarray(ids[starts[relations] + numbers], np.int64)
        before, members = self._before[side], self._classes.members
        wanted = before[starts[relations]] + numbers
        place = np.searchsorted(before, wanted, "right") - 1
        return np.asarray(members.ids[members.starts[ids[place]] + wanted - before[place]], np.int64)

    def has(self, side: Side, relations: np.ndarray, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """bool[G, N]: whether each relation int64[G] has the candidates there that are in the row int64[G] of int64[C, N]."""
        out = np.empty((len(relations), candidates.shape[1]), np.bool_)
        starts, ids = self._rows[side]
        if self._classes is not None:
            candidates = self._classes.of[candidates].astype(np.int64)
        among(ids, starts[relations], starts[relations + 1], rows, candidates, out)
        return out
