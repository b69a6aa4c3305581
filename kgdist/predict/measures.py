"""The five functions that say how similar two rows are: how they are compared fast, how far that may be off, and exactly.

Larger is more similar. Cosine and extended Jaccard of a zero row are 0 (DGL-KE: NaN). They are made of the comparators of
`kgdist.kernels.compare`, whose letters and bounds hold here, too; u = 2^-24.
"""

from __future__ import annotations

import abc
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from kgdist.kernels.compare import DOT, FLUSH, L1_NORM, L2_NORM, UNIT, Comparator, largest

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


class Dot(Measure):
    """x.y"""

    name = "dot"


class L2(Measure):
    """-|x - y|_2"""

    name, comparator = "l2", L2_NORM


class L1(Measure):
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


MEASURES: dict[str, type[Measure]] = {each.name: each for each in (Cosine, L2, L1, Dot, ExtendedJaccard)}
