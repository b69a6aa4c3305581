"""Which partition owns each entity: by METIS, by streaming, at random, or as DGL-KE's text partitions say.

The answer depends on the graph, the options and the seed alone. It is int32[entities] in 0..parts-1, and no part is empty. METIS
evens out one load, and sometimes leaves a part empty, or larger than asked, above all on small graphs. A repair moves entities
out of parts that are too large, those that cost the fewest cut triples first, and then to where most of their triples are, as far
as there is room.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.log import bar
from kgdist.kernels import adjacency as loops
from kgdist.kernels.random import shuffled
from kgdist.partition import metis
from kgdist.partition.graph import TOLERANCE, Adjacency, Degrees, adjacency, cut, degrees, limits, loads_of
from kgdist.partition.streaming import stream

TRIES, WORK = 32, 1 << 24  # so many tries, and on so many triples in all: a few seconds; large graphs once
ROUNDS = 12  # of repair, at most
FEW = 2000  # one entity of so many: fewer moves are not worth another round
Try = Callable[[int], np.ndarray]  # seed -> int32[entities]


def assign(
    triples: np.ndarray, num_entities: int, num_relations: int, parts: int, *, method: str, balance: str, seed: int
) -> np.ndarray:
    """int32[entities] for `triples` int32[T, 3]; `method` is metis, streaming or random, `balance` triples or entities.

    Raises OptionError for more parts than entities, or where there is no METIS; KgdistError where METIS fails.
    """
    if parts > num_entities:
        raise OptionError("--num_parts", f"{parts} partitions of {num_entities} entities: some would be empty; take fewer")
    if parts == 1:
        return np.zeros(num_entities, np.int32)
    found = degrees(triples, num_entities, num_relations)
    if method == "random":
        assigned = at_random(found, parts, balance=balance, seed=seed)
    else:
        if method == "metis":
            attempt = by_metis(triples, found, parts, balance=balance)
        else:
            attempt = functools.partial(stream, triples, found, parts, balance)
        assigned = best_of(attempt, triples, found, parts, balance=balance, seed=seed)
    fill_empty(assigned, found.incoming, parts)
    return assigned


def at_random(found: Degrees, parts: int, *, balance: str, seed: int) -> np.ndarray:
    """Deal out the entities, shuffled: numbers of entities differ by one at most.

    With balance "triples" they are dealt in the order of the triples they bring, k at a time in a shuffled order.
    """
    n = len(found.incoming)
    order = shuffled(seed, 0, 0, n, n)
    if balance == "triples":
        order = order[np.argsort(-found.incoming[order], kind="stable")]
    whole = -(-n // parts)
    turns = np.random.Generator(np.random.PCG64(seed)).random((whole, parts)).argsort(axis=1)
    assigned = np.empty(n, np.int32)
    assigned[order] = turns.reshape(-1)[:n]
    return assigned


def by_metis(triples: np.ndarray, found: Degrees, parts: int, *, balance: str) -> Try:
    """METIS, by all parts at once and by halves in turn, made even and settled.

    METIS evens out one load, the last; numbers of entities follow within their limit. With both as its constraints it cuts up to
    a fifth more, and answers differ more from one try to the next.
    """
    metis.library()  # refused before the work
    graph = adjacency(triples, found)
    core, there = graph.connected()  # METIS takes minutes over many without neighbours
    loads = loads_of(found, balance)
    limit, one = limits(loads, parts, balance), np.ascontiguousarray(loads[there, -1:])
    few = min(parts, len(there))

    def attempt(seed: int) -> np.ndarray:
        tolerance, halving = TOLERANCE[balance][-1:], seed % 2 == 1
        assigned = np.full(len(loads), -1, np.int32)
        if few:  # METIS takes seed 0 for 1
            assigned[there] = metis.divide(core, one, few, tolerance=tolerance, seed=seed + 1, halving=halving)
        spread(assigned, parts)
        repair(graph, loads, assigned, parts, limit)
        return assigned

    return attempt


def best_of(attempt: Try, triples: np.ndarray, found: Degrees, parts: int, *, balance: str, seed: int) -> np.ndarray:
    """The answer that keeps its limits best, and cuts least, of several tries on a small graph; the only one on a large graph."""
    tries = max(1, min(TRIES, WORK // max(1, len(triples))))
    if tries == 1:
        return attempt(2 * seed)
    loads = loads_of(found, balance)
    limit = limits(loads, parts, balance)
    best: tuple[tuple[float, int], np.ndarray] | None = None
    for number in bar(range(tries), desc="trying several times", unit=" try"):
        assigned = attempt(seed * tries + number)
        held = np.stack([np.bincount(assigned, weights=load, minlength=parts) for load in loads.T], axis=1)
        merit = float((held / limit).max().clip(min=1)), cut(triples, assigned)
        if best is None or merit < best[0]:
            best = merit, assigned
    assert best is not None
    return best[1]


# ---- answers that are not even


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
