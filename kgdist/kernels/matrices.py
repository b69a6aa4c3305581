# mypy: disable-error-code="no-untyped-def"
"""Row times matrix, where many rows share few matrices: RESCAL and TransR hold one matrix per relation.

A batch has hundreds of relations with a few rows each, too few for a GEMM call. So on the CPU (`Matrices`) a matrix stays in the
cache for the rows of its relation, four of its rows (or four triples) are worked on at a time, and each loop writes to one row
only (`l1` tells why). Candidates that a relation projects are many: these products are GEMMs (`Projections`, TransR).

The twin in torch (`grouped_matmul`, `grouped_project`) does not gather a matrix for every positive, which would move B * D * R
floats, either: rows are sorted by relation, and each group is one GEMM that reads its matrix once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch

from kgdist.kernels import gemm, l1
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
        transpose: rows are multiplied by the transposed matrices.
    """

    def __init__(
        self, matrices: np.ndarray, index: np.ndarray, which: np.ndarray | None = None, *, transpose: bool = False
    ) -> None:
        self.matrices, self.transpose = matrices, transpose
        self.which = np.arange(len(matrices)) if which is None else which
        self.order = np.argsort(index, kind="stable")
        self.bounds = np.searchsorted(index[self.order], np.arange(len(self.which) + 1))

    def forward(self, entities: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
        """out[b] = x M, float32[B,R], or x M^T, float32[B,D]; x the row places[b] of float32[U,.]."""
        _forward(self.transpose, entities, places, self.matrices, self.which, self.order, self.bounds, out)

    def backward(
        self, entities: np.ndarray, places: np.ndarray, grad: np.ndarray, grad_entities: np.ndarray, grad_matrices: np.ndarray,
        *, fresh: bool = False, part: slice = slice(None),
    ) -> None:  # fmt: skip
        """Adds to float32[U,.] and float32[V,D,R]; `fresh`: overwrites the latter (every relation has a triple).

        `part`: only these relations, a run of them.
        """
        first, last, _ = part.indices(len(self.which))
        order, bounds = self.order, self.bounds[first : last + 1]
        _backward_rows(self.transpose, places, self.matrices, self.which[part], order, bounds, grad, grad_entities)
        each = np.arange(len(places))
        pair = (grad, each, entities, places) if self.transpose else (entities, places, grad, each)
        _backward_matrices(*pair, fresh, order, bounds, grad_matrices[part])


class Group(NamedTuple):
    """Positives start..stop of one chunk that share a relation."""

    chunk: int
    relation: int
    start: int
    stop: int


def chunk_groups(index: np.ndarray, chunk: int) -> list[Group]:
    """int64[B] relations, ascending, in chunks of `chunk` positives. Raises ValueError for another order."""
    size = len(index)
    if (np.diff(index) < 0).any():
        raise ValueError("positives must be sorted by relation")
    starts = np.flatnonzero((np.diff(index, prepend=-1) != 0) | (np.arange(size) % chunk == 0))
    stops = np.append(starts[1:], size)
    table = np.stack([starts // chunk, index[starts], starts, stops], axis=1)  # int64[G,4]
    return [Group(*row) for row in table.tolist()]


class Projections:
    """L1 distances of queries to candidates that their relation projects first, and back.

    A chunk's candidates are projected once per relation in it; positives sorted by relation make these groups few and contiguous.

    Args:
        groups: of the positives.
        queries: float32[B,R].
        candidates: float32[C,N,D].
        matrices: float32[V,D,R].
        seen: float32[G,N,R], memory for the projected candidates of each group.
    """

    def __init__(
        self, groups: list[Group], queries: torch.Tensor, candidates: torch.Tensor, matrices: torch.Tensor, seen: torch.Tensor
    ) -> None:
        self.groups, self.queries, self.seen = groups, queries.numpy(), seen.unbind(0)
        self.candidates, self.matrices = candidates.unbind(0), matrices.unbind(0)

    def forward(self, out: torch.Tensor) -> None:
        """Fills float32[>= B,N], minus the distances."""
        array = out.numpy()
        for group, seen in zip(self.groups, self.seen, strict=True):
            gemm.multiply(self.candidates[group.chunk], self.matrices[group.relation], seen)
            l1.forward(self.queries[group.start : group.stop], seen.numpy(), array[group.start : group.stop])

    def backward(
        self, grad: torch.Tensor, grad_queries: torch.Tensor, grad_candidates: torch.Tensor, grad_matrices: torch.Tensor
    ) -> None:
        """Overwrites float32[B,R], float32[C,N,D] and float32[V,D,R], given grad float32[>= B,N]."""
        (n, width), largest = self.seen[0].shape, max(group.stop - group.start for group in self.groups)
        scratch_q, scratch_c = np.empty((largest + 1, width), np.float32), torch.empty(-(-n // 4) * 4, width)
        g, back, chunk, relation = grad.numpy(), grad_queries.numpy(), -1, -1
        to_rows, to_matrix = grad_candidates.unbind(0), grad_matrices.unbind(0)
        for group, seen in zip(self.groups, self.seen, strict=True):
            mine, size = slice(group.start, group.stop), group.stop - group.start
            own = scratch_q[: size + size % 2]
            own[:] = 0
            scratch_c.zero_()
            l1.backward(self.queries[mine], seen.numpy(), g[mine], own, scratch_c.numpy())
            back[mine] = own[:size]
            push = scratch_c[:n]
            _put(to_rows[group.chunk], push, self.matrices[group.relation].t(), more=group.chunk == chunk)
            _put(to_matrix[group.relation], self.candidates[group.chunk].t(), push, more=group.relation == relation)
            chunk, relation = group.chunk, group.relation


def _put(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, more: bool) -> None:
    """out = a b, or one more of those that add up in it."""
    if more:
        gemm.add(out, a, b)
    else:
        gemm.multiply(a, b, out)


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
