# mypy: disable-error-code="no-untyped-def"
"""Loops over the triples of a graph and over its adjacency in compressed rows, compiled. Used by kgdist.partition.

Triples are int32[T, 3] (head, relation, tail). No index is checked here but by `count`, which therefore comes first.

Streaming (`gather`, `number`, `place`) sees rows of the entities start, start + 1, ...: starts int64[m+1] and neighbours
int32[.], repeated ones repeated. `order` int64[m] says in which order they come.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.hashing import GOLDEN
from kgdist.kernels.jit import inlined, strict
from kgdist.kernels.random import mix

NOWHERE = np.int64(-1)


@strict
def count(triples, num_relations, ends, incoming):
    """Adds to ends int64[n] the ends of triples that are no loops, to incoming int64[n] all tails.

    Returns the row of a triple with an id out of range, or -1.
    """
    n = len(ends)
    for i in range(len(triples)):
        head, relation, tail = triples[i]
        if head < 0 or head >= n or tail < 0 or tail >= n or relation < 0 or relation >= num_relations:
            return i
        incoming[tail] += 1
        if head != tail:
            ends[head] += 1
            ends[tail] += 1
    return -1


@strict
def fill(triples, start, stop, cursor, neighbours):
    """Writes the other end of each triple to the row of each of its ends in start..stop-1; cursor int64[stop-start] moves on."""
    for i in range(len(triples)):
        head, tail = triples[i, 0], triples[i, 2]
        if head != tail:
            if start <= head < stop:
                neighbours[cursor[head - start]] = tail
                cursor[head - start] += 1
            if start <= tail < stop:
                neighbours[cursor[tail - start]] = head
                cursor[tail - start] += 1


@strict
def merge(starts, found, neighbours, weights, seen):
    """The neighbours found int32[.] of each row, repeated ones once, with their number as weight; starts int64[n+1] in place.

    neighbours and weights int32[.] are written, neighbours may be found; seen int64[n], NOWHERE throughout, is scratch. Returns
    how many entries result.
    """
    kept, begin = 0, starts[0]
    for v in range(len(starts) - 1):
        end, first = starts[v + 1], kept
        starts[v] = kept
        for i in range(begin, end):
            u = found[i]
            if seen[u] >= first:
                weights[seen[u]] += 1
            else:
                seen[u] = kept
                neighbours[kept] = u
                weights[kept] = 1
                kept += 1
        begin = end
    starts[len(starts) - 1] = kept
    return kept


@strict
def match(order, starts, neighbours, weights, loads, most, mate):
    """Pairs each row with the free neighbour that most triples join it with, if together they bring `most` int64[c] at most: the
    heavy edges of Karypis, Kumar 1998.

    loads int64[n, c]; mate int32[n], -1 throughout, is written: who has none is its own.
    """
    for i in range(len(order)):
        v = order[i]
        if mate[v] >= 0:
            continue
        best, heaviest = v, 0
        for j in range(starts[v], starts[v + 1]):
            u = neighbours[j]
            if weights[j] > heaviest and mate[u] < 0 and not _over(loads[v], loads[u], most):
                best, heaviest = u, weights[j]
        mate[v] = best
        mate[best] = v


@strict
def contract(order, number, starts, neighbours, weights, into, joined, sums, seen):
    """The graph of groups of rows, number int32[n], entries between two of them added up; `order` int64[.] has the rows by group.

    into int64[groups+1], joined and sums int[.] (neighbours and weights) are written; seen int64[groups], NOWHERE throughout, is
    scratch. Returns how many entries result.
    """
    kept, at = 0, 0
    for group in range(len(into) - 1):
        first = kept
        into[group] = kept
        while at < len(order) and number[order[at]] == group:
            v = order[at]
            at += 1
            for i in range(starts[v], starts[v + 1]):
                u = number[neighbours[i]]
                if u == group:
                    continue
                if seen[u] >= first:
                    sums[seen[u]] += weights[i]
                else:
                    seen[u] = kept
                    joined[kept] = u
                    sums[kept] = weights[i]
                    kept += 1
    into[len(into) - 1] = kept
    return kept


@inlined
def _hash(u, v):
    return mix((np.uint64(u) * GOLDEN) ^ (np.uint64(v) + GOLDEN))


@strict
def sound(starts, neighbours, weights):
    """0 for an adjacency that is safe to partition; 1: rows not in order; 2: an id out of range; 3: a loop; 4: a weight below 1;
    5: not symmetric, which is told from the sums of 64-bit hashes of the entries above and below the diagonal.
    """
    n = len(starts) - 1
    if starts[0] != 0 or starts[n] != len(neighbours) or len(weights) != len(neighbours):
        return 1
    for v in range(n):
        if starts[v + 1] < starts[v]:
            return 1
    above, below = np.uint64(0), np.uint64(0)
    for v in range(n):
        for i in range(starts[v], starts[v + 1]):
            u = neighbours[i]
            if u < 0 or u >= n:
                return 2
            if u == v:
                return 3
            if weights[i] < 1:
                return 4
            if u > v:
                above += _hash(v, u) * np.uint64(weights[i])
            else:
                below += _hash(u, v) * np.uint64(weights[i])
    return 0 if above == below else 5


@strict
def tally(triples, assigned, seen, used, counts, halo):
    """Adds the triples of each part to counts int64[k], and to halo int64[k] the heads that are new to it and another's.

    assigned int32[n]; seen uint8[n, k/8] are bits of heads met, used bool[k, relations]. Returns how many triples were cut.
    """
    cut = 0
    for i in range(len(triples)):
        head, relation, tail = triples[i]
        part = assigned[tail]
        counts[part] += 1
        used[part, relation] = True
        if assigned[head] != part:
            cut += 1
            bit = np.uint8(1 << (part & 7))
            if not seen[head, part >> 3] & bit:
                seen[head, part >> 3] |= bit
                halo[part] += 1
    return cut


@inlined
def _over(held, load, limit):
    """Whether one of held + load, int64[c] each, is above its limit."""
    over = False
    for c in range(len(limit)):
        over = over or held[c] + load[c] > limit[c]
    return over


@strict
def relieve(starts, neighbours, weights, loads, limit, cost, held, assigned):
    """Moves entities out of parts above `limit` int64[c] to such as stay below it, where that cuts at most `cost` more triples.

    loads int64[n, c]; held int64[k, c] and assigned int32[n] are kept up to date.
    """
    k = len(held)
    none = np.zeros(len(limit), np.int64)
    joined = np.zeros(k, np.int64)
    for v in range(len(assigned)):
        old = assigned[v]
        if not _over(held[old], none, limit):
            continue
        helps = False
        for c in range(len(limit)):
            helps = helps or (held[old, c] > limit[c] and loads[v, c] > 0)
        if not helps:
            continue
        joined[:] = 0
        for i in range(starts[v], starts[v + 1]):
            joined[assigned[neighbours[i]]] += weights[i]
        best = -1
        for p in range(k):
            if p == old or joined[old] - joined[p] > cost or _over(held[p], loads[v], limit):
                continue
            if best < 0 or joined[p] > joined[best] or (joined[p] == joined[best] and held[p, 0] < held[best, 0]):
                best = p
        if best >= 0:
            held[old] -= loads[v]
            held[best] += loads[v]
            assigned[v] = best


@strict
def settle(starts, neighbours, weights, loads, limit, held, assigned):
    """Moves each entity to the part that most triples join it with, if that stays below `limit`; returns how many moved.

    As `relieve`, but for what it moves and why.
    """
    k, moved = len(held), 0
    joined = np.zeros(k, np.int64)
    for v in range(len(assigned)):
        old, best = assigned[v], assigned[v]
        for i in range(starts[v], starts[v + 1]):
            joined[assigned[neighbours[i]]] += weights[i]
        for p in range(k):
            if joined[p] > joined[best] and not _over(held[p], loads[v], limit):
                best = p
        joined[:] = 0
        if best != old:
            held[old] -= loads[v]
            held[best] += loads[v]
            assigned[v] = best
            moved += 1
    return moved


@inlined
def _fits(held, load, most):
    """Whether held + load, float[c] each, is within `most` everywhere."""
    fits = True
    for c in range(len(load)):
        fits = fits and held[c] + load[c] <= most
    return fits


@strict
def gather(order, start, starts, neighbours, load, most, held, label, joined):
    """Each entity joins the cluster of most neighbours, if that stays within `most` of every load: label propagation.

    load float32[n, c]; held float64[n, c], the loads of each cluster, and label int32[n] are kept up to date; joined int32[n] is
    zero before and after. Returns how many moved.
    """
    moved, width = 0, load.shape[1]
    for i in range(len(order)):
        row = order[i]
        v = start + row
        begin, end = starts[row], starts[row + 1]
        for j in range(begin, end):
            joined[label[neighbours[j]]] += 1
        old = label[v]
        best, count = old, joined[old]
        for j in range(begin, end):
            other = label[neighbours[j]]
            if joined[other] > count and _fits(held[other], load[v], most):
                best, count = other, joined[other]
        for j in range(begin, end):
            joined[label[neighbours[j]]] = 0
        if best != old:
            for c in range(width):
                held[old, c] -= load[v, c]
                held[best, c] += load[v, c]
            label[v] = best
            moved += 1
    return moved


@strict
def number(label, numbers):
    """Renames the labels int32[n] 0, 1, ... by first occurrence, in place; numbers int32[n], -1 throughout, is scratch.

    Returns how many there are.
    """
    count = 0
    for v in range(len(label)):
        if numbers[label[v]] < 0:
            numbers[label[v]] = count
            count += 1
        label[v] = numbers[label[v]]
    return count


@strict
def place(order, start, starts, neighbours, load, scale, held, assigned):
    """Each entity goes where most of its neighbours are, less scale * load * sqrt(part's load): Fennel's objective.

    load float32[n, c] in shares of a full part; held float64[k, c], the loads of each part, and assigned int32[n], -1 for none
    yet, are kept up to date. A part takes nothing beyond 1, except the emptiest when all are full. Returns how many moved.
    """
    k, width, moved = len(held), load.shape[1], 0
    joined = np.zeros(k, np.int64)
    price = np.zeros(k)
    share = len(load) / k  # makes the average load 1
    for p in range(k):
        price[p] = np.sqrt(max(0.0, held[p].sum() / width))
    for i in range(len(order)):
        row = order[i]
        v = start + row
        old = assigned[v]
        own = 0.0
        for c in range(width):
            own += load[v, c]
            if old >= 0:
                held[old, c] -= load[v, c]
        own = scale * share * own / width
        for j in range(starts[row], starts[row + 1]):
            p = assigned[neighbours[j]]
            if p >= 0:
                joined[p] += 1
        if old >= 0:
            price[old] = np.sqrt(max(0.0, held[old].sum() / width))
        best, most, least = -1, -np.inf, 0
        for p in range(k):
            if price[p] < price[least]:
                least = p
            score = joined[p] - own * price[p]
            joined[p] = 0
            if (score > most or (score == most and price[p] < price[best])) and _fits(held[p], load[v], 1.0):
                best, most = p, score
        if best < 0:
            best = least
        for c in range(width):
            held[best, c] += load[v, c]
        price[best] = np.sqrt(max(0.0, held[best].sum() / width))
        if best != old:
            assigned[v] = best
            moved += 1
    return moved
