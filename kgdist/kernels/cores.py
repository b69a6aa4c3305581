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
def tally(triples, cores, counts):
    """Adds to counts int64[kmax + 1] the triples whose ends are both in the k-core and not both in the next."""
    for i in range(len(triples)):
        counts[min(cores[triples[i, 0]], cores[triples[i, 2]])] += 1
