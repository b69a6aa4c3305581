"""Comparisons without a GEMM form, in plain torch: the twins of `l1` and `modulus`, for GPUs and float64.

Distances that are a sum over dims of some length of the difference (L1, complex modulus). The candidates are taken a few at a
time, in the forward and again in the backward pass, so the full [C, P, N, Q] array of differences never exists. It is not fast on
a CPU; the loops are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from kgdist.kernels.gemm import Out
from kgdist.kernels.modulus import TINY

BUDGET = {"cpu": 1 << 20, "cuda": 1 << 26}  # elements of one block of differences

Length = Callable[[torch.Tensor], torch.Tensor]  # difference [..., Q] -> length [...]
Slope = Callable[[torch.Tensor], torch.Tensor]  # difference [..., Q] -> the derivative of its length, 0 at 0


def absolute(difference: torch.Tensor) -> torch.Tensor:
    """Sum of absolute values over the last axis."""
    return difference.abs().sum(-1)


def _floored(square: torch.Tensor) -> torch.Tensor:
    return square.clamp_min(max(TINY, torch.finfo(square.dtype).tiny))


def modulus(difference: torch.Tensor) -> torch.Tensor:
    """Sum of the moduli of complex numbers; the last axis is their real parts, then their imaginary parts."""
    re, im = difference.chunk(2, -1)
    square = re * re + im * im
    return (square * _floored(square).rsqrt()).sum(-1)


def modulus_slope(difference: torch.Tensor) -> torch.Tensor:
    """Derivative of `modulus`: each pair divided by its modulus, 0 at 0."""
    re, im = difference.chunk(2, -1)
    inverse = _floored(re * re + im * im).rsqrt()
    return torch.cat((re * inverse, im * inverse), -1)


def _blocks(q: torch.Tensor, n: int) -> Iterator[slice]:
    step = max(1, BUDGET.get(q.device.type, BUDGET["cuda"]) // max(1, q.numel()))
    return (slice(start, min(n, start + step)) for start in range(0, n, step))


def scores(length: Length, q: torch.Tensor, c: torch.Tensor, out: Out = None) -> torch.Tensor:
    """float[C,P,Q], float[C,N,Q] -> float[C,P,N], minus the `length` of each difference."""
    if out is None:
        out = q.new_empty(q.shape[0], q.shape[1], c.shape[1])
    for part in _blocks(q, c.shape[1]):
        out[:, :, part] = length(q.unsqueeze(2) - c[:, None, part]).neg_()
    return out


def slopes(
    slope: Slope, q: torch.Tensor, c: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of q and c, given that of `scores`."""
    grad_q = torch.zeros_like(q) if out_q is None else out_q.zero_()
    grad_c = torch.empty_like(c) if out_c is None else out_c
    for part in _blocks(q, c.shape[1]):
        pushes = slope(q.unsqueeze(2) - c[:, None, part]).mul_(grad[:, :, part].unsqueeze(-1))
        grad_q -= pushes.sum(2)
        grad_c[:, part] = pushes.sum(1)
    return grad_q, grad_c
