"""The entity side of the fused step: rows, the candidates among them, and their gradients."""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels import scaled
from kgdist.kernels.gradients import Penalty
from kgdist.kvstore.tables import Tables, Update
from kgdist.training.step import Plan, agreement


class Buffers:
    """Memory that is taken anew each step but allocated once, by name; contents are left as they are."""

    def __init__(self) -> None:
        self._flat: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """float32[*shape], contiguous."""
        size = math.prod(shape)
        if name not in self._flat or len(self._flat[name]) < size:
            self._flat[name] = torch.empty(size + size // 8)
        return self._flat[name][:size].view(shape)


class Entities:
    """The entities of one batch.

    Rows lie in one array: the different ones of the positives, then one for each negative drawn, so that the negatives' rows
    and gradients are what the comparator reads and writes, without a copy.

    Args:
        unit: they count as rows of length 1.

    Attributes:
        rows: float32[., D].
        seen: float32[., D], the same, or those of length 1.
        grads: float32[., D], those of the positives 0, the others whatever they were.
    """

    def __init__(self, plan: Plan, tables: Tables, buffers: Buffers, *, unit: bool) -> None:
        self.plan, self.places, self.buffers = plan, plan.parts(plan.places), buffers
        pulled = plan.wanted["entity"]
        self.first = len(pulled) - len(self.places.drawn)  # row of a draw
        self.rows = buffers.take("rows", len(pulled), tables.shape("entity")[1])
        tables.pull("entity", torch.from_numpy(pulled), self.rows)
        self.seen, self.lengths = self.rows, None
        if unit:
            self.seen, self.lengths = buffers.take("units", *self.rows.shape), np.empty(len(self.rows), np.float32)
            scaled.unit(self.rows.numpy(), self.seen.numpy(), self.lengths)
        self.grads = buffers.take("grads", *self.rows.shape)
        self.grads[: self.first] = 0

    def _drawn(self, array: torch.Tensor) -> torch.Tensor:
        """float32[C, ., D], what belongs to the draws."""
        return array[self.first :].view(len(self.plan.batch.negatives), -1, array.shape[1])

    def candidates(self) -> torch.Tensor:
        """float32[C, N, D]."""
        drawn = self._drawn(self.seen)
        if not self.plan.batch.in_batch:
            return drawn
        own = self.seen[torch.from_numpy(self.places.in_batch)]
        return torch.cat([own.view(len(drawn), -1, own.shape[1]), drawn], 1)

    def grad_candidates(self) -> torch.Tensor:
        """float32[C, N, D] to be filled, and then given to `add`."""
        if not self.plan.batch.in_batch:
            return self._drawn(self.grads)
        return self.buffers.take("grad_candidates", *self.plan.batch.negatives.shape, self.grads.shape[1])

    def add(self, grad_candidates: torch.Tensor) -> None:
        """Take over the candidates' gradients."""
        if near := self.plan.batch.in_batch:
            own = grad_candidates[:, :near].reshape(-1, self.grads.shape[1])
            self.grads.index_add_(0, torch.from_numpy(self.places.in_batch), own)
            self._drawn(self.grads).copy_(grad_candidates[:, near:])

    def update(self, penalty: Penalty, machines: int) -> tuple[Update, float]:
        """Gradients and squares by entity, and the value of the regularisation.

        All uses of a row by positives are one use, or a share of it (`agreement`); each draw is one (DGL-KE).
        """
        if self.lengths is not None:
            scaled.unit_back(self.seen.numpy(), self.lengths, self.grads.numpy())
        first, ids, rows, grads = self.first, self.plan.ids, self.rows.numpy(), self.grads.numpy()
        squares = np.empty(len(ids), np.float32)
        norm = penalty.rows(rows[:first], grads[:first], squares)
        if machines > 1:
            squares[:first] *= agreement(self.plan, machines)[:first]
        norm += penalty.settle(rows[first:], self.places.drawn, first, grads, squares)
        return Update(ids, self.grads[: len(ids)], torch.from_numpy(squares)), norm
