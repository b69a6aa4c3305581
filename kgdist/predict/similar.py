"""The most similar embeddings: the K best pairs of rows of one table, by one of five functions, exactly and in bounded memory.

Rows meet block by block in float32 (GEMM, or the compiled L1), a running selection keeps what may be among the best
(`kgdist.kernels.top`), and the few that are left are compared in float64: answers are those of sorting all scores in float64,
equal ones by lower ids, for any number of threads. Ids only: names and files are the caller's.

Larger is more similar; cosine and extended Jaccard of a zero row are 0 (DGL-KE: NaN). The functions are made of the
comparators of `kgdist.kernels.comparators`, whose letters and bounds hold here, too; u = 2^-24.

Where one side is all there are, an embedding is not compared with itself; where both are, every pair counts once.
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Callable, Iterator
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from kgdist.base.log import bar
from kgdist.evaluation.candidates import Skip
from kgdist.evaluation.threads import Deal, block_per_thread
from kgdist.kernels.comparators import DOT, FLUSH, L1_NORM, L2_NORM, UNIT, Comparator, largest
from kgdist.kernels.top import NOBODY, Top

LEFT = 512  # rows of a block on the left
RIGHT = 2048  # on the right, when there are that many on the left
WIDEST = 16  # times as many, at most, when there are fewer
LISTED = 1 << 22  # entries of the lists of one block: 50 MB a thread


class SimilarPairs(NamedTuple):
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


class SimilarSearch:
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

    def best(self, left: np.ndarray | None, right: np.ndarray | None, k: int) -> SimilarPairs:
        """The `k` best of all pairs of `left` int64[L] and `right` int64[R]; None: all rows. An id listed twice counts once."""
        lefts, rights = (_Chosen(self.measure, None if ids is None else np.unique(ids)) for ids in (left, right))
        found = SimilarPairs(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))
        bars = [-np.inf]  # what a pair must reach to be of interest, seen by all threads
        for more in self._blocks(lefts, rights, k, lambda: bars[0], each=False):
            parts = [np.concatenate(both) for both in zip(found, more, strict=True)]
            order = np.lexsort((parts[1], parts[0], -parts[2]))[:k]
            found = SimilarPairs(*(part[order] for part in parts))
            if len(order) == k:
                bars[0] = found.scores[-1]
        return self._scored(found)

    def best_of_each(self, left: np.ndarray | None, right: np.ndarray | None, k: int) -> Iterator[SimilarPairs]:
        """The `k` best rights for each left one, in the order given (twice if listed twice), some lefts at a time."""
        rights = _Chosen(self.measure, None if right is None else np.unique(right))
        for found in self._blocks(_Chosen(self.measure, left), rights, k, lambda: -np.inf, each=True):
            yield self._scored(found)

    def best_of(self, left: np.ndarray, right: np.ndarray, k: int) -> SimilarPairs:
        """The `k` best of the pairs that stand side by side, int64[B] each; one that is listed twice is answered twice."""
        keys = self.measure.exact(left, right)
        order = np.lexsort((right, left, -keys))[:k]
        return self._scored(SimilarPairs(left[order], right[order], keys[order]))

    def _scored(self, found: SimilarPairs) -> SimilarPairs:
        return SimilarPairs(found.left, found.right, self.measure.score_of(found.scores))

    # ---- the blocks

    def _blocks(self, left: _Chosen, right: _Chosen, k: int, least: Callable[[], float], *, each: bool) -> Iterator[SimilarPairs]:
        """Order keys instead of scores. Of every block of lefts the pairs that may matter, in the order of the lefts."""
        half = left.all and right.all and not each  # the function is symmetric
        k = min(k, len(right))
        size = max(1, min(self.left_block, LISTED // (2 * k + 128), -(-len(left) // self.threads))) if len(left) else 1
        wide = self.right_block * min(WIDEST, max(1, self.left_block // size))
        deal, lock = Deal(), threading.Lock()
        pairs = len(left) * (len(left) + 1) // 2 if half else len(left) * len(right)

        with bar(total=pairs, desc="comparing", unit="pair") as progress:

            def work(start: int) -> SimilarPairs:
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
                return SimilarPairs(ids[row], right.ids[places[row, place]], keys[row, place])

            with block_per_thread():
                yield from deal.in_order(iter(range(0, len(left) if k else 0, size)), work, self.threads, "similar")


def _same(ids: np.ndarray, right: np.ndarray, half: bool) -> Skip:
    """Which places of `right` int64[R], ascending, do not count for each of `ids` int64[P]: the id itself, and all before it if
    pairs count once."""
    last = np.searchsorted(right, ids, "right")
    first = np.full(len(ids), ids[0]) if half else np.searchsorted(right, ids, "left")
    ends = np.concatenate([[0], np.cumsum(last - first)])
    return Skip(ends, np.arange(ends[-1]) + np.repeat(first - ends[:-1], last - first))


BLOCK = 4096  # rows that are looked at together when a table is opened
EXACT = 1 << 16  # pairs compared exactly at once
LONG = 2.0**100  # lengths from the inverse of this up to this have inverses in float32, without losing bits


class Seen(NamedTuple):
    """Rows as they are compared."""

    rows: torch.Tensor  # float32[P,D]
    sizes: torch.Tensor  # float64[P], in the norm of the comparator


class Measure(abc.ABC):
    """One function on the rows of a table float32[n,D] (on any device, also memory-mapped).

    Raises ValueError naming the first row that is not finite.
    """

    name: ClassVar[str]
    comparator: ClassVar[Comparator] = DOT

    def __init__(self, table: torch.Tensor) -> None:
        self.table = table
        sizes = [self.comparator.size(rows) for rows in torch.split(table, BLOCK)]
        self.sizes = torch.cat(sizes) if sizes else torch.empty(0, dtype=torch.float64, device=table.device)
        bad = torch.nonzero(~torch.isfinite(self.sizes))
        if len(bad):
            raise ValueError(f"row {int(bad[0, 0])} holds NaN or infinity")

    def __len__(self) -> int:
        return len(self.table)

    def seen(self, ids: np.ndarray | slice) -> Seen:
        """The rows of `ids` int64[P]."""
        at = ids if isinstance(ids, slice) else torch.from_numpy(ids).to(self.table.device)
        return Seen(self.table[at], self.sizes[at])

    @torch.no_grad()
    def compare(self, left: Seen, right: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        """(order keys float32[P,N], bound on how far each of a row's is off, float[P])."""
        return self.comparator.order(left.rows, right.rows), self._bound(left, right)

    def _bound(self, left: Seen, right: Seen) -> torch.Tensor:
        return self.comparator.bound(self.table.shape[1], left.sizes, largest(right.sizes)).double()

    def exact(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        """Order keys of pairs of ids, int64[X] each, in float64: float64[X]. Equal rows give equal bits."""
        keys = np.empty(len(left))
        for start in range(0, len(left), EXACT):
            part = slice(start, start + EXACT)
            keys[part] = self._exact(left[part], right[part])
        return keys

    def _exact(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        return self.comparator.exact_pairs(self.table, self.table, left, right).cpu().numpy()

    def score_of(self, keys: np.ndarray) -> np.ndarray:
        """float64[...]: the similarity that an order key stands for."""
        return self.comparator.score_of(keys)


class DotMeasure(Measure):
    """x.y"""

    name = "dot"


class L2Measure(Measure):
    """-|x - y|_2"""

    name, comparator = "l2", L2_NORM


class L1Measure(Measure):
    """-|x - y|_1"""

    name, comparator = "l1", L1_NORM


class Cosine(Measure):
    """x.y / (|x| |y|)"""

    name = "cosine"

    def seen(self, ids: np.ndarray | slice) -> Seen:
        """Rows of length 1, or 0: each number is rounded at most twice."""
        rows, sizes = super().seen(ids)
        length = torch.where(sizes > 0, sizes, 1.0).unsqueeze(1)
        usual = bool(((length > 1 / LONG) & (length < LONG)).all())  # then one product in float32 takes a fifth of the time
        unit = rows * length.reciprocal().float() if usual else (rows.double() / length).float()
        return Seen(unit, (sizes > 0).double() * (1 + 4 * UNIT))

    def _bound(self, left: Seen, right: Seen) -> torch.Tensor:
        """Both factors were rounded, by at most 4.1 u of |x.y| <= 1 together, or flushed."""
        return super()._bound(left, right) + 5 * UNIT + FLUSH * self.table.shape[1]

    def _exact(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        dot, a, b = _products(self, left, right)
        length = np.sqrt(a * b)  # the root of the product, so that parallel rows come to 1
        return _or_zero(dot, length)


class ExtendedJaccard(Measure):
    """x.y / (|x|^2 + |y|^2 - x.y)"""

    name = "ext_jaccard"

    @torch.no_grad()
    def compare(self, left: Seen, right: Seen) -> tuple[torch.Tensor, torch.Tensor]:
        """See Measure. With s = x.y, T = |x|^2 + |y|^2 and s <= T/2, the function s / (T - s) has slopes 4/T in s and 2/T in T.

        Where s is off by at most e <= T/8, they are less than twice that; T is off by 3 u T, and two roundings follow.
        """
        a, b = left.sizes.square(), right.sizes.square()
        scores = DOT.order(left.rows, right.rows)
        scores.div_((a.float().unsqueeze(1) + b.float()).sub_(scores))
        least = a + (b.min() if len(b) else 0.0)
        off = DOT.bound(self.table.shape[1], left.sizes, largest(right.sizes)).double() / least
        return scores, torch.where(off <= 0.125, 8 * off + 16 * UNIT, torch.inf)

    def _exact(self, left: np.ndarray, right: np.ndarray) -> np.ndarray:
        dot, a, b = _products(self, left, right)
        return _or_zero(dot, a + b - dot)


def _products(measure: Measure, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x.y, |x|^2 and |y|^2 of pairs, float64[X] each."""
    table = measure.table
    dot, a, b = (DOT.exact_pairs(table, table, *pair).cpu().numpy() for pair in ((left, right), (left, left), (right, right)))
    return dot, a, b


def _or_zero(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """float64[X], float64[X] -> float64[X]: their quotient, 0 for rows of zeros."""
    quotient: np.ndarray = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return quotient


MEASURES: dict[str, type[Measure]] = {each.name: each for each in (Cosine, L2Measure, L1Measure, DotMeasure, ExtendedJaccard)}
