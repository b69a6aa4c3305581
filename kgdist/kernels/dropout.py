# mypy: disable-error-code="no-untyped-def"
"""Dropout of rows: which of their numbers a step sets to 0 follows from (seed, step, table, id), so there is no mask to keep.

Every use of a row in a step sees the same numbers of it, in whatever step, worker or resumed run that is. What is left is
multiplied by 1 / (1 - share), so that its mean stays (Srivastava et al. 2014). Costs a hash for four numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kgdist.kernels.jit import disjoint
from kgdist.kernels.random import GOLDEN, dropout_key, mix

_GOLDEN, _ONE, _LANE = np.uint64(GOLDEN), np.uint64(1), np.uint64(0xFFFF)
_S16, _S32, _S48 = np.uint64(16), np.uint64(32), np.uint64(48)
_ZERO = np.float32(0)
STEPS = 1 << 16  # shares are multiples of the inverse of this


@disjoint
def _drop(ids, key, bound, scale, rows):
    """Multiplies float32[n,D] rows in place, by 0 or `scale`."""
    width = rows.shape[1]
    whole = width // 4 * 4
    for i in range(len(ids)):
        row, base = rows[i], mix((np.uint64(ids[i]) + _ONE) * _GOLDEN + key)
        for d in range(0, whole, 4):
            x = mix(base + np.uint64(d))
            row[d] *= scale if (x & _LANE) >= bound else _ZERO
            row[d + 1] *= scale if ((x >> _S16) & _LANE) >= bound else _ZERO
            row[d + 2] *= scale if ((x >> _S32) & _LANE) >= bound else _ZERO
            row[d + 3] *= scale if (x >> _S48) >= bound else _ZERO
        x = mix(base + np.uint64(whole))
        for d in range(whole, width):
            row[d] *= scale if (x & _LANE) >= bound else _ZERO
            x >>= _S16


@dataclass(frozen=True)
class Dropout:
    """Of one table: the share of its rows' numbers that a step sets to 0."""

    share: float
    seed: int
    table: int  # its number

    def __bool__(self) -> bool:
        return self.share > 0

    def apply(self, rows: np.ndarray, ids: np.ndarray, step: int) -> None:
        """Multiply float32[n,D], contiguous, in place: rows `ids` int64[n] as `step` sees them, or their gradients."""
        if self:
            bound = min(STEPS - 1, round(self.share * STEPS))
            scale = np.float32(STEPS / (STEPS - bound))
            _drop(ids, dropout_key(self.seed, step, self.table), np.uint64(bound), scale, rows)

    def mask(self, ids: np.ndarray, width: int, step: int) -> np.ndarray:
        """float32[n,width]: what rows `ids` int64[n] are multiplied by in `step`."""
        ones = np.ones((len(ids), width), np.float32)
        self.apply(ones, ids, step)
        return ones
