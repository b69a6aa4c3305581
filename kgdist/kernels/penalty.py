"""Regularisation of the rows that a step looked up, and what Adagrad wants to know of their gradients, in one pass.

The term is coef * sum |x|^p over every use of a row (DGL-KE). It is part of each use's gradient, so its square counts too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from kgdist.kernels import choice


@dataclass(frozen=True)
class Penalty:
    """coef * sum |x|^p; none when coef or p is 0."""

    coef: float
    p: int

    def arguments(self) -> tuple[np.float32, int]:
        """coef and p as the compiled loops take them."""
        return np.float32(self.coef if self.p else 0.0), self.p

    def add(self, rows: torch.Tensor, grads: torch.Tensor, counts: torch.Tensor | None = None) -> tuple[torch.Tensor, float]:
        """Add the term's gradient to `grads` in place; returns the mean square of each row of the sum, and the term's value.

        float32[U, D] values, float32[U, D] gradients, float32[U] uses of each row (None: one each) -> float32[U], number.
        """
        if choice.numba_for(rows, grads) and rows.is_contiguous() and grads.is_contiguous():
            from kgdist.kernels import uses as loops

            squares = np.empty(len(rows), np.float32)
            given = np.empty(0, np.float32) if counts is None else counts.contiguous().numpy()
            arrays = rows.detach().numpy(), np.empty(0, np.int64), grads.detach().numpy(), given
            value = loops.rows(*arrays, *self.arguments(), squares)
            return torch.from_numpy(squares), float(value)
        value = 0.0
        if self.coef and self.p:
            slope = rows.sign() if self.p == 1 else rows * rows.abs().pow(self.p - 2)  # sign(x) |x|^(p-1)
            uses = rows.new_ones(len(rows)) if counts is None else counts
            value = self.coef * torch.dot((slope * rows).sum(1), uses).item()
            grads.addcmul_(slope, uses[:, None], value=self.coef * self.p)
        return grads.square().mean(1), value
