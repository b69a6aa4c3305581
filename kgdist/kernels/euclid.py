"""Euclidean distance of every query to every candidate by GEMM, forward and backward.

|q - c|^2 = |q|^2 + |c|^2 - 2 q.c cancels when q and c are close, and there the value and, worse, the gradient (q - c) / |q - c|
would be noise. Pairs whose square is under `CLOSE` of |q|^2 + |c|^2 are therefore found (there are hardly any) and done by
subtraction. Plain torch: any float dtype, any device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

NOTHING = 1e-30  # squared distances below count as this much; the gradient then fades to 0 with the difference
CLOSE = 2.0**-10
ROWS = 1 << 14  # close pairs done at a time


class Euclid(torch.autograd.Function):
    """float[C,P,Q], float[C,N,Q] -> float[C,P,N], minus the distance; zero gradient at zero distance, never NaN or infinite."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        sizes = q.square().sum(-1).unsqueeze(2) + c.square().sum(-1).unsqueeze(1)
        squares = torch.baddbmm(sizes, q, c.transpose(1, 2), alpha=-2)
        close = (squares <= sizes.mul_(CLOSE)).nonzero()  # int64[X,3]
        distance = squares.clamp_min_(NOTHING).sqrt_()
        for at in close.split(ROWS):
            chunk, row, column = at.unbind(1)
            difference = q[chunk, row] - c[chunk, column]
            distance[chunk, row, column] = difference.square().sum(-1).clamp_min_(NOTHING).sqrt_()
        out = distance.neg_()
        ctx.save_for_backward(q, c, out, close)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q, c, out, close = ctx.saved_tensors
        weight = grad / out  # -grad / distance, [C,P,N]
        weight[tuple(close.unbind(1))] = 0
        grad_q = torch.baddbmm(q * weight.sum(2, keepdim=True), weight, c, alpha=-1)
        grad_c = torch.baddbmm(c * weight.sum(1).unsqueeze(-1), weight.transpose(1, 2), q, alpha=-1)
        for at in close.split(ROWS):
            chunk, row, column = at.unbind(1)
            distance = out[chunk, row, column].neg()
            push = (q[chunk, row] - c[chunk, column]) / distance.unsqueeze(-1) * grad[chunk, row, column].unsqueeze(-1)
            grad_q.index_put_((chunk, row), -push, accumulate=True)
            grad_c.index_put_((chunk, column), push, accumulate=True)
        return grad_q, grad_c
