"""One attempt at a training on several machines, seen from the launcher: connecting, opening, the course, the end.

The course is that of `kgdist.runtime.local`: the same loop runs in every trainer, and what happens while all of it stands still
(validation, checkpoint, the end) is decided here and done there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.log import log, say
from kgdist.evaluation.shared import Collected, SharedEvaluator
from kgdist.options.configfile import run_json
from kgdist.partition.folder import Partition
from kgdist.runtime.cluster.fleet import AttemptFailed, Fleet
from kgdist.runtime.cluster.plan import Plan, workspace
from kgdist.runtime.cluster.saved import Saved
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import rhythm_of
from kgdist.runtime.local import Result
from kgdist.runtime.observe import Observer
from kgdist.runtime.processes.workers import STALL
from kgdist.version import __version__

Connect = Callable[[], Fleet]
GRACE = 15.0  # seconds that agents have to end their processes


class Attempt:
    """One attempt at a job, from connecting to the end."""

    def __init__(self, plan: Plan, partition: Partition, saved: Saved, interrupts: Interrupts) -> None:
        self.plan, self.config, self.partition, self.interrupts = plan, plan.config, partition, interrupts
        self.saved = saved
        self.began = False
        self.progressed = False  # a checkpoint was made that is newer than where it began
        self._start = 0
        self.evaluator = SharedEvaluator(partition, plan.config)
        self.rhythm = rhythm_of(plan.config)
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
        self.validated = 0
        self.early = False

    @contextlib.contextmanager
    def connected(self, connect: Connect) -> Any:
        """Have the agents while the block runs; they are gone after it."""
        try:
            with self.interrupts.immediate():
                self.fleet = connect()
        except UsageError as error:
            raise self._again(error) from error
        self.fleet.news, self.fleet.quiet = self._news, self.config.quiet
        self.fleet.stall, self.fleet.leaving = self.config.stall_timeout, lambda: self.interrupts.asked
        calm = False
        try:
            yield self
            calm = True
        finally:
            self.fleet.close(grace=GRACE if calm else 1.0)

    def run(self) -> Result:
        """The whole course. Raises AttemptFailed, KgdistError; KeyboardInterrupt, where there is nothing to save."""
        with self.interrupts.immediate():
            resume = self._open()
        return self._course(resume)

    def _again(self, error: UsageError) -> KgdistError:
        """What keeps a job from starting may pass once it has run: machines come back, ports become free."""
        return AttemptFailed(str(error)) if self.plan.attempt else error

    def preflight(self, *, copied: bool = True) -> dict[int, Any]:
        """What every machine has found: all are asked, each as far as it gets, before any problem is told. Raises UsageError.

        Nobody is asked for a partition that has not been `copied`.

        In a later attempt the first problem ends it: what keeps one machine away need not keep the others busy.
        """
        config, fleet, saved, later = self.config, self.fleet, self.saved, self.plan.attempt > 0
        found = dict(fleet.unreached)
        if not (found and later):
            found |= fleet.hello(60.0)
        answers: dict[int, Any] = {}
        if not (found and later):
            job = {"plan": self.plan.to_json(), "lease": config.peer_timeout, "run": saved.run, "debug": config.debug}
            for n in fleet.channels:
                fleet.tell("check", [n], machine=n, copied=copied, **job)
            answers = fleet.survey("checked", None, found)
        listed = {n: [why] for n, why in found.items()}
        listed |= {n: [f"{fleet.name(n)}: {line}" for line in answer["problems"]] for n, answer in answers.items()}
        lines = [line for _, lines in sorted(listed.items()) for line in lines]
        if not lines:
            return answers
        for line in lines[:-1]:
            log.error("%s", line)
        raise self._again(UsageError(f"{lines[-1]} ({len(lines)} problem{'s' * (len(lines) > 1)}; nothing was started)"))

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
        return resume

    def _shared(self, resume: int | None) -> int:
        """The step at which trainers begin: other ones than before share what has been done."""
        return (resume or 0) * self.saved.trainers // self.config.num_proc

    # ---- the course

    def _course(self, resume: int | None) -> Result:
        config, fleet = self.config, self.fleet
        total = self.plan.steps * self.plan.trainers
        self._start = self._shared(resume)
        initial = self._start * self.plan.trainers
        self.observer = Observer(config, None, total=total, initial=initial, world=self.plan.trainers, metrics=_Remote(fleet))
        try:
            fleet.tell("train")
            self.began = True
            self.rhythm.begin()
            stopped, asked = False, False
            done, moved = -1, time.monotonic()
            while len(self._trained) < len(self.plan.machines):
                fleet.pump(0.02)
                if (now := self._progress()) != done:
                    done, moved = now, time.monotonic()
                if time.monotonic() - moved > 2 * max(config.stall_timeout, STALL):  # agents should have seen to it before
                    raise AttemptFailed("no machine has done anything for too long")
                self.observer.update(int(self.steps.sum()), int(self._positives.sum()), self._sums.sum(0))
                self._tell_who_is_late()
                if (self.early and not stopped) or (self.interrupts.asked and not asked):
                    stopped, asked = True, self.interrupts.asked
                    fleet.tell("stop", leave=asked)
                waiting = [self._arrived.get(n, 0) for n in range(len(self.plan.machines)) if n not in self._trained]
                if waiting and min(waiting) > 0 and not stopped:
                    self._meet(min(waiting))
            self.observer.pause()
            self.observer.bar.close()
            return self._finish()
        finally:
            self.observer.close()

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

    def _meet(self, step: int) -> None:
        """All trainers stand still after `step` steps."""
        config = self.config
        self._arrived = {machine: arrived for machine, arrived in self._arrived.items() if arrived > step}
        self.observer.pause()
        if config.valid and step % config.eval_interval == 0 and not self.interrupts.asked:
            self._validate(step)
        if self.rhythm.due(step):
            began = time.monotonic()
            self._warn(self._save(step))
            self.rhythm.written(time.monotonic() - began)
        self.fleet.tell("release", step=step)
        self.observer.resume()

    def _news(self, machine: int, kind: str, value: Any) -> None:
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

    def _evaluate(self, split: str) -> dict[str, Any]:
        started = time.perf_counter()
        self._collected = Collected(self.evaluator.triples(split))
        everyone = list(range(self.config.num_proc))
        with self.interrupts.immediate():
            self._task("evaluate", dict.fromkeys(range(len(self.plan.machines)), everyone), split=split)
        if not self._collected.complete:
            raise KgdistError(f"{split}: some queries came back without a rank")
        return self.evaluator.tell(self._collected.ranks, split, time.perf_counter() - started)

    def _save(self, step: int) -> list[str]:
        problems = self.saved.save(self.fleet, step)
        self.progressed = self.progressed or (not problems and step > self._start)
        return problems

    def _validate(self, step: int) -> None:
        try:
            report = self._evaluate("valid")
        except KeyboardInterrupt:
            return  # the trainers stop and save
        mrr, self.validated, best = report["all"]["realistic"]["mrr"], step, self.saved.best
        self.observer.write("valid", step=step, **report["all"]["realistic"])
        self.fleet.tell("write", [0], name="valid.json", value=report | {"step": step})
        if mrr > best["mrr"]:
            if self.config.no_save_emb:
                self.saved.best = {"mrr": mrr, "step": step, "waited": 0}
            else:
                self._warn(self.saved.save_best(self.fleet, step, mrr))
            return
        best["waited"] += 1
        if 0 < self.config.early_stop_patience <= best["waited"] and step < self.plan.steps:
            say(f"early stop at step {step}: no better MRR than {best['mrr']:.4f} at step {best['step']}")
            self.early = True

    def _warn(self, problems: list[str], then: str = "training goes on") -> None:
        for line in problems:
            log.warning("%s; %s", line, then)

    def _settings(self) -> dict[str, Any]:
        """What config.json holds: with it, kgdist-eval reads data and model on the first machine as on any other."""
        data = str(workspace(self.config).absolute() / Path(self.config.data_path).expanduser())
        return run_json(self.config.replace(data_path=data), version=__version__)

    # ---- the end

    def _finish(self) -> Result:
        config, fleet, saved, keep = self.config, self.fleet, self.saved, not self.config.no_save_emb
        step = min(done for steps in self._trained.values() for done in steps)

        def hurry() -> bool:
            return self.interrupts.asked and bool(saved)  # where nothing is saved yet, all that was trained would be lost

        if keep and self.interrupts.asked:
            say(f"saving at step {step}; another Ctrl-C leaves without it")
        if keep:
            problems = saved.insist(fleet, lambda: self._save(step), hurry)
            if problems and self.interrupts.asked:
                raise saved.lost(problems)
            self._warn(problems, "the embeddings themselves may find room")
        if config.valid and step not in (saved.best["step"], self.validated) and not self.interrupts.asked:
            self._validate(step)
        if self.interrupts.asked:
            hint = f"go on with: {saved.command}" if keep else "nothing was saved (--no_save_emb)"
            return self._interrupted(f"interrupted at step {step}; {hint}")
        if config.valid and keep and saved.best["step"] not in (0, step):
            best = saved.best
            if problems := saved.load_best(fleet):
                self._warn(problems, f"the embeddings of step {step} are kept")
            else:
                say(f"the embeddings of step {best['step']} are kept, which had the best validation MRR, {best['mrr']:.4f}")
        if keep:
            assemble = partial(self._task, "assemble", {0: [0]}, run=saved.run, settings=self._settings())
            if problems := saved.insist(fleet, assemble, hurry):
                raise saved.lost(problems)
        self.observer.say_speed()
        metrics, where = None, f"{config.save_path}/{saved.run} on {fleet.name(0)}"
        if config.test:
            try:
                metrics = self._evaluate("test")
            except KeyboardInterrupt:
                return self._interrupted(f"interrupted; saved in {where}" if keep else "interrupted")
            self.fleet.tell("write", [0], name="test.json", value=metrics)
            self.observer.write("test", step=step, **metrics["all"]["realistic"])
        memory = self.fleet.ask("memory", "memory", 60.0)
        listed = ", ".join(f"{value / 2**20:.0f} MiB" for _, value in sorted(memory.items()))
        say(f"memory: {listed}")
        say(f"saved in {where}" if keep else f"embeddings not saved (--no_save_emb); metrics in {where}")
        self.fleet.tell("end")
        return Result(None, False, metrics)

    def _interrupted(self, line: str) -> Result:
        say(line)
        self.fleet.tell("stop", leave=True)
        self.fleet.tell("end")
        return Result(None, True, None)


class _Remote:
    """metrics.jsonl on the first machine."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def write(self, kind: str, **values: Any) -> None:
        """See Rows."""
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **values}, ensure_ascii=False)
        self.fleet.tell("append", [0], name="metrics.jsonl", line=line)
