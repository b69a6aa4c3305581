"""What a training step is: a batch in, the gradients of the rows it looked up and the values of its loss out.

Two do the same: `autograd_step` for any model on any device, `fused_step` by compiled loops for the built-in models on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from kgdist.base.types import Batch
from kgdist.kvstore.tables import Update


@dataclass
class Losses:
    """Values of one step, or their sums over several."""

    positive: float = 0.0
    negative: float = 0.0
    total: float = 0.0
    regularization: float = 0.0

    def add(self, other: Losses) -> None:
        """Add another step's values."""
        self.positive += other.positive
        self.negative += other.negative
        self.total += other.total
        self.regularization += other.regularization


@dataclass
class Clock:
    """Seconds spent in each part since the last log line."""

    sample: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    started: float = field(default_factory=perf_counter)


class Plan(NamedTuple):
    """A batch, and the rows that it needs."""

    batch: Batch
    ids: np.ndarray  # int64[U], its entities
    places: np.ndarray  # int64[.], which of them: heads, tails, in-batch candidates, drawn negatives, one after another
    relation_ids: np.ndarray  # int64[V]
    relation_places: np.ndarray  # int64[B]
    wanted: dict[str, np.ndarray]  # int64[.], the ids that the step pulls from each table, in its order


def agreement(plan: Plan, machines: int) -> np.ndarray:
    """float32[U], for each entity: what the square of its gradient from positives is multiplied by before Adagrad.

    DGL-KE takes all uses of a row by the positives of a batch as one use. A machine that has 1/k of the graph meets its rows k
    times as often in a batch, so that rule would shorten its steps: by .02 MRR with FB15k in four parts. Of n uses,
    1 + (n - 1) / k would have met in a batch of the whole graph, so the square of the sum, n^2 g^2 when uses agree, becomes
    n (1 + (n - 1) / k) g^2: all of it on one machine, that of n single uses on very many.
    """
    uses = np.bincount(plan.places[: 2 * len(plan.batch)], minlength=len(plan.ids)).astype(np.float32).clip(1)
    share: np.ndarray = (1 + (uses - 1) / np.float32(machines)) / uses
    return share


class Step(Protocol):
    """One way to do it. It pulls rows, and leaves pushing to the trainer."""

    def plan(self, batch: Batch) -> Plan:
        """What to do for `batch`."""

    def __call__(self, plan: Plan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        """Updates by table, and the losses, `total` with the regularisation. Adds to the clock's forward and backward."""
