"""Partitioning in passes over the triples on disk, for graphs larger than memory.

Entities first gather in clusters (label propagation), clusters in larger ones; the largest are placed one after the other, each
where most of its neighbours are, less what the part's load costs (Fennel, Tsourakakis et al. 2014), in several passes (Nishimura,
Ugander 2013). Then the clusters are taken apart again, and what they hold is placed anew from where it is. A cluster is to the
level above what an entity is to the graph, so all levels run the same loops.

Memory: about 50 bytes for each entity, and the neighbours of those that are looked at together, at most `BUDGET` ends of triples;
a graph that has more is read again for each such group.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kgdist.kernels import adjacency as loops
from kgdist.kernels.random import shuffled
from kgdist.partition.balance import Balance
from kgdist.partition.graph import InPieces, pieces

LEVELS = 2  # of clusters above the entities
GATHERINGS = 3  # passes in which clusters grow
LARGEST = 1 / 16  # of a part: a cluster may be so large
PASSES = 8  # of placing, on every level
FEW = 500  # one of so many: fewer moves are not worth another pass
FIRST, GROWTH = 0.1, 1.3  # the price of load in the first pass, in units of Fennel's, and by how much it rises with each
BUDGET = 1 << 28  # ends of triples, 4 bytes each


@dataclass
class Level:
    """The graph seen as one of clusters: triples whose ends are the clusters of their ends."""

    triples: InPieces  # int32[T, 3], of the graph
    cluster: np.ndarray | None  # int32[entities], the cluster of each entity, None when each is its own
    load: np.ndarray  # float32[m, c], of each cluster, in shares of a full part
    ends: np.ndarray  # int64[m], ends of triples between clusters
    seed: int
    rows: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)  # kept when there is one group of them

    @classmethod
    def of(cls, triples: InPieces, cluster: np.ndarray, load: np.ndarray, seed: int) -> Level:
        """Count the ends."""
        level = cls(triples, cluster, load, np.zeros(len(load), np.int64), seed)
        incoming, any_relation = np.zeros(len(load), np.int64), np.iinfo(np.int32).max
        for piece in level.pieces("counting triples between clusters"):
            loops.count(piece, any_relation, level.ends, incoming)
        return level

    def pieces(self, what: str) -> Iterator[np.ndarray]:
        """The triples piece by piece, int32[., 3], between clusters."""
        for piece in pieces(self.triples, what):
            if self.cluster is None:
                yield piece
            else:
                yield np.stack([self.cluster[piece[:, 0]], piece[:, 1], self.cluster[piece[:, 2]]], axis=1)

    def groups(self, turn: int) -> Iterator[tuple[np.ndarray, int, np.ndarray, np.ndarray]]:
        """(order, start, starts, neighbours) of one group of clusters after the other, see kgdist.kernels.adjacency."""
        spans = ranges(self.ends, BUDGET)
        for start, stop in spans:
            rows = self.rows.get(start) or self.neighbours(start, stop)
            if len(spans) == 1:
                self.rows[start] = rows
            yield shuffled(self.seed, turn, 0, stop - start, stop - start), start, *rows

    def neighbours(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(int64[stop-start+1], int32[.]): the neighbours of clusters start..stop-1 in compressed rows, repeated as often."""
        starts = np.zeros(stop - start + 1, np.int64)
        np.cumsum(self.ends[start:stop], out=starts[1:])
        found, cursor = np.empty(starts[-1], np.int32), starts[:-1].copy()
        for piece in self.pieces(f"neighbours of {stop - start:,}"):
            loops.fill(piece, start, stop, cursor, found)
        return starts, found

    def gathered(self) -> tuple[Level, np.ndarray]:
        """The level above, and int32[m], which of its clusters each of these is in."""
        m = len(self.load)
        label, held, joined = np.arange(m, dtype=np.int32), self.load.astype(np.float64), np.zeros(m, np.int32)
        for turn in range(GATHERINGS):
            for group in self.groups(turn):
                loops.gather(*group, self.load, LARGEST, held, label, joined)
        count = int(loops.number(label, np.full(m, -1, np.int32)))
        load = np.stack([np.bincount(label, weights=column, minlength=count) for column in self.load.T], axis=1)
        whole = label if self.cluster is None else label[self.cluster]
        return Level.of(self.triples, whole, load.astype(np.float32), self.seed + 1), label

    def place(self, assigned: np.ndarray, parts: int) -> None:
        """Improve `assigned` int32[m], in place; -1 is a cluster that has no part yet."""
        held = np.zeros((parts, self.load.shape[1]))
        there = assigned >= 0
        np.add.at(held, assigned[there], self.load[there])
        scale = 1.5 * self.ends.sum() / 2 / len(self.load)  # alpha gamma sqrt(m / k) with gamma = 1.5: the average neighbours
        for turn in range(PASSES):
            price = scale * FIRST * GROWTH**turn
            moved = sum(int(loops.place(*group, self.load, price, held, assigned)) for group in self.groups(GATHERINGS + turn))
            if moved * FEW <= len(self.load):
                break


def stream(triples: InPieces, ends: np.ndarray, even: Balance, parts: int, seed: int) -> np.ndarray:
    """int32[n] in 0..parts-1 for `triples` int32[T, 3] with `ends` int64[n] at each node; the same seed gives the same answer."""
    seed *= LEVELS + 1  # each level has its own
    full = np.maximum(even.most(parts), even.tolerance)  # a part may always hold one
    levels, inside = [Level(triples, None, (even.loads / full).astype(np.float32), ends, seed)], []
    for _ in range(LEVELS):
        above, label = levels[-1].gathered()
        levels.append(above)
        inside.append(label)
    assigned = np.full(len(levels[-1].load), -1, np.int32)
    levels.pop().place(assigned, parts)
    while levels:
        assigned = assigned[inside.pop()]
        levels.pop().place(assigned, parts)
    return assigned


def ranges(ends: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Spans start..stop-1 that have at most `budget` ends of triples together, or are one entity."""
    upto, found, start = np.cumsum(ends), [], 0
    while start < len(ends):
        before = int(upto[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(upto, before + budget, side="right")))
        found.append((start, stop))
        start = stop
    return found
