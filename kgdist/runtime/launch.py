"""A whole training on several machines, seen from the launcher: from options to a saved and tested run on the first machine.

The course is that of `kgdist.runtime.local`: the same loop runs in every trainer, and what happens while all of it stands still
(validation, checkpoint, the end) is decided here and done there. An attempt ends when a server or a machine is lost; the next one
begins at the last checkpoint that is whole on every machine, exactly as --resume does.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import numpy as np

from kgdist import __version__
from kgdist.config import Config
from kgdist.configfile import read_run, run_json
from kgdist.errors import KgdistError, OptionError, PeersLost, UsageError
from kgdist.kvstore.security import Keys, curve_wanted
from kgdist.log import log, say
from kgdist.partition.folder import Partition
from kgdist.runtime.cluster import Machine
from kgdist.runtime.fleet import AttemptFailed, Fleet
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import meetings_of
from kgdist.runtime.local import Result
from kgdist.runtime.observe import Observer
from kgdist.runtime.plan import Plan, partition_folder, workspace
from kgdist.runtime.start import NEVER
from kgdist.shared_evaluator import Collected, SharedEvaluator

Connect = Callable[[], Fleet]
OPENING = 600.0  # seconds to fill the rows and start the servers, besides what the tables take
GRACE = 15.0  # seconds that agents have to end their processes


def launch(config: Config, machines: list[Machine], connect: Connect, interrupts: Interrupts) -> Result:
    """Train as `config` says (already resolved) on `machines`, whose agents `connect` starts.

    Raises KgdistError; PeersLost (exit code 3) when a machine was lost and could not be replaced.
    """
    plan, partition = plan_of(config, machines)
    if config.transport_security == "none" and not all(machine.loopback for machine in machines):
        log.warning("--transport_security none: whoever reaches the servers' ports can read and change the embeddings")
    if not config.quiet:
        for line in describe(plan, partition):
            say(line)
    run, lost = config.resume or "", 0
    best = dict(NEVER)
    while True:
        attempt = Attempt(plan, partition, run, best, interrupts)
        try:
            with attempt.connected(connect):
                return attempt.run()
        except AttemptFailed as error:
            run, best, lost = attempt.run_name or run, attempt.best, lost + 1
            where = f"; go on with: kgdist-dist-train --resume {run}" if run and attempt.saved else ""
            if interrupts.asked or lost > config.max_restarts or not attempt.began:
                raise PeersLost(f"{error}{where}") from error
            log.warning("%s; attempt %d of %d follows", error, lost + 1, config.max_restarts + 1)
            plan = plan.again()
            time.sleep(min(2.0, config.peer_timeout))  # ports become free


def plan_of(config: Config, machines: list[Machine]) -> tuple[Plan, Partition]:
    """The plan of a new job, and partition 0, which knows what the partitions share. Raises KgdistError."""
    partition = Partition.open(partition_folder(config, 0))
    check(config, machines, partition)
    secure = curve_wanted(config.transport_security, [machine.address for machine in machines])
    plan = Plan(
        config=config,
        machines=machines,
        run=uuid.uuid4().hex[:16],
        attempt=0,
        graph=partition.graph,
        book=partition.book,
        triples=sum(partition.manifest.common.triples),
        keys=Keys.make().to_json() if secure else None,
    )
    return plan, partition


def resumed(config: Config, over: Callable[[Config], Config]) -> Config:
    """The options of the run `--resume` with the user's own `over` them, where its folder can be read from here.

    A launcher elsewhere than on the first machine, or on its file system, has to be given the same options again.
    """
    name = Path(str(config.resume)).name
    folder = workspace(config) / Path(config.save_path).expanduser() / name
    if not (folder / "config.json").exists():
        log.warning("%s: no config.json here, so the options are taken from the command line alone", folder)
        return config.replace(resume=name)
    saved = read_run(folder)
    for option in ("model_name", "dataset"):
        if getattr(over(saved), option) != getattr(saved, option):
            raise OptionError(f"--{option}", "cannot change when a run is resumed")
    return over(saved).replace(resume=name, path=config.path)


def sourced(config: Config, explicit: Collection[str]) -> Config:
    """With the options that the partitions' data set was read with. Raises KgdistError where --format contradicts them."""
    partition = Partition.open(partition_folder(config, 0))
    source = partition.manifest.common.source
    if "format" in explicit and config.format != source.get("format", config.format):
        message = f"the partitions of {partition.name} were made from {source['format']}; drop it, or partition again"
        raise OptionError("--format", message)
    return config.replace(**source)


