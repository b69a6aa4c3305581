# mypy: disable-error-code="no-untyped-def"
"""The loop of restreaming: each entity to the part of most neighbours, less the price of the part's load, compiled."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import strict


@strict
def place(order, start, starts, neighbours, load, capacity, scale, held, assigned):
    """Puts entities start + order[i], i ascending, where joined neighbours - scale * load * sqrt(part's load) is largest.

    order int64[m]; starts int64[m+1] and neighbours int32[.] are the rows of these entities; load float32[n]; held float64[k],
    the load of each part, and assigned int32[n], -1 for none yet, are kept up to date. A part takes nothing beyond `capacity`,
    except the emptiest when all are full.
    """
    k = len(held)
    total = 0.0
    for v in range(len(load)):
        total += load[v]
    share = k / total
    joined = np.zeros(k, np.int64)
    for i in range(len(order)):
        row = order[i]
        v = start + row
        own = np.float64(load[v])
        if assigned[v] >= 0:
            held[assigned[v]] -= own
        joined[:] = 0
        for j in range(starts[row], starts[row + 1]):
            p = assigned[neighbours[j]]
            if p >= 0:
                joined[p] += 1
        best, most, least = -1, -np.inf, 0
        for p in range(k):
            if held[p] < held[least]:
                least = p
            if held[p] + own <= capacity:
                score = joined[p] - scale * own * np.sqrt(max(0.0, held[p]) * share)
                if score > most or (score == most and held[p] < held[best]):
                    best, most = p, score
        if best < 0:
            best = least
        held[best] += own
        assigned[v] = best
