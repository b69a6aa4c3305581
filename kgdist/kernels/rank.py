"""One pass over a block of scores: who is surely above each query's answer, and who is too close to call.

The scores never leave the cache and are not altered; known-true candidates are taken out by id. The rest of filtered ranking
(which thresholds, exact scores, ties, metrics) is the evaluator's. Any NaN, in a score or a threshold, counts as too close: it is
reported as a pair and left to the exact comparison, never dropped.
"""

from __future__ import annotations

import numpy as np
import torch

from kgdist.kernels import choice


class Near:
    """A growing list of (query row, candidate id) that are too close to call."""

    def __init__(self, capacity: int = 4096) -> None:
        self._pairs = np.empty((2, capacity), np.int64)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def rows(self) -> np.ndarray:
        """int64[X], a view that is good until the next block."""
        return self._pairs[0, : self._size]

    @property
    def candidates(self) -> np.ndarray:
        """int64[X], a view that is good until the next block."""
        return self._pairs[1, : self._size]

    def clear(self) -> None:
        """Forget the pairs, keep the memory."""
        self._size = 0

    def room(self, more: int) -> np.ndarray:
        """int64[2, >= more], the free end of the list; what is written there counts after `grown`."""
        if self._pairs.shape[1] < self._size + more:
            larger = np.empty((2, max(2 * self._pairs.shape[1], self._size + more)), np.int64)
            larger[:, : self._size] = self._pairs[:, : self._size]
            self._pairs = larger
        return self._pairs[:, self._size :]

    def grown(self, by: int) -> None:
        """Count `by` more pairs as written."""
        self._size += by


def rank_block(
    scores: torch.Tensor,
    start: int,
    low: torch.Tensor,
    high: torch.Tensor,
    offsets: np.ndarray,
    known: np.ndarray,
    greater: torch.Tensor,
    near: Near,
) -> None:
    """Of the candidates start, start + 1, ... whose scores are float32[P,N], leave out row p's known[offsets[p]:offsets[p+1]].

    `greater` int64[P] grows by the number above `high` float32[P]; those neither above `high` nor below `low` float32[P] are
    appended to `near`, by row and id ascending. `offsets` int64[P+1] and `known` (any integer type, ascending within a row,
    ids outside of the block and repeated ids allowed) are on the CPU, the tensors together on any device. The answers themselves
    belong in `known`. Raises ValueError for shapes that disagree.
    """
    queries = len(scores)
    if not (scores.ndim == 2 and low.shape == high.shape == greater.shape == (queries,) and offsets.shape == (queries + 1,)):
        raise ValueError(f"scores {tuple(scores.shape)} do not fit {len(low)}, {len(high)} thresholds, {len(greater)} counts, "
                         f"{len(offsets)} offsets")  # fmt: skip
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > len(known) or (np.diff(offsets) < 0).any()):
        raise ValueError("offsets must ascend within the known ids")
    if greater.dtype != torch.int64:
        raise ValueError(f"counts are int64, not {greater.dtype}")
    if choice.numba_for(scores, low, high):
        _compiled(scores, start, low, high, offsets, known, greater, near)
    else:
        _torch(scores, start, low, high, offsets, known, greater, near)


def _compiled(
    scores: torch.Tensor,
    start: int,
    low: torch.Tensor,
    high: torch.Tensor,
    offsets: np.ndarray,
    known: np.ndarray,
    greater: torch.Tensor,
    near: Near,
) -> None:
    from kgdist.kernels import rank_loop

    arrays = scores.detach().contiguous().numpy(), low.detach().contiguous().numpy(), high.detach().contiguous().numpy()
    row, width = 0, scores.shape[1]
    known, counts = np.ascontiguousarray(known), greater.numpy()
    while row < len(scores):  # each round ends where the list is full
        pairs = near.room(width)
        row, written = rank_loop.block(*arrays, row, start, np.ascontiguousarray(offsets), known, counts, pairs[0], pairs[1])
        near.grown(written)


def _torch(
    scores: torch.Tensor,
    start: int,
    low: torch.Tensor,
    high: torch.Tensor,
    offsets: np.ndarray,
    known: np.ndarray,
    greater: torch.Tensor,
    near: Near,
) -> None:
    rows = np.repeat(np.arange(len(scores)), np.diff(offsets))
    columns = known[offsets[0] : offsets[-1]].astype(np.int64) - start
    inside = (columns >= 0) & (columns < scores.shape[1])
    keep = torch.ones_like(scores, dtype=torch.bool)
    keep[torch.from_numpy(rows[inside]).to(scores.device), torch.from_numpy(columns[inside]).to(scores.device)] = False
    above = scores > high.unsqueeze(1)
    greater += (above & keep).sum(1)
    found = (keep & ~above & ~(scores < low.unsqueeze(1))).nonzero().cpu().numpy()  # int64[X,2]
    pairs = near.room(len(found))
    pairs[0, : len(found)] = found[:, 0]
    pairs[1, : len(found)] = found[:, 1] + start
    near.grown(len(found))
