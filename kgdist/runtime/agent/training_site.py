"""One machine's part of a training: its servers and its trainers, around its rows.

The rows (`kgdist.runtime.agent.shard`) lie once in shared memory. Servers and trainers are children
(`kgdist.runtime.processes.child`) that map it; they end with this process. A trainer that is killed is started again where it
stood; a server that is lost ends the attempt, for the pushes that it had confirmed since the last checkpoint may be half of a
step.
"""

from __future__ import annotations

import time
from typing import IO, Any

import numpy as np

from kgdist.base.errors import counted
from kgdist.base.files import Moved
from kgdist.base.log import log
from kgdist.base.machine import used_now
from kgdist.kvstore.server import COUNTERS, TURNS
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.kvstore.wire import Keys
from kgdist.runtime.agent.shard import Shard
from kgdist.runtime.agent.site import Failure, Site, Tell, Turns
from kgdist.runtime.checks import problems
from kgdist.runtime.cluster.training_plan import TrainingPlan
from kgdist.runtime.processes import child as children
from kgdist.runtime.processes.child import Child, Event
from kgdist.runtime.processes.control import ALIVE, BEAT, STOP
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.processes.workers import Attendance
from kgdist.runtime.protocol import STALL, Doing

LEAVE = 3.0  # seconds that a trainer has after Ctrl-C to end its step
KILLED = 10.0  # seconds in which one that is killed is gone, unless the system holds it
TASKS = {"evaluate": ("ranked", "the share of {split}"), "assemble": ("written", "embeddings")}


