"""What the processes of a machine do in a training on several machines: a server serves, a trainer trains and does its share of
what happens in between. Both get their job from the machine's agent (`kgdist.runtime.agent.training_site`) and map its tables.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import KgdistError, PeersLost
from kgdist.base.files import write_json
from kgdist.base.log import log
from kgdist.base.machine import keep_freed_memory
from kgdist.evaluation.shared import SharedEvaluator, pieces
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.server import Server
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.kvstore.tables import Ids, MemoryTables
from kgdist.kvstore.wire import USER, Keys, Transport
from kgdist.models.registry import model_of
from kgdist.options.configfile import to_json
from kgdist.partition.folder import Partition
from kgdist.runs import rundir
from kgdist.runtime.cluster.training_plan import TrainingPlan, run_folder
from kgdist.runtime.job import meetings_of, trainer_of
from kgdist.runtime.processes.child import Owner
from kgdist.runtime.processes.control import ALIVE, BEAT, SharedControl, WorkerControl
from kgdist.version import __version__

BLOCK = 1 << 22  # numbers of a table that are moved at a time: 16 MB


def identity_of(plan: TrainingPlan) -> Identity:
    """What all processes of an attempt share."""
    return Identity(__version__, plan.run, plan.attempt, plan.config_hash, plan.graph)


def transport_of(plan: TrainingPlan, keys: dict[str, Any] | None) -> Transport:
    """Makes the sockets of a process; `keys`: what it shows and admits, as JSON."""
    longest = 4 * max(width for _, width in plan.shapes.values())
    given = None if keys is None else Keys.from_json(keys)
    return Transport(given, plan.config.peer_timeout, user=plan.security == USER, row_bytes=longest)


def serve(job: dict[str, Any], owner: Owner) -> None:
    """Be a server until the owner ends it."""
    keep_freed_memory()
    plan, number = TrainingPlan.from_json(job["plan"]), int(job["server"])
    lease(SharedControl.attach(job["control"]), plan.config.peer_timeout)
    torch.set_num_threads(1)
    tables = MemoryTables.attach(job["tables"], plan.config.optimizer)
    counters = SharedArray.attach(job["counters"]).array[job["index"]]
    transport = transport_of(plan, job["keys"])
    wire = transport.server(*plan.addresses[number], name_of(number))
    given: dict[str, Any] = {"transport": transport, "counters": counters, "clients": plan.trainers}
    server = Server(number, plan.layout(), tables, identity_of(plan), wire, **given)
    owner.send(ready=True)
    try:
        server.serve(lambda: owner.receive(0.0001) is not None)
    finally:
        transport.close()


def train(job: dict[str, Any], owner: Owner) -> int:
    """Be a trainer: train, then do what else is asked for, until told to end."""
    keep_freed_memory()
    plan, machine, rank = TrainingPlan.from_json(job["plan"]), int(job["machine"]), int(job["rank"])
    config = plan.config
    if config.debug:
        owner.say(f"trainer {rank} has the options {json.dumps(to_json(config))}")
    torch.set_num_threads(config.num_thread)
    shared = SharedControl.attach(job["control"])
    lease(shared, config.peer_timeout)
    partition = Partition.open(plan.partition(machine))
    local = MemoryTables.attach(job["tables"], config.optimizer)
    transport = transport_of(plan, job["keys"])
    tables = StoreTables(
        plan.layout(),
        plan.addresses,
        transport,
        identity_of(plan),
        client=machine * config.num_proc + rank,
        incarnation=int(job["incarnation"]),
        machine=machine,
        local=local,
        transport_dtype=config.transport_dtype,
        pull_ahead=config.pull_ahead,
        max_inflight=config.max_inflight,
        peer_timeout=config.peer_timeout,
    )
    tasks = Tasks(plan, machine, rank, partition, tables, owner)
    control = RemoteControl(shared, rank, meetings_of(config), owner.say, tasks)
    tasks.alive, tasks.leaving = control.alive, shared.leaving
    try:
        trainer = trainer_of(config, partition.train, tables, rank, plan.seat(machine), types=partition.types)
        steps = trainer.run(control, control.start)
        if (done := steps - control.start) > 0 and not config.quiet:
            sent, received = (moved / done / 1024 for moved in tables.traffic())
            owner.say(f"[proc {rank}] network: {sent:,.0f} KB sent and {received:,.0f} KB received a step")
        owner.send(trained=steps)
        tasks.serve()
    finally:
        tables.close()
        transport.close()
    return steps


def lease(shared: SharedControl, seconds: float) -> None:
    """End this process when the machine's agent shows no life for so long: one that is frozen, or hangs, cannot end us.

    The job goes on without it, perhaps on this machine and on our port. Only time in which this process runs counts.
    """

    def watch() -> None:
        beat, missed = -1, 0
        while True:
            time.sleep(seconds / 10)
            beat, missed = int(shared.header[BEAT]), 0 if shared.header[BEAT] != beat else missed + 1
            if missed > 10:
                log.error("nothing heard from the agent of this machine for %g s; this process ends", seconds)
                os._exit(3)

    threading.Thread(target=watch, name="kgdist-lease", daemon=True).start()


class RemoteControl(WorkerControl):
    """See WorkerControl. Trainers that wait do their tasks meanwhile."""

    def __init__(
        self, shared: SharedControl, rank: int, meeting: Callable[[int], bool], say: Callable[[str], None], tasks: Tasks
    ) -> None:
        super().__init__(shared, rank, meeting, say)
        self.tasks = tasks

    def alive(self) -> None:
        """Show that something is being done."""
        self.mine[ALIVE] += 1

    def arrive(self, step: int) -> None:
        """See WorkerControl; a word that wakes the agent, which looks at the number."""
        super().arrive(step)
        self.tasks.owner.send(arrived=step)

    def idle(self) -> None:
        self.tasks.one(0.002)


class Tasks:
    """What a trainer does when it does not train: commands `{"what": name of a method, "number": n, ...its arguments}`."""

    def __init__(
        self, plan: TrainingPlan, machine: int, rank: int, partition: Partition, tables: StoreTables, owner: Owner
    ) -> None:
        self.plan, self.machine, self.rank = plan, machine, rank
        self.partition, self.tables, self.owner = partition, tables, owner
        self.alive: Callable[[], None] = lambda: None
        self.leaving: Callable[[], bool] = lambda: False
        self._evaluator: SharedEvaluator | None = None

    def serve(self) -> None:
        """Do what is asked for until told to end; the owner's end is this process's."""
        while self.one(1.0):
            pass

    def one(self, seconds: float) -> bool:
        """Do one thing if it is asked for in time; False when told to end."""
        if (task := self.owner.receive(seconds)) is None:
            return True
        what, number = task.pop("what"), task.pop("number")
        if what == "end":
            return False
        problem = ""
        try:
            (self.evaluate if what == "evaluate" else self.assemble)(**task)
        except PeersLost:
            raise
        except KgdistError as error:  # rows that cannot be ranked, a full disk: the rows are where they were
            problem = str(error)
        self.owner.send(finished=number, problem=problem)
        return True

    def evaluate(self, split: str) -> None:
        """Rank this process's share of a split; ends without a result when all are to leave."""
        if self._evaluator is None:
            self._evaluator = SharedEvaluator(self.partition, self.plan.config)
        evaluator = self._evaluator
        share = self.machine * self.plan.config.num_proc + self.rank
        span = evaluator.share(split, share, self.plan.trainers)
        if span[0] == span[1]:
            return
        first = self.plan.seat(self.machine).start(self.rank, self.plan.config.num_proc)
        tables = Beating(self.tables, self.alive, self.leaving)
        try:
            ranks = evaluator.rank(model_of(self.plan.config), tables, split, span, first)
        except Left:
            return
        for piece in pieces(ranks, span, len(evaluator.triples(split))):
            self.owner.send(result=piece)

    def assemble(self, run: str, settings: dict[str, Any]) -> None:
        """Write the embeddings of all machines, in original ids, and what reading them needs; the first machine's work."""
        config = self.plan.config
        folder = run_folder(config, run)
        entities, relations = self.partition.vocabularies()
        entities.write_tsv(folder / "entities.tsv")
        relations.write_tsv(folder / "relations.tsv")
        model, originals = model_of(config), {"entity": self.partition.originals()}
        for table, name in rundir.array_names(config).items():
            places = model.rows_of(table, originals.get(table, self.partition.book.original_relations()))
            rundir.save_rows(folder / name, self.tables.shape(table), self._blocks(table, places), lambda _: self.alive())
        write_json(folder / "config.json", settings)

    def _blocks(self, table: str, places: np.ndarray) -> Any:
        """(int[n] where they are written, float32[n, width]) of all rows, some at a time."""
        rows, width = self.tables.shape(table)
        step = max(1, BLOCK // width)
        spans = [(start, min(start + step, rows)) for start in range(0, rows, step)]
        for (start, stop), block in zip(spans, self.tables.blocks(table, spans), strict=True):
            self.alive()
            yield places[start:stop], block.numpy()


class Left(Exception):
    """All are to leave."""


class Beating:
    """Tables for an evaluation: they show life whenever they are read, for it makes no steps, and its threads take turns.

    Raises Left, instead of reading, when all are to leave.
    """

    def __init__(self, tables: StoreTables, alive: Callable[[], None], leaving: Callable[[], bool]) -> None:
        self.tables, self._beat, self._leaving, self._lock = tables, alive, leaving, threading.Lock()
        self.push, self.ahead, self.local = tables.push, tables.ahead, tables.local
        self.shape, self.names, self.flush = tables.shape, tables.names, tables.flush

    def _alive(self) -> None:
        if self._leaving():
            raise Left
        self._beat()

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        self._alive()
        with self._lock:
            return self.tables.pull(name, ids, out)

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        self._alive()
        with self._lock:
            return self.tables.block(name, start, stop)

    def blocks(self, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[torch.Tensor]:
        found = self.tables.blocks(name, spans)
        while True:
            self._alive()
            with self._lock:
                rows = next(found, None)
            if rows is None:
                return
            yield rows
