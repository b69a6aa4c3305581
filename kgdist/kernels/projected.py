"""L1 distances of queries to candidates that their relation projects first: TransR, forward and backward.

A chunk's candidates are projected once per relation in it; positives sorted by relation make these groups few and contiguous. The
projections are GEMMs, the distances the loops of `l1`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from kgdist.kernels import gemm, l1


class Group(NamedTuple):
    """Positives start..stop of one chunk that share a relation."""

    chunk: int
    relation: int
    start: int
    stop: int


def groups(index: np.ndarray, chunk: int) -> list[Group]:
    """int64[B] relations, ascending, in chunks of `chunk` positives. Raises ValueError for another order."""
    size = len(index)
    if (np.diff(index) < 0).any():
        raise ValueError("positives must be sorted by relation")
    starts = np.flatnonzero((np.diff(index, prepend=-1) != 0) | (np.arange(size) % chunk == 0))
    stops = np.append(starts[1:], size)
    table = np.stack([starts // chunk, index[starts], starts, stops], axis=1)  # int64[G,4]
    return [Group(*row) for row in table.tolist()]


def scores(
    parts: list[Group], queries: torch.Tensor, candidates: torch.Tensor, matrices: torch.Tensor, seen: torch.Tensor,
    out: torch.Tensor,
) -> None:  # fmt: skip
    """float32[B,R], float32[C,N,D], float32[V,D,R]; fills seen float32[G,N,R], projected candidates, and out float32[>= B,N]."""
    rows, matrix, q, array = candidates.unbind(0), matrices.unbind(0), queries.numpy(), out.numpy()
    for part, view in zip(parts, seen.unbind(0), strict=True):
        gemm.multiply(rows[part.chunk], matrix[part.relation], view)
        l1.forward(q[part.start : part.stop], view.numpy(), array[part.start : part.stop])


def slopes(
    parts: list[Group], queries: torch.Tensor, candidates: torch.Tensor, matrices: torch.Tensor, seen: torch.Tensor,
    grad: torch.Tensor, grad_queries: torch.Tensor, grad_candidates: torch.Tensor, grad_matrices: torch.Tensor,
) -> None:  # fmt: skip
    """Overwrites float32[B,R], float32[C,N,D] and float32[V,D,R], given grad float32[>= B,N]."""
    (n, width), largest = seen.shape[1:], max(part.stop - part.start for part in parts)
    scratch_q, scratch_c = np.empty((largest + 1, width), np.float32), torch.empty(-(-n // 4) * 4, width)
    rows, matrix, q, g, back = candidates.unbind(0), matrices.unbind(0), queries.numpy(), grad.numpy(), grad_queries.numpy()
    to_rows, to_matrix, chunk, relation = grad_candidates.unbind(0), grad_matrices.unbind(0), -1, -1
    for part, view in zip(parts, seen.unbind(0), strict=True):
        size = part.stop - part.start
        own = scratch_q[: size + size % 2]
        own[:] = 0
        scratch_c.zero_()
        l1.backward(q[part.start : part.stop], view.numpy(), g[part.start : part.stop], own, scratch_c.numpy())
        back[part.start : part.stop] = own[:size]
        push = scratch_c[:n]
        _gather(to_rows[part.chunk], push, matrix[part.relation].t(), more=part.chunk == chunk)
        _gather(to_matrix[part.relation], rows[part.chunk].t(), push, more=part.relation == relation)
        chunk, relation = part.chunk, part.relation


def _gather(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, *, more: bool) -> None:
    """out = a b, or one more of those that add up in it."""
    if more:
        gemm.add(out, a, b)
    else:
        gemm.multiply(a, b, out)
