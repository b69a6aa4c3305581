# mypy: disable-error-code="no-untyped-def"
"""The loops of `euclid`, compiled: distances from products, and gradients of distances to weights of the products."""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import disjoint

_ZERO, _TWO = np.float32(0), np.float32(2)


@disjoint
def _distances(products, norms_q, norms_c, close, nothing):
    """In place; returns the number of close pairs."""
    count = np.int64(0)
    for chunk in range(products.shape[0]):
        sizes = norms_c[chunk]
        for p in range(products.shape[1]):
            line, size = products[chunk, p], norms_q[chunk, p]
            for n in range(len(line)):
                square = size + sizes[n] - _TWO * line[n]
                count += np.int32(square <= close * (size + sizes[n]))
                line[n] = -math.sqrt(max(square, nothing))
    return count


@disjoint
def _find(scores, norms_q, norms_c, close, found):
    """Writes (chunk, row, column) of close pairs to int64[X,3] as far as there is room, and returns their number."""
    count = 0
    for chunk in range(scores.shape[0]):
        sizes = norms_c[chunk]
        for p in range(scores.shape[1]):
            line, size, here = scores[chunk, p], norms_q[chunk, p], np.int32(0)
            for n in range(len(line)):
                here += np.int32(line[n] * line[n] <= close * (size + sizes[n]))
            if here == 0:
                continue
            for n in range(len(line)):
                if line[n] * line[n] <= close * (size + sizes[n]):
                    if count < len(found):
                        found[count, 0], found[count, 1], found[count, 2] = chunk, p, n
                    count += 1
    return count


@disjoint
def _norms(rows, out):
    for chunk in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            total = _ZERO
            for k in range(rows.shape[2]):
                total += rows[chunk, i, k] * rows[chunk, i, k]
            out[chunk, i] = total


@disjoint
def _weights(grad, scores, sum_q, sum_c):
    for chunk in range(grad.shape[0]):
        columns = sum_c[chunk]
        for n in range(len(columns)):
            columns[n] = _ZERO
        for p in range(grad.shape[1]):
            g, s, total = grad[chunk, p], scores[chunk, p], _ZERO
            for n in range(len(columns)):
                weight = g[n] / s[n]
                g[n] = weight
                total += weight
                columns[n] += weight
            sum_q[chunk, p] = total


def norms(rows: torch.Tensor) -> np.ndarray:
    """float32[C,P,Q] -> float32[C,P], squared."""
    out = np.empty(rows.shape[:2], np.float32)
    _norms(rows.detach().contiguous().numpy(), out)
    return out


def find(scores: np.ndarray, norms_q: np.ndarray, norms_c: np.ndarray, close: float) -> torch.Tensor:
    """int64[X,3], the close pairs among float32[C,P,N]."""
    found = np.empty((64, 3), np.int64)
    count = _find(scores, norms_q, norms_c, np.float32(close), found)
    if count > len(found):
        found = np.empty((count, 3), np.int64)
        _find(scores, norms_q, norms_c, np.float32(close), found)
    return torch.from_numpy(found[:count])


def distances(products: torch.Tensor, q: torch.Tensor, c: torch.Tensor, close: float, nothing: float) -> torch.Tensor:
    """Turns products q.c float32[C,P,N] into minus the distances; returns the close pairs, which are still to be done."""
    array, norms_q, norms_c = products.numpy(), norms(q), norms(c)
    if _distances(array, norms_q, norms_c, np.float32(close), np.float32(nothing)):
        return find(array, norms_q, norms_c, close)
    return torch.empty(0, 3, dtype=torch.int64)


def weights(
    grad: torch.Tensor, scores: torch.Tensor, q: torch.Tensor, c: torch.Tensor, close: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Turns `grad` into grad / scores, 0 for close pairs.

    Returns the sums of its rows float32[C,P] and columns float32[C,N], the close pairs int64[X,3] and their gradients float32[X].
    """
    scores = scores.contiguous()
    found = find(scores.numpy(), norms(q), norms(c), close)
    at = tuple(found.unbind(1))
    found_grad = grad[at]
    if len(found):
        grad[at] = 0
    sum_q, sum_c = np.empty(grad.shape[:2], np.float32), np.empty((len(grad), grad.shape[2]), np.float32)
    _weights(grad.numpy(), scores.numpy(), sum_q, sum_c)
    return torch.from_numpy(sum_q), torch.from_numpy(sum_c), found, found_grad
