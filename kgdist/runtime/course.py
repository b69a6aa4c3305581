"""The course of a training: validations, the best rows, checkpoints, early stop, the end. Every process stands still.

One machine (`kgdist.runtime.local`) and several (`kgdist.runtime.cluster.training_attempt`) take the same course, each as its
`Place`: it ranks, saves and loads, and the course decides when, and what becomes of what goes wrong.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kgdist.base.errors import EvaluationError, KgdistError, counted
from kgdist.base.log import log, say
from kgdist.evaluation.ranks import result_lines
from kgdist.options.config import Config
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import rhythm_of
from kgdist.runtime.observe import Observer, validation
from kgdist.training.callbacks import Callbacks, Saved

AGAIN = 30.0  # seconds between two tries to save what would be lost otherwise
EARLY = 0.5  # of a training, up to where a best validation says that it was too long
PATIENCE = 600.0  # seconds in which it must succeed, all tries of a course together


@dataclass(frozen=True)
class Result:
    """How a training ended."""

    folder: Path | None  # None: on another machine, perhaps
    interrupted: bool
    metrics: dict[str, Any] | None  # of the test split


class Place(Protocol):
    """Where the rows are, and the run folder. What saves or loads returns what went wrong, a line each, or nothing."""

    # The best validation so far, whose rows are kept: {"mrr", "step"}. And what a checkpoint knows of those before it:
    # "counted", the best MRR until then (where a run was killed, the rows that are kept may be newer), "waited", how many came
    # since, "lowered", how often they have lowered the rate, and "validated", whether the rows of the checkpoint were.
    best: dict[str, Any]

    @property
    def folder(self) -> Path | None:
        """The run folder, if this process can read it."""

    @property
    def where(self) -> str:
        """The run folder in words."""

    @property
    def command(self) -> str:
        """What goes on with the run."""

    @property
    def hint(self) -> str:
        """How to go on when nothing more is saved."""

    @property
    def unsaved(self) -> bool:
        """Whether there is no checkpoint yet, and could be one."""

    def evaluate(self, split: str) -> dict[str, Any]:
        """Rank a split with the rows as they are. Raises EvaluationError; KeyboardInterrupt when the user wants to leave."""

    def save(self, step: int) -> list[str]:
        """A checkpoint of rows and state, and of `best`."""

    def save_best(self, step: int, mrr: float) -> list[str]:
        """Keep the rows, which make this validation the best (`better_than`). Where that goes wrong, another stays it."""

    def take_best(self) -> list[str]:
        """Put the best rows in the place of the last ones, everywhere or nowhere."""

    def publish(self) -> list[str]:
        """The embeddings, as they are to be used."""

    def write(self, name: str, value: dict[str, Any]) -> list[str]:
        """A JSON file of the run folder."""

    def rest(self) -> None:
        """Let a moment pass, and what must go on meanwhile."""

    def memory(self) -> str:
        """How much memory all of it takes, in words."""


def better_than(best: dict[str, Any], mrr: float, step: int) -> dict[str, Any]:
    """What is the best validation now, after `best`."""
    return best | {"mrr": mrr, "step": step, "counted": mrr, "waited": 0}


class Course:
    """One training. `total` steps of each process; `observer` shows it."""

    def __init__(
        self, config: Config, place: Place, total: int, interrupts: Interrupts, observer: Observer, callbacks: Callbacks
    ) -> None:
        self.config, self.place, self.total = config, place, total
        self.interrupts, self.observer, self.callbacks = interrupts, observer, callbacks
        self.rhythm = rhythm_of(config)
        self.early = False  # the validations say that it is enough
        self._table: list[str] = []  # of the best validation
        self._validated = self._begun = 0  # the step of the last validation, and the one that training has begun at
        self._deadline = 0.0

    def begin(self, step: int) -> None:
        """Training begins, where `step` steps are done."""
        self._begun, self._validated = step, step if self.place.best["validated"] else 0
        self.observer.resume()
        self.rhythm.begin()

    def stopping(self) -> bool:
        """Whether to end before the next step."""
        return self.interrupts.asked or self.early or self.callbacks.stop

    def _leaving(self) -> bool:
        """Whether the user wants to leave; asked again and again, for that can happen at any time."""
        return self.interrupts.asked

    # ---- all stand still

    def meet(self, step: int) -> None:
        """After `step` steps: validate and save, if it is time for it; where training begins, what was left of that."""
        self.observer.pause()
        due = self.config.valid and step % self.config.eval_interval == 0 and step != self._validated
        if due and not self.interrupts.asked:
            try:
                self._validate(step)
            except EvaluationError as error:
                log.warning("%s; training goes on", error)
        if step > self._begun and self.rhythm.due(step):
            self._checkpoint(step)
        self.observer.resume()

    def checkpoint(self, step: int) -> None:
        """It is time for a checkpoint, wherever they are."""
        self.observer.pause()
        self._checkpoint(step)
        self.observer.resume()

    def _checkpoint(self, step: int) -> None:
        began = time.monotonic()
        problems = self._save(step)
        self._warn(problems, "training goes on")
        self._saved(step, problems)
        self.rhythm.written(time.monotonic() - began)

    def _save(self, step: int) -> list[str]:
        self.place.best["validated"] = step == self._validated
        return self.place.save(step)

    def _saved(self, step: int, problems: list[str]) -> None:
        if not problems:
            self.callbacks.tell(Saved(step, self.total, self.place.where))

    def _validate(self, step: int) -> None:
        """Raises EvaluationError."""
        place = self.place
        try:
            report = place.evaluate("valid")
        except KeyboardInterrupt:
            return  # they stop at their next step and save
        mrr, self._validated = report["all"]["realistic"]["mrr"], step
        better = mrr > place.best["mrr"]
        than = "the best so far" if better else f"the best was {place.best['mrr']:.4f} at step {place.best['step']}"
        hits = report["all"]["realistic"]["hits@10"]
        say(f"validated at step {step} of {self.total}: MRR {mrr:.4f}, HITS@10 {hits:.4f}; {than}")
        self.observer.write("valid", step=step, **report["all"]["realistic"])
        self._warn(place.write("valid.json", report | {"step": step}), "the run goes on without it")
        self.callbacks.tell(validation(report, step, self.total, better, place.where))
        if better:
            self._table = result_lines(report)
            if self.config.no_save_emb:
                place.best = better_than(place.best, mrr, step)
            else:
                self._warn(place.save_best(step, mrr), "training goes on")
            return
        if mrr > place.best["counted"]:
            place.best |= {"counted": mrr, "waited": 0}
            return
        place.best["waited"] += 1
        if self.config.lr_schedule == "plateau" and place.best["waited"] % (self.config.plateau_patience + 1) == 0:
            self._lower(step)
        if 0 < self.config.early_stop_patience <= place.best["waited"] and step < self.total:
            say(f"early stop at step {step}: no better MRR than {place.best['mrr']:.4f} at step {place.best['step']}")
            self.early = True

    def _lower(self, step: int) -> None:
        """The rate is less from here on (as ReduceLROnPlateau of PyTorch does it); whoever trains asks for it."""
        place, config = self.place, self.config
        place.best["lowered"] += 1
        if step < self.total:
            rate = config.lr * config.plateau_factor ** place.best["lowered"]
            waited = counted(place.best["waited"], "validation")
            say(f"the rate is {rate:g} from step {step} on: {waited} without a better MRR than {place.best['mrr']:.4f}")
            self.observer.write("rate", step=step, lr=rate)

    # ---- the end

    def finish(self, step: int) -> Result:
        """After the last step: save, choose the best rows, test, and say what was reached.

        Raises KgdistError when the embeddings could not be saved, or the test failed.
        """
        config, place, keep = self.config, self.place, not self.config.no_save_emb
        if self._leaving() or self.callbacks.failure is not None:
            if keep:
                say(f"saving at step {step}; another Ctrl-C quits without saving")
                self.stop(step)
            return self._left(step)
        if self.callbacks.stop and step < self.total:
            say(f"stopped at step {step} of {self.total} by a callback")
        problems = self._insist(partial(self._save, step)) if keep else []
        if keep:
            self._saved(step, problems)
        self._warn(problems, "the embeddings themselves may find room")
        if config.valid and self._leaving() and not problems:
            return self._left(step)  # the last rows need not be the best ones: those are chosen when it goes on
        if config.valid:
            self._choose(step)
        if keep:
            self._raise(self._insist(place.publish))
        self.observer.say_speed()
        for line in self._table if not config.test else ():
            say(line)
        where = f"saved in {place.where}" if keep else f"embeddings not saved (--no_save_emb); metrics in {place.where}"
        metrics, problems = None, []
        if config.test:
            try:
                metrics = place.evaluate("test")
            except KeyboardInterrupt:
                say(f"interrupted; {where}")
                return Result(place.folder, True, None)
            problems = place.write("test.json", metrics)
            self.observer.write("test", step=step, **metrics["all"]["realistic"])
        say(place.memory())
        say(where)
        if problems:
            raise KgdistError(problems[-1])
        return Result(place.folder, False, metrics)

    def stop(self, step: int) -> None:
        """Save a training that is to go on another time; where rows and state find no room, the embeddings alone may. Where
        neither does, and there is no checkpoint of before, it waits for room.

        Raises KgdistError when the checkpoint could not be written.
        """
        place, work = self.place, partial(self._save, step)
        problems = self._insist(work)
        if problems and not self._insist(place.publish):
            self._warn(problems[:-1])
            raise KgdistError(f"{problems[-1]}; the embeddings of step {step} are saved in {place.where}")
        if problems and place.unsaved:
            log.warning("nothing of this training is saved yet: make room, or press Ctrl-C again to leave without it")
            problems = self._insist(work, patient=True)
        self._raise(problems)

    def _left(self, step: int) -> Result:
        """It is to go on another time."""
        hint = f"interrupted at step {step}; go on with: {self.place.command}"
        say("interrupted; nothing was saved, because of --no_save_emb" if self.config.no_save_emb else hint)
        return Result(self.place.folder, self.interrupts.asked, None)

    def _choose(self, step: int) -> None:
        """Validate the last rows, where that was not done, and take the best ones."""
        place = self.place
        if step not in (place.best["step"], self._validated):
            try:
                self._validate(step)
            except EvaluationError as error:
                kept = step if self.config.no_save_emb else place.best["step"] or step
                log.warning("%s; the embeddings of step %d are kept", error, kept)
            except KgdistError:
                raise
            except Exception:
                place.publish()  # before it is told
                raise
        best = place.best
        if self.config.no_save_emb or best["step"] in (0, step):
            return None
        if problems := place.take_best():
            self._warn(problems, f"the embeddings of step {step} are kept")
        else:
            say(f"kept: the embeddings of step {best['step']}, with the best validation MRR ({best['mrr']:.4f})")
            if best["step"] <= EARLY * step and not self.config.early_stop_patience:
                rest = f"the {step - best['step']:,} steps after that brought nothing better"
                say(f"{rest}; --early_stop_patience 3 ends such a training sooner")
        return None

    def _insist(self, work: Callable[[], list[str]], *, patient: bool = False) -> list[str]:
        """Do what saves until it has no problems, while memory still holds the rows and somebody can make room; those of the last
        try. Once only when the user wants to leave, unless `patient`."""

        def hurry() -> bool:
            return self.interrupts.asked and not patient

        self._deadline = self._deadline or time.monotonic() + PATIENCE
        while problems := work():
            left = self._deadline - time.monotonic()
            if hurry() or left <= 0:
                break
            self._warn(problems, f"the embeddings are kept in memory: another try in {AGAIN:g} s, for {left:.0f} s more")
            pause = time.monotonic() + min(AGAIN, left)
            while time.monotonic() < pause and not hurry():
                self.place.rest()
        return problems

    def _warn(self, problems: list[str], then: str = "") -> None:
        for line in problems:
            log.warning("%s%s", line, then and f"; {then}")

    def _raise(self, problems: list[str]) -> None:
        """For embeddings that could not be saved, if so; all problems but the last are told at once."""
        for line in problems[:-1]:
            log.error("%s", line)
        if problems:
            raise KgdistError(problems[-1] + self.place.hint)
