# mypy: disable-error-code="no-untyped-def"
"""Regularisation of the rows that a step looked up, and gradients by use gathered into gradients by row, with their mean squares.

The term is coef * sum |x|^p over every use of a row (DGL-KE): a use is one triple's look at a relation, or one draw of a
negative. Of rows of complex numbers it may be the sum of their moduli's powers (N3: Lacroix et al. 2018). It is part of each
use's gradient, so its square counts too; what squares are for is told in `kgdist.kvstore.optim`. Compiled; `add` has a twin in
torch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kgdist.kernels.jit import compiled_for, disjoint, inlined

_ZERO, _ONE = np.float32(0), np.float32(1)
EACH, ONCE = np.empty(0, np.int64), np.empty(0, np.float32)  # no places, no counts


@inlined
def _regularise(x, g, scale, p, moduli):
    """Adds the term's gradient to g in place; returns (sum |x|^p, sum of the squares of the result).

    With `moduli`, x is real parts, then imaginary parts, and p is 3.
    """
    norm, square = _ZERO, _ZERO
    if moduli and scale != 0:
        half = len(g) // 2
        x1, x2, g1, g2 = x[:half], x[half:], g[:half], g[half:]
        for d in range(half):
            size = np.sqrt(x1[d] * x1[d] + x2[d] * x2[d])
            norm += size * size * size
            g1[d] += scale * size * x1[d]
            g2[d] += scale * size * x2[d]
            square += g1[d] * g1[d] + g2[d] * g2[d]
    elif scale == 0:
        for d in range(len(g)):
            square += g[d] * g[d]
    elif p == 3:  # the default, apart so that it stays two multiplications
        for d in range(len(g)):
            slope = x[d] * abs(x[d])
            norm += slope * x[d]
            g[d] += scale * slope
            square += g[d] * g[d]
    else:
        for d in range(len(g)):
            slope = np.sign(x[d])
            for _ in range(p - 1):
                slope *= abs(x[d])
            norm += slope * x[d]
            g[d] += scale * slope
            square += g[d] * g[d]
    return norm, square


@disjoint
def _rows(values, places, grads, counts, coef, p, moduli, squares):
    total, mean = 0.0, _ONE / np.float32(max(1, grads.shape[1]))
    for u in range(len(grads)):
        uses = counts[u] if len(counts) else _ONE
        x = values[places[u]] if len(places) else values[u]
        norm, square = _regularise(x, grads[u], coef * np.float32(p) * uses, p, moduli)
        squares[u] = square * mean
        total += np.float64(norm * uses)
    return total * coef


@disjoint
def _gather(values, places, grads, coef, p, moduli, out, squares):
    total, mean = 0.0, _ONE / np.float32(max(1, grads.shape[1]))
    for u in range(len(grads)):
        row, g = out[places[u]], grads[u]
        norm, square = _regularise(values[places[u]], g, coef * np.float32(p), p, moduli)
        squares[places[u]] += square * mean
        total += np.float64(norm)
        for d in range(len(g)):
            row[d] += g[d]
    return total * coef


@disjoint
def _settle(values, places, first, coef, p, moduli, grads, squares):
    total, mean, fresh = 0.0, _ONE / np.float32(max(1, grads.shape[1])), first
    for u in range(len(places)):
        g, place = grads[first + u], places[u]
        norm, square = _regularise(values[u], g, coef * np.float32(p), p, moduli)
        total += np.float64(norm)
        if place == fresh:
            fresh += 1
            squares[place] = square * mean
            if place != first + u:
                row = grads[place]
                for d in range(len(g)):
                    row[d] = g[d]
        else:
            squares[place] += square * mean
            row = grads[place]
            for d in range(len(g)):
                row[d] += g[d]
    return total * coef


@dataclass(frozen=True)
class Penalty:
    """coef * sum |x|^p; none when coef or p is 0. Methods return its value.

    With `moduli` rows are complex numbers, real parts first, and |x| their moduli; of use for p = 3 alone, for with p = 2 both
    are one. Raises ValueError for another p.
    """

    coef: float
    p: int
    moduli: bool = False

    def __post_init__(self) -> None:
        if self.moduli and self.p != 3:
            raise ValueError(f"moduli are for p = 3, not {self.p}")

    def rows(
        self, values: np.ndarray, grads: np.ndarray, squares: np.ndarray, *, places: np.ndarray = EACH, counts: np.ndarray = ONCE
    ) -> float:
        """Adds the term's gradient, times float32[U] counts, to each row of grads float32[U,D]; fills squares float32[U].

        The values of row u are values[u], or values[places[u]]; once counts where there are no counts.
        """
        return float(_rows(values, places, grads, counts, *self._numbers(), squares))

    def gather(self, values: np.ndarray, places: np.ndarray, grads: np.ndarray, out: np.ndarray, squares: np.ndarray) -> float:
        """Adds grads float32[n,D] to out[places] and their mean squares to squares[places]; values float32[V,D], as `out`."""
        return float(_gather(values, places, grads, *self._numbers(), out, squares))

    def settle(self, values: np.ndarray, places: np.ndarray, first: int, grads: np.ndarray, squares: np.ndarray) -> float:
        """The draws of a step, whose gradients lie in grads[first:], one row each, become rows of unique ids where they lie.

        Draw u, of values float32[n,D], belongs to row places[u]; rows from `first` on are numbered by first occurrence, so none
        lies behind its first draw. `squares` float32[.] likewise.
        """
        return float(_settle(values, places, first, *self._numbers(), grads, squares))

    def _numbers(self) -> tuple[np.float32, int, bool]:
        return np.float32(self.coef if self.p else 0.0), self.p, self.moduli

    def add(self, rows: torch.Tensor, grads: torch.Tensor, counts: torch.Tensor | None = None) -> tuple[torch.Tensor, float]:
        """Add the term's gradient to `grads` in place; returns the mean square of each row of the sum, and the term's value.

        float32[U, D] values, float32[U, D] gradients, float32[U] uses of each row (None: one each) -> float32[U], number.
        """
        if compiled_for(rows, grads) and rows.is_contiguous() and grads.is_contiguous():
            squares = np.empty(len(rows), np.float32)
            given = ONCE if counts is None else counts.contiguous().numpy()
            value = self.rows(rows.detach().numpy(), grads.detach().numpy(), squares, counts=given)
            return torch.from_numpy(squares), value
        value = 0.0
        if self.coef and self.p:
            slope = self._slopes(rows)
            uses = rows.new_ones(len(rows)) if counts is None else counts
            value = self.coef * torch.dot((slope * rows).sum(1), uses).item()
            grads.addcmul_(slope, uses[:, None], value=self.coef * self.p)
        return grads.square().mean(1), value

    def _slopes(self, rows: torch.Tensor) -> torch.Tensor:
        """sign(x) |x|^(p-1), float[U,D]."""
        if self.moduli:
            real, imaginary = rows.chunk(2, 1)
            return rows * torch.hypot(real, imaginary).repeat(1, 2)
        return rows.sign() if self.p == 1 else rows * rows.abs().pow(self.p - 2)
