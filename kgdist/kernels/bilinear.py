# mypy: disable-error-code="no-untyped-def"
"""Row times matrix, a matrix per relation, compiled: RESCAL's query, forward and backward. `grouped` is the torch twin.

A batch has hundreds of relations with a few rows each, too few for a GEMM call: so a matrix is read row by row, once, for all the
triples of its relation.
"""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import disjoint
from kgdist.types import Side

_ZERO = np.float32(0)


@disjoint
def _forward(tail, entities, anchors, matrices, order, bounds, out):
    """out[b] = x M for a missing tail, M x for a missing head; matrices float32[V, D, D]."""
    for v in range(len(bounds) - 1):
        for i in range(matrices.shape[1]):
            m = matrices[v, i]
            for at in range(bounds[v], bounds[v + 1]):
                b = order[at]
                x, q = entities[anchors[b]], out[b]
                if tail:
                    factor = x[i]
                    if i == 0:
                        for k in range(len(m)):
                            q[k] = factor * m[k]
                    else:
                        for k in range(len(m)):
                            q[k] += factor * m[k]
                else:
                    total = _ZERO
                    for k in range(len(m)):
                        total += x[k] * m[k]
                    q[i] = total


@disjoint
def _backward(tail, entities, anchors, matrices, order, bounds, grad, grad_entities, grad_matrices):
    for v in range(len(bounds) - 1):
        for i in range(matrices.shape[1]):
            m, gm = matrices[v, i], grad_matrices[v, i]
            for k in range(len(m)):
                gm[k] = _ZERO
            for at in range(bounds[v], bounds[v + 1]):
                b = order[at]
                x, g, gx = entities[anchors[b]], grad[b], grad_entities[anchors[b]]
                if tail:
                    factor, total = x[i], _ZERO
                    for k in range(len(m)):
                        gm[k] += factor * g[k]
                        total += g[k] * m[k]
                    gx[i] += total
                else:
                    factor = g[i]
                    for k in range(len(m)):
                        gm[k] += factor * x[k]
                        gx[k] += factor * m[k]


class MatrixQuery:
    """The query of one step, as `query.VectorQuery`; gradients are by relation instead of by use."""

    def __init__(
        self, side: Side, entities: np.ndarray, anchors: np.ndarray, matrices: np.ndarray, index: np.ndarray
    ) -> None:  # fmt: skip
        """float32[U,D], int64[B] rows of it, float32[V,D*D], int64[B] rows of it."""
        dim = entities.shape[1]
        self.tail = side is Side.TAIL
        order = np.argsort(index, kind="stable")
        bounds = np.searchsorted(index[order], np.arange(len(matrices) + 1))
        self.given = entities, anchors, matrices.reshape(-1, dim, dim), order, bounds

    def forward(self, out: np.ndarray) -> None:
        """Fills float32[B,D]."""
        _forward(self.tail, *self.given, out)

    def backward(self, grad: np.ndarray, grad_entities: np.ndarray, grad_matrices: np.ndarray) -> None:
        """float32[B,D]; adds to float32[U,D], writes float32[V,D*D]."""
        _backward(self.tail, *self.given, grad, grad_entities, grad_matrices.reshape(self.given[2].shape))
