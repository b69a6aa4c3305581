# mypy: disable-error-code="no-untyped-def"
"""The loops of streaming: entities gather in clusters, and clusters or entities go to parts, compiled.

Rows are those of entities start, start + 1, ...: starts int64[m+1] and neighbours int32[.], repeated ones repeated. `order`
int64[m] says in which order they come.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict


@inlined
def _fits(held, load):
    """Whether held + load, float[c] each, is within 1 everywhere."""
    fits = True
    for c in range(len(load)):
        fits = fits and held[c] + load[c] <= 1.0
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
            if joined[other] > count:
                fits = True
                for c in range(width):
                    fits = fits and held[other, c] + load[v, c] <= most
                if fits:
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
            if (score > most or (score == most and price[p] < price[best])) and _fits(held[p], load[v]):
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