def tell_plan(config: Config, machines: list[Machine]) -> None:
    """Print what a launch would do (`--dry_run`)."""
    for line in describe(*plan_of(config, machines)):
        say(line)


def check(config: Config, machines: list[Machine], partition: Partition) -> None:
    """Refuse what the machines, the partition and the options together cannot be. Raises OptionError."""
    parts = partition.book.parts
    if parts != len(machines):
        message = f"lists {len(machines)} machines, but {partition.name} is in {parts} partitions; make as many partitions (-k)"
        raise OptionError("--ip_config", message)
    if config.has_edge_importance and partition.train.weights is None:
        raise OptionError("--has_edge_importance", f"the partitions of {partition.name} were made without weights")
    for flag in ("valid", "test"):
        if getattr(config, flag) and not len(partition.splits.get(flag, ())):
            raise OptionError(f"--{flag}", f"{partition.name} has no {flag} triples; drop the flag")


def describe(plan: Plan, partition: Partition) -> list[str]:
    """The plan in words."""
    config, book, triples = plan.config, plan.book, partition.manifest.common.triples
    lines = [f"{partition.name}: {book.num_entities} entities, {book.num_relations} relations, {plan.triples} training triples"]
    for machine in plan.machines:
        n = machine.number
        ports = f"{machine.ports[0]}" + (f"-{machine.ports[-1]}" if machine.servers > 1 else "")
        rows = int(book.entities[n + 1] - book.entities[n])
        what = f"{machine.servers} servers on port {ports}, {config.num_proc} trainers, {rows} entities, {triples[n]} triples"
        lines.append(f"{machine.name}: {what}, {plan.memory_of(n) / 1e6:,.0f} MB of rows")
    way = "encrypted (CURVE)" if plan.keys else "open"
    lines.append(f"{plan.trainers} trainers x {plan.steps} steps; connections are {way}; rows travel as {config.transport_dtype}")
    return lines


