"""Partitioning in passes over the triples on disk, for graphs larger than memory: restreaming with Fennel's objective.

Entities come one after the other, and each goes where most of its neighbours are, less what the part's load costs (Tsourakakis et
al. 2014; several passes: Nishimura, Ugander 2013). Memory: 20 bytes for each entity, and the neighbours of those that are looked
at together, at most `BUDGET` ends of triples; a graph that has more is read again for each such group.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.sample import shuffled
from kgdist.partition.adjacency import Degrees
from kgdist.partition.balance import TOLERANCE
from kgdist.partition.sizes import pieces

PASSES = 6
BUDGET = 1 << 28  # ends of triples, 4 bytes each


def stream(triples: np.ndarray, found: Degrees, parts: int, *, balance: str, seed: int) -> np.ndarray:
    """int32[n] in 0..parts-1 for `triples` int32[T, 3]; the same seed gives the same answer."""
    from kgdist.kernels import stream_loops

    n = len(found.ends)
    assigned = np.full(n, -1, np.int32)
    load = burden(found, balance)
    held = np.zeros(parts)
    capacity = TOLERANCE[balance][-1] * load.sum() / parts
    scale = 1.5 * found.ends.sum() / 2 / n  # Fennel's alpha gamma sqrt(n / k) with gamma = 1.5: an entity's average neighbours
    groups = ranges(found.ends, BUDGET)
    rows: tuple[np.ndarray, np.ndarray] | None = None
    for turn in range(PASSES):
        for start, stop in groups:
            if rows is None or len(groups) > 1:
                rows = neighbours(triples, found.ends, start, stop)
            order = shuffled(seed, turn, 0, stop - start, stop - start)
            stream_loops.place(order, start, *rows, load, capacity, scale, held, assigned)
    return assigned


def burden(found: Degrees, balance: str) -> np.ndarray:
    """float32[n], 1 on average: what an entity adds to a load; with balance "triples" half of it is what it is tail of."""
    if balance == "entities" or not found.incoming.any():
        return np.ones(len(found.incoming), np.float32)
    weights: np.ndarray = 0.5 + 0.5 * found.incoming / found.incoming.mean()
    return weights.astype(np.float32)


def ranges(ends: np.ndarray, budget: int) -> list[tuple[int, int]]:
    """Entities start..stop-1 that have at most `budget` ends of triples together, or are one entity."""
    upto, found, start = np.cumsum(ends), [], 0
    while start < len(ends):
        before = int(upto[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(upto, before + budget, side="right")))
        found.append((start, stop))
        start = stop
    return found


def neighbours(triples: np.ndarray, ends: np.ndarray, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
    """(int64[stop-start+1], int32[.]): the neighbours of entities start..stop-1 in compressed rows, repeated ones repeated."""
    from kgdist.kernels import graph_loops

    starts = np.zeros(stop - start + 1, np.int64)
    np.cumsum(ends[start:stop], out=starts[1:])
    found, cursor = np.empty(starts[-1], np.int32), starts[:-1].copy()
    for piece in pieces(triples, f"neighbours of {stop - start:,} entities"):
        graph_loops.fill(piece, start, stop, cursor, found)
    return starts, found