class TrainingSite(Site):
    """What runs on machine `number`, which has made the pair `keys`. `tell` sends an event to the launcher."""

    def __init__(self, plan: TrainingPlan, number: int, tell: Tell, keys: Keys | None = None) -> None:
        self._keys = plan.keys_of(keys)
        self.plan, self.number, self.tell, self.config = plan, number, tell, plan.config
        self.graph, self.stall = plan.graph, plan.config.stall_timeout
        self.shard = Shard(plan, number)
        self._forks: ForkServer | None = None
        self.servers: list[Child] = []
        self.trainers: list[Child] = []
        self.run = ""
        self._ready: set[int] = set()  # servers
        self._incarnations = [1] * self.config.num_proc
        self._deaths = [0] * self.config.num_proc  # of each trainer, one after another at the same step
        self._fallen = [-1] * self.config.num_proc  # the step of the last one
        self._tasks: dict[int, dict[str, Any]] = {}  # what each trainer has not finished, besides training
        self._attendance: Attendance | None = None  # of the trainers
        self._arrived = 0
        self._newborn = [0] * self.config.num_proc  # how alive each trainer was when its process was started
        self._stopping = False
        self._killed: dict[int, Child] = {}
        self._counters: SharedArray | None = None  # int64[servers, len(COUNTERS)]
        self._turns: Turns | None = None
        self._told = 0.0

    def problems(self, *, copied: bool, moved: Moved) -> list[str]:
        return problems(self.plan, self.number, copied=copied, moved=moved)

    def checkpoints(self, run: str, moved: Moved) -> list[list[Any]]:
        return self.shard.checkpoints(run, moved)

    # ---- processes

    def serve(self) -> None:
        """Start the servers; each says when it can be reached."""
        numbers = list(self.plan.layout().servers_of(self.number))
        self._counters = SharedArray.allocate((len(numbers), len(COUNTERS)), np.int64)
        self._turns = Turns(self._counters.array[:, TURNS], self.config.peer_timeout)
        for index, number in enumerate(numbers):
            child = self._child(f"server-{number}")
            child.send(self._job("server", server=number, index=index, counters=self._counters.handle()))
            self.servers.append(child)

    def train(self, run: str, lowered: int) -> None:
        """Start the trainers; the rate was `lowered` so often."""
        self.run = run
        self.shard.control.lower(lowered)
        self._attendance = Attendance(self.shard.control)
        for rank in range(self.config.num_proc):
            self.trainers.append(self._trainer(rank))

    @property
    def attendance(self) -> Attendance:
        """What the trainers do."""
        assert self._attendance is not None
        return self._attendance

    def _trainer(self, rank: int) -> Child:
        child = self._child(f"trainer-{self.number}-{rank}")
        child.send(self._job("trainer", rank=rank, run=self.run, incarnation=self._incarnations[rank]))
        late = max(0.0, STALL - self.stall)  # libraries, connections: no steps for a while
        self.attendance.moved[rank] = time.monotonic() + late
        self._newborn[rank] = int(self.shard.control.workers[rank, ALIVE])
        return child

    def _child(self, name: str) -> Child:
        if self._forks is None:  # not before there is what all of them are to map
            counters = [self._counters.handle()] if self._counters is not None else []
            handles = [*self.shard.tables.handles().values(), *self.shard.control.handles(), *counters]
            self._forks = ForkServer([handle["fd"] for handle in handles], threads=self.config.num_thread)
        return Child(self._forks, name=name)

    def _job(self, role: str, **more: Any) -> dict[str, Any]:
        return {
            "role": role,
            "plan": self.plan.to_json(),
            "keys": None if self._keys is None else self._keys.to_json(),
            "machine": self.number,
            "tables": self.shard.tables.handles(),
            "control": self.shard.control.handles(),
            **more,
        }

    def task(self, what: dict[str, Any], ranks: list[int]) -> None:
        """Let trainers do something besides training: now if they wait, or when they have trained."""
        for rank in ranks:
            self._tasks[rank] = what
            self.trainers[rank].send(what)

    def release(self, step: int, lowered: int) -> None:
        """Let trainers that wait at `step` go on; the rate was `lowered` so often."""
        self.attendance.excuse()
        self.shard.control.lower(lowered)
        self.shard.control.release(step)

    def stop(self, leave: bool = False) -> None:
        """See Site: trainers end before their next step; `leave`: and do not evaluate either."""
        if self.shard.ready:
            self.shard.control.stop(leave=leave)

    @property
    def doing(self) -> Doing:
        """See Site: what trainers do besides training."""
        if not self.shard.ready:
            return "", "", 0
        workers = self.shard.control.workers
        count = int(workers[:, ALIVE].sum()) + sum(self._incarnations)
        task = next(iter(self._tasks.copy().values()), None)
        verb, what = TASKS[task["what"]] if task is not None else ("", "")
        return verb, what.format(**(task or {})), count

    def outputs(self) -> list[IO[bytes]]:
        return [child.stdout for child in (*self.servers, *self.trainers) if child.open]

    # ---- watching

    def look(self) -> None:
        if not self.shard.ready:
            return
        self.shard.control.header[BEAT] += 1
        for index, child in enumerate(self.servers):
            for event in child.events():
                self._hear_server(index, event)
        for index in self._turns.still(time.monotonic()) if self._turns is not None else ():
            if index in self._ready:
                patience = self.config.peer_timeout
                log.warning("server %d has done nothing for %g s; its stacks follow, and it is ended", index, patience)
                children.show_stacks([self.servers[index]])
                self.servers[index].kill()
        if not self.trainers:
            return
        for rank in range(len(self.trainers)):
            for event in self.trainers[rank].events():
                self._hear_trainer(rank, event)
        self._check_progress()
        now = time.monotonic()
        if now - self._told > 0.25:
            self._told = now
            self._tell_progress()
        if (step := self.attendance.meeting()) > self._arrived:
            self._arrived = step
            self.tell(arrived=step)

    def _tell_progress(self) -> None:
        crew = self.attendance
        self.tell(progress={"steps": crew.steps(), "positives": crew.positives(), "sums": crew.sums().tolist()})

    def _hear_server(self, index: int, event: Event) -> None:
        who = f"server {index}"
        if "ready" in event:
            self._ready.add(index)
            assert self._turns is not None
            self._turns.begin(index)
            if len(self._ready) == len(self.servers):
                self.tell(ready=True)
        elif "say" in event:
            self.tell(say=event["say"])
        elif "lost" in event:
            raise Failure(f"{who} {event['lost']}", recoverable=True)
        elif "error" in event:
            children.show_traceback(who, event)
            # Before it begins, its port may be held by a process of the attempt before, which is about to end.
            again = index in self._ready or self.plan.attempt > 0
            raise Failure(f"{who} failed: {event['error']}", recoverable=again, code=event["code"])

    def _hear_trainer(self, rank: int, event: Event) -> None:
        who = f"trainer {rank}"
        if "say" in event:
            self.tell(say=event["say"])
        elif "trained" in event:
            self._trained(rank, event["trained"])
        elif "result" in event:
            self.tell(result=event["result"])
        elif "finished" in event:
            self._tasks.pop(rank, None)
            self.tell(finished={"rank": rank, "task": event["finished"], "problem": event.get("problem", "")})
        elif "lost" in event:
            self._again(rank, event["lost"])
        elif "error" in event:
            children.show_traceback(who, event)
            raise Failure(f"{who} failed: {event['error']}", recoverable=event["code"] == 3, code=event["code"])

    def _trained(self, rank: int, steps: int) -> None:
        """It trains no more."""
        done = self.attendance.done
        done[rank] = steps
        if len(done) == len(self.trainers):
            self._tell_progress()  # what a short training did since it was told last
            self.tell(trained=[done[number] for number in range(len(self.trainers))])

    def _again(self, rank: int, how: str) -> None:
        """Start a trainer that died again; when all are to leave it is only said how far it has come."""
        steps = self.attendance.steps()[rank]
        if self.shard.control.leaving():
            if rank not in self.attendance.done:
                self._trained(rank, steps)
            return
        self._deaths[rank] = 1 if steps > self._fallen[rank] else self._deaths[rank] + 1
        self._fallen[rank] = steps
        if self._deaths[rank] > self.config.max_restarts:
            raise Failure(f"trainer {rank} {how}, {counted(self._deaths[rank], 'time')} at step {steps}", recoverable=False)
        self._incarnations[rank] += 1
        log.warning("trainer %d %s; it is started again at step %d", rank, how, steps)
        self.trainers[rank].close(time.monotonic())
        self.attendance.done.pop(rank, None)
        self.trainers[rank] = self._trainer(rank)
        if rank in self._tasks:
            self.trainers[rank].send(self._tasks[rank])

    def _check_progress(self) -> None:
        """Make an end of a trainer that does nothing for too long."""
        crew, now = self.attendance, time.monotonic()
        stopping, leaving = bool(self.shard.control.header[STOP]), self.shard.control.leaving()
        if stopping and not self._stopping:  # those that are just being started have nothing left to do
            self._stopping = True
            crew.moved = np.minimum(crew.moved, now)
        patience = self._patience()
        hung = crew.hung(patience, busy=self._tasks)
        begun = [rank for rank in hung if not leaving or crew.alive[rank] != self._newborn[rank]]  # the others are not missed
        for rank in hung:
            if self._killed.get(rank) is self.trainers[rank]:
                what = "cannot be ended: the system holds it, perhaps for a file system that does not answer"
                raise Failure(f"trainer {rank} {what}", recoverable=True)
        for rank in begun:
            then = "ended where it is" if leaving else "started again"
            log.warning("trainer %d has done nothing for %.0f s; its stacks follow, and it is %s", rank, patience, then)
        if begun:
            children.show_stacks([self.trainers[rank] for rank in begun])
        for rank in hung:
            self.trainers[rank].kill()
            self._killed[rank] = self.trainers[rank]
            crew.moved[rank] = now - patience + KILLED
            if leaving:
                self._tasks.pop(rank, None)  # nobody waits for that any more
            if stopping and rank not in crew.done:  # its rows are in memory that it does not own, and its steps are known
                self._trained(rank, crew.steps()[rank])

    def _patience(self) -> float:
        """Seconds without a sign of life after which a trainer counts as hung: fewer when all it has to do is to end its step."""
        control = self.shard.control
        if control.leaving():
            return min(LEAVE, self.stall)
        return min(2 * self.config.peer_timeout, self.stall) if control.header[STOP] and not self._tasks else self.stall

    def memory(self) -> int:
        return used_now(self._forks.pids() if self._forks is not None else [])

    def close(self) -> None:
        self.stop()
        children.end((*self.trainers, *self.servers), time.monotonic() + children.GRACE)
        if self._forks is not None:
            self._forks.close()
        if self._counters is not None:
            self._counters.close()
            self._counters = None
        self.shard.close()
