# mypy: disable-error-code="no-untyped-def"
"""One pass over a block of scores: who is surely above each query's answer, and who is too close to call.

The scores never leave the cache and are not altered; known-true candidates are taken out by id. The rest of filtered ranking
(which thresholds, exact scores, ties, metrics) is the evaluator's. Any NaN, in a score or a threshold, counts as too close: it is
reported as a pair and left to the exact comparison, never dropped.
"""

from __future__ import annotations

import numpy as np
import torch

from kgdist.kernels.jit import compiled_for, inlined, strict

STRIP = 64  # scores looked at together: single ones only where a strip says that it matters


@inlined
def first_from(ids, begin, end, least):
    """The first position in ids[begin:end], ascending, of an id >= least; end if there is none."""
    while begin < end:
        middle = (begin + end) // 2
        if ids[middle] < least:
            begin = middle + 1
        else:
            end = middle
    return begin


@strict
def _block(scores, low, high, row, start, offsets, known, greater, rows, candidates):
    """Ranks rows `row`, ... until done or until a row might not fit; returns the next row and the number of pairs written."""
    written, width = 0, scores.shape[1]
    for p in range(row, scores.shape[0]):
        line, least, most = scores[p], low[p], high[p]
        at = first_from(known, offsets[p], offsets[p + 1], start)
        end = first_from(known, at, offsets[p + 1], start + width)
        above, sure = np.int32(0), np.int32(0)
        for k in range(width):
            above += np.int32(line[k] > most)
            sure += np.int32((line[k] > most) | (line[k] < least))  # both false for NaN
        if sure < width:
            if written + width - sure > len(rows):
                return p, written
            left, skip = width - sure, at
            for strip in range(0, width, STRIP):
                stop = min(strip + STRIP, width)
                sure = np.int32(0)
                for k in range(strip, stop):
                    sure += np.int32((line[k] > most) | (line[k] < least))
                if sure == stop - strip:
                    continue
                left -= stop - strip - sure
                for k in range(strip, stop):
                    if line[k] > most or line[k] < least:
                        continue
                    while skip < end and known[skip] < start + k:
                        skip += 1
                    if skip < end and known[skip] == start + k:
                        continue
                    rows[written] = p
                    candidates[written] = start + k
                    written += 1
                if left == 0:
                    break
        for i in range(at, end):
            if (i == at or known[i] != known[i - 1]) and line[known[i] - start] > most:
                above -= 1
        greater[p] += above
    return scores.shape[0], written


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


def left_in(scores: torch.Tensor, start: int, offsets: np.ndarray, skipped: np.ndarray) -> torch.Tensor:
    """bool[P,N] for scores [P,N] of the ids start, ...: which are not among row p's skipped[offsets[p]:offsets[p+1]]."""
    rows = np.repeat(np.arange(len(scores)), np.diff(offsets))
    columns = skipped[offsets[0] : offsets[-1]].astype(np.int64) - start
    inside = (columns >= 0) & (columns < scores.shape[1])
    keep = torch.ones_like(scores, dtype=torch.bool)
    keep[torch.from_numpy(rows[inside]).to(scores.device), torch.from_numpy(columns[inside]).to(scores.device)] = False
    return keep


def rank_block(
    scores: torch.Tensor, start: int, low: torch.Tensor, high: torch.Tensor, offsets: np.ndarray, known: np.ndarray,
    greater: torch.Tensor, near: Near,
) -> None:  # fmt: skip
    """Of the candidates start, start + 1, ... whose scores are float32[P,N], leave out row p's known[offsets[p]:offsets[p+1]].

    `greater` int64[P] grows by the number above `high` float32[P]; those neither above `high` nor below `low` float32[P] are
    appended to `near`, by row and id ascending. `offsets` int64[P+1] and `known` (any integer type, ascending within a row,
    ids outside of the block and repeated ids allowed) are on the CPU, the tensors together on any device. The answers themselves
    belong in `known`. Raises ValueError for shapes that disagree.
    """
    queries, width = len(scores), scores.shape[-1]
    if not (scores.ndim == 2 and low.shape == high.shape == greater.shape == (queries,) and offsets.shape == (queries + 1,)):
        raise ValueError(f"scores {tuple(scores.shape)} do not fit {len(low)}, {len(high)} thresholds, {len(greater)} counts, "
                         f"{len(offsets)} offsets")  # fmt: skip
    if len(offsets) and (offsets[0] < 0 or offsets[-1] > len(known) or (np.diff(offsets) < 0).any()):
        raise ValueError("offsets must ascend within the known ids")
    if greater.dtype != torch.int64:
        raise ValueError(f"counts are int64, not {greater.dtype}")
    if compiled_for(scores, low, high):
        arrays = [each.detach().contiguous().numpy() for each in (scores, low, high)]
        row, offsets, known, counts = 0, np.ascontiguousarray(offsets), np.ascontiguousarray(known), greater.numpy()
        while row < queries:  # each round ends where the list is full
            row, written = _block(*arrays, row, start, offsets, known, counts, *near.room(width))
            near.grown(written)
        return
    keep, above = left_in(scores, start, offsets, known), scores > high.unsqueeze(1)
    greater += (above & keep).sum(1)
    found = (keep & ~above & ~(scores < low.unsqueeze(1))).nonzero().cpu().numpy()  # int64[X,2]
    near.room(len(found))[:, : len(found)] = found.T + np.array([[0], [start]])
    near.grown(len(found))
