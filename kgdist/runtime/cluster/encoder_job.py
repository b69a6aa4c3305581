"""A training with a graph encoder on several machines, seen from the launcher: a script whose every process is a worker of it.

What workers do is `kgdist.runtime.gnn`; here they are started, watched and, when one is lost, all begun again at the last
checkpoint, as any script is (`kgdist.runtime.cluster.script_attempt`).
"""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal
import uuid
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError, UsageError, counted
from kgdist.base.files import read_json
from kgdist.base.log import complain, say
from kgdist.options.cluster import ReachOptions
from kgdist.options.config import Config
from kgdist.options.configfile import to_json
from kgdist.options.tools import LaunchOptions
from kgdist.partition.edges_folder import EdgePartition
from kgdist.partition.manifest import folder_of
from kgdist.runs import checkpoint
from kgdist.runs.rundir import JOB, resume_command
from kgdist.runtime.cluster.attempt import Connect, endure
from kgdist.runtime.cluster.script_attempt import ScriptAttempt
from kgdist.runtime.cluster.script_plan import TRAINER, ScriptPlan, argv_of
from kgdist.runtime.cluster.training_plan import partition_folder, run_folder
from kgdist.runtime.course import Result
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.job import last_words
from kgdist.runtime.share import check_partitions

SAVED = "saved"  # what the first worker calls when it has written a checkpoint, which is newer than where its attempt began
LEFT = 130  # the exit code of a worker that has saved because somebody wanted it to leave


def partition_of(config: Config) -> EdgePartition:
    """Partition 0, which says what all share. Raises CheckpointError."""
    return EdgePartition.open(partition_folder(config, 0))


def machines_for(config: Config) -> int:
    """How many machines so many workers of each want, one worker a partition. Raises CheckpointError, UsageError."""
    parts, workers = len(partition_of(config).manifest.common.contents), config.num_client_proc or 1
    if parts % workers:
        raise UsageError(f"--num_client_proc {workers}: {counted(parts, 'partition')} cannot be shared out evenly")
    return parts // workers


def plan_of(config: Config, machines: list[Machine]) -> ScriptPlan:
    """The plan of a new job. Raises KgdistError."""
    check_partitions(config, partition_of(config), config.num_proc * len(machines))
    run = uuid.uuid4().hex[:16]
    told = config.replace(path=".", ip_config=Config.ip_config)  # a worker begins in the workspace
    if config.resume:
        told = told.replace(resume=str(run_folder(told, config.resume)))
    words = ["python3", "-m", "kgdist.cli.gnn", json.dumps(to_json(told)), run]
    words.append(resume_command("kgdist-dist-train", run, config))
    shared = {each.name: getattr(config, each.name) for each in dataclasses.fields(ReachOptions)}
    options = LaunchOptions(
        **shared | {"transport_security": "none"},  # torch.distributed's own connections are what there is
        command=shlex.join(words),
        num_trainers=config.num_proc,
        num_omp_threads=config.num_thread,
        max_restarts=config.max_restarts,
        stall_timeout=config.stall_timeout,
        quiet=config.quiet,
        debug=config.debug,
    )
    return ScriptPlan(options, machines, run, 0, "", argv_of(options), security="none")


def describe(config: Config, plan: ScriptPlan) -> list[str]:
    """The plan in words."""
    part = partition_of(config)
    common = part.manifest.common
    lines = [f"{part.name}: {common.entities} entities, {common.relations} relations, {common.splits['train']} training triples"]
    for machine in plan.machines:
        ranks = plan.ranks(machine.number)
        own = ", ".join(f"partition_{n}: {common.sizes['core'][n]} triples" for n in ranks)
        lines.append(f"{machine.name}: {counted(len(ranks), 'worker')} ({own})")
    lines.append(f"all make the same step; what is lost is begun again up to {config.max_restarts} times (--max_restarts)")
    if len({machine.address for machine in plan.machines}) > 1:
        lines.append("gradients travel over torch.distributed, which does not encrypt them: on a network of your own")
    return lines


