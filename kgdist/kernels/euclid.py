# mypy: disable-error-code="no-untyped-def"
"""Euclidean distance of every query to every candidate by GEMM, forward and backward.

|q - c|^2 = |q|^2 + |c|^2 - 2 q.c cancels when q and c are close, and there the value and, worse, the gradient (q - c) / |q - c|
would be noise. Pairs whose square is under `CLOSE` of |q|^2 + |c|^2 are therefore found (there are hardly any) and done by
subtraction. What surrounds the GEMMs is compiled for float32 on the CPU, and plain torch elsewhere.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.gemm import FLOAT32, Out, Products
from kgdist.kernels.jit import compiled_for, disjoint

NOTHING = 1e-30  # squared distances below count as this much; the gradient then fades to 0 with the difference
CLOSE = 2.0**-10
ROWS = 1 << 14  # close pairs done at a time
_ZERO, _TWO = np.float32(0), np.float32(2)
_CLOSE, _NOTHING = np.float32(CLOSE), np.float32(NOTHING)


@disjoint
def _norms(rows, out):
    """float32[C,P,Q] -> float32[C,P], squared."""
    for chunk in range(rows.shape[0]):
        for i in range(rows.shape[1]):
            total = _ZERO
            for k in range(rows.shape[2]):
                total += rows[chunk, i, k] * rows[chunk, i, k]
            out[chunk, i] = total


@disjoint
def _distances(products, norms_q, norms_c):
    """Products q.c float32[C,P,N] into minus the distances; returns the number of close pairs, which are still to be done."""
    count = np.int64(0)
    for chunk in range(products.shape[0]):
        sizes = norms_c[chunk]
        for p in range(products.shape[1]):
            line, size = products[chunk, p], norms_q[chunk, p]
            for n in range(len(line)):
                square = size + sizes[n] - _TWO * line[n]
                count += np.int32(square <= _CLOSE * (size + sizes[n]))
                line[n] = -math.sqrt(max(square, _NOTHING))
    return count


@disjoint
def _find(scores, norms_q, norms_c, found):
    """Writes (chunk, row, column) of close pairs to int64[X,3] as far as there is room, and returns their number."""
    count = 0
    for chunk in range(scores.shape[0]):
        sizes = norms_c[chunk]
        for p in range(scores.shape[1]):
            line, size, here = scores[chunk, p], norms_q[chunk, p], np.int32(0)
            for n in range(len(line)):
                here += np.int32(line[n] * line[n] <= _CLOSE * (size + sizes[n]))
            if here == 0:
                continue
            for n in range(len(line)):
                if line[n] * line[n] <= _CLOSE * (size + sizes[n]):
                    if count < len(found):
                        found[count, 0], found[count, 1], found[count, 2] = chunk, p, n
                    count += 1
    return count


@disjoint
def _weights(grad, scores, sum_q, sum_c):
    """`grad` float32[C,P,N] into grad / scores, and the sums of its rows float32[C,P] and columns float32[C,N]."""
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


def _squares(rows: torch.Tensor) -> np.ndarray:
    out = np.empty(rows.shape[:2], np.float32)
    _norms(rows.detach().contiguous().numpy(), out)
    return out


def _close(q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """int64[X,3], the pairs too close for the GEMM's form."""
    if not compiled_for(q, c, scores):
        sizes = q.square().sum(-1).unsqueeze(2) + c.square().sum(-1).unsqueeze(1)
        return (scores.square() <= sizes.mul_(CLOSE)).nonzero()
    given, found = (scores.numpy(), _squares(q), _squares(c)), np.empty((64, 3), np.int64)
    count = _find(*given, found)
    if count > len(found):
        found = np.empty((count, 3), np.int64)
        _find(*given, found)
    return torch.from_numpy(found[:count])


def scores(q: torch.Tensor, c: torch.Tensor, out: Out = None, by: Products = FLOAT32) -> torch.Tensor:
    """float[C,P,Q], float[C,N,Q] -> float[C,P,N], minus the distance."""
    products = by.multiply(q, c.transpose(1, 2), out)
    if compiled_for(q, c):
        if not _distances(products.numpy(), _squares(q), _squares(c)):
            return products
        close = _close(q, c, products)
    else:
        sizes = q.square().sum(-1).unsqueeze(2) + c.square().sum(-1).unsqueeze(1)
        squares = torch.add(sizes, products, alpha=-2, out=products)
        close = (squares <= sizes.mul_(CLOSE)).nonzero()  # int64[X,3]
        squares.clamp_min_(NOTHING).sqrt_().neg_()
    for at in close.split(ROWS):
        chunk, row, column = at.unbind(1)
        difference = q[chunk, row] - c[chunk, column]
        products[chunk, row, column] = difference.square().sum(-1).clamp_min_(NOTHING).sqrt_().neg_()
    return products


def slopes(
    q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None,
    by: Products = FLOAT32,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Gradients of q and c, given `scores` and their gradient; zero gradient at zero distance, never NaN or infinite."""
    scores = scores.contiguous()
    close = _close(q, c, scores)
    at = tuple(close.unbind(1))
    close_grad = grad[at]
    if compiled_for(q, c, scores, grad):
        weight = grad if grad.is_contiguous() and out_q is not None else grad.contiguous().clone()
        if len(close):
            weight[at] = 0
        sum_q, sum_c = q.new_empty(grad.shape[:2]), q.new_empty(len(grad), grad.shape[2])
        _weights(weight.numpy(), scores.numpy(), sum_q.numpy(), sum_c.numpy())
    else:
        weight = grad / scores  # -grad / distance, [C,P,N]
        weight[at] = 0
        sum_q, sum_c = weight.sum(2), weight.sum(1)
    # (q - c) / distance summed over the pairs of a row: the row times the sum of the weights, less the product with the others.
    grad_q = torch.mul(q, sum_q.unsqueeze(-1), out=torch.empty_like(q) if out_q is None else out_q)
    by.subtract(grad_q, weight, c)
    grad_c = torch.mul(c, sum_c.unsqueeze(-1), out=torch.empty_like(c) if out_c is None else out_c)
    by.subtract(grad_c, weight.transpose(1, 2), q)
    for here, part in zip(close.split(ROWS), close_grad.split(ROWS), strict=True):
        chunk, row, column = here.unbind(1)
        distance = scores[chunk, row, column].neg()
        push = (q[chunk, row] - c[chunk, column]) / distance.unsqueeze(-1) * part.unsqueeze(-1)
        grad_q.index_put_((chunk, row), -push, accumulate=True)
        grad_c.index_put_((chunk, column), push, accumulate=True)
    return grad_q, grad_c
