"""The training loop: the same one in one process, in many processes and on many machines.

It knows `Tables` (where rows live) and `Control` (who else is there), and neither processes nor files. A step is: positives,
negatives, unique ids, pull, query and compare, loss, backward, push.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np
import torch

from kgdist.config import Config
from kgdist.data.batches import Batches
from kgdist.errors import KgdistError
from kgdist.kernels.penalty import Penalty
from kgdist.kvstore.tables import Tables
from kgdist.losses import batch_loss
from kgdist.models.base import Model
from kgdist.optim import Schedule
from kgdist.sampling.negatives import ChunkedNegatives, masked
from kgdist.types import Batch, RelationRows

Parts = list[torch.Tensor]  # int64[.] rows of the batch's heads, tails, in-batch candidates and drawn negatives


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


class Control(Protocol):
    """The loop's link to whoever runs it."""

    def stopping(self) -> bool:
        """Whether to end before the next step (Ctrl-C, early stop)."""

    def report(self, step: int, positives: int, losses: Losses) -> None:
        """`step` steps are done, the last one with these values. Called every step; must be cheap."""

    def meeting(self, step: int) -> bool:
        """Whether all processes wait for one another after `step` steps (validation, checkpoint, forced synchronisation)."""

    def meet(self, step: int) -> None:
        """Wait until every process has done `step` steps and what had to be done then is done."""

    def say(self, line: str) -> None:
        """Print a line where the user sees it."""


class Update(NamedTuple):
    """What a step has for the rows of a table."""

    grads: torch.Tensor  # float32[U, D], summed over all uses
    squares: torch.Tensor | None  # float32[U], mean squares summed over all uses (kgdist.optim)
    norm: float  # value of the regularisation term


@dataclass
class Clock:
    """Seconds spent in each part since the last log line."""

    sample: float = 0.0
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    started: float = field(default_factory=perf_counter)


