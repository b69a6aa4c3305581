# mypy: disable-error-code="no-untyped-def"
"""Loops over the triples of a graph that take entities of few triples away, compiled. Used by kgdist.tuning.

Triples are int32[T, 3] (head, relation, tail), state uint8[n] of each entity: KEPT, or its end: LEAVING in this pass, GONE in one
before. No index is checked here.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import strict

KEPT, LEAVING, GONE = np.uint8(0), np.uint8(1), np.uint8(2)


@strict
def peel(triples, state, counts):
    """Takes the triples of LEAVING entities out of counts int64[n]; returns how many. Those of GONE ones are out already."""
    taken = 0
    for i in range(len(triples)):
        head, tail = triples[i, 0], triples[i, 2]
        if state[head] + state[tail] > 0 and state[head] < GONE and state[tail] < GONE:
            counts[head] -= 1
            counts[tail] -= 1
            taken += 1
    return taken


@strict
def strip(triples, state, counts, only):
    """Takes out the entities of one triple, and those that are left with one when these go; returns how many triples went.

    `only` int64[n], zeros: room for the numbers of each entity's triples, all XORed, of which the last one's number is left, so
    who hangs on whom is known without a list of neighbours. A loop is there twice, and so is not.
    """
    for i in range(len(triples)):
        if state[triples[i, 0]] == KEPT and state[triples[i, 2]] == KEPT:
            only[triples[i, 0]] ^= i
            only[triples[i, 2]] ^= i
    taken = 0
    for first in range(len(counts)):
        entity = first
        while state[entity] == KEPT and counts[entity] == 1:
            last = only[entity]
            other = triples[last, 0] + triples[last, 2] - entity
            state[entity], counts[entity] = GONE, 0
            counts[other] -= 1
            only[other] ^= last
            taken += 1
            entity = other
        if state[entity] == KEPT and counts[entity] == 0:
            state[entity] = GONE
    return taken


@strict
def tally(triples, cores, counts):
    """Adds to counts int64[kmax + 1] the triples whose ends are both in the k-core and not both in the next."""
    for i in range(len(triples)):
        counts[min(cores[triples[i, 0]], cores[triples[i, 2]])] += 1
