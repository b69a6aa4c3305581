# mypy: disable-error-code="no-untyped-def"
"""L1 distances of queries to candidates that each query's relation scales number by number (PairRE), and rows made 1 long.

What L1 after a projection would be, without the projected candidates: a factor more in the loops of `l1`, which see for why they
go by blocks and write to rows of different arrays.
"""

from __future__ import annotations

import math

import numpy as np

from kgdist.kernels.jit import disjoint, kernel
from kgdist.kernels.l1 import TILE, bits, signed

SHORTEST = np.float32(1e-12)  # torch.nn.functional.normalize
_ZERO, _ONE = np.float32(0), np.float32(1)


@disjoint
def unit(rows, out, lengths):
    """Fills float32[U,D] with the rows float32[U,D] made 1 long, and float32[U] with their lengths."""
    for u in range(len(rows)):
        x, y, square = rows[u], out[u], _ZERO
        for k in range(len(x)):
            square += x[k] * x[k]
        length = np.float32(math.sqrt(square))
        lengths[u] = SHORTEST if length < SHORTEST else length  # NaN stays NaN
        inverse = _ONE / lengths[u]
        for k in range(len(x)):
            y[k] = x[k] * inverse


@disjoint
def unit_back(units, lengths, grads):
    """Gradients float32[U,D] of rows 1 long become those of the rows they were made of."""
    for u in range(len(units)):
        y, g, along = units[u], grads[u], _ZERO
        if lengths[u] > SHORTEST:
            for k in range(len(y)):
                along += y[k] * g[k]
        inverse = _ONE / lengths[u]
        for k in range(len(y)):
            g[k] = (g[k] - along * y[k]) * inverse


@kernel
def forward(q, scales, index, c, out):
    """out[p, n] = -sum_k |q[p, k] - scales[index[p], k] c[n, k]| of the first len(index) rows; the arrays are contiguous."""
    last_p, last_n = len(index) - 1, c.shape[0] - 1  # blocks over the edge do the last row again
    for tile in range(0, len(index), TILE):
        for n0 in range(0, c.shape[0], 4):
            n1, n2, n3 = min(n0 + 1, last_n), min(n0 + 2, last_n), min(n0 + 3, last_n)
            y0, y1, y2, y3 = c[n0], c[n1], c[n2], c[n3]
            for p0 in range(tile, min(tile + TILE, len(index)), 2):
                p1 = min(p0 + 1, last_p)
                x0, x1, w0, w1 = q[p0], q[p1], scales[index[p0]], scales[index[p1]]
                s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = _ZERO
                for k in range(q.shape[1]):
                    x, w = x0[k], w0[k]
                    s00 += abs(x - w * y0[k])
                    s01 += abs(x - w * y1[k])
                    s02 += abs(x - w * y2[k])
                    s03 += abs(x - w * y3[k])
                    x, w = x1[k], w1[k]
                    s10 += abs(x - w * y0[k])
                    s11 += abs(x - w * y1[k])
                    s12 += abs(x - w * y2[k])
                    s13 += abs(x - w * y3[k])
                out[p0, n0], out[p0, n1], out[p0, n2], out[p0, n3] = -s00, -s01, -s02, -s03
                out[p1, n0], out[p1, n1], out[p1, n2], out[p1, n3] = -s10, -s11, -s12, -s13


@disjoint
def _backward(q, scales, index, c, grad, q0, q1, w0, w1, c0, c1, c2, c3):
    """Adds to the halves q0, q1 and w0, w1 [ceil(P/2), Q] and the quarters c0 to c3 [ceil(N/4), Q] of the gradients."""
    half, quarter, last_p, last_n = q0.shape[0], c0.shape[0], len(index) - 1, c.shape[0] - 1
    for tile in range(0, half, TILE // 2):
        for n0 in range(quarter):
            n1, n2, n3 = n0 + quarter, n0 + 2 * quarter, n0 + 3 * quarter  # rows over the edge get weight 0
            y0, y1, y2, y3 = c[n0], c[min(n1, last_n)], c[min(n2, last_n)], c[min(n3, last_n)]
            h0, h1, h2, h3 = c0[n0], c1[n0], c2[n0], c3[n0]
            for p0 in range(tile, min(tile + TILE // 2, half)):
                p1 = min(p0 + half, last_p)
                xa, xb, wa, wb = q[p0], q[p1], scales[index[p0]], scales[index[p1]]
                ga, gb, va, vb = q0[p0], q1[p0], w0[p0], w1[p0]
                b0, b1 = bits(grad, p0, n0), bits(grad, p0, n1)
                b2, b3 = bits(grad, p0, n2), bits(grad, p0, n3)
                d0, d1 = bits(grad, p0 + half, n0), bits(grad, p0 + half, n1)
                d2, d3 = bits(grad, p0 + half, n2), bits(grad, p0 + half, n3)
                for k in range(q.shape[1]):
                    x, w, z0, z1, z2, z3 = xa[k], wa[k], y0[k], y1[k], y2[k], y3[k]
                    s0 = signed(b0, x, w * z0)
                    s1 = signed(b1, x, w * z1)
                    s2 = signed(b2, x, w * z2)
                    s3 = signed(b3, x, w * z3)
                    ga[k] -= (s0 + s1) + (s2 + s3)
                    va[k] += (s0 * z0 + s1 * z1) + (s2 * z2 + s3 * z3)
                    x, v = xb[k], wb[k]
                    t0 = signed(d0, x, v * z0)
                    t1 = signed(d1, x, v * z1)
                    t2 = signed(d2, x, v * z2)
                    t3 = signed(d3, x, v * z3)
                    gb[k] -= (t0 + t1) + (t2 + t3)
                    vb[k] += (t0 * z0 + t1 * z1) + (t2 * z2 + t3 * z3)
                    h0[k] += s0 * w + t0 * v
                    h1[k] += s1 * w + t1 * v
                    h2[k] += s2 * w + t2 * v
                    h3[k] += s3 * w + t3 * v


def backward(
    q: np.ndarray, scales: np.ndarray, index: np.ndarray, c: np.ndarray, grad: np.ndarray,
    grad_q: np.ndarray, grad_w: np.ndarray, grad_c: np.ndarray,
) -> None:  # fmt: skip
    """Fills float32[P,Q] for queries, float32[P,Q] for the scales of each and float32[N,Q] for candidates; grad float32[P,N]."""
    wanted, made = (grad_q, grad_w, grad_c), []
    for rows, whole in zip(wanted, (2, 2, 4), strict=True):
        made.append(rows if len(rows) % whole == 0 else np.empty((-(-len(rows) // whole) * whole, rows.shape[1]), np.float32))
        made[-1][:] = 0
    split = [part for rows, parts in zip(made, (2, 2, 4), strict=True) for part in np.split(rows, parts)]
    _backward(q, scales, index, c, grad[: len(index)], *split)
    for rows, found in zip(wanted, made, strict=True):
        if found is not rows:
            rows[:] = found[: len(rows)]
