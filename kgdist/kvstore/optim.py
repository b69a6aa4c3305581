"""Row-sparse optimisers: a step reads and writes only the rows it was given gradients for. And the learning-rate schedules.

Ids are unique within a call: a gradient has been summed over all uses of its row before it comes here. `squares` keeps what that
sum loses: DGL-KE's Adagrad adds up the mean square of each use (each triple of a relation, each draw of a negative), not the
square of their sum, which would make frequent rows learn much more slowly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.kernels import jit
from kgdist.kernels.rows import adagrad_arrays, adagrad_elements, adagrad_rows, adam_rows, gather_rows, sgd_rows

# What a rule may be given by another process. Within these, no rule makes a finite row or state infinite or NaN: the two largest
# numbers of float32 are 2^104 apart, so adding less than half of that leaves a finite number finite; a step is at most
# rate * gradient / 1e-10 < 2^94, and what is added to a state at most 2^100. Training that reaches them has diverged.
MOST_RATE, MOST_GRADIENT, MOST_SQUARES = 2.0**20, np.float32(2.0**40), np.float32(2.0**100)

State = dict[str, torch.Tensor]
Places = torch.Tensor | None  # int64[U], which gradients are those of the ids; None: all, in order
Squares = torch.Tensor | None  # float32[U], sum over the uses of a row of mean_d(g^2); None: one use each
Updater = Callable[[np.ndarray, np.ndarray, float, np.ndarray | None], object]  # of ids, gradients, rate and squares

LEAST_EPS, MOST_EPS, MOST_BETA = 1e-10, 1.0, 0.99999  # of settings: below, a step could be larger than the proof above allows


class AdagradRow:
    """DGL-KE's Adagrad: one float of state per row, s += squares, row -= lr g / (sqrt(s) + 1e-10). 4 bytes a row."""

    settings: Mapping[str, float] = {}  # those that a rule has, with its own values

    def __init__(self, **settings: float) -> None:
        for name, value in settings.items():
            if name not in self.settings:
                raise ValueError(f"no setting {name}: {', '.join(self.settings) or 'there are none'}")
            least, most = (LEAST_EPS, MOST_EPS) if name == "eps" else (0.0, MOST_BETA)
            if not least <= value <= most:
                raise ValueError(f"{name} is {value}, and must be from {least:g} to {most:g}")
        self.given = {**self.settings, **settings}

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

    def updater(self, rows: torch.Tensor, state: State) -> Updater:
        """What does the same as `apply` with arrays, for tables on the CPU: for whoever makes many small updates, which tensors
        would cost more than the rows."""
        if jit.compiled_for(rows, *state.values()):
            return self.compiled(rows.numpy(), {key: part.numpy() for key, part in state.items()})
        tensor = torch.from_numpy
        return lambda ids, grads, lr, squares: self.apply(
            rows, state, tensor(ids), tensor(grads), lr, None if squares is None else tensor(squares)
        )

    def compiled(self, rows: np.ndarray, state: dict[str, np.ndarray]) -> Updater:
        """The compiled way of `updater`, for float32."""
        sums = state["sum"].reshape(-1)
        return lambda ids, grads, lr, squares: adagrad_arrays(rows, sums, ids, grads, squares, lr)


class _Elementwise(AdagradRow):
    """A rule for each element by itself: `compiled` where it can be, else `plain`."""

    def apply(
        self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float, squares: Squares = None,
        places: Places = None,
    ) -> None:  # fmt: skip
        """See AdagradRow. Raises IndexError for an id out of range."""
        grads = grads if places is None else gather_rows(grads, places)
        if jit.compiled_for(rows, grads, *state.values()) and all(t.is_contiguous() for t in (rows, *state.values())):
            if self.updater(rows, state)(ids.contiguous().numpy(), grads.detach().contiguous().numpy(), lr, None):
                return
            raise IndexError(f"row ids from {int(ids.min())} to {int(ids.max())} in a table of {len(rows)} rows")
        self.plain(rows, state, ids, grads, lr)

    def plain(self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float) -> None:
        """The same in torch, on any device."""
        raise NotImplementedError


