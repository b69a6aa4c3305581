"""The most similar embeddings: the K best pairs of rows of one table, by one of five functions, exactly and in bounded memory.

Rows meet block by block in float32 (GEMM, or the compiled L1), a running selection keeps what may be among the best
(`kgdist.kernels.top`), and the few that are left are compared in float64: answers are those of sorting all scores in float64,
equal ones by lower ids, for any number of threads. Ids only: names and files are the caller's.

Where one side is all there are, an embedding is not compared with itself; where both are, every pair counts once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from kgdist.base.progress import bar
from kgdist.evaluation.candidates import Skip
from kgdist.evaluation.threads import Deal, block_per_thread
from kgdist.kernels.top import NOBODY, Top
from kgdist.predict.measures import Measure, Seen

LEFT = 512  # rows of a block on the left
RIGHT = 2048  # on the right, when there are that many on the left
WIDEST = 16  # times as many, at most, when there are fewer
LISTED = 1 << 22  # entries of the lists of one block: 50 MB a thread


class Pairs(NamedTuple):
    """Pairs of rows, the most similar first."""

    left: np.ndarray  # int64[A]
    right: np.ndarray  # int64[A]
    scores: np.ndarray  # float64[A]


class _Chosen:
    """Rows of the table: those of `ids`, or all."""

    def __init__(self, measure: Measure, ids: np.ndarray | None) -> None:
        self.measure, self.all = measure, ids is None
        self.ids = np.arange(len(measure)) if ids is None else ids

    def __len__(self) -> int:
        return len(self.ids)

    def block(self, start: int, stop: int) -> Seen:
        """Some of them."""
        return self.measure.seen(slice(start, stop) if self.all else self.ids[start:stop])


class Search:
    """Looks for pairs in the table of `measure`, on `threads` threads."""

    def __init__(self, measure: Measure, *, threads: int = 1, left_block: int = LEFT, right_block: int = RIGHT) -> None:
        self.measure, self.threads = measure, max(1, threads)
        self.left_block, self.right_block = left_block, right_block

    def pairs(self, left: np.ndarray | None, right: np.ndarray | None, *, each: bool) -> int:
        """How many pairs there are at most to choose from: of all, or for each left one."""
        count = len(self.measure)
        lefts, rights = (count if ids is None else len(np.unique(ids)) for ids in (left, right))
        if each:
            return rights - (right is None)
        if left is None and right is None:
            return count * (count - 1) // 2
        return lefts * rights - (min(lefts, rights) if left is None or right is None else 0)

    def best(self, left: np.ndarray | None, right: np.ndarray | None, k: int) -> Pairs:
        """The `k` best of all pairs of `left` int64[L] and `right` int64[R]; None: all rows. An id listed twice counts once."""
        lefts, rights = (_Chosen(self.measure, None if ids is None else np.unique(ids)) for ids in (left, right))
        found = Pairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        bars = [-np.inf]  # what a pair must reach to be of interest, seen by all threads
        for more in self._blocks(lefts, rights, k, lambda: bars[0], each=False):
            parts = [np.concatenate(both) for both in zip(found, more, strict=True)]
            order = np.lexsort((parts[1], parts[0], -parts[2]))[:k]
            found = Pairs(*(part[order] for part in parts))
            if len(order) == k:
                bars[0] = found.scores[-1]
        return self._scored(found)

    def best_of_each(self, left: np.ndarray | None, right: np.ndarray | None, k: int) -> Iterator[Pairs]:
        """The `k` best rights for each left one, in the order given (twice if listed twice), some lefts at a time."""
        rights = _Chosen(self.measure, None if right is None else np.unique(right))
        for found in self._blocks(_Chosen(self.measure, left), rights, k, lambda: -np.inf, each=True):
            yield self._scored(found)

    def best_of(self, left: np.ndarray, right: np.ndarray, k: int) -> Pairs:
        """The `k` best of the pairs that stand side by side, int64[B] each; one that is listed twice is answered twice."""
        keys = self.measure.exact(left, right)
        order = np.lexsort((right, left, -keys))[:k]
        return self._scored(Pairs(left[order], right[order], keys[order]))

    def _scored(self, found: Pairs) -> Pairs:
        return Pairs(found.left, found.right, self.measure.score_of(found.scores))

    # ---- the blocks

    def _blocks(self, left: _Chosen, right: _Chosen, k: int, least: Callable[[], float], *, each: bool) -> Iterator[Pairs]:
        """Order keys instead of scores. Of every block of lefts the pairs that may matter, in the order of the lefts."""
        half = left.all and right.all and not each  # the function is symmetric
        k = min(k, len(right))
        size = max(1, min(self.left_block, LISTED // (2 * k + 128), -(-len(left) // self.threads))) if len(left) else 1
        wide = self.right_block * min(WIDEST, max(1, self.left_block // size))
        deal, lock = Deal(), threading.Lock()
        pairs = len(left) * (len(left) + 1) // 2 if half else len(left) * len(right)

        with bar(total=pairs, desc="comparing", unit="pair") as progress:

            def work(start: int) -> Pairs:
                stop = min(start + size, len(left))
                ids, rows = left.ids[start:stop], left.block(start, stop)
                top = Top(stop - start, k, lambda row, place: self.measure.exact(ids[row], right.ids[place]))
                same = _same(ids, right.ids, half) if left.all or right.all else Skip(np.zeros(len(ids) + 1, np.int64), NOBODY)
                for first in range(start if half else 0, len(right), wide):
                    deal.check()
                    last = min(first + wide, len(right))
                    scores, reach = self.measure.compare(rows, right.block(first, last))
                    top.raise_bar(np.full(len(ids), least()))
                    top.add(scores, first, reach, same.offsets, same.positions)
                _, places, keys = top.best()
                row, place = np.nonzero(places >= 0)
                with lock:
                    progress.update(sum(range(len(right) - stop + 1, len(right) - start + 1)) if half else len(ids) * len(right))
                return Pairs(ids[row], right.ids[places[row, place]], keys[row, place])

            with block_per_thread():
                yield from deal.in_order(iter(range(0, len(left) if k else 0, size)), work, self.threads, "similar")


def _same(ids: np.ndarray, right: np.ndarray, half: bool) -> Skip:
    """Which places of `right` int64[R], ascending, do not count for each of `ids` int64[P]: the id itself, and all before it if
    pairs count once."""
    last = np.searchsorted(right, ids, "right")
    first = np.full(len(ids), ids[0]) if half else np.searchsorted(right, ids, "left")
    ends = np.concatenate([[0], np.cumsum(last - first)])
    return Skip(ends, np.arange(ends[-1]) + np.repeat(first - ends[:-1], last - first))
