# mypy: disable-error-code="no-untyped-def"
"""Sums of complex moduli of all pairs, forward and backward, compiled; the [P, N, Q] array never exists.

A row is K real parts, then K imaginary parts. The modulus of r + i j is s / sqrt(s), s = max(r^2 + j^2, 2^-120): the compiler
makes the division by a root an estimate and a Newton step, good to float32, and a zero distance gives zero gradient. Blocks of
2 x 2 pairs forward, 2 x 4 backward; how the backward pass is kept free of overlap is told in `l1`.
`length` and `slope` are the same in torch.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import disjoint, inlined, kernel

TILE = 64
TINY = 2.0**-120  # squares below count as zero length: the gradient fades to 0 instead of dividing by 0
_TINY = np.float32(TINY)
_ONE = np.float32(1)


@inlined
def _length(r, j):
    square = r * r + j * j
    return square * (_ONE / math.sqrt(max(square, _TINY)))


@inlined
def _inverse(r, j):
    return _ONE / math.sqrt(max(r * r + j * j, _TINY))


@kernel
def forward(q, c, out):
    """out[p, n] = -sum_k |q[p, k] - c[n, k]|; float32[P,2K], float32[N,2K], float32[P,N], contiguous, P and N not 0."""
    pairs, last_p, last_n = q.shape[1] // 2, q.shape[0] - 1, c.shape[0] - 1
    for tile in range(0, q.shape[0], TILE):
        for n0 in range(0, c.shape[0], 2):
            n1 = min(n0 + 1, last_n)
            a0, b0, a1, b1 = c[n0, :pairs], c[n0, pairs:], c[n1, :pairs], c[n1, pairs:]
            for p0 in range(tile, min(tile + TILE, q.shape[0]), 2):
                p1 = min(p0 + 1, last_p)
                u0, v0, u1, v1 = q[p0, :pairs], q[p0, pairs:], q[p1, :pairs], q[p1, pairs:]
                s00 = s01 = s10 = s11 = np.float32(0)
                for k in range(pairs):
                    s00 += _length(u0[k] - a0[k], v0[k] - b0[k])
                    s01 += _length(u0[k] - a1[k], v0[k] - b1[k])
                    s10 += _length(u1[k] - a0[k], v1[k] - b0[k])
                    s11 += _length(u1[k] - a1[k], v1[k] - b1[k])
                out[p0, n0], out[p0, n1], out[p1, n0], out[p1, n1] = -s00, -s01, -s10, -s11


@disjoint
def _backward(q, c, grad, half, quarter, q0, r0, q1, r1, c0, d0, c1, d1, c2, d2, c3, d3):
    """Adds to gradients given as flat arrays: q0 begins at the real parts, r0 at the imaginary parts of the same rows, and so on.

    The two overlap as arrays, but what is touched through each does not.
    """
    zero = np.float32(0)
    width, last_p, last_n = q.shape[1], q.shape[0] - 1, c.shape[0] - 1
    pairs = width // 2
    for tile in range(0, half, TILE // 2):
        for n0 in range(quarter):
            n1, n2, n3 = n0 + quarter, n0 + 2 * quarter, n0 + 3 * quarter  # rows over the edge get weight 0
            m1, m2, m3 = min(n1, last_n), min(n2, last_n), min(n3, last_n)
            ca0, ca1, ca2, ca3 = c[n0, :pairs], c[m1, :pairs], c[m2, :pairs], c[m3, :pairs]
            cb0, cb1, cb2, cb3 = c[n0, pairs:], c[m1, pairs:], c[m2, pairs:], c[m3, pairs:]
            at, to = n0 * width, n0 * width + pairs
            ga0, ga1, ga2, ga3 = c0[at:to], c1[at:to], c2[at:to], c3[at:to]
            gb0, gb1, gb2, gb3 = d0[at:to], d1[at:to], d2[at:to], d3[at:to]
            for p0 in range(tile, min(tile + TILE // 2, half)):
                p1 = min(p0 + half, last_p)
                qa0, qb0, qa1, qb1 = q[p0, :pairs], q[p0, pairs:], q[p1, :pairs], q[p1, pairs:]
                start, stop = p0 * width, p0 * width + pairs
                ha0, hb0, ha1, hb1 = q0[start:stop], r0[start:stop], q1[start:stop], r1[start:stop]
                w00, w01 = grad[p0, n0], grad[p0, m1] if n1 <= last_n else zero
                w02, w03 = grad[p0, m2] if n2 <= last_n else zero, grad[p0, m3] if n3 <= last_n else zero
                w10 = w11 = w12 = w13 = zero
                if p0 + half <= last_p:
                    w10, w11 = grad[p1, n0], grad[p1, m1] if n1 <= last_n else zero
                    w12, w13 = grad[p1, m2] if n2 <= last_n else zero, grad[p1, m3] if n3 <= last_n else zero
                for k in range(pairs):
                    u, v = qa0[k], qb0[k]
                    a0, a1, a2, a3 = u - ca0[k], u - ca1[k], u - ca2[k], u - ca3[k]
                    b0, b1, b2, b3 = v - cb0[k], v - cb1[k], v - cb2[k], v - cb3[k]
                    f0, f1 = w00 * _inverse(a0, b0), w01 * _inverse(a1, b1)
                    f2, f3 = w02 * _inverse(a2, b2), w03 * _inverse(a3, b3)
                    a0, a1, a2, a3 = a0 * f0, a1 * f1, a2 * f2, a3 * f3
                    b0, b1, b2, b3 = b0 * f0, b1 * f1, b2 * f2, b3 * f3
                    ha0[k] -= (a0 + a1) + (a2 + a3)
                    hb0[k] -= (b0 + b1) + (b2 + b3)
                    u, v = qa1[k], qb1[k]
                    s0, s1, s2, s3 = u - ca0[k], u - ca1[k], u - ca2[k], u - ca3[k]
                    t0, t1, t2, t3 = v - cb0[k], v - cb1[k], v - cb2[k], v - cb3[k]
                    f0, f1 = w10 * _inverse(s0, t0), w11 * _inverse(s1, t1)
                    f2, f3 = w12 * _inverse(s2, t2), w13 * _inverse(s3, t3)
                    s0, s1, s2, s3 = s0 * f0, s1 * f1, s2 * f2, s3 * f3
                    t0, t1, t2, t3 = t0 * f0, t1 * f1, t2 * f2, t3 * f3
                    ha1[k] -= (s0 + s1) + (s2 + s3)
                    hb1[k] -= (t0 + t1) + (t2 + t3)
                    ga0[k] += a0 + s0
                    gb0[k] += b0 + t0
                    ga1[k] += a1 + s1
                    gb1[k] += b1 + t1
                    ga2[k] += a2 + s2
                    gb2[k] += b2 + t2
                    ga3[k] += a3 + s3
                    gb3[k] += b3 + t3


def backward(q: np.ndarray, c: np.ndarray, grad: np.ndarray, grad_q: np.ndarray, grad_c: np.ndarray) -> None:
    """Adds to grad_q float32[2 ceil(P/2), 2K] and grad_c float32[4 ceil(N/4), 2K], whose rows beyond P and N get zeros."""
    half, quarter = len(grad_q) // 2, len(grad_c) // 4
    parts = [grad_q[i * half : (i + 1) * half] for i in range(2)] + [grad_c[i * quarter : (i + 1) * quarter] for i in range(4)]
    flat = [part.reshape(-1) for part in parts]
    _backward(q, c, grad, half, quarter, *(view for each in flat for view in (each, each[q.shape[1] // 2 :])))


def _floored(square: torch.Tensor) -> torch.Tensor:
    return square.clamp_min(max(TINY, torch.finfo(square.dtype).tiny))


def length(difference: torch.Tensor) -> torch.Tensor:
    """float[..., 2K] -> float[...], the sum of the moduli."""
    re, im = difference.chunk(2, -1)
    square = re * re + im * im
    return (square * _floored(square).rsqrt()).sum(-1)


def slope(difference: torch.Tensor) -> torch.Tensor:
    """The derivative of `length`: each pair divided by its modulus, 0 at 0."""
    re, im = difference.chunk(2, -1)
    inverse = _floored(re * re + im * im).rsqrt()
    return torch.cat((re * inverse, im * inverse), -1)
