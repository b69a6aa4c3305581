"""The graph that is partitioned: its triples piece by piece, its rows of neighbours, and how large its parts are.

Direction and relation of triples do not matter to a partition, so METIS gets symmetric rows of neighbours (compressed sparse
rows): an edge weighs as many triples as join its two ends, and there are no loops. A triple lives with its tail. Its head, when
another partition owns it, is one of the halo: rows that a machine needs from others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from kgdist.base.errors import KgdistError
from kgdist.base.log import bar
from kgdist.kernels import adjacency as loops

PIECE = 1 << 18  # triples looked at together: they stay in the cache
WRONG = {
    1: "its rows do not follow one another",
    2: "it has neighbours that do not exist",
    3: "it has a loop",
    4: "it has a weight below 1",
    5: "it is not symmetric",
}


class InPieces(Protocol):
    """Triples that can be had piece by piece: an array, or what makes the pieces as they are asked for."""

    def __len__(self) -> int: ...

    def __getitem__(self, piece: slice, /) -> np.ndarray:
        """int32[., 3]."""


def pieces(triples: InPieces, what: str) -> Iterator[np.ndarray]:
    """`triples` int32[T, 3] piece by piece, with a bar that says `what` is being done."""
    with bar(total=len(triples), desc=what, unit=" triples") as progress:
        for start in range(0, len(triples), PIECE):
            piece = triples[start : start + PIECE]
            yield piece
            progress.update(len(piece))


@dataclass(frozen=True)
class Degrees:
    """Triples at each entity."""

    ends: np.ndarray  # int64[n], ends of triples that are no loops
    incoming: np.ndarray  # int64[n], triples whose tail it is, loops too: what it brings to its partition


@dataclass(frozen=True)
class Adjacency:
    """m entries, two for each pair of entities that triples join."""

    starts: np.ndarray  # int64[n+1], where each row begins in the other two
    neighbours: np.ndarray  # int32[m], or int64[m] as METIS takes them
    weights: np.ndarray  # the same, triples between the two

    def connected(self) -> np.ndarray:
        """int64[.]: those that have neighbours, ascending."""
        return np.flatnonzero(np.diff(self.starts) > 0)

    def grouped(self, number: np.ndarray, groups: int, dtype: type[np.integer]) -> Adjacency:
        """The graph of groups, `number` int32[n] of each row; -1: of none, which is for rows without neighbours."""
        order = np.argsort(number, kind="stable")[np.count_nonzero(number < 0) :]
        starts, seen = np.empty(groups + 1, np.int64), np.full(groups, loops.NOWHERE)
        neighbours, weights = np.empty(len(self.neighbours), dtype), np.empty(len(self.neighbours), dtype)  # taken as written
        kept = int(loops.contract(order, number, self.starts, self.neighbours, self.weights, starts, neighbours, weights, seen))
        return Adjacency(starts, neighbours[:kept], weights[:kept])

    def fault(self) -> str | None:
        """What is wrong with it, if anything: METIS would crash or answer nonsense. Symmetry is told by hash sums."""
        return WRONG.get(int(loops.sound(self.starts, self.neighbours, self.weights)))


def degrees(triples: InPieces, num_entities: int, num_relations: int) -> Degrees:
    """Count the ends of `triples` int32[T, 3]. Raises KgdistError for an id out of range: the data set has changed on disk."""
    ends, incoming = np.zeros(num_entities, np.int64), np.zeros(num_entities, np.int64)
    for piece in pieces(triples, "counting triples"):
        row = int(loops.count(piece, num_relations, ends, incoming))
        if row >= 0:
            raise KgdistError(f"triple {piece[row].tolist()} has an id out of range: the cached data set is damaged; remove it")
    return Degrees(ends, incoming)


def adjacency(triples: InPieces, degrees: Degrees) -> Adjacency:
    """The adjacency of `triples` int32[T, 3]. Memory: 8 bytes for each end of a triple."""
    starts = np.zeros(len(degrees.ends) + 1, np.int64)
    np.cumsum(degrees.ends, out=starts[1:])
    found, cursor = np.empty(starts[-1], np.int32), starts[:-1].copy()
    for piece in pieces(triples, "joining neighbours"):
        loops.fill(piece, 0, len(cursor), cursor, found)
    cursor[:] = loops.NOWHERE
    weights = np.empty(len(found), np.int32)  # memory is taken as it is written
    kept = int(loops.merge(starts, found, found, weights, cursor))
    return Adjacency(starts, found[:kept], weights[:kept])


def cut(triples: InPieces, assigned: np.ndarray) -> int:
    """How many of `triples` int32[T, 3] have their ends in different parts of `assigned` int32[entities]."""
    return sum(int((assigned[piece[:, 0]] != assigned[piece[:, 2]]).sum()) for piece in pieces(triples, "counting the cut"))


@dataclass(frozen=True)
class Sizes:
    """One number for each partition, and the cut."""

    entities: list[int]  # owned
    halo: list[int]  # different heads of own triples that another partition owns
    triples: list[int]
    relations: list[int]  # different relations among own triples
    cut: int  # triples whose head is another partition's

    @classmethod
    def of(cls, triples: np.ndarray, assigned: np.ndarray, parts: int, num_relations: int) -> Sizes:
        """Count. `triples` int32[T, 3], `assigned` int32[entities]; memory: an eighth of a byte for each entity and partition."""
        seen = np.zeros((len(assigned), -(-parts // 8)), np.uint8)
        used = np.zeros((parts, num_relations), bool)
        counts, halo = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
        cut = sum(int(loops.tally(piece, assigned, seen, used, counts, halo)) for piece in pieces(triples, "measuring the parts"))
        owned = np.bincount(assigned, minlength=parts)
        return cls(owned.tolist(), halo.tolist(), counts.tolist(), used.sum(axis=1).tolist(), cut)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the two ratios."""
        return {**asdict(self), "balance": {"entities": uneven(self.entities), "triples": uneven(self.triples)}}

    def table(self) -> str:
        """For people."""
        names = ("partition", "entities", "halo", "triples", "relations")
        rows = [(str(p), *(f"{number:,}" for number in row)) for p, row in enumerate(self._rows())]
        widths = [max(map(len, column)) for column in zip(names, *rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)]
        total = sum(self.triples)
        lines.append(
            f"cut: {self.cut:,} of {total:,} triples ({100 * self.cut / max(1, total):.1f} %); largest partition / average: "
            f"{uneven(self.entities):.3f} of entities, {uneven(self.triples):.3f} of triples"
        )
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[int, int, int, int]]:
        return zip(self.entities, self.halo, self.triples, self.relations, strict=True)


def uneven(numbers: list[int]) -> float:
    """The largest of `numbers` divided by their average; 1 is even."""
    return round(max(numbers) * len(numbers) / sum(numbers), 4) if sum(numbers) else 1.0
