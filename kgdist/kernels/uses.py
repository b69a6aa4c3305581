# mypy: disable-error-code="no-untyped-def"
"""Gradients by use gathered into gradients by row, with the regularisation of each use and its mean square, compiled.

A use is one triple's look at a relation, or one draw of a negative. See `penalty` for the term and `kgdist.kvstore.optim` for
what the squares are for.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import disjoint, inlined

_ZERO, _ONE = np.float32(0), np.float32(1)


@inlined
def _regularise(x, g, scale, p):
    """Adds the term's gradient to g in place; returns (sum |x|^p, sum of the squares of the result)."""
    norm, square = _ZERO, _ZERO
    if scale == 0:
        for d in range(len(g)):
            square += g[d] * g[d]
    elif p == 3:  # the default, apart so that it stays two multiplications
        for d in range(len(g)):
            slope = x[d] * abs(x[d])
            norm += slope * x[d]
            g[d] += scale * slope
            square += g[d] * g[d]
    else:
        for d in range(len(g)):
            slope = np.sign(x[d])
            for _ in range(p - 1):
                slope *= abs(x[d])
            norm += slope * x[d]
            g[d] += scale * slope
            square += g[d] * g[d]
    return norm, square


@disjoint
def rows(values, places, grads, counts, coef, p, squares):
    """Each row with its number of uses; grads float32[U,D] in place. Returns coef * sum |x|^p over all uses.

    The values of row u are values[places[u]], or values[u] where `places` is empty.
    """
    total, mean = 0.0, _ONE / np.float32(max(1, grads.shape[1]))
    for u in range(len(grads)):
        uses = counts[u] if len(counts) else _ONE
        x = values[places[u]] if len(places) else values[u]
        norm, square = _regularise(x, grads[u], coef * np.float32(p) * uses, p)
        squares[u] = square * mean
        total += np.float64(norm * uses)
    return total * coef


@disjoint
def gather(values, places, grads, coef, p, out, squares):
    """Adds grads float32[n,D] to out[places] and their mean squares to squares[places]; values float32[V,D], a row per place."""
    total, mean = 0.0, _ONE / np.float32(max(1, grads.shape[1]))
    for u in range(len(grads)):
        row, g = out[places[u]], grads[u]
        norm, square = _regularise(values[places[u]], g, coef * np.float32(p), p)
        squares[places[u]] += square * mean
        total += np.float64(norm)
        for d in range(len(g)):
            row[d] += g[d]
    return total * coef


@disjoint
def settle(values, places, first, coef, p, grads, squares):
    """The draws of a step, whose gradients lie in grads[first:], one row each, become rows of unique ids where they lie.

    Draw u belongs to row places[u]; rows from `first` on are numbered by first occurrence, so none lies behind its first draw.
    values float32[n,D], a row per draw. `squares` float32[.] likewise; returns coef * sum |x|^p.
    """
    total, mean, fresh = 0.0, _ONE / np.float32(max(1, grads.shape[1])), first
    for u in range(len(places)):
        g, place = grads[first + u], places[u]
        norm, square = _regularise(values[u], g, coef * np.float32(p), p)
        total += np.float64(norm)
        if place == fresh:
            fresh += 1
            squares[place] = square * mean
            if place != first + u:
                row = grads[place]
                for d in range(len(g)):
                    row[d] = g[d]
        else:
            squares[place] += square * mean
            row = grads[place]
            for d in range(len(g)):
                row[d] += g[d]
    return total * coef
