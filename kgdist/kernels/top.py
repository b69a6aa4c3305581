# mypy: disable-error-code="no-untyped-def"
"""The K best of each row, of scores that come in blocks: never more than one block of them in memory.

A row keeps a short list of those that may be among its K best and a bar, which the K-th best is sure to reach; a block is
compared against the bar in one pass and leaves next to nothing. Scores may be off by a known bound (`reach`): whoever is within
it stays, and in the end the few that are left are compared exactly, so that the answer is that of an exact comparison of all,
equal ones in the order of their ids. Who the rows and the ids are is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kgdist.kernels.jit import compiled_for, inlined, strict
from kgdist.kernels.rank import STRIP, first_from, left_in

Exact = Callable[[np.ndarray, np.ndarray], np.ndarray]  # rows int64[X], ids int64[X] -> their true scores float64[X]
SPARE = 32  # entries of a row's list beyond twice K: fewer, and it is sorted out often; more, and more is looked at in vain
NOBODY = np.zeros(0, np.int64)


@inlined
def _kth(values, count, k):
    """The k-th largest of values[:count], which is reordered (Hoare's selection); 1 <= k <= count, no NaN."""
    low, high, want = 0, count - 1, k - 1
    while low < high:
        pivot, i, j = values[(low + high) // 2], low, high
        while i <= j:
            while values[i] > pivot:
                i += 1
            while values[j] < pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i, j = i + 1, j - 1
        if want <= j:
            high = j
        elif want >= i:
            low = i
        else:
            break
    return values[want]


@strict
def _below(values, low):
    """How many are below; NaN is not."""
    count = np.int32(0)
    for j in range(len(values)):
        count += np.int32(values[j] < low)
    return count


@strict
def _floor(bar, reach):
    """The largest float32 that is at most bar - reach, nearly; NaN, which nothing is below, where that says nothing."""
    exact = bar - reach
    rounded = np.float32(exact)
    return np.float32(np.nextafter(rounded, np.float32(-np.inf))) if np.float64(rounded) > exact else rounded


@strict
def _sift(scores, row, column, start, reach, offsets, skipped, k, keys, ids, sizes, bar, scratch):
    """Appends what may be among a row's k best, from scores[row, column] on; (row, column) where a row has too many such.

    The rows are done when the returned row is their number.
    """
    width, room = scores.shape[1], keys.shape[1]
    limit = k + (room - k) // 2
    for p in range(row, scores.shape[0]):
        line, low = scores[p], _floor(bar[p], reach[p])
        first, column = column, 0
        if _below(line[first:], low) == width - first:
            continue
        begin = first_from(skipped, offsets[p], offsets[p + 1], start + first)
        end = first_from(skipped, begin, offsets[p + 1], start + width)
        for strip in range(first, width, STRIP):
            stop = min(strip + STRIP, width)
            if _below(line[strip:stop], low) == stop - strip:
                continue
            for j in range(strip, stop):
                if line[j] < low:
                    continue
                begin = first_from(skipped, begin, end, start + j)
                if begin < end and skipped[begin] == start + j:
                    continue
                keys[p, sizes[p]], ids[p, sizes[p]] = line[j], start + j
                sizes[p] += 1
                if sizes[p] < room:
                    continue
                for i in range(room):
                    scratch[i] = keys[p, i] if keys[p, i] == keys[p, i] else np.float32(np.inf)
                sure = np.float64(_kth(scratch, room, k)) - reach[p]
                if sure > bar[p]:
                    bar[p] = sure
                low, kept = _floor(bar[p], reach[p]), 0
                for i in range(room):
                    if not keys[p, i] < low:
                        keys[p, kept], ids[p, kept] = keys[p, i], ids[p, i]
                        kept += 1
                sizes[p] = kept
                if kept > limit:
                    return p, j + 1
    return scores.shape[0], 0


class Top:
    """The `k` best of each of `rows` rows so far.

    Args:
        rows: P, the rows of the blocks that will come.
        k: how many to keep of each; fewer are found where fewer come.
        exact: tells the true scores of pairs (row, id); None when the blocks are the true scores. Must not give NaN.
    Memory: (2 k + 32) * 12 bytes a row.
    """

    def __init__(self, rows: int, k: int, exact: Exact | None = None) -> None:
        if k < 1:
            raise ValueError(f"the {k} best")
        self.k, self.exact = k, exact
        self.keys = np.empty((rows, 2 * k + SPARE), np.float32)
        self.ids = np.empty((rows, 2 * k + SPARE), np.int64)
        self.sizes = np.zeros(rows, np.int64)
        self.bar = np.full(rows, -np.inf)  # the true score of the K-th best is at least this
        self.reach = np.zeros(rows)  # how far a key may be off

    def raise_bar(self, bar: np.ndarray) -> None:
        """Whoever truly scores below `bar` float64[P] is of no interest, whatever else comes."""
        np.fmax(self.bar, bar, out=self.bar)

    def add(
        self, scores: torch.Tensor, start: int, reach: torch.Tensor | np.ndarray | None = None,
        offsets: np.ndarray | None = None, skipped: np.ndarray = NOBODY,
    ) -> None:  # fmt: skip
        """Look at `scores` float32[P,N] of the ids start .. start + N - 1; every id may come once.

        `reach` float[P]: none of these scores is off by more (0 when not given; infinite where nothing is sure). Row p leaves out
        the ids skipped[offsets[p]:offsets[p+1]] (int64[P+1]; ascending integers, others than the block's allowed). Raises
        ValueError for shapes that disagree.
        """
        rows = len(self.sizes)
        offsets = np.zeros(rows + 1, np.int64) if offsets is None else np.ascontiguousarray(offsets, np.int64)
        if scores.ndim != 2 or len(scores) != rows or offsets.shape != (rows + 1,):
            raise ValueError(f"scores {tuple(scores.shape)} and {len(offsets)} offsets do not fit {rows} rows")
        if offsets[0] < 0 or offsets[-1] > len(skipped) or (offsets[1:] < offsets[:-1]).any():
            raise ValueError("offsets must ascend within the ids to skip")
        if reach is not None:
            given = reach.detach().cpu().numpy() if isinstance(reach, torch.Tensor) else reach
            np.maximum(self.reach, given, out=self.reach)
        if compiled_for(scores):
            self._compiled(scores, start, offsets, np.ascontiguousarray(skipped))
        else:
            self._torch(scores, start, offsets, skipped)

    @np.errstate(invalid="ignore")
    def best(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(counts int64[P], ids int64[P,K], true scores float64[P,K]): each row's best first, equal ones by id.

        Places beyond a row's count hold id -1 and minus infinity.
        """
        rows, width = self.keys.shape
        listed = np.arange(width) < self.sizes[:, None]
        keys = np.where(listed, np.where(np.isnan(self.keys), np.inf, self.keys), -np.inf)
        full = self.sizes >= self.k
        sure = np.partition(keys, width - self.k, axis=1)[:, width - self.k] - self.reach
        self.raise_bar(np.where(full & ~np.isnan(sure), sure, -np.inf))
        row, place = np.nonzero(listed & ~(keys + self.reach[:, None] < self.bar[:, None]))
        ids = self.ids[row, place]
        true = self._true(row, ids, keys[row, place])
        order = np.lexsort((ids, -true, row))
        row, ids, true = row[order], ids[order], true[order]
        counts = np.bincount(row, minlength=rows)
        within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        kept = within < self.k
        best, score = np.full((rows, self.k), -1), np.full((rows, self.k), -np.inf)
        best[row[kept], within[kept]], score[row[kept], within[kept]] = ids[kept], true[kept]
        return np.minimum(counts, self.k), best, score

    def _compiled(self, scores: torch.Tensor, start: int, offsets: np.ndarray, skipped: np.ndarray) -> None:
        block, scratch = scores.detach().contiguous().numpy(), np.empty(self.keys.shape[1], np.float32)
        given, lists, row, column = (start, self.reach, offsets, skipped), (self.keys, self.ids, self.sizes, self.bar), 0, 0
        while row < len(block):  # each round ends where a row has too many that are alike
            row, column = _sift(block, row, column, *given, self.k, *lists, scratch)
            if row < len(block):
                self._settle(row, self.keys[row, : self.sizes[row]].copy(), self.ids[row, : self.sizes[row]].copy())

    @np.errstate(invalid="ignore", over="ignore")
    def _torch(self, scores: torch.Tensor, start: int, offsets: np.ndarray, skipped: np.ndarray) -> None:
        keep = left_in(scores, start, offsets, skipped)
        if self.k <= scores.shape[1]:  # a first block must not come to the host as a whole
            best = torch.where(keep, scores, -torch.inf).topk(self.k).values[:, -1]
            self.raise_bar(np.nan_to_num(best.double().cpu().numpy() - self.reach, nan=-np.inf, posinf=-np.inf))
        low = np.nextafter((self.bar - self.reach).astype(np.float32), np.float32(-np.inf))
        found = (keep & ~(scores < torch.from_numpy(low).to(scores.device).unsqueeze(1))).nonzero()
        row, column = found.cpu().numpy().T
        keys = scores[found[:, 0], found[:, 1]].float().cpu().numpy()
        ends = np.searchsorted(row, np.arange(len(scores) + 1))
        for p in np.flatnonzero(np.diff(ends)).tolist():
            part, size = slice(ends[p], ends[p + 1]), self.sizes[p]
            all_keys = np.concatenate([self.keys[p, :size], keys[part]])
            self._settle(p, all_keys, np.concatenate([self.ids[p, :size], column[part] + start]))

    def _settle(self, row: int, keys: np.ndarray, ids: np.ndarray) -> None:
        """Make `keys` float32[n] and `ids` int64[n] the list of a row; of too many, those alone that are truly its best."""
        if len(keys) > self.k + (self.keys.shape[1] - self.k) // 2:
            true = self._true(np.full(len(ids), row), ids, keys)
            order = np.lexsort((ids, -true))[: self.k]
            self.bar[row] = max(self.bar[row], true[order[-1]])
            keys, ids = keys[order], ids[order]
        self.keys[row, : len(keys)], self.ids[row, : len(ids)], self.sizes[row] = keys, ids, len(ids)

    def _true(self, rows: np.ndarray, ids: np.ndarray, keys: np.ndarray) -> np.ndarray:
        return keys.astype(np.float64) if self.exact is None else self.exact(rows, ids)