class Attempt:
    """One attempt at a job, from connecting to the end."""

    def __init__(self, plan: Plan, partition: Partition, run: str, best: dict[str, Any], interrupts: Interrupts) -> None:
        self.plan, self.config, self.partition, self.interrupts = plan, plan.config, partition, interrupts
        self.run_name, self.best = run, best
        self.began = self.saved = False
        self.evaluator = SharedEvaluator(partition, plan.config)
        self.meeting = meetings_of(plan.config)
        count = len(plan.machines)
        self.steps = np.zeros((count, plan.config.num_proc), np.int64)
        self._positives, self._sums = np.zeros(count, np.int64), np.zeros((count, 4))
        self._arrived: dict[int, int] = {}
        self._trained: dict[int, list[int]] = {}
        self._collected: Collected | None = None
        self._unfinished: set[tuple[int, int]] = set()
        self._tasks = 0
        self.validated = 0
        self.early = False

    @contextlib.contextmanager
    def connected(self, connect: Connect) -> Any:
        """Have the agents while the block runs; they are gone after it."""
        self.fleet = connect()
        self.fleet.news, self.fleet.quiet = self._news, self.config.quiet
        calm = False
        try:
            yield self
            calm = True
        finally:
            self.fleet.close(grace=GRACE if calm else 1.0)

    def run(self) -> Result:
        """The whole course. Raises AttemptFailed, KgdistError."""
        config, fleet = self.config, self.fleet
        fleet.hello(60.0)
        plan = self.plan.to_json()
        for n in range(len(self.plan.machines)):
            fleet.tell("check", [n], plan=plan, machine=n, lease=config.peer_timeout, run=self.run_name, debug=config.debug)
        answers = fleet.gather("checked", list(range(len(self.plan.machines))), None)
        found = [f"{fleet.name(n)}: {line}" for n, answer in sorted(answers.items()) for line in answer["problems"]]
        if found:
            for line in found[:-1]:
                log.error("%s", line)
            raise UsageError(f"{found[-1]} ({len(found)} problem{'s' * (len(found) > 1)}; nothing was started)")
        resume = self._last_complete(answers)
        opening = OPENING + 4e-9 * max(self.plan.memory_of(n) for n in range(len(self.plan.machines)))
        if not self.run_name:
            self.run_name = fleet.ask("opened", "open", opening, [0], run="", resume=None)[0]
            others = list(range(1, len(self.plan.machines)))
            fleet.ask("opened", "open", opening, others, run=self.run_name, resume=None)
        else:
            fleet.ask("opened", "open", opening, run=self.run_name, resume=resume)
        fleet.tell("write", [0], name="config.json", value=self._settings())
        self._await_servers()
        where = f"{config.save_path}/{self.run_name} on the first machine"
        if not config.quiet:
            say(f"run folder: {where}" if resume is None else f"resumed {where} at step {resume} of {self.plan.steps}")
        return self._course(resume)

    def _last_complete(self, answers: dict[int, Any]) -> int | None:
        """The newest step of which every machine has a checkpoint, all of them of one attempt. Raises UsageError."""
        if not self.run_name:
            return None
        per_machine = [{(step, stamp): best for step, stamp, best in answer["checkpoints"]} for answer in answers.values()]
        common = set.intersection(*(set(found) for found in per_machine))
        if not common:
            if self.plan.attempt:
                return None  # nothing was saved before the loss: from the beginning
            raise UsageError(f"--resume {self.run_name}: no checkpoint of it is whole on all {len(answers)} machines")
        step, stamp = max(common)
        self.best = per_machine[0][step, stamp] | {} if self.plan.attempt == 0 else self.best
        self.saved = True
        return int(step)

    def _await_servers(self) -> None:
        self.fleet.gather("ready", list(range(len(self.plan.machines))), 60.0)

    # ---- the course

    def _course(self, resume: int | None) -> Result:
        config, fleet = self.config, self.fleet
        total = self.plan.steps * self.plan.trainers
        initial = (resume or 0) * self.plan.trainers
        self.observer = Observer(config, None, total=total, initial=initial, world=self.plan.trainers, metrics=_Remote(fleet))
        try:
            fleet.tell("train")
            self.began = True
            stopped = False
            while len(self._trained) < len(self.plan.machines):
                fleet.pump(0.02)
                self.observer.update(int(self.steps.sum()), int(self._positives.sum()), self._sums.sum(0))
                if (self.interrupts.asked or self.early) and not stopped:
                    stopped = True
                    fleet.tell("stop")
                waiting = [self._arrived.get(n, 0) for n in range(len(self.plan.machines)) if n not in self._trained]
                if waiting and min(waiting) > 0 and not stopped:
                    self._meet(min(waiting))
            self.observer.pause()
            self.observer.bar.close()
            return self._finish()
        finally:
            self.observer.close()

    def _meet(self, step: int) -> None:
        """All trainers stand still after `step` steps."""
        config = self.config
        self._arrived.clear()
        self.observer.pause()
        if config.valid and step % config.eval_interval == 0 and not self.interrupts.asked:
            self._validate(step)
        if config.checkpoint_interval and step % config.checkpoint_interval == 0 and not config.no_save_emb:
            self._checkpoint(step)
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

    def _task(self, what: str, trainers: dict[int, list[int]], **more: Any) -> None:
        """Let trainers (machine -> ranks) do something, and wait for all of them."""
        self._tasks += 1
        self._unfinished = {(machine, rank) for machine, ranks in trainers.items() for rank in ranks}
        for machine, ranks in trainers.items():
            self.fleet.tell("task", [machine], what={"what": what, "number": self._tasks, **more}, ranks=ranks)
        while self._unfinished:
            self.fleet.pump(0.05)

    def _evaluate(self, split: str) -> dict[str, Any]:
        started = time.perf_counter()
        self._collected = Collected(self.evaluator.triples(split))
        everyone = list(range(self.config.num_proc))
        try:
            self.interrupts.at_once = True
            self._task("evaluate", dict.fromkeys(range(len(self.plan.machines)), everyone), split=split)
        finally:
            self.interrupts.at_once = False
        if not self._collected.complete:
            raise KgdistError(f"{split}: some queries came back without a rank")
        return self.evaluator.tell(self._collected.ranks, split, time.perf_counter() - started)

    def _validate(self, step: int) -> None:
        try:
            report = self._evaluate("valid")
        except KeyboardInterrupt:
            return  # the trainers stop and save
        mrr, self.validated = report["all"]["realistic"]["mrr"], step
        self.observer.write("valid", step=step, **report["all"]["realistic"])
        self.fleet.tell("write", [0], name="valid.json", value=report | {"step": step})
        if mrr > self.best["mrr"]:
            if not self.config.no_save_emb and not self._save(step, {"mrr": mrr}, "best"):
                return
            self.best = {"mrr": mrr, "step": step, "waited": 0}
            return
        self.best["waited"] += 1
        if 0 < self.config.early_stop_patience <= self.best["waited"] and step < self.plan.steps:
            say(f"early stop at step {step}: no better MRR than {self.best['mrr']:.4f} at step {self.best['step']}")
            self.early = True

    def _checkpoint(self, step: int) -> None:
        self.saved = self._save(step, {"best": self.best}, None) or self.saved

    def _save(self, step: int, meta: dict[str, Any], name: str | None) -> bool:
        """Whether all machines could save."""
        answers = self.fleet.ask("saved", "save", None, step=step, meta=meta, name=name)
        bad = [f"{self.fleet.name(n)}: {answer['problem']}" for n, answer in answers.items() if answer["problem"]]
        for line in bad:
            log.warning("%s; training goes on", line)
        return not bad

    def _settings(self) -> dict[str, Any]:
        """What config.json holds: with it, kgdist-eval reads data and model on the first machine as on any other."""
        data = str(workspace(self.config).absolute() / Path(self.config.data_path).expanduser())
        return run_json(self.config.replace(data_path=data), version=__version__)

    # ---- the end

    def _finish(self) -> Result:
        config, interrupted, keep = self.config, self.interrupts.asked, not self.config.no_save_emb
        step = min(done for steps in self._trained.values() for done in steps)
        if keep:
            self._checkpoint(step)
        if interrupted:
            hint = f"go on with: kgdist-dist-train --resume {self.run_name}" if keep else "nothing was saved (--no_save_emb)"
            say(f"interrupted at step {step}; {hint}")
            self.fleet.tell("end")
            return Result(None, True, None)
        if config.valid and step not in (self.best["step"], self.validated):
            self._validate(step)
        if config.valid and keep and self.best["step"] not in (0, step):
            self.fleet.ask("loaded", "best", None)
            say(f"the embeddings of step {self.best['step']} are kept, which had the best validation MRR, {self.best['mrr']:.4f}")
        if keep:
            self._task("assemble", {0: [0]}, run=self.run_name, settings=self._settings())
        self.observer.say_speed()
        metrics = None
        if config.test:
            metrics = self._evaluate("test")
            self.fleet.tell("write", [0], name="test.json", value=metrics)
            self.observer.write("test", step=step, **metrics["all"]["realistic"])
        memory = self.fleet.ask("memory", "memory", 60.0)
        listed = ", ".join(f"{value / 2**20:.0f} MiB" for _, value in sorted(memory.items()))
        say(f"memory: {listed}")
        where = f"{config.save_path}/{self.run_name} on {self.fleet.name(0)}"
        say(f"saved in {where}" if keep else f"embeddings not saved (--no_save_emb); metrics in {where}")
        self.fleet.tell("end")
        return Result(None, False, metrics)


class _Remote:
    """metrics.jsonl on the first machine."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet

    def write(self, kind: str, **values: Any) -> None:
        """See Rows."""
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **values}, ensure_ascii=False)
        self.fleet.tell("append", [0], name="metrics.jsonl", line=line)
