# mypy: disable-error-code="no-untyped-def"
"""Loops over triples that are divided among parts, their entities being replicated (vertex cuts), compiled.

Triples are int32[T, 3] (head, relation, tail), seen piece by piece in their order; no index is checked. There are 64 parts at
most: bit p of a word, uint64[entities] or uint64[T], stands for part p.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict

OPEN = np.uint8(255)  # a triple that has no part yet
BALANCE = 1.1  # lambda of HDRF, what an even load is worth
LOAD = 0.5  # what a home's load costs an entity, as a share of its triples where the load is the average
_ONE, _NONE = np.uint64(1), np.uint64(0)


# ---------------------------------------------------------------------------------------------- homes of entities
@strict
def vote(triples, home, votes):
    """Adds to votes int32[entities, k], for both ends of each triple, one for the home uint8[entities] of the other."""
    for i in range(len(triples)):
        head, tail = triples[i, 0], triples[i, 2]
        if head != tail:
            votes[head, home[tail]] += 1
            votes[tail, home[head]] += 1


@strict
def move(ends, votes, limit, load, home):
    """Each entity goes to the home that most of its triples lead to, less what the load of that home costs, if it has room.

    ends int64[entities]: triples at each; load int64[k], of homes in ends of triples, at most `limit` by moves, and home are
    written. Returns how many have moved.
    """
    parts, moved, total = len(load), 0, 0
    for part in range(parts):
        total += load[part]
    price = LOAD * parts / max(1, total)
    for entity in range(len(home)):
        own, brought = home[entity], ends[entity]
        if brought == 0:
            continue
        best, most = np.int64(own), votes[entity, own] - price * brought * (load[own] - brought)
        for part in range(parts):
            if part != own and load[part] + brought <= limit:
                gain = votes[entity, part] - price * brought * load[part]
                if gain > most:
                    best, most = np.int64(part), gain
        if best != own:
            load[own] -= brought
            load[best] += brought
            home[entity] = best
            moved += 1
    return moved


# ---------------------------------------------------------------------------------------------- triples to parts
@inlined
def _put(triples, i, part, replicas, size, out):
    bit = _ONE << np.uint64(part)
    replicas[triples[i, 0]] |= bit
    replicas[triples[i, 2]] |= bit
    size[part] += 1
    out[i] = part


@strict
def keep(triples, home, limit, replicas, size, out):
    """Triples whose ends have one home go there while it has fewer than `limit`; out uint8[T] of the others becomes OPEN.

    replicas uint64[entities], the parts that have triples of each, and size int64[k] are kept up.
    """
    for i in range(len(triples)):
        part = home[triples[i, 0]]
        if part == home[triples[i, 2]] and size[part] < limit:
            _put(triples, i, part, replicas, size, out)
        else:
            out[i] = OPEN


@strict
def place(triples, ends, limit, replicas, size, out):
    """The triples that are OPEN, each to the part of the best score among those with fewer than `limit`: HDRF (Petroni et al.,
    CIKM 2015), with the degrees of the whole graph. An end counts where it has a replica, the one of fewer triples more."""
    parts = len(size)
    for i in range(len(triples)):
        if out[i] != OPEN:
            continue
        head, tail = triples[i, 0], triples[i, 2]
        share = ends[head] / max(1, ends[head] + ends[tail])
        of_head, of_tail = 2.0 - share, 1.0 + share
        largest, smallest = size[0], size[0]
        for part in range(1, parts):
            largest, smallest = max(largest, size[part]), min(smallest, size[part])
        even = BALANCE / (1.0 + largest - smallest)
        heads, tails = replicas[head], replicas[tail]
        best, most = 0, -1.0
        for part in range(parts):
            score = even * (largest - size[part])
            if (heads >> np.uint64(part)) & _ONE:
                score += of_head
            if (tails >> np.uint64(part)) & _ONE:
                score += of_tail
            if score > most and size[part] < limit:
                best, most = part, score
        _put(triples, i, best, replicas, size, out)


@strict
def mark(triples, parts, replicas):
    """Adds to replicas uint64[entities] the part uint8[T] of each triple, for both of its ends."""
    for i in range(len(triples)):
        bit = _ONE << np.uint64(parts[i])
        replicas[triples[i, 0]] |= bit
        replicas[triples[i, 2]] |= bit


# ---------------------------------------------------------------------------------------------- expansion
@strict
def incident(triples, both, degree):
    """Adds to degree int64[entities] the edges into each: triples by tail and, with `both`, by head, for their inverses."""
    for i in range(len(triples)):
        degree[triples[i, 2]] += 1
        if both:
            degree[triples[i, 0]] += 1


@inlined
def _drawn(entity, fresh, cursor, upto, places):
    """The parts for which the next edge into `entity` is needed; places is empty where all edges are."""
    wanted = fresh[entity]
    if len(places):
        if places[upto[entity]] == cursor[entity]:
            upto[entity] += 1
        else:
            wanted = _NONE
        cursor[entity] += 1
    return wanted


@strict
def reach(triples, both, fresh, cursor, upto, places, grown, needed):
    """One hop: adds to grown uint64[entities] the parts that need what is at the other end of an edge into an entity of fresh
    uint64[entities], and to needed uint64[T] those that need the triple.

    Edges into an entity, those of `incident` in the order of the triples, have numbers from cursor int64[entities] on. places
    int64[.] has the numbers of those drawn, ascending within an entity and -1 at the end; upto int64[entities] says which of them
    comes next. cursor and upto move on.
    """
    for i in range(len(triples)):
        head, tail = triples[i, 0], triples[i, 2]
        wanted = _drawn(tail, fresh, cursor, upto, places)
        grown[head] |= wanted
        needed[i] |= wanted
        if both:
            wanted = _drawn(head, fresh, cursor, upto, places)
            grown[tail] |= wanted
            needed[i] |= wanted
