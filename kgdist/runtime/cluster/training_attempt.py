"""One attempt at a training on several machines, seen from the launcher: opening, training, the place of its course.

Every trainer runs the same loop as on one machine, and what happens while all of them stand still is decided by the same course
(`kgdist.runtime.course`); here is how it is done on several machines.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import EvaluationError, KgdistError
from kgdist.base.log import log, say
from kgdist.evaluation.shared import Collected, SharedEvaluator
from kgdist.options.configfile import run_json
from kgdist.partition.folder import Partition
from kgdist.runtime.brought import Source
from kgdist.runtime.cluster.attempt import Attempt
from kgdist.runtime.cluster.fleet import AttemptFailed, Fleet
from kgdist.runtime.cluster.plan import workspace
from kgdist.runtime.cluster.saved import Saved
from kgdist.runtime.cluster.start_rows import parts_of
from kgdist.runtime.cluster.training_plan import TrainingPlan, run_folder
from kgdist.runtime.course import Course, Result
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.observe import Observer
from kgdist.runtime.protocol import STALL
from kgdist.runtime.storage import FLAG
from kgdist.training.callbacks import Callbacks
from kgdist.version import __version__


class TrainingAttempt(Attempt[TrainingPlan, Result]):
    """One attempt at a training, and the `Place` of its course. It has progressed when a checkpoint was made that is newer than
    where it began."""

    def __init__(
        self, plan: TrainingPlan, partition: Partition, saved: Saved, interrupts: Interrupts, source: Source | None = None
    ) -> None:
        super().__init__(plan, interrupts)
        self.config, self.partition, self.source = plan.config, partition, source
        self.saved, self.run_name = saved, saved.run
        self._start = 0
        self.evaluator = SharedEvaluator(partition, plan.config)
        count = len(plan.machines)
        self.steps = np.zeros((count, plan.config.num_proc), np.int64)
        self._positives, self._sums = np.zeros(count, np.int64), np.zeros((count, 4))
        self._arrived: dict[int, int] = {}
        self._trained: dict[int, list[int]] = {}
        self._collected: Collected | None = None
        self._unfinished: set[tuple[int, int]] = set()
        self._problems: list[str] = []  # of the task under way
        self._tasks = 0
        self._patient = 0.0  # since when machines wait for others

    def again(self) -> TrainingAttempt:
        return TrainingAttempt(self.plan.again(), self.partition, self.saved, self.interrupts, self.source)

    def run(self) -> Result:
        with self.interrupts.immediate():
            resume = self._open()
        return self._train(resume)

    def _open(self) -> int | None:
        """Let every machine check, fill its rows and start its servers; the step that training goes on from."""
        config, fleet, saved = self.config, self.fleet, self.saved
        answers = self.preflight()
        resume = None
        if saved.run:
            resume = saved.find({n: answer["checkpoints"] for n, answer in answers.items()}, first=not self.plan.attempt)
        if not saved.run:
            saved.run = fleet.ask("opened", "open", None, [0], run="", resume=None)[0]
            others = list(range(1, len(self.plan.machines)))
            fleet.ask("opened", "open", None, others, run=saved.run, resume=None)
        else:
            fleet.ask("opened", "open", None, run=saved.run, resume=resume)
        fleet.tell("write", [0], name="config.json", value=self._settings())
        fleet.gather("ready", list(range(len(self.plan.machines))), 60.0)
        where = f"{config.save_path}/{saved.run} on the first machine"
        if not config.quiet:
            begun = f"resumed {where} at step {self._shared(resume)} of {self.plan.steps}"
            say(f"run folder: {where}" if resume is None else begun)
        if resume is None and self.source is not None:
            self.began = True  # it may take minutes, and is done again after a loss
            for block in parts_of(self.source, self.plan, self.partition):
                for machine, part in block.items():
                    fleet.tell("bring", [machine], **part)
                fleet.gather("brought", list(block), None)
        return resume

    def _shared(self, resume: int | None) -> int:
        """The step at which trainers begin: other ones than before share what has been done."""
        return (resume or 0) * self.saved.trainers // self.config.num_proc

    # ---- training

    def _train(self, resume: int | None) -> Result:
        config, fleet = self.config, self.fleet
        total = self.plan.steps * self.plan.trainers
        self._start = self._shared(resume)
        initial, folder = self._start * self.plan.trainers, run_folder(config, self.saved.run)
        observer = Observer(config, folder, total=total, initial=initial, world=self.plan.trainers, metrics=_Remote(fleet))
        course = Course(config, self, self.plan.steps, self.interrupts, observer, Callbacks())
        try:
            fleet.tell("train", lowered=self.best["lowered"])
            self.began = True
            course.begin(self._start)
            stopped, asked = False, False
            done, moved = -1, time.monotonic()
            while len(self._trained) < len(self.plan.machines):
                fleet.pump(0.02)
                if (now := self._progress()) != done:
                    done, moved = now, time.monotonic()
                if time.monotonic() - moved > 2 * max(config.stall_timeout, STALL):  # agents should have seen to it before
                    raise AttemptFailed("no machine has done anything for too long")
                observer.update(int(self.steps.sum()), int(self._positives.sum()), self._sums.sum(0))
                self._tell_who_is_late()
                if (course.stopping() and not stopped) or (self.interrupts.asked and not asked):
                    stopped, asked = True, self.interrupts.asked
                    fleet.tell("stop", leave=asked)
                waiting = [self._arrived.get(n, 0) for n in range(len(self.plan.machines)) if n not in self._trained]
                if waiting and (step := min(waiting)) > 0 and not stopped:
                    self._arrived = {machine: arrived for machine, arrived in self._arrived.items() if arrived > step}
                    course.meet(step)
                    fleet.tell("release", step=step, lowered=self.best["lowered"])
            observer.end()
            result = course.finish(min(done for steps in self._trained.values() for done in steps))
            if result.interrupted:
                fleet.tell("stop", leave=True)
            if config.storage is not None:
                if problems := self._send(rows=False):
                    raise KgdistError(problems[-1])
                if not config.quiet:
                    say(f"kept in {config.storage}/runs/{self.saved.run}")
            fleet.tell("end")
            return result
        finally:
            observer.close()

    def _send(self, *, rows: bool) -> list[str]:
        """Keep the files of the run in the storage, or settings and metrics alone; what went wrong."""
        try:
            with self.interrupts.immediate():
                problem = self.fleet.ask("sent", "send", None, [0], rows=rows)[0]["problem"]
        except KeyboardInterrupt:
            problem = f"{FLAG} {self.config.storage}: left before all was sent"
        return [f"{self.fleet.name(0)}: {problem}; the run is in {self.where}"] if problem else []

    def _progress(self) -> int:
        """Grows with whatever a trainer does."""
        return int(self.steps.sum()) + len(self._arrived) + sum(self._arrived.values()) + len(self._trained)

    def _tell_who_is_late(self) -> None:
        """Every now and then, while some machines wait for others: the others."""
        late = [n for n in range(len(self.plan.machines)) if n not in self._trained and n not in self._arrived]
        now = time.monotonic()
        if not late or len(late) == len(self.plan.machines):
            self._patient = now
        elif now - self._patient > 2 * self.config.peer_timeout:
            self._patient = now
            who = ", ".join(f"{self.fleet.name(n)} (at step {self.steps[n].min()} of {self.plan.steps})" for n in late)
            log.info("the others wait for %s", who)

    def news(self, machine: int, kind: str, value: Any) -> None:
        if kind == "progress":
            self.steps[machine], self._positives[machine], self._sums[machine] = value["steps"], value["positives"], value["sums"]
        elif kind == "arrived":
            self._arrived[machine] = value
        elif kind == "trained":
            self._trained[machine] = value
        elif kind == "interrupt":  # somebody has pressed Ctrl-C there
            self.interrupts.asked = True
        elif kind == "result" and self._collected is not None:
            self._collected.add(value)
        elif kind == "finished":
            self._unfinished.discard((machine, value["rank"]))
            if value["problem"]:
                self._problems.append(f"{self.fleet.name(machine)}: {value['problem']}")

    def _task(self, what: str, trainers: dict[int, list[int]], **more: Any) -> list[str]:
        """Let trainers (machine -> ranks) do something, and wait for all of them; what went wrong and may be tried again."""
        self._tasks += 1
        self._problems = []
        self._unfinished = {(machine, rank) for machine, ranks in trainers.items() for rank in ranks}
        for machine, ranks in trainers.items():
            self.fleet.tell("task", [machine], what={"what": what, "number": self._tasks, **more}, ranks=ranks)
        while self._unfinished:
            self.fleet.pump(0.05)
        return self._problems

    def _settings(self) -> dict[str, Any]:
        """What config.json holds: with it, kgdist-eval reads data and model on the first machine as on any other."""
        data = str(workspace(self.config).absolute() / Path(self.config.data_path).expanduser())
        digest = self.partition.manifest.common.digest
        return run_json(self.config.replace(data_path=data), version=__version__, data=digest)

    # ---- as the place of its course

    @property
    def folder(self) -> None:
        """See Place: it is on the first machine."""

    @property
    def where(self) -> str:
        return f"{run_folder(self.config, self.saved.run)} on {self.fleet.name(0)}"

    @property
    def best(self) -> dict[str, Any]:
        """See Place: it outlives an attempt."""
        return self.saved.best

    @best.setter
    def best(self, best: dict[str, Any]) -> None:
        self.saved.best = best

    @property
    def command(self) -> str:
        return self.saved.command

    @property
    def hint(self) -> str:
        return self.saved.hint if self.saved or self.began else ""

    @property
    def unsaved(self) -> bool:
        return not self.saved

    def evaluate(self, split: str) -> dict[str, Any]:
        """See Place: every trainer ranks a share."""
        started = time.perf_counter()
        self._collected = Collected(self.evaluator.triples(split))
        everyone = list(range(self.config.num_proc))
        with self.interrupts.immediate():
            problems = self._task("evaluate", dict.fromkeys(range(len(self.plan.machines)), everyone), split=split)
            if problems or not self._collected.complete:
                raise EvaluationError(problems[0] if problems else f"{split}: some queries came back without a rank")
            return self.evaluator.tell(self._collected.ranks, split, time.perf_counter() - started)

    def save(self, step: int) -> list[str]:
        problems = self.saved.save(self.fleet, step)
        self.progressed = self.progressed or (not problems and step > self._start)
        return problems

    def save_best(self, step: int, mrr: float) -> list[str]:
        return self.saved.save_best(self.fleet, step, mrr)

    def take_best(self) -> list[str]:
        return self.saved.take_best(self.fleet)

    def publish(self) -> list[str]:
        """See Place: the first machine reads the rows of all."""
        problems = self._task("assemble", {0: [0]}, run=self.saved.run, settings=self._settings())
        return problems if problems or self.config.storage is None else self._send(rows=True)

    def write(self, name: str, value: dict[str, Any]) -> list[str]:
        """See Place; the first machine's agent says what goes wrong."""
        self.fleet.tell("write", [0], name=name, value=value)
        return []

    def rest(self) -> None:
        self.fleet.pump(0.1)

    def memory(self) -> str:
        found = self.fleet.ask("memory", "memory", 60.0)
        return f"memory: {', '.join(f'{value / 2**20:.0f} MiB' for _, value in sorted(found.items()))}"


class _Remote:
    """Rows of metrics.jsonl, on the first machine."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def write(self, kind: str, **values: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **values}, ensure_ascii=False)
        self.fleet.tell("append", [0], name="metrics.jsonl", line=line)
