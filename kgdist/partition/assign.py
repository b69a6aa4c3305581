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
from kgdist.partition.balance import Balance
from kgdist.partition.graph import Adjacency, Degrees, InPieces, adjacency, cut, degrees
from kgdist.partition.streaming import stream

TRIES, WORK = 32, 1 << 24  # so many tries, and on so many triples in all: a few seconds; large graphs once
LARGE, MATCHINGS = 1 << 23, 2  # entries of a graph that is halved so often before METIS gets it
HEAVY = 20  # a pair brings a twentieth of a part at most
ALONE = 100  # one group of so many may be left without neighbours
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
    return divide(triples, found, Balance.of_triples(found, balance), parts, method=method, seed=seed)


def divide(
    triples: InPieces, found: Degrees, even: Balance, parts: int, *, method: str, seed: int, volume: bool = False
) -> np.ndarray:
    """int32[n] for a graph with these degrees, n >= parts >= 2. `volume`: METIS keeps small what parts get from one another, each
    node once for a part, and not the number of triples between them. Raises as `assign`.
    """
    if method == "random":
        assigned = at_random(even, parts, seed=seed)
    else:
        if method == "metis":
            attempt = by_metis(triples, found, even, parts, volume=volume)
        else:
            attempt = functools.partial(stream, triples, found.ends, even, parts)
        assigned = best_of(attempt, triples, even, parts, seed=seed)
    fill_empty(assigned, found.incoming, parts)
    return assigned


def at_random(even: Balance, parts: int, *, seed: int) -> np.ndarray:
    """Deal out the entities, shuffled: numbers of entities, of each class, differ by one or two at most.

    Where edges are evened out they are dealt in the order of those they bring, k at a time in a shuffled order.
    """
    n = len(even.loads)
    order = even.dealing(shuffled(seed, 0, 0, n, n))
    whole = -(-n // parts)
    turns = np.random.Generator(np.random.PCG64(seed)).random((whole, parts)).argsort(axis=1)
    assigned = np.empty(n, np.int32)
    assigned[order] = turns.reshape(-1)[:n]
    return assigned


def by_metis(triples: InPieces, found: Degrees, even: Balance, parts: int, *, volume: bool = False) -> Try:
    """METIS, by all parts at once and by halves in turn (the volume always by all at once), made even and settled."""
    metis.library()  # refused before the work
    graph = adjacency(triples, found)
    tolerance = even.tolerance[-even.asked :]
    limit, asked = even.limits(parts), np.ascontiguousarray(even.loads[:, -even.asked :])

    def attempt(seed: int) -> np.ndarray:
        assigned = np.full(len(even.loads), -1, np.int32)
        number, core, loads = coarse(graph, asked, parts, seed=seed, rounds=0 if volume else MATCHINGS)
        if few := min(parts, len(loads)):  # METIS takes seed 0 for 1
            halving = seed % 2 == 1 and not volume
            answer = metis.divide(core, loads, few, tolerance=tolerance, seed=seed + 1, halving=halving, volume=volume)
            del core
            there = np.flatnonzero(number >= 0)
            assigned[there] = answer[number[there]]
        spread(assigned, parts)
        repair(graph, even.loads, assigned, parts, limit, settling=not volume)
        return assigned

    return attempt


def coarse(
    graph: Adjacency, loads: np.ndarray, parts: int, *, seed: int, rounds: int
) -> tuple[np.ndarray, Adjacency, np.ndarray]:
    """What METIS is given for a graph with `loads` int64[n, c]: number int32[n], the vertex that each entity becomes; the graph
    of those, and their loads.

    Those without neighbours become none, -1: METIS takes minutes over many. In a large graph neighbours are paired, `rounds`
    times, as METIS itself would begin: it keeps 16 bytes for each entry of each of its levels, and these are the largest. Not
    where pairing leaves many groups alone.
    """
    number, level = np.arange(len(loads), dtype=np.int32), graph
    for _ in range(rounds if len(graph.neighbours) >= LARGE else 0):
        pair, count = paired(level, loads, loads.sum(axis=0) // (HEAVY * parts), seed)
        below = level.grouped(pair, count, np.int32)
        if len(level.starts) - len(level.connected()) + count // ALONE < len(below.starts) - len(below.connected()):
            break
        number, level = pair[number], below
        loads = np.stack([np.bincount(pair, load, count).astype(np.int64) for load in loads.T], axis=1)
    there, vertex = level.connected(), np.full(len(loads), -1, np.int32)
    vertex[there] = np.arange(len(there))
    return vertex[number], level.grouped(vertex, len(there), np.int64), loads[there]


def paired(graph: Adjacency, loads: np.ndarray, most: np.ndarray, seed: int) -> tuple[np.ndarray, int]:
    """int32[n], the pair of each row, and how many pairs there are; some are of one row."""
    ends = np.diff(graph.starts)
    order = shuffled(seed, 0, 0, len(ends), len(ends))
    order = order[np.argsort(ends[order], kind="stable")]  # those of few neighbours first, who have less to choose from
    mate = np.full(len(ends), -1, np.int32)
    loops.match(order, graph.starts, graph.neighbours, graph.weights, loads, most, mate)
    pair = np.minimum(mate, np.arange(len(mate), dtype=np.int32))
    return pair, int(loops.number(pair, np.full(len(mate), -1, np.int32)))


def best_of(attempt: Try, triples: InPieces, even: Balance, parts: int, *, seed: int) -> np.ndarray:
    """The answer that keeps its limits best, and cuts least, of several tries on a small graph; the only one on a large graph."""
    tries = max(1, min(TRIES, WORK // max(1, len(triples))))
    if tries == 1:
        return attempt(2 * seed)
    limit = even.limits(parts)
    best: tuple[tuple[float, int], np.ndarray] | None = None
    for number in bar(range(tries), desc="trying several times", unit=" try"):
        assigned = attempt(seed * tries + number)
        held = np.stack([np.bincount(assigned, weights=load, minlength=parts) for load in even.loads.T], axis=1)
        merit = float((held / np.maximum(1, limit)).max().clip(min=1)), cut(triples, assigned)
        if best is None or merit < best[0]:
            best = merit, assigned
    assert best is not None
    return best[1]


# ---- answers that are not even


def repair(
    graph: Adjacency, loads: np.ndarray, assigned: np.ndarray, parts: int, limit: np.ndarray, *, settling: bool = True
) -> np.ndarray:
    """Move entities of `assigned` int32[n], in place, until no part holds more than `limit` int64[c] of `loads` int64[n, c].

    Each sweep allows moves that cut more triples than the last; it stops short where no entity fits anywhere. With `settling`
    entities then go where most of their triples are. Returns what the parts hold in the end, int64[parts, c].
    """
    held = np.zeros((parts, loads.shape[1]), np.int64)
    np.add.at(held, assigned, loads)
    rows = graph.starts, graph.neighbours, graph.weights
    most = int(graph.weights.sum())
    for _ in range(ROUNDS):
        cost, before = 0, assigned.copy()
        while (held > limit).any() and cost <= 2 * most:
            loops.relieve(*rows, loads, limit, cost, held, assigned)
            cost = 2 * cost + 1
        moved = int(loops.settle(*rows, loads, limit, held, assigned)) if settling else 0
        if (moved * FEW <= len(assigned) and not (held > limit).any()) or np.array_equal(before, assigned):
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