class EncoderAttempt(ScriptAttempt):
    """One attempt; its end is 0, or LEFT where the user wanted it to end."""

    def __init__(self, plan: ScriptPlan, interrupts: Interrupts, training: Config) -> None:
        super().__init__(plan, interrupts)
        self._training = training
        self._asked = self._left_early = False

    def again(self) -> EncoderAttempt:
        return EncoderAttempt(self.plan.again(), self.interrupts, self._training)

    @property
    def hint(self) -> str:
        return hint_of(self._training, self.plan.run) if self.began or self.plan.attempt else ""

    def run(self) -> int:
        with self.interrupts.immediate():
            self._begin()
        self._work()
        return LEFT if self._left_early else 0

    def _pump(self) -> None:
        if self.interrupts.asked and not self._asked:
            self._asked = True
            say("interrupted: the workers finish their step and save; another Ctrl-C quits without saving")
            self.fleet.tell("stop", leave=True)
        super()._pump()

    def news(self, machine: int, kind: str, value: Any) -> None:
        if kind == "call" and value["what"] == SAVED:
            self.progressed = True
            return
        if kind == "line" and value["error"] and value["text"].startswith("error: "):
            return  # it is told again with the worker's end
        if kind == "line" and value["who"] == f"{TRAINER} 0":  # which speaks for all
            (complain if value["error"] else say)(value["text"])
            return
        if kind == "exit" and (value["code"] == LEFT or (self._asked and value["code"] == -signal.SIGTERM)):  # not begun yet
            self._left_early = True
            value = value | {"code": 0}
        if kind == "exit":
            value = value | {"why": value["why"].removeprefix("error: ")}
        super().news(machine, kind, value)


def launch(config: Config, machines: list[Machine], connect: Connect, interrupts: Interrupts) -> Result:
    """Train as `config` says (already resolved) on `machines`, whose agents `connect` starts.

    Raises KgdistError; PeersLost (exit code 3) when a worker or a machine was lost too often.
    """
    plan = plan_of(config, machines)
    if not config.quiet:
        for line in describe(config, plan):
            say(line)
    code = endure(EncoderAttempt(plan, interrupts, config), connect, interrupts)
    folder = found(config, plan.run)
    metrics = folder / "test.json" if folder is not None else None
    tested = config.test and metrics is not None and metrics.exists() and code == 0
    return Result(folder, code == LEFT, read_json(metrics) if tested and metrics is not None else None)


def found(config: Config, run: str) -> Path | None:
    """The run folder, where this machine can read it."""
    for path in run_folder(config).glob(f"*/{JOB}"):
        try:
            if read_json(path) == {"run": run}:
                return path.parent
        except CheckpointError:
            continue
    return None


def newest(folder: Path) -> int | None:
    """The step of the newest checkpoint of a run folder, where there is one."""
    return max((step for step, _ in checkpoint.numbered(folder)), default=None)


def hint_of(config: Config, run: str) -> str:
    """How to go on with a training that has not come to its end, where this machine can read its run folder."""
    folder = found(config, run)
    return "" if folder is None else last_words(newest(folder), resume_command("kgdist-dist-train", folder.name, config))


def folders_of(config: Config, machines: list[Machine]) -> list[tuple[Machine, Path]]:
    """Which partitions go to which machine: as many to each. Raises UsageError."""
    parts = len(partition_of(config).manifest.common.contents)
    if parts % len(machines):
        lists = f"--ip_config lists {counted(len(machines), 'machine')}"
        raise UsageError(f"{lists}, among which {counted(parts, 'partition')} cannot be shared out evenly")
    each = parts // len(machines)
    root = partition_folder(config, 0).parent
    return [(machine, folder_of(root, machine.number * each + n)) for machine in machines for n in range(each)]
