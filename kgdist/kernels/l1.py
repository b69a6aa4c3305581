# mypy: disable-error-code="no-untyped-def"
"""L1 distances of all pairs, forward and backward, compiled; the [P, N, Q] array never exists.

Forward: blocks of 4 x 4 pairs whose sums stay in registers while the dims go by. Backward: blocks of 2 x 4 pairs. Its inner loop
writes to six gradient rows, and a compiler that must fear that they overlap does not vectorise: so the rows of one block come
from six arrays (both halves of the queries' gradient, the quarters of the candidates') promised to be apart (`jit.disjoint`).
`length` and `slope` are the same in torch.
"""

from __future__ import annotations

import numpy as np
import torch

from kgdist.kernels.jit import disjoint, inlined, kernel

_SIGN = np.int32(-(1 << 31))
TILE = 64  # rows of q that stay in the cache while all candidates pass


@kernel
def forward(q, c, out):
    """out[p, n] = -sum_k |q[p, k] - c[n, k]|; float32[P,Q], float32[N,Q], float32[P,N], contiguous, P and N not 0."""
    last_p, last_n = q.shape[0] - 1, c.shape[0] - 1  # blocks over the edge do the last row again
    for tile in range(0, q.shape[0], TILE):
        for n0 in range(0, c.shape[0], 4):
            n1, n2, n3 = min(n0 + 1, last_n), min(n0 + 2, last_n), min(n0 + 3, last_n)
            for p0 in range(tile, min(tile + TILE, q.shape[0]), 4):
                p1, p2, p3 = min(p0 + 1, last_p), min(p0 + 2, last_p), min(p0 + 3, last_p)
                s00 = s01 = s02 = s03 = np.float32(0)
                s10 = s11 = s12 = s13 = np.float32(0)
                s20 = s21 = s22 = s23 = np.float32(0)
                s30 = s31 = s32 = s33 = np.float32(0)
                for k in range(q.shape[1]):
                    x0, x1, x2, x3 = q[p0, k], q[p1, k], q[p2, k], q[p3, k]
                    y = c[n0, k]
                    s00 += abs(x0 - y)
                    s10 += abs(x1 - y)
                    s20 += abs(x2 - y)
                    s30 += abs(x3 - y)
                    y = c[n1, k]
                    s01 += abs(x0 - y)
                    s11 += abs(x1 - y)
                    s21 += abs(x2 - y)
                    s31 += abs(x3 - y)
                    y = c[n2, k]
                    s02 += abs(x0 - y)
                    s12 += abs(x1 - y)
                    s22 += abs(x2 - y)
                    s32 += abs(x3 - y)
                    y = c[n3, k]
                    s03 += abs(x0 - y)
                    s13 += abs(x1 - y)
                    s23 += abs(x2 - y)
                    s33 += abs(x3 - y)
                out[p0, n0], out[p0, n1], out[p0, n2], out[p0, n3] = -s00, -s01, -s02, -s03
                out[p1, n0], out[p1, n1], out[p1, n2], out[p1, n3] = -s10, -s11, -s12, -s13
                out[p2, n0], out[p2, n1], out[p2, n2], out[p2, n3] = -s20, -s21, -s22, -s23
                out[p3, n0], out[p3, n1], out[p3, n2], out[p3, n3] = -s30, -s31, -s32, -s33


@inlined
def bits(grad, p, n):
    """Those of a number of grad float32[P,N]; of 0 over its edges."""
    return np.float32(grad[p, n] if p < grad.shape[0] and n < grad.shape[1] else np.float32(0)).view(np.int32)


@inlined
def signed(weight, x, z):
    """The float32 with these bits, times the sign of x - z; 0 where they are equal. A tenth faster than two comparisons."""
    difference = x - z
    turned = np.int32(weight ^ (np.float32(difference).view(np.int32) & _SIGN)).view(np.float32)
    return turned if difference != 0 else np.float32(0)


@disjoint
def _backward(q, c, grad, q0, q1, c0, c1, c2, c3):
    """Adds to the halves q0, q1 [ceil(P/2), Q] and the quarters c0 to c3 [ceil(N/4), Q] of the gradients; grad float32[P,N]."""
    half, quarter, last_p, last_n = q0.shape[0], c0.shape[0], q.shape[0] - 1, c.shape[0] - 1
    for tile in range(0, half, TILE // 2):
        for n0 in range(quarter):
            n1, n2, n3 = n0 + quarter, n0 + 2 * quarter, n0 + 3 * quarter  # rows over the edge get weight 0
            y0, y1, y2, y3 = c[n0], c[min(n1, last_n)], c[min(n2, last_n)], c[min(n3, last_n)]
            h0, h1, h2, h3 = c0[n0], c1[n0], c2[n0], c3[n0]
            for p0 in range(tile, min(tile + TILE // 2, half)):
                p1 = min(p0 + half, last_p)
                x0, x1 = q[p0], q[p1]
                g0, g1 = q0[p0], q1[p0]
                b0, b1 = bits(grad, p0, n0), bits(grad, p0, n1)
                b2, b3 = bits(grad, p0, n2), bits(grad, p0, n3)
                d0, d1 = bits(grad, p0 + half, n0), bits(grad, p0 + half, n1)
                d2, d3 = bits(grad, p0 + half, n2), bits(grad, p0 + half, n3)
                for k in range(q.shape[1]):
                    x, z0, z1, z2, z3 = x0[k], y0[k], y1[k], y2[k], y3[k]
                    s0 = signed(b0, x, z0)
                    s1 = signed(b1, x, z1)
                    s2 = signed(b2, x, z2)
                    s3 = signed(b3, x, z3)
                    g0[k] -= (s0 + s1) + (s2 + s3)
                    x = x1[k]
                    t0 = signed(d0, x, z0)
                    t1 = signed(d1, x, z1)
                    t2 = signed(d2, x, z2)
                    t3 = signed(d3, x, z3)
                    g1[k] -= (t0 + t1) + (t2 + t3)
                    h0[k] += s0 + t0
                    h1[k] += s1 + t1
                    h2[k] += s2 + t2
                    h3[k] += s3 + t3


def backward(q: np.ndarray, c: np.ndarray, grad: np.ndarray, grad_q: np.ndarray, grad_c: np.ndarray) -> None:
    """Adds to grad_q float32[2 ceil(P/2), Q] and grad_c float32[4 ceil(N/4), Q], whose rows beyond P and N get zeros."""
    half, quarter = len(grad_q) // 2, len(grad_c) // 4
    halves, quarters = grad_q.reshape(2, half, q.shape[1]), grad_c.reshape(4, quarter, q.shape[1])
    _backward(q, c, grad, *halves, *quarters)


def length(difference: torch.Tensor) -> torch.Tensor:
    """float[..., Q] -> float[...], the sum of absolute values."""
    return difference.abs().sum(-1)


def slope(difference: torch.Tensor) -> torch.Tensor:
    """The derivative of `length`, 0 at 0."""
    return difference.sign()
