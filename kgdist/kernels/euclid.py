"""Euclidean distance of every query to every candidate by GEMM, forward and backward.

|q - c|^2 = |q|^2 + |c|^2 - 2 q.c cancels when q and c are close, and there the value and, worse, the gradient (q - c) / |q - c|
would be noise. Pairs whose square is under `CLOSE` of |q|^2 + |c|^2 are therefore found (there are hardly any) and done by
subtraction. What surrounds the GEMMs is compiled for float32 on the CPU (`euclid_loops`), and plain torch elsewhere.
"""

from __future__ import annotations

import torch

from kgdist.kernels import choice
from kgdist.kernels.products import FLOAT32, Out, Products

NOTHING = 1e-30  # squared distances below count as this much; the gradient then fades to 0 with the difference
CLOSE = 2.0**-10
ROWS = 1 << 14  # close pairs done at a time


def scores(q: torch.Tensor, c: torch.Tensor, out: Out = None, by: Products = FLOAT32) -> torch.Tensor:
    """float[C,P,Q], float[C,N,Q] -> float[C,P,N], minus the distance."""
    products = by.multiply(q, c.transpose(1, 2), out)
    if choice.numba_for(q, c):
        from kgdist.kernels import euclid_loops

        close = euclid_loops.distances(products, q, c, CLOSE, NOTHING)
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
    q: torch.Tensor,
    c: torch.Tensor,
    scores: torch.Tensor,
    grad: torch.Tensor,
    out_q: Out = None,
    out_c: Out = None,
    by: Products = FLOAT32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of q and c, given `scores` and their gradient; zero gradient at zero distance, never NaN or infinite."""
    if choice.numba_for(q, c, scores, grad):
        from kgdist.kernels import euclid_loops

        weight = grad if grad.is_contiguous() and out_q is not None else grad.contiguous().clone()
        sum_q, sum_c, close, close_grad = euclid_loops.weights(weight, scores, q, c, CLOSE)
    else:
        close = _close(q, c, scores)
        close_grad = grad[tuple(close.unbind(1))]
        weight = grad / scores  # -grad / distance, [C,P,N]
        weight[tuple(close.unbind(1))] = 0
        sum_q, sum_c = weight.sum(2), weight.sum(1)
    # (q - c) / distance summed over the pairs of a row: the row times the sum of the weights, less the product with the others.
    grad_q = torch.mul(q, sum_q.unsqueeze(-1), out=torch.empty_like(q) if out_q is None else out_q)
    by.subtract(grad_q, weight, c)
    grad_c = torch.mul(c, sum_c.unsqueeze(-1), out=torch.empty_like(c) if out_c is None else out_c)
    by.subtract(grad_c, weight.transpose(1, 2), q)
    for at, part in zip(close.split(ROWS), close_grad.split(ROWS), strict=True):
        chunk, row, column = at.unbind(1)
        distance = scores[chunk, row, column].neg()
        push = (q[chunk, row] - c[chunk, column]) / distance.unsqueeze(-1) * part.unsqueeze(-1)
        grad_q.index_put_((chunk, row), -push, accumulate=True)
        grad_c.index_put_((chunk, column), push, accumulate=True)
    return grad_q, grad_c


def _close(q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """int64[X,3], the pairs too close for the GEMM's form."""
    sizes = q.square().sum(-1).unsqueeze(2) + c.square().sum(-1).unsqueeze(1)
    return (scores.square() <= sizes.mul_(CLOSE)).nonzero()
