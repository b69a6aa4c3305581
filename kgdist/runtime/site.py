"""One machine's part of a job: its rows, its servers and its trainers. The agent's work, without its conversation.

The rows lie once in shared memory. Servers and trainers are children (`kgdist.runtime.child`) that map it; they end with this
process. A trainer that is killed is started again where it stood; a server that is lost ends the attempt, for the pushes that it
had confirmed since the last checkpoint may be half of a step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kgdist import checkpoint
from kgdist.errors import CheckpointError
from kgdist.kvstore.tables import MemoryTables
from kgdist.log import log
from kgdist.partition.folder import Partition
from kgdist.runtime import child as children
from kgdist.runtime.child import Child, Event
from kgdist.runtime.control import ALIVE, ARRIVED, BEAT, DONE, POSITIVES, RELEASED, STOP, SharedControl
from kgdist.runtime.job import model_of
from kgdist.runtime.memory import used_now
from kgdist.runtime.plan import Plan, workspace
from kgdist.runtime.start import at_random
from kgdist.runtime.workers import STALL

Tell = Callable[..., None]


class Failure(Exception):
    """The attempt is over. `recoverable`: another one, from the last checkpoint, may fare better."""

    def __init__(self, what: str, *, recoverable: bool, code: int = 1) -> None:
        super().__init__(what)
        self.recoverable = recoverable
        self.code = code


class Site:
    """What runs on machine `number`. `tell` sends an event to the launcher."""

    def __init__(self, plan: Plan, number: int, tell: Tell, *, stall: float = STALL) -> None:
        self.plan, self.number, self.tell, self.stall = plan, number, tell, stall
        self.config = plan.config
        self.partition = Partition.open(plan.partition(number))
        self.machine = plan.machines[number]
        self.tables: MemoryTables | None = None
        self.control: SharedControl | None = None
        self.servers: list[Child] = []
        self.trainers: list[Child] = []
        self.done: dict[int, int] = {}  # trainer -> steps, of those that have trained to the end
        self.run = ""
        self._ready: set[int] = set()  # servers
        self._incarnations = [1] * self.config.num_proc
        self._tasks: dict[int, dict[str, Any]] = {}  # what each trainer has not finished, besides training
        self._arrived = 0
        self._moved = np.full(self.config.num_proc, time.monotonic())
        self._alive = np.zeros(self.config.num_proc, np.int64)
        self._told = 0.0

    # ---- rows

    def folder(self, run: str) -> Path:
        """The run folder on this machine."""
        return workspace(self.config) / Path(self.config.save_path).expanduser() / run

    def shard(self, run: str) -> Path:
        """Where this machine keeps its checkpoints: machines may share a file system."""
        return self.folder(run) / f"machine_{self.number}"

    def fill(self, run: str, resume: int | None) -> None:
        """Make the tables: at random, or as of the checkpoint of step `resume`. Raises KgdistError."""
        shapes, model, layout = self.plan.shapes_of(self.number), model_of(self.config), self.plan.layout()
        self.tables = MemoryTables.create(shapes, self.config.optimizer, shared=True, huge=self.config.huge_pages)
        self.control = SharedControl.create(self.config.num_proc)
        self.shard(run).mkdir(parents=True, exist_ok=True)
        if resume is None:
            for name in self.tables.names():
                first, _ = layout.machine_range(name, self.number)
                at_random(self.config, model, self.tables, name, first=first, total=self.plan.shapes[name][0])
            return
        saved = checkpoint.load(self.shard(run) / f"ckpt-{resume}")
        self.load(saved.arrays)
        steps = [int(step) for step in saved.meta["steps"]]
        if len(steps) != self.config.num_proc:  # other workers than before share what has been done
            steps = [sum(steps) // self.config.num_proc] * self.config.num_proc
        self.control.workers[:, DONE] = steps

    def share(self) -> dict[str, Any]:
        """What `attach` needs in a process of this machine that was started by somebody else."""
        assert self.tables is not None and self.control is not None
        return {"tables": self.tables.handles(os.getpid()), "control": self.control.handles(os.getpid())}

    def attach(self, shared: dict[str, Any]) -> None:
        """Take the tables of the process that has filled them, instead of filling some. Raises KgdistError."""
        self.tables = MemoryTables.attach(shared["tables"], self.config.optimizer)
        self.control = SharedControl.attach(shared["control"])

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Overwrite rows and state. Raises CheckpointError when they are of another shape."""
        assert self.tables is not None
        shapes = {key: array.shape for key, array in self.tables.arrays().items()}
        for key, array in arrays.items():
            if shapes.get(key) != array.shape:
                raise CheckpointError(f"checkpoint: {key} is {array.shape}, but these options make it {shapes.get(key)}")
        self.tables.load(arrays)

    def save(self, run: str, step: int, meta: dict[str, Any], name: str | None = None) -> None:
        """Write a checkpoint of this machine's rows; with a `name`, of the rows alone. Raises KgdistError."""
        assert self.tables is not None and self.control is not None
        arrays = self.tables.arrays()
        if name is not None:
            arrays = {key: array for key, array in arrays.items() if "." not in key}
        steps = [int(done) for done in self.control.workers[:, DONE]]
        checkpoint.save(self.shard(run), step, arrays, meta | {"steps": steps, "stamp": self.plan.stamp}, name=name)

    def best(self, run: str) -> None:
        """Take the best rows seen so far."""
        self.load(checkpoint.load(self.shard(run) / "best").arrays)

    def checkpoints(self, run: str) -> list[list[Any]]:
        """[step, stamp, best validation so far] of every checkpoint here that is whole, newest first."""
        found: list[list[Any]] = []
        for step, path in checkpoint.numbered(self.shard(run)):
            try:
                meta = checkpoint.load(path).meta
                found.append([step, str(meta.get("stamp")), meta.get("best", {})])
            except CheckpointError as error:
                log.warning("%s; it is passed over", error)
        return found

    # ---- processes

    def serve(self) -> None:
        """Start the servers; each says when it can be reached."""
        layout = self.plan.layout()
        for number in layout.servers_of(self.number):
            child = self._child(f"server-{number}")
            child.send(self._job("server", server=number))
            self.servers.append(child)

    def train(self, run: str) -> None:
        """Start the trainers."""
        for rank in range(self.config.num_proc):
            self.trainers.append(self._trainer(rank, run))
        self._moved[:] = time.monotonic()
        self.run = run

    def _trainer(self, rank: int, run: str) -> Child:
        child = self._child(f"trainer-{self.number}-{rank}")
        child.send(self._job("trainer", rank=rank, run=run, incarnation=self._incarnations[rank]))
        return child

    def _child(self, name: str) -> Child:
        assert self.tables is not None and self.control is not None
        handles = [*self.tables.handles().values(), *self.control.handles()]
        return Child([handle["fd"] for handle in handles], threads=self.config.num_thread, name=name)

    def _job(self, role: str, **more: Any) -> dict[str, Any]:
        assert self.tables is not None and self.control is not None
        return {
            "role": role,
            "plan": self.plan.to_json(),
            "machine": self.number,
            "tables": self.tables.handles(),
            "control": self.control.handles(),
            **more,
        }

    def task(self, what: dict[str, Any], ranks: list[int]) -> None:
        """Let trainers do something besides training: now if they wait, or when they have trained."""
        for rank in ranks:
            self._tasks[rank] = what
            self.trainers[rank].send(what)

    def release(self, step: int) -> None:
        """Let trainers that wait at `step` go on."""
        assert self.control is not None
        self._moved[:] = time.monotonic()
        self.control.release(step)

    def stop(self) -> None:
        """Let trainers end before their next step."""
        if self.control is not None:
            self.control.stop()

    # ---- watching

    def look(self) -> None:
        """See what the children have said and done, and tell what is new. Raises Failure."""
        if self.control is None:
            return
        for index, child in enumerate(self.servers):
            for event in child.events():
                self._hear_server(index, event)
        if not self.trainers:
            return
        self.control.header[BEAT] += 1
        for rank in range(len(self.trainers)):
            for event in self.trainers[rank].events():
                self._hear_trainer(rank, event)
        self._check_progress()
        now = time.monotonic()
        if now - self._told > 0.25:
            self._told = now
            workers = self.control.workers
            sums = self.control.sums.sum(0).tolist()
            self.tell(progress={"steps": workers[:, DONE].tolist(), "positives": int(workers[:, POSITIVES].sum()), "sums": sums})
        arrived = [int(workers[ARRIVED]) for rank, workers in enumerate(self.control.workers) if rank not in self.done]
        if arrived and min(arrived) > max(self._arrived, int(self.control.header[RELEASED])):
            self._arrived = min(arrived)
            self.tell(arrived=self._arrived)

    def _hear_server(self, index: int, event: Event) -> None:
        who = f"server {index}"
        if "ready" in event:
            self._ready.add(index)
            if len(self._ready) == len(self.servers):
                self.tell(ready=True)
        elif "say" in event:
            self.tell(say=event["say"])
        elif "lost" in event:
            raise Failure(f"{who} {event['lost']}", recoverable=True)
        elif "error" in event:
            self._show(who, event)
            raise Failure(f"{who} failed: {event['error']}", recoverable=False, code=event["code"])

    def _hear_trainer(self, rank: int, event: Event) -> None:
        who = f"trainer {rank}"
        if "say" in event:
            self.tell(say=event["say"])
        elif "trained" in event:
            self.done[rank] = event["trained"]
            if len(self.done) == len(self.trainers):
                self.tell(trained=[self.done[number] for number in range(len(self.trainers))])
        elif "result" in event:
            self.tell(result=event["result"])
        elif "finished" in event:
            self._tasks.pop(rank, None)
            self.tell(finished={"rank": rank, "task": event["finished"]})
        elif "lost" in event:
            self._again(rank, event["lost"])
        elif "error" in event:
            self._show(who, event)
            raise Failure(f"{who} failed: {event['error']}", recoverable=event["code"] == 3, code=event["code"])

    def _show(self, who: str, event: Event) -> None:
        for line in event["traceback"].splitlines():
            log.error("[%s] %s", who, line)

    def _again(self, rank: int, how: str) -> None:
        """Start a trainer that died again."""
        if self._incarnations[rank] > self.config.max_restarts:
            raise Failure(f"trainer {rank} {how}, for the {self._incarnations[rank]}th time", recoverable=False)
        self._incarnations[rank] += 1
        log.warning("trainer %d %s; it is started again at step %d", rank, how, self._steps(rank))
        self.trainers[rank].close(time.monotonic())
        self.done.pop(rank, None)
        self.trainers[rank] = self._trainer(rank, self.run)
        self._moved[rank] = time.monotonic()
        if rank in self._tasks:
            self.trainers[rank].send(self._tasks[rank])

    def _steps(self, rank: int) -> int:
        assert self.control is not None
        return int(self.control.workers[rank, DONE])

    def _check_progress(self) -> None:
        """Make an end of a trainer that does nothing for too long."""
        assert self.control is not None
        now, alive = time.monotonic(), self.control.workers[:, ALIVE].copy()
        waiting = (self.control.workers[:, ARRIVED] > self.control.header[RELEASED]) | (self.control.header[STOP] != 0)
        waiting[list(self.done)] = True
        waiting[list(self._tasks)] = False
        self._moved[waiting | (alive != self._alive)] = now
        self._alive = alive
        for rank in np.flatnonzero(now - self._moved > self.stall):
            if rank >= len(self.trainers):
                continue
            trainer = self.trainers[rank]
            log.warning("trainer %d has done nothing for %.0f s; its stacks follow, and it is started again", rank, self.stall)
            trainer.show_stack()
            time.sleep(0.5)
            trainer.process.kill()
            self._moved[rank] = now

    def memory(self) -> int:
        """Bytes that all processes of this machine hold now."""
        return used_now([child.pid for child in (*self.servers, *self.trainers)])

    def close(self) -> None:
        """End every process and give up the rows."""
        self.stop()
        every = (*self.trainers, *self.servers)
        for child in every:
            child.release()
        deadline = time.monotonic() + children.GRACE
        for child in every:
            child.close(deadline)
        if self.tables is not None:
            self.tables.close()
        if self.control is not None:
            self.control.close()
