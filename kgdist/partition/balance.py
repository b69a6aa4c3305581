"""What is evened out between partitions, and a repair for an answer that is not even.

METIS evens out one load, and sometimes leaves a part empty, or larger than asked, above all on small graphs. The repair moves
entities out of parts that are too large, those that cost the fewest cut triples first, and then to where most of their triples
are, as far as there is room.
"""

from __future__ import annotations

import numpy as np

from kgdist.base.errors import KgdistError
from kgdist.kernels import adjacency as loops
from kgdist.partition.graph import Adjacency, Degrees

TOLERANCE = {"entities": (1.03,), "triples": (1.1, 1.05)}  # largest part / average: entities, triples
ROUNDS = 12  # of repair, at most
FEW = 2000  # one entity of so many: fewer moves are not worth another round


def loads_of(degrees: Degrees, balance: str) -> np.ndarray:
    """int64[n, c]: what each entity brings to its partition: itself, and with balance "triples" those that it is the tail of."""
    ones = np.ones(len(degrees.incoming), np.int64)
    return ones[:, None] if balance == "entities" else np.stack([ones, degrees.incoming], axis=1)


def limits(loads: np.ndarray, parts: int, balance: str) -> np.ndarray:
    """int64[c]: what a part may hold of each load, rounded up."""
    most: np.ndarray = np.ceil(loads.sum(axis=0) / parts * np.array(TOLERANCE[balance]))
    return most.astype(np.int64)


def repair(graph: Adjacency, loads: np.ndarray, assigned: np.ndarray, parts: int, limit: np.ndarray) -> np.ndarray:
    """Move entities of `assigned` int32[n], in place, until no part holds more than `limit` int64[c] of `loads` int64[n, c].

    Each sweep allows moves that cut more triples than the last; it stops short where no entity fits anywhere. Returns what the
    parts hold then, int64[parts, c].
    """
    held = np.zeros((parts, loads.shape[1]), np.int64)
    np.add.at(held, assigned, loads)
    rows = graph.starts, graph.neighbours, graph.weights
    most = int(graph.weights.sum())
    for _ in range(ROUNDS):
        cost = 0
        while (held > limit).any() and cost <= 2 * most:
            loops.relieve(*rows, loads, limit, cost, held, assigned)
            cost = 2 * cost + 1
        moved = int(loops.settle(*rows, loads, limit, held, assigned))
        if moved * FEW <= len(assigned) and not (held > limit).any():
            break
    return held


def spread(assigned: np.ndarray, parts: int) -> None:
    """Give each entity of `assigned` int32[n] that has no part (-1), in place, to a part with the fewest entities."""
    missing = np.flatnonzero(assigned < 0)
    owned = np.bincount(assigned[assigned >= 0], minlength=parts)
    order = np.argsort(owned, kind="stable")
    level = np.cumsum(owned[order] * 0 + 1) * owned[order] - np.cumsum(owned[order])  # what lifts all smaller ones to this one
    filled = int(np.searchsorted(level, len(missing), side="right"))  # so many parts get some
    total = len(missing) + int(owned[order[:filled]].sum())
    after = total // filled + (np.arange(filled) < total % filled)
    assigned[missing] = np.repeat(order[:filled], after - owned[order[:filled]])


def fill_empty(assigned: np.ndarray, incoming: np.ndarray, parts: int) -> None:
    """Give each empty part of `assigned` int32[n], in place, an entity of the largest one: of few triples, but not of none.

    Raises KgdistError with fewer entities than parts.
    """
    if len(assigned) < parts:
        raise KgdistError(f"{len(assigned)} entities are too few for {parts} partitions")
    owned = np.bincount(assigned, minlength=parts)
    for part in np.flatnonzero(owned == 0):
        largest = int(owned.argmax())
        candidates = np.flatnonzero(assigned == largest)
        triples = incoming[candidates]
        chosen = candidates[np.where(triples > 0, triples, np.iinfo(np.int64).max).argmin()]
        assigned[chosen] = part
        owned[largest] -= 1
        owned[part] += 1