class Adagrad(_Elementwise):
    """Adagrad per element (Duchi et al. 2011), as torch.optim.Adagrad. 4 D bytes a row."""

    settings: Mapping[str, float] = {"eps": 1e-10}

    def widths(self, width: int) -> dict[str, int]:
        """One float per element."""
        return {"sum": width}

    def compiled(self, rows: np.ndarray, state: dict[str, np.ndarray]) -> Updater:
        """row -= lr g / (sqrt(s) + eps), element by element."""
        sums, eps = state["sum"], self.given["eps"]
        return lambda ids, grads, lr, squares: adagrad_elements(rows, sums, ids, grads, lr, eps)

    def plain(self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float) -> None:
        """The same."""
        total = state["sum"].index_select(0, ids).addcmul_(grads, grads)
        state["sum"].index_copy_(0, ids, total)
        rows.index_add_(0, ids, grads / (total.sqrt_() + self.given["eps"]), alpha=-lr)


class SGD(_Elementwise):
    """row -= lr g. No state."""

    def widths(self, width: int) -> dict[str, int]:
        """Nothing."""
        return {}

    def compiled(self, rows: np.ndarray, state: dict[str, np.ndarray]) -> Updater:
        """row -= lr g."""
        return lambda ids, grads, lr, squares: sgd_rows(rows, ids, grads, lr)

    def plain(self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float) -> None:
        """The same."""
        rows.index_add_(0, ids, grads, alpha=-lr)


class Adam(_Elementwise):
    """Lazy Adam (Kingma and Ba 2015, as torch.optim.SparseAdam): moments move only when their row has a gradient.

    The bias correction counts each row's own updates. 8 D + 4 bytes a row.
    """

    settings: Mapping[str, float] = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}

    def widths(self, width: int) -> dict[str, int]:
        """First and second moments, and the number of updates."""
        return {"mean": width, "square": width, "count": 1}

    def compiled(self, rows: np.ndarray, state: dict[str, np.ndarray]) -> Updater:
        """row -= lr m_hat / (sqrt(v_hat) + eps)."""
        mean, square, count = state["mean"], state["square"], state["count"].reshape(-1)
        betas = self.given["beta1"], self.given["beta2"], self.given["eps"]
        return lambda ids, grads, lr, squares: adam_rows(rows, mean, square, count, ids, grads, lr, *betas)

    def plain(self, rows: torch.Tensor, state: State, ids: torch.Tensor, grads: torch.Tensor, lr: float) -> None:
        """The same."""
        beta1, beta2, eps = self.given["beta1"], self.given["beta2"], self.given["eps"]
        count = state["count"].index_select(0, ids) + 1
        mean = state["mean"].index_select(0, ids).lerp_(grads, 1 - beta1)
        square = state["square"].index_select(0, ids).mul_(beta2).addcmul_(grads, grads, value=1 - beta2)
        for name, value in (("count", count), ("mean", mean), ("square", square)):
            state[name].index_copy_(0, ids, value)
        step = mean / (1 - beta1**count)
        rows.index_add_(0, ids, step / ((square / (1 - beta2**count)).sqrt_() + eps), alpha=-lr)


OPTIMIZERS: dict[str, type[AdagradRow]] = {"adagrad_row": AdagradRow, "adagrad": Adagrad, "sgd": SGD, "adam": Adam}


def rule_of(name: str, settings: Mapping[str, Any]) -> AdagradRow:
    """An optimiser with settings of its own. Raises UsageError for a name or setting that is not known, or cannot be."""
    if name not in OPTIMIZERS:
        raise UsageError(f"there is no optimiser {name}: {', '.join(OPTIMIZERS)}")
    try:
        return OPTIMIZERS[name](**{key: float(value) for key, value in settings.items()})
    except (TypeError, ValueError) as error:
        raise UsageError(f"optimiser {name}: {error}") from error


@dataclass(frozen=True)
class Schedule:
    """Learning rate by step.

    `total` is the number of steps of the run, `warmup` those over which the rate first rises to `lr`, and `factor` what it is
    multiplied by each time that it is lowered (plateau).
    """

    kind: str
    lr: float
    total: int
    warmup: int = 0
    factor: float = 1.0

    def at(self, step: int, lowered: int = 0) -> float:
        """Rate of step 0, 1, ...; linear and cosine fall to 0 at `total`, step is a tenth from half of the steps on, and plateau
        was `lowered` so often."""
        rise = min((step + 1) / (self.warmup + 1), 1.0)
        done = min(step / max(self.total, 1), 1.0)
        if self.kind == "constant":
            fall = 1.0
        elif self.kind == "plateau":
            fall = self.factor**lowered
        elif self.kind == "linear":
            fall = 1.0 - done
        elif self.kind == "cosine":
            fall = 0.5 * (1.0 + math.cos(math.pi * done))
        elif self.kind == "step":
            fall = 1.0 if done < 0.5 else 0.1
        else:
            raise ValueError(f"unknown schedule {self.kind!r}")
        return self.lr * rise * fall