class Trainer:
    """One process's training.

    Args:
        tables: where the rows are; the ids pushed are unique within a step.
        device: where scores are computed; rows are copied there and gradients back if the tables live elsewhere.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        tables: Tables,
        batches: Batches,
        negatives: ChunkedNegatives,
        *,
        device: torch.device,
        total: int,
        rank: int = 0,
    ) -> None:
        self.config = config
        self.model = model
        self.tables = tables
        self.batches = batches
        self.negatives = negatives
        self.device = device
        self.total = total
        self.rank = rank
        self.schedule = Schedule(config.lr_schedule, config.lr, total, config.lr_warmup)
        self.relation_tables = [name for name in tables.names() if name != "entity"]
        self.clock = Clock()
        self._penalty = Penalty(config.regularization_coef, config.regularization_norm)

    def run(self, control: Control, start: int = 0) -> int:
        """Train steps start..total unless told to stop; returns the number of steps done since the very first."""
        interval = self.config.log_interval
        sums = Losses()
        self.clock = Clock()
        for step in range(start, self.total):
            if control.stopping():
                self.tables.flush()
                return step
            losses, positives = self.step(step)
            sums.add(losses)
            done = step + 1
            control.report(done, positives, losses)
            if done % interval == 0:
                self._log(control, done, min(interval, done - start), sums)
                sums = Losses()
            if control.meeting(done):
                self.tables.flush()
                control.meet(done)
        self.tables.flush()
        return max(start, self.total)

    def step(self, number: int) -> tuple[Losses, int]:
        """Train on the batch of step `number`: its losses and its number of positives. Raises KgdistError if it diverges."""
        clock, started = self.clock, perf_counter()
        batch = self.negatives.batch(number, self.batches.at(number))
        drawn = batch.negatives[:, batch.in_batch :]
        entities = [batch.heads, batch.tails, batch.negatives[:, : batch.in_batch].ravel(), drawn.ravel()]
        ids, places = np.unique(np.concatenate(entities), return_inverse=True)
        relation_ids, relation_places = np.unique(batch.relations, return_inverse=True)
        sampled = perf_counter()

        rows = self._pull("entity", ids)  # float32[U, D]
        relation = self._relations(relation_ids, relation_places)
        parts: Parts = list(torch.split(self._to_device(places), [len(part) for part in entities]))
        uses = [rows.index_select(0, part).requires_grad_() for part in parts]
        losses = self._forward(batch, uses, relation)
        forward = perf_counter()

        losses[0].backward()  # type: ignore[no-untyped-call]
        penalty = self._penalty
        updates = {"entity": _entity_update(rows, parts, uses, penalty)}
        updates |= {name: _relation_update(name, relation, penalty) for name in relation.rows}
        regularization = sum(update.norm for update in updates.values())
        backward = perf_counter()

        lr = self.schedule.at(number)
        for name, update in updates.items():
            self.tables.push(name, torch.from_numpy(ids if name == "entity" else relation_ids), update.grads, lr, update.squares)
        ended = perf_counter()

        clock.sample += sampled - started
        clock.forward += forward - sampled
        clock.backward += backward - forward
        clock.update += ended - backward
        total, positive, negative = (value.item() for value in losses)
        if not math.isfinite(total):
            raise KgdistError(f"the loss became {total} at step {number + 1}; lower --lr, or --gamma if scores are too large")
        return Losses(positive, negative, total + regularization, regularization), len(batch)

    def _pull(self, name: str, ids: np.ndarray) -> torch.Tensor:
        return self.tables.pull(name, torch.from_numpy(ids)).to(self.device, non_blocking=True)

    def _to_device(self, array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _relations(self, ids: np.ndarray, places: np.ndarray) -> RelationRows:
        """Rows that gradients are collected on: one per triple for vectors, one per relation for matrices."""
        index = self._to_device(places)
        rows = {name: self._pull(name, ids) for name in self.relation_tables}
        uses = {name: rows[name].index_select(0, index).requires_grad_() for name in self.model.vectors}
        for name in rows.keys() - uses.keys():
            rows[name].requires_grad_()
        return RelationRows(rows, index, uses)

    def _forward(
        self, batch: Batch, uses: list[torch.Tensor], relation: RelationRows
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads, tails, *negatives = uses
        model, config = self.model, self.config
        anchors, true = batch.side.pick(head=(tails, heads), tail=(heads, tails))
        queries = model.queries(anchors, relation, batch.side)
        positive = model.pair(queries, true, relation)
        chunks = len(batch.negatives)
        candidates = torch.cat([part.view(chunks, -1, part.shape[1]) for part in negatives if len(part)], dim=1)
        negative = model.cross(queries, candidates, relation, batch.chunk)
        if model.score_limit is not None:
            positive = positive.clamp(-model.score_limit, model.score_limit)
            negative = negative.clamp(-model.score_limit, model.score_limit)
        mask = masked(batch)
        loss = batch_loss(
            positive,
            negative,
            genre=config.loss_genre,
            margin=config.margin,
            pairwise=config.pairwise,
            temperature=config.adversarial_temperature if config.neg_adversarial_sampling else None,
            weights=self._to_device(batch.weights) if batch.weights is not None else None,
            masked=self._to_device(mask) if mask is not None else None,
        )
        return loss.total, loss.positive.detach(), loss.negative.detach()

    def _log(self, control: Control, done: int, steps: int, sums: Losses) -> None:
        clock, now = self.clock, perf_counter()
        who = f"[proc {self.rank}]"
        values = {"loss": sums.total}
        if not self.config.pairwise:
            values = {"pos_loss": sums.positive, "neg_loss": sums.negative, "loss": sums.total}
        if self.config.regularization_coef > 0 and self.config.regularization_norm > 0:
            values["regularization"] = sums.regularization
        for name, value in values.items():
            control.say(f"{who}[Train]({done}/{self.total}) average {name}: {value / steps}")
        control.say(f"{who}[Train] {steps} steps take {now - clock.started:.3f} seconds")
        parts = {name: getattr(clock, name) for name in ("sample", "forward", "backward", "update")}
        control.say(who + ", ".join(f"{name}: {seconds:.3f}" for name, seconds in parts.items()))
        self.clock = Clock()


def _entity_update(rows: torch.Tensor, parts: Parts, uses: list[torch.Tensor], penalty: Penalty) -> Update:
    """Sum the gradients of heads, tails, in-batch candidates and drawn negatives by row.

    In DGL-KE's groups, all uses of a row but draws count as one use, and each draw of it as another.
    """
    found = [use.grad if use.grad is not None else torch.zeros_like(use) for use in uses]
    grads = torch.zeros_like(rows)
    for part, grad in zip(parts[:3], found[:3], strict=True):
        grads.index_add_(0, part, grad)
    drawn, drawn_grads = parts[3], found[3]
    own = torch.zeros(len(rows), dtype=rows.dtype, device=rows.device).index_fill_(0, torch.cat(parts[:2]), 1.0)
    squares, own_norm = penalty.add(rows, grads, own)
    drawn_squares, drawn_norm = penalty.add(uses[3].detach(), drawn_grads)
    return Update(grads.index_add_(0, drawn, drawn_grads), squares.index_add_(0, drawn, drawn_squares), own_norm + drawn_norm)


def _relation_update(name: str, relation: RelationRows, penalty: Penalty) -> Update:
    """Sum the gradients of a relation table by row. TransR's projections are not regularised (DGL-KE)."""
    rows, use = relation.rows[name], relation.uses.get(name)
    leaf = rows if use is None else use
    grads = leaf.grad if leaf.grad is not None else torch.zeros_like(leaf)
    if name != "relation":
        return Update(grads, None, 0.0)
    counts = torch.bincount(relation.index, minlength=len(rows)).to(rows.dtype) if use is None else None
    squares, norm = penalty.add(leaf.detach(), grads, counts)
    if use is None:
        return Update(grads, squares, norm)
    sums = torch.zeros_like(rows).index_add_(0, relation.index, grads)
    return Update(sums, rows.new_zeros(len(rows)).index_add_(0, relation.index, squares), norm)
