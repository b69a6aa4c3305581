"""The training loop: the same one in one process, in many processes and on many machines.

It knows `Tables` (where rows live) and `Control` (who else is there), and neither processes nor files. A step is: positives,
negatives, unique ids, pull, query and compare, loss, backward, push.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

import torch

from kgdist.base.errors import Diverged
from kgdist.base.types import Batch
from kgdist.kernels import jit
from kgdist.kvstore.optim import Schedule
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model
from kgdist.models.encoders.encoder import Encoding
from kgdist.options.config import Config
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.encoder_step import EncoderStep
from kgdist.training.losses import SOFTMAX
from kgdist.training.step import BatchPlan, Clock, Losses, Step


def make_step(config: Config, model: Model, tables: Tables, device: torch.device, machines: int = 1) -> Step:
    """The fastest step that does what is asked for; `machines` share the graph."""
    # An update that runs beside the next step needs memory of its own, which the fused step does not give.
    if device.type == "cpu" and model.kernel is not None and not config.async_update and jit.compiled():
        if config.candidates == "all":
            from kgdist.training.full_step import FullStep

            return FullStep(config, model, tables)
        from kgdist.training.fused_step import FusedStep

        return FusedStep(config, model, tables, machines)
    return AutogradStep(config, model, tables, device, machines)


class Control(Protocol):
    """The loop's link to whoever runs it."""

    def stopping(self) -> bool:
        """Whether to end before the next step (Ctrl-C, early stop)."""

    def lowered(self) -> int:
        """How often validations have lowered the rate (`--lr_schedule plateau`). Asked after `stopping`, every step."""

    def report(self, step: int, positives: int, losses: Losses) -> None:
        """`step` steps are done, the last one with these values. Called every step; must be cheap."""

    def meeting(self, step: int) -> bool:
        """Whether all processes wait for one another after `step` steps (validation, checkpoint, forced synchronisation)."""

    def meet(self, step: int) -> None:
        """Wait until every process has done `step` steps and what had to be done then is done."""

    def say(self, line: str) -> None:
        """Print a line where the user sees it."""


class Trainer:
    """One process's training.

    Args:
        tables: where the rows are; the ids pushed are unique within a step.
        batch: of step 0, 1, ...
        device: where scores are computed; rows are copied there and gradients back if the tables live elsewhere.
        encoding: what makes the entities' rows; its weights are one more of the tables.
        weight: of the loss of a step, where others make the same step with an encoder.
        notes: what is said when the training begins.
    """

    def __init__(
        self,
        config: Config,
        model: Model,
        tables: Tables,
        batch: Callable[[int], Batch],
        *,
        device: torch.device,
        total: int,
        rank: int = 0,
        machines: int = 1,
        encoding: Encoding | None = None,
        weight: Callable[[int], float] | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.config = config
        self.notes = notes
        self.model = model
        self.tables = tables
        self.batch = batch
        self.total = total
        self.rank = rank
        self.schedule = Schedule(config.lr_schedule, config.lr, total, config.lr_warmup, config.plateau_factor)
        self.lowered = 0  # times that the rate was
        self.clock = Clock()

        def of_rows(tables: Tables) -> Step:
            return make_step(config, model, tables, device, machines)

        if encoding is None:
            self._step: Step = of_rows(tables)
        else:
            rates = replace(self.schedule, lr=config.encoder_lr)

            def rate(number: int) -> float:
                return rates.at(number, self.lowered)

            self._step = EncoderStep(config, tables, encoding, of_rows, rate=rate, device=device, rank=rank, weight=weight)
        self._plans: dict[int, BatchPlan] = {}  # of the next steps
        self._asked = 0  # the first of those behind them

    def run(self, control: Control, start: int = 0) -> int:
        """Train steps start..total unless told to stop; returns the number of steps done since the very first."""
        for note in self.notes:
            control.say(note)
        interval = self.config.log_interval
        sums = Losses()
        self.clock = Clock()
        if start and control.meeting(start):  # which the one before this may have left, or died in
            control.meet(start)
        for step in range(start, self.total):
            if control.stopping():
                self.tables.flush()
                return step
            self.lowered = control.lowered()
            losses, positives = self.step(step)
            sums.add(losses)
            done = step + 1
            control.report(done, positives, losses)
            if done % interval == 0:
                self._log(control, done, min(interval, done - start), sums)
                sums = Losses()
            if control.meeting(done):
                self.tables.flush()
                began = perf_counter()
                control.meet(done)
                self.clock.started += perf_counter() - began  # a validation is no part of what steps take
        self.tables.flush()
        return max(start, self.total)

    def step(self, number: int) -> tuple[Losses, int]:
        """Train on the batch of step `number`: its losses and its number of positives. Raises Diverged."""
        clock, started = self.clock, perf_counter()
        if number not in self._plans:
            self._plans.clear()
            self._asked = number
            self._look_ahead(2)
        plan = self._plans.pop(number)
        clock.sample += perf_counter() - started
        updates, losses = self._step(plan, clock)
        if not math.isfinite(losses.total):
            raise Diverged(f"the loss became {losses.total} at step {number + 1}; lower --lr, or --gamma if scores are too large")
        computed, lr = perf_counter(), self.schedule.at(number, self.lowered)
        if self.config.freeze == "entities":
            updates = {name: update for name, update in updates.items() if name != "entity"}
        self.tables.push(updates, lr)
        pushed = perf_counter()
        clock.update += pushed - computed
        if self._asked == number + 2:
            self._look_ahead(self.config.pull_ahead)
        clock.sample += perf_counter() - pushed
        return losses, len(plan.batch)

    def compute(self, number: int) -> None:
        """What a step costs before its updates, which are thrown away."""
        self._step(self._plan(number), Clock())

    def _look_ahead(self, count: int) -> None:
        """Plan so many steps more, and let the tables send for their rows, which travel while the step before is computed.

        Asked for after the push of step n are the rows of step n + 2, which show all own updates but the one between, and with
        --pull_ahead K those of K - 1 steps more. The request and the pushes since the one before are one message.
        """
        steps = range(self._asked, min(self._asked + count, self.total))
        self._asked += len(steps)
        for number in steps:
            self._plans[number] = self._plan(number)
        if steps:
            self.tables.ahead(*(self._plans[number].wanted for number in steps))

    def _plan(self, number: int) -> BatchPlan:
        return self._step.plan(self.batch(number))

    def _log(self, control: Control, done: int, steps: int, sums: Losses) -> None:
        clock, now = self.clock, perf_counter()
        who = f"[proc {self.rank}]"
        values = {"loss": sums.total}
        if not (self.config.pairwise or self.config.loss_genre == SOFTMAX or self.config.candidates == "all"):
            values = {"pos_loss": sums.positive, "neg_loss": sums.negative, "loss": sums.total}
        coefs = self.config.regularization_coef, self.config.relation_regularization_coef or 0
        if max(coefs) > 0 and (self.config.regularization_norm > 0 or self.config.regularizer != "lp"):
            values["regularization"] = sums.regularization
        for name, value in values.items():
            control.say(f"{who}[Train]({done}/{self.total}) average {name}: {value / steps}")
        control.say(f"{who}[Train] {steps} steps take {now - clock.started:.3f} seconds")
        parts = {name: getattr(clock, name) for name in ("sample", "forward", "backward", "update")}
        control.say(who + ", ".join(f"{name}: {seconds:.3f}" for name, seconds in parts.items()))
        self.clock = Clock()
