"""What a training step is: a batch in, the gradients of the rows it looked up and the values of its loss out.

Two do the same: `autograd_step` for any model on any device, `fused_step` by compiled loops for the built-in models on a CPU.
`encoder_step` puts a graph network in front of either.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
import torch

from kgdist.base.types import Batch, Side
from kgdist.kernels.dropout import Dropout
from kgdist.kvstore.tables import Tables, Update
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.sampling.blocks import Block


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


class Scratch:
    """Memory that is taken anew each step but allocated once, by name; contents are left as they are."""

    def __init__(self) -> None:
        self._flat: dict[str, torch.Tensor] = {}

    def take(self, name: str, *shape: int) -> torch.Tensor:
        """float32[*shape], contiguous."""
        size = math.prod(shape)
        if name not in self._flat or len(self._flat[name]) < size:
            self._flat[name] = torch.empty(size + size // 8)
        return self._flat[name][:size].view(shape)


Array = TypeVar("Array", np.ndarray, torch.Tensor)


@dataclass(frozen=True)
class Parts(Generic[Array]):
    """The parts of a batch, each with an array of its own: of entities, of the places of their rows, of these rows."""

    heads: Array  # [B, ...], of the positives
    tails: Array  # [B, ...]
    in_batch: Array  # [., ...], candidates that are entities of their chunk's positives, chunk by chunk
    drawn: Array  # [., ...], negatives that were drawn, chunk by chunk

    def all(self) -> tuple[Array, Array, Array, Array]:
        """One after another."""
        return self.heads, self.tails, self.in_batch, self.drawn


def parts_of(batch: Batch) -> Parts[np.ndarray]:
    """The entities, int64[.]."""
    near, far = np.split(batch.negatives, [batch.in_batch], axis=1)
    return Parts(batch.heads, batch.tails, near.ravel(), far.ravel())


class BatchPlan(NamedTuple):
    """A batch, and the rows that it needs."""

    batch: Batch
    ids: np.ndarray  # int64[U], its entities
    places: np.ndarray  # int64[.], which of them: those of all parts, one after another
    relation_ids: np.ndarray  # int64[V], rows of relations; all there are where these are told apart (`--relation_loss`)
    relation_places: np.ndarray  # int64[B]
    wanted: dict[str, np.ndarray]  # int64[.], the ids that the step pulls from each table, in its order
    blocks: tuple[Block, ...] = ()  # the neighbourhood that the entities' rows are made of, where an encoder makes them
    decoded: np.ndarray | None = None  # int64[.], the ids whose rows the score function then reads, in its order
    side: Side = Side.TAIL  # that the model is asked for, by these rows of relations (`Model.asked`)

    def parts(self, places: Array) -> Parts[Array]:
        """`places`, its own or a copy of these on another device, part by part."""
        size = len(self.batch)
        drawn = 2 * size + self.batch.in_batch * len(self.batch.negatives)
        return Parts(places[:size], places[size : 2 * size], places[2 * size : drawn], places[drawn:])


def relation_rows(
    config: Config, model: Model, tables: Tables, batch: Batch, unique: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
) -> tuple[np.ndarray, np.ndarray, Side]:
    """The relations' rows that a batch needs, int64[V], which of them each positive has, int64[B], and the side that the model is
    asked for by them. `unique` gives different ids, and places among them."""
    rows, side = model.asked(batch.relations, batch.side)
    if batch.inverse is not None:
        rows = np.where(batch.inverse, model.asked(batch.relations, batch.side.other)[0], rows)
    if config.relation_loss:
        return np.arange(tables.shape("relation")[0]), rows, side
    ids, places = unique(rows)
    return ids, places, side


def dropouts(config: Config) -> dict[str, Dropout]:
    """By table; those that are not named see all numbers."""
    shares = {"entity": config.entity_dropout, "relation": config.relation_dropout}
    return {name: Dropout(share, config.seed, number) for number, (name, share) in enumerate(shares.items())}


def uses_by_positives(plan: BatchPlan) -> np.ndarray:
    """float32[U]: how often each entity is a head or a tail."""
    return np.bincount(plan.places[: 2 * len(plan.batch)], minlength=len(plan.ids)).astype(np.float32)


def agreement(plan: BatchPlan, machines: int) -> np.ndarray:
    """float32[U], for each entity: what the square of its gradient from positives is multiplied by before Adagrad.

    DGL-KE takes all uses of a row by the positives of a batch as one use. A machine that has 1/k of the graph meets its rows k
    times as often in a batch, so that rule would shorten its steps: by .02 MRR with FB15k in four parts. Of n uses,
    1 + (n - 1) / k would have met in a batch of the whole graph, so the square of the sum, n^2 g^2 when uses agree, becomes
    n (1 + (n - 1) / k) g^2: all of it on one machine, that of n single uses on very many.
    """
    uses = uses_by_positives(plan).clip(1)
    share: np.ndarray = (1 + (uses - 1) / np.float32(machines)) / uses
    return share


class Step(Protocol):
    """One way to do it. It pulls rows, and leaves pushing to the trainer."""

    def plan(self, batch: Batch) -> BatchPlan:
        """What to do for `batch`."""

    def __call__(self, plan: BatchPlan, clock: Clock) -> tuple[dict[str, Update], Losses]:
        """Updates by table, and the losses, `total` with the regularisation. Adds to the clock's forward and backward."""
