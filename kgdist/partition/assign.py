"""Which partition owns each entity: by METIS, by streaming, at random, or as DGL-KE's text partitions say.

The answer depends on the graph, the options and the seed alone. It is int32[entities] in 0..parts-1, and no part is empty.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from kgdist.base.errors import OptionError
from kgdist.base.progress import bar
from kgdist.kernels.random import shuffled
from kgdist.partition import balance as even
from kgdist.partition import metis
from kgdist.partition.graph import Degrees, adjacency, degrees
from kgdist.partition.sizes import cut
from kgdist.partition.streaming import stream

TRIES, WORK = 32, 1 << 24  # so many tries, and on so many triples in all: a few seconds; large graphs once
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
    even.fill_empty(assigned, found.incoming, parts)
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
    loads = even.loads_of(found, balance)
    limit, one = even.limits(loads, parts, balance), np.ascontiguousarray(loads[there, -1:])
    few = min(parts, len(there))

    def attempt(seed: int) -> np.ndarray:
        tolerance, halving = even.TOLERANCE[balance][-1:], seed % 2 == 1
        assigned = np.full(len(loads), -1, np.int32)
        if few:  # METIS takes seed 0 for 1
            assigned[there] = metis.divide(core, one, few, tolerance=tolerance, seed=seed + 1, halving=halving)
        even.spread(assigned, parts)
        even.repair(graph, loads, assigned, parts, limit)
        return assigned

    return attempt


def best_of(attempt: Try, triples: np.ndarray, found: Degrees, parts: int, *, balance: str, seed: int) -> np.ndarray:
    """The answer that keeps its limits best, and cuts least, of several tries on a small graph; the only one on a large graph."""
    tries = max(1, min(TRIES, WORK // max(1, len(triples))))
    if tries == 1:
        return attempt(2 * seed)
    loads = even.loads_of(found, balance)
    limit = even.limits(loads, parts, balance)
    best: tuple[tuple[float, int], np.ndarray] | None = None
    for number in bar(range(tries), desc="trying several times", unit=" try"):
        assigned = attempt(seed * tries + number)
        held = np.stack([np.bincount(assigned, weights=load, minlength=parts) for load in loads.T], axis=1)
        merit = float((held / limit).max().clip(min=1)), cut(triples, assigned)
        if best is None or merit < best[0]:
            best = merit, assigned
    assert best is not None
    return best[1]
