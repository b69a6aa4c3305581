"""A graph as symmetric rows of neighbours (compressed sparse rows), as METIS wants it: repeated edges as weights, no loops.

Direction and relation of triples do not matter to a partition: an edge weighs as many triples as join its two ends.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kgdist.base.errors import KgdistError
from kgdist.kernels import adjacency as loops
from kgdist.partition.sizes import pieces

WRONG = {
    1: "its rows do not follow one another",
    2: "it has neighbours that do not exist",
    3: "it has a loop",
    4: "it has a weight below 1",
    5: "it is not symmetric",
}


@dataclass(frozen=True)
class Degrees:
    """Triples at each entity."""

    ends: np.ndarray  # int64[n], ends of triples that are no loops
    incoming: np.ndarray  # int64[n], triples whose tail it is, loops too: what it brings to its partition


@dataclass(frozen=True)
class Adjacency:
    """m entries, two for each pair of entities that triples join."""

    starts: np.ndarray  # int64[n+1], where each row begins in the other two
    neighbours: np.ndarray  # int64[m]
    weights: np.ndarray  # int64[m], triples between the two

    def connected(self) -> tuple[Adjacency, np.ndarray]:
        """Those that have neighbours, renumbered in order, and int64[.], who they are; itself when all have."""
        there = np.flatnonzero(np.diff(self.starts) > 0)
        if len(there) == len(self.starts) - 1:
            return self, there
        number = np.zeros(len(self.starts) - 1, np.int64)
        number[there] = np.arange(len(there))
        return Adjacency(np.append(self.starts[there], self.starts[-1]), number[self.neighbours], self.weights), there

    def fault(self) -> str | None:
        """What is wrong with it, if anything: METIS would crash or answer nonsense. Symmetry is told by hash sums."""
        return WRONG.get(int(loops.sound(self.starts, self.neighbours, self.weights)))


def degrees(triples: np.ndarray, num_entities: int, num_relations: int) -> Degrees:
    """Count the ends of `triples` int32[T, 3]. Raises KgdistError for an id out of range: the data set has changed on disk."""
    ends, incoming = np.zeros(num_entities, np.int64), np.zeros(num_entities, np.int64)
    for piece in pieces(triples, "counting triples"):
        row = int(loops.count(piece, num_relations, ends, incoming))
        if row >= 0:
            raise KgdistError(f"triple {piece[row].tolist()} has an id out of range: the cached data set is damaged; remove it")
    return Degrees(ends, incoming)


def adjacency(triples: np.ndarray, degrees: Degrees) -> Adjacency:
    """The adjacency of `triples` int32[T, 3]. Memory: 16 bytes for each end of a triple, 4 more for a moment."""
    starts = np.zeros(len(degrees.ends) + 1, np.int64)
    np.cumsum(degrees.ends, out=starts[1:])
    found, cursor = np.empty(starts[-1], np.int32), starts[:-1].copy()
    for piece in pieces(triples, "joining neighbours"):
        loops.fill(piece, 0, len(cursor), cursor, found)
    cursor[:] = loops.NOWHERE
    neighbours, weights = np.empty(len(found), np.int64), np.empty(len(found), np.int64)  # memory is taken as it is written
    kept = int(loops.merge(starts, found, neighbours, weights, cursor))
    return Adjacency(starts, neighbours[:kept], weights[:kept])
