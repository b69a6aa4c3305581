"""Row-sparse optimisers: a step reads and writes only the rows it was given gradients for. And the learning-rate schedules.

Ids are unique within a call: a gradient has been summed over all uses of its row before it comes here. `squares` keeps what that
sum loses: DGL-KE's Adagrad adds up the mean square of each use (each triple of a relation, each draw of a negative), not the
square of their sum, which would make frequent rows learn much more slowly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kgdist.kernels.rows import adagrad_rows

# What a rule may be given by another process. Within these, no rule makes a finite row or state infinite or NaN: the two largest
# numbers of float32 are 2^104 apart, so adding less than half of that leaves a finite number finite; a step is at most
# rate * gradient / 1e-10 < 2^94, and what is added to a state at most 2^100. Training that reaches them has diverged.
MOST_RATE, MOST_GRADIENT, MOST_SQUARES = 2.0**20, np.float32(2.0**40), np.float32(2.0**100)

State = dict[str, torch.Tensor]
Places = torch.Tensor | None  # int64[U], which gradients are those of the ids; None: all, in order
Squares = torch.Tensor | None  # float32[U], sum over the uses of a row of mean_d(g^2); None: one use each


class AdagradRow:
    """DGL-KE's Adagrad: one float of state per row, s += squares, row -= lr g / (sqrt(s) + 1e-10). 4 bytes a row."""

    def widths(self, width: int) -> dict[str, int]:
        """Floats of state per row, by name, for rows of `width` floats."""
        return {"sum": 1}

    def apply(
        self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float, squares: Squares = None,
        places: Places = None,
    ) -> None:  # fmt: skip
        """Update `rows[ids]` and their state in place; int64[U] unique, float32[U, D], or the gradients at `places` of more.

        The other rules have no use for `squares`.
        """
        adagrad_rows(rows, state["sum"].view(-1), ids, grads, lr, squares=squares, places=places)


class Adagrad(AdagradRow):
    """Adagrad per element (Duchi et al. 2011). 4 D bytes a row."""

    def widths(self, width: int) -> dict[str, int]:
        """One float per element."""
        return {"sum": width}

    def apply(
        self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float, squares: Squares = None,
        places: Places = None,
    ) -> None:  # fmt: skip
        """row -= lr g / (sqrt(s) + 1e-10), element by element."""
        grads = grads if places is None else grads[places]
        total = state["sum"].index_select(0, ids).addcmul_(grads, grads)
        state["sum"].index_copy_(0, ids, total)
        rows.index_add_(0, ids, grads / (total.sqrt_() + 1e-10), alpha=-lr)


class SGD(AdagradRow):
    """row -= lr g. No state."""

    def widths(self, width: int) -> dict[str, int]:
        """Nothing."""
        return {}

    def apply(
        self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float, squares: Squares = None,
        places: Places = None,
    ) -> None:  # fmt: skip
        """row -= lr g."""
        grads = grads if places is None else grads[places]
        rows.index_add_(0, ids, grads, alpha=-lr)


class Adam(AdagradRow):
    """Lazy Adam (Kingma and Ba 2015, as torch.optim.SparseAdam): moments move only when their row has a gradient.

    The bias correction counts each row's own updates. 8 D + 4 bytes a row.
    """

    beta1, beta2, eps = 0.9, 0.999, 1e-8

    def widths(self, width: int) -> dict[str, int]:
        """First and second moments, and the number of updates."""
        return {"mean": width, "square": width, "count": 1}

    def apply(
        self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float, squares: Squares = None,
        places: Places = None,
    ) -> None:  # fmt: skip
        """row -= lr m_hat / (sqrt(v_hat) + 1e-8)."""
        grads = grads if places is None else grads[places]
        count = state["count"].index_select(0, ids) + 1
        mean = state["mean"].index_select(0, ids).lerp_(grads, 1 - self.beta1)
        square = state["square"].index_select(0, ids).mul_(self.beta2).addcmul_(grads, grads, value=1 - self.beta2)
        for name, value in (("count", count), ("mean", mean), ("square", square)):
            state[name].index_copy_(0, ids, value)
        step = mean / (1 - self.beta1**count)
        rows.index_add_(0, ids, step / ((square / (1 - self.beta2**count)).sqrt_() + self.eps), alpha=-lr)


OPTIMIZERS: dict[str, type[AdagradRow]] = {"adagrad_row": AdagradRow, "adagrad": Adagrad, "sgd": SGD, "adam": Adam}


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step.

    `total` is the number of steps of the run, `warmup` those over which the rate first rises to `lr`.
    """

    kind: str
    lr: float
    total: int
    warmup: int = 0

    def at(self, step: int) -> float:
        """Rate of step 0, 1, ...; linear and cosine fall to 0 at `total`, step is a tenth from half of the steps on."""
        rise = min((step + 1) / (self.warmup + 1), 1.0)
        done = min(step / max(self.total, 1), 1.0)
        if self.kind == "constant":
            fall = 1.0
        elif self.kind == "linear":
            fall = 1.0 - done
        elif self.kind == "cosine":
            fall = 0.5 * (1.0 + math.cos(math.pi * done))
        elif self.kind == "step":
            fall = 1.0 if done < 0.5 else 0.1
        else:
            raise ValueError(f"unknown schedule {self.kind!r}")
        return self.lr * rise * fall
