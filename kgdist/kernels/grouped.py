"""Row times matrix, where many rows share few matrices: x[b] @ M[index[b]].

RESCAL and TransR hold one matrix per relation. Gathering a matrix for every positive would move B * D * R floats; rows are
sorted by relation instead, and each group is one GEMM that reads its matrix once.
"""

from __future__ import annotations

from typing import Any

import torch

from kgdist.kernels import gemm


def groups(index: torch.Tensor) -> tuple[torch.Tensor, list[tuple[int, int, int]]]:
    """Sort order of `index` int64[B] and its runs as (value, start, stop) in that order."""
    order = torch.argsort(index, stable=True)
    values, counts = torch.unique_consecutive(index[order], return_counts=True)
    runs, start = [], 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        runs.append((value, start, start + count))
        start += count
    return order, runs


class _GroupedMatmul(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrices: torch.Tensor, index: torch.Tensor, transpose: bool) -> torch.Tensor:
        order, runs = groups(index)
        x_sorted = x[order]
        out = x.new_empty(len(x), matrices.shape[1 if transpose else 2])
        for value, start, stop in runs:
            matrix = matrices[value].t() if transpose else matrices[value]
            gemm.multiply(x_sorted[start:stop], matrix, out[start:stop])
        ctx.save_for_backward(x_sorted, matrices, order)
        ctx.runs, ctx.transpose = runs, transpose
        return torch.empty_like(out).index_copy_(0, order, out)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
        x_sorted, matrices, order = ctx.saved_tensors
        grad_sorted = grad[order]
        grad_x = torch.empty_like(x_sorted)
        # Matrices are large (a megabyte each for RESCAL at dim 500): their gradient is written once, zeroed only where needed.
        grad_m = torch.empty_like(matrices) if len(ctx.runs) == len(matrices) else torch.zeros_like(matrices)
        for value, start, stop in ctx.runs:
            x, g = x_sorted[start:stop], grad_sorted[start:stop]
            gemm.multiply(g, matrices[value] if ctx.transpose else matrices[value].t(), grad_x[start:stop])
            left, right = (g.t(), x) if ctx.transpose else (x.t(), g)
            gemm.multiply(left, right, grad_m[value])
        return torch.empty_like(grad_x).index_copy_(0, order, grad_x), grad_m, None, None


def grouped_matmul(x: torch.Tensor, matrices: torch.Tensor, index: torch.Tensor, *, transpose: bool = False) -> torch.Tensor:
    """`out[b] = x[b] @ matrices[index[b]]`, or by the transposed matrices; differentiable in x and matrices.

    float[B, D], float[V, D, R] (contiguous), int64[B] -> float[B, R]; transposed: float[B, R] -> float[B, D].
    """
    out: torch.Tensor = _GroupedMatmul.apply(x, matrices, index, transpose)  # type: ignore[no-untyped-call]
    return out


class _GroupedProject(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrices: torch.Tensor, pairs: list[tuple[int, int]]) -> torch.Tensor:
        out = x.new_empty(len(pairs), x.shape[1], matrices.shape[2])
        for place, (chunk, value) in enumerate(pairs):
            gemm.multiply(x[chunk], matrices[value], out[place])
        ctx.save_for_backward(x, matrices)
        ctx.pairs = pairs
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        x, matrices = ctx.saved_tensors
        grad_x, grad_m = torch.zeros_like(x), torch.zeros_like(matrices)
        for place, (chunk, value) in enumerate(ctx.pairs):
            gemm.add(grad_x[chunk], grad[place], matrices[value].t())
            gemm.add(grad_m[value], x[chunk].t(), grad[place])
        return grad_x, grad_m, None


def grouped_project(x: torch.Tensor, matrices: torch.Tensor, pairs: list[tuple[int, int]]) -> torch.Tensor:
    """`out[g] = x[chunk] @ matrices[value]` for the g-th (chunk, value); float[C, N, D], float[V, D, R] -> float[G, N, R].

    Differentiable in x and matrices; gradients are added up in place, for a gradient per group would be the size of all matrices.
    """
    out: torch.Tensor = _GroupedProject.apply(x, matrices, pairs)  # type: ignore[no-untyped-call]
    return out
