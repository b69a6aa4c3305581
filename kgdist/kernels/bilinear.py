# mypy: disable-error-code="no-untyped-def"
"""Row times matrix, a matrix per relation, compiled, forward and backward: RESCAL and TransR. `grouped` is the torch twin.

A batch has hundreds of relations with a few rows each, too few for a GEMM call. So a matrix stays in the cache for the rows of
its relation, four of its rows (or four triples) are worked on at a time, and each loop writes to one row only (`l1` tells why).
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import disjoint, inlined

_ZERO = np.float32(0)


@inlined
def _combine(m, x, out):
    """out[k] += sum_i x[i] m[i, k]."""
    last = len(m) - 1
    for i in range(0, len(m), 4):
        i1, i2, i3 = min(i + 1, last), min(i + 2, last), min(i + 3, last)
        f0, f1 = x[i], x[i1] if i + 1 <= last else _ZERO
        f2, f3 = x[i2] if i + 2 <= last else _ZERO, x[i3] if i + 3 <= last else _ZERO
        m0, m1, m2, m3 = m[i], m[i1], m[i2], m[i3]
        for k in range(len(out)):
            out[k] += (f0 * m0[k] + f1 * m1[k]) + (f2 * m2[k] + f3 * m3[k])


@inlined
def _products(m, x, out):
    """out[i] += sum_k m[i, k] x[k]."""
    last = len(m) - 1
    for i in range(0, len(m), 4):
        m0, m1, m2, m3 = m[i], m[min(i + 1, last)], m[min(i + 2, last)], m[min(i + 3, last)]
        s0 = s1 = s2 = s3 = _ZERO
        for k in range(len(x)):
            s0 += m0[k] * x[k]
            s1 += m1[k] * x[k]
            s2 += m2[k] * x[k]
            s3 += m3[k] * x[k]
        out[i] += s0
        if i + 1 <= last:
            out[i + 1] += s1
        if i + 2 <= last:
            out[i + 2] += s2
        if i + 3 <= last:
            out[i + 3] += s3


@disjoint
def _forward(transpose, entities, places, matrices, which, order, bounds, out):
    for v in range(len(which)):
        m = matrices[which[v]]
        for at in range(bounds[v], bounds[v + 1]):
            x, q = entities[places[order[at]]], out[order[at]]
            for k in range(len(q)):
                q[k] = _ZERO
            if transpose:
                _products(m, x, q)
            else:
                _combine(m, x, q)


@disjoint
def _backward_rows(transpose, places, matrices, which, order, bounds, grad, grad_entities):
    for v in range(len(which)):
        m = matrices[which[v]]
        for at in range(bounds[v], bounds[v + 1]):
            g, gx = grad[order[at]], grad_entities[places[order[at]]]
            if transpose:
                _combine(m, g, gx)
            else:
                _products(m, g, gx)


@disjoint
def _backward_matrices(left, lefts, right, rights, fresh, order, bounds, grad):
    """Adds, or writes if `fresh`, the outer products of left[lefts[b]] and right[rights[b]] to the matrix of b's relation."""
    for v in range(len(grad)):
        last = bounds[v + 1] - 1
        for at in range(bounds[v], bounds[v + 1], 4):
            b0, b1, b2, b3 = order[at], order[min(at + 1, last)], order[min(at + 2, last)], order[min(at + 3, last)]
            x0, x1, x2, x3 = left[lefts[b0]], left[lefts[b1]], left[lefts[b2]], left[lefts[b3]]
            y0, y1, y2, y3 = right[rights[b0]], right[rights[b1]], right[rights[b2]], right[rights[b3]]
            write = fresh and at == bounds[v]
            for i in range(grad.shape[1]):
                gm = grad[v, i]
                f0, f1 = x0[i], x1[i] if at + 1 <= last else _ZERO
                f2, f3 = x2[i] if at + 2 <= last else _ZERO, x3[i] if at + 3 <= last else _ZERO
                if write:
                    for k in range(len(gm)):
                        gm[k] = (f0 * y0[k] + f1 * y1[k]) + (f2 * y2[k] + f3 * y3[k])
                else:
                    for k in range(len(gm)):
                        gm[k] += (f0 * y0[k] + f1 * y1[k]) + (f2 * y2[k] + f3 * y3[k])


class Matrices:
    """Rows of entities times the matrix of their relation, and back.

    Args:
        matrices: float32[n,D,R].
        index: int64[B], the relation of each triple.
        which: int64[V], the matrix of each relation; None: they are in order.
    """

    def __init__(self, matrices: np.ndarray, index: np.ndarray, which: np.ndarray | None = None) -> None:
        self.matrices = matrices
        self.which = np.arange(len(matrices)) if which is None else which
        self.order = np.argsort(index, kind="stable")
        self.bounds = np.searchsorted(index[self.order], np.arange(len(self.which) + 1))

    def forward(self, entities: np.ndarray, places: np.ndarray, out: np.ndarray, *, transpose: bool = False) -> None:
        """out[b] = x M, float32[B,R], or x M^T, float32[B,D]; x the row places[b] of float32[U,.]."""
        _forward(transpose, entities, places, self.matrices, self.which, self.order, self.bounds, out)

    def backward(
        self, entities: np.ndarray, places: np.ndarray, grad: np.ndarray, grad_entities: np.ndarray, grad_matrices: np.ndarray,
        *, transpose: bool = False, fresh: bool = False, part: slice = slice(None),
    ) -> None:  # fmt: skip
        """Adds to float32[U,.] and float32[V,D,R]; `fresh`: overwrites the latter (every relation has a triple).

        `part`: only these relations, a run of them.
        """
        first, last, _ = part.indices(len(self.which))
        order, bounds = self.order, self.bounds[first : last + 1]
        _backward_rows(transpose, places, self.matrices, self.which[part], order, bounds, grad, grad_entities)
        each = np.arange(len(places))
        pair = (grad, each, entities, places) if transpose else (entities, places, grad, each)
        _backward_matrices(*pair, fresh, order, bounds, grad_matrices[part])
