"""How many candidates beat the true entity, and how many tie with it: exactly, and at the speed of a matrix product.

Queries meet a block of candidates in float32 (`Comparator.order`). Whoever lies outside of the comparator's proven rounding
bound (`bound`) around the true entity is decided; the few within it are compared once more in float64, row by row (`exact`), so
that the counts are those of a float64 brute force and equal rows tie. No matrix of all scores exists: memory is one block.

The given values are the float32 rows of the tables and the float32 queries that the model makes of them. A model that projects
its candidates (TransR, PairRE) projects them in float64 and rounds once; the rounded rows are then the given values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch

from kgdist.evaluation.candidates import Candidates, Project, Skip
from kgdist.kernels.comparators import Comparator, largest
from kgdist.kernels.rank import Near, rank_block

MANY = 64  # near pairs for each candidate from which on it pays to look for equal rows
PAIRS = 1 << 20  # floats of one slice of pairs of rows


@torch.no_grad()
def count_rivals(
    comparator: Comparator,
    queries: torch.Tensor,
    true: torch.Tensor,
    candidates: Candidates,
    skip: Skip,
    *,
    project: Project | None = None,
    block: int = 1024,
    check: Callable[[], None] = lambda: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Hold `queries` float32[P,Q] against all candidates but the positions in `skip`.

    `true` float32[P,D] are the rows of the true entities. `check` is called once per block, and may raise to end the work.
    Returns (greater int64[P], equal int64[P]).
    """
    greater, equal = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    surely = torch.zeros(len(queries), dtype=torch.int64, device=queries.device)
    key = comparator.exact(queries, project(true) if project else true)  # float64[P]
    true_key = key.cpu().numpy()
    sizes, most = comparator.size(queries), None if project else candidates.largest
    near, slack = Near(), None
    for start, rows in candidates.blocks(block):
        check()
        seen = project(rows) if project else rows
        if slack is None or most is None:
            slack = comparator.bound(queries.shape[1], sizes, largest(comparator.size(seen)) if most is None else most).double()
            if project is not None:
                slack *= 2  # room for equal rows whose projections were rounded apart
            low, high = _outward(key - slack, -1), _outward(key + slack, 1)  # infinite where float32 says nothing
        near.clear()
        rank_block(comparator.order(queries, seen), start, low, high, skip.offsets, skip.positions, surely, near)
        if not len(near):
            continue
        queried, column, weight = _distinct(near.rows, near.candidates - start, rows)
        order, own = comparator.exact_pairs(queries, seen, queried, column).cpu().numpy(), true_key[queried]
        if project is not None:  # equal entities tie, whatever a matrix product makes of equal rows in different places
            order = np.where(_equal_rows(true, rows, queried, column), own, order)
        np.add.at(greater, queried, weight * (order > own))
        np.add.at(equal, queried, weight * (order == own))
    return greater + surely.cpu().numpy(), equal


def _outward(bound: torch.Tensor, sign: int) -> torch.Tensor:
    """float64[P] -> float32[P], rounded away from the key."""
    rounded = bound.float()
    return torch.nextafter(rounded, torch.full_like(rounded, sign * torch.inf))


def _distinct(queried: np.ndarray, column: np.ndarray, rows: torch.Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Pairs (query, candidate) int64[n] -> different pairs and how often each stands for one.

    Candidates with equal rows are one. That matters to a collapsed model, where every candidate is near every true entity.
    """
    if len(queried) < MANY * len(rows):
        return queried, column, np.ones(len(queried), np.int64)
    bits = np.ascontiguousarray(rows.cpu().numpy()).view(np.dtype((np.void, rows.shape[1] * 4))).ravel()
    _, first, kind = np.unique(bits, return_index=True, return_inverse=True)
    weight = np.bincount(queried * len(first) + kind[column])
    pairs = np.flatnonzero(weight)
    return pairs // len(first), first[pairs % len(first)], weight[pairs]


def _equal_rows(true: torch.Tensor, rows: torch.Tensor, queried: np.ndarray, column: np.ndarray) -> np.ndarray:
    """bool[n]: whether the candidate has the very row of the true entity."""
    same = np.empty(len(queried), bool)
    for part in _slices(len(queried), rows.shape[1]):
        same[part] = (_take(true, queried[part]) == _take(rows, column[part])).all(1).cpu().numpy()
    return same


def _slices(count: int, width: int) -> Iterator[slice]:
    step = max(1, PAIRS // max(1, width))
    return (slice(start, start + step) for start in range(0, count, step))


def _take(rows: torch.Tensor, index: np.ndarray) -> torch.Tensor:
    return rows[torch.from_numpy(index).to(rows.device)]
