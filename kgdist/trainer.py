"""The training loop: the same one in one process, in many processes and on many machines.

It knows `Tables` (where rows live) and `Control` (who else is there), and neither processes nor files. A step is: positives,
negatives, unique ids, pull, query and compare, loss, backward, push.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np
import torch

from kgdist.config import Config
from kgdist.data.batches import Batches
from kgdist.errors import KgdistError
from kgdist.kvstore.tables import Tables
from kgdist.losses import batch_loss
from kgdist.models.base import Model
from kgdist.optim import Schedule
from kgdist.sampling.negatives import ChunkedNegatives, masked
from kgdist.types import Batch, RelationRows


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
        return self.total

    def step(self, number: int) -> tuple[Losses, int]:
        """Train on the batch of step `number`; returns its losses and its number of positives. Raises KgdistError if it diverges."""
        clock, started = self.clock, perf_counter()
        batch = self.negatives.batch(number, self.batches.at(number))
        ids, places = np.unique(np.concatenate([batch.heads, batch.tails, batch.negatives.ravel()]), return_inverse=True)
        relation_ids, relation_places = np.unique(batch.relations, return_inverse=True)
        sampled = perf_counter()

        rows = self._pull("entity", ids)  # float32[U, D]
        relation_rows = {name: self._pull(name, relation_ids).requires_grad_() for name in self.relation_tables}
        relation = RelationRows(relation_rows, self._to_device(relation_places))
        places = self._to_device(places)
        uses = [rows.index_select(0, part).requires_grad_() for part in places.split([len(batch), len(batch), batch.negatives.size])]
        losses = self._forward(batch, uses, relation)
        forward = perf_counter()

        losses[0].backward()  # type: ignore[no-untyped-call]
        grads = torch.zeros_like(rows)
        for part, use in zip(places.split([len(use) for use in uses]), uses, strict=True):
            if use.grad is not None:
                grads.index_add_(0, part, use.grad)
        regularization = self._regularise(batch, places, rows, grads, relation)
        backward = perf_counter()

        lr = self.schedule.at(number)
        self.tables.push("entity", torch.from_numpy(ids), grads, lr)
        for name, leaf in relation_rows.items():
            if leaf.grad is not None:
                self.tables.push(name, torch.from_numpy(relation_ids), leaf.grad, lr)
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

    def _forward(self, batch: Batch, uses: list[torch.Tensor], relation: RelationRows) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        heads, tails, negatives = uses
        model, config = self.model, self.config
        anchors, true = batch.side.pick(head=(tails, heads), tail=(heads, tails))
        queries = model.queries(anchors, relation, batch.side)
        positive = model.pair(queries, true, relation)
        candidates = negatives.view(*batch.negatives.shape, -1)
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

    def _regularise(self, batch: Batch, places: torch.Tensor, rows: torch.Tensor, grads: torch.Tensor, relation: RelationRows) -> float:
        """Add the gradient of coef * sum |x|^p to `grads` and the relations' gradients; returns the term's value.

        The sum runs over every row looked up, as in DGL-KE: the batch's own entities once, drawn negatives and relations once per use.
        """
        coef, p = self.config.regularization_coef, self.config.regularization_norm
        if not coef or not p:
            return 0.0
        own, drawn = 2 * len(batch), places[2 * len(batch) :].view(batch.negatives.shape)[:, batch.in_batch :]
        uses = torch.bincount(drawn.reshape(-1), minlength=len(rows)).to(rows.dtype)
        uses += torch.zeros_like(uses).index_fill_(0, places[:own], 1.0)
        value = _add_norm(rows, grads, uses, coef, p)
        leaf = relation.rows["relation"]
        if leaf.grad is not None:
            uses = torch.bincount(relation.index, minlength=len(leaf)).to(leaf.dtype)
            value += _add_norm(leaf.detach(), leaf.grad, uses, coef, p)
        return value

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
        control.say(
            f"{who}sample: {clock.sample:.3f}, forward: {clock.forward:.3f}, backward: {clock.backward:.3f}, update: {clock.update:.3f}"
        )
        self.clock = Clock()


def _add_norm(rows: torch.Tensor, grads: torch.Tensor, uses: torch.Tensor, coef: float, p: int) -> float:
    """grads += d/dx of coef * sum_u uses[u] * sum_d |x|^p; returns that sum. float32[U, D], float32[U, D], float32[U]."""
    size = rows.abs()
    slope = rows.sign() if p == 1 else rows * size.pow(p - 2)  # sign(x) |x|^(p-1)
    value = torch.dot(torch.einsum("ud,ud->u", slope, rows), uses).item() * coef
    grads.addcmul_(slope, uses[:, None], value=coef * p)
    return value
