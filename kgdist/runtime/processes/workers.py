"""The workers of a run on one machine, watched: their words passed on, their meetings held, the first failure told.

`Workers` does not know whether its crew are `Processes` (`child.py`) or `Threads` (`--worker thread`). The first failure ends the
run and is the one that is told; a worker that makes no step for `STALL` seconds counts as failed.

Threads have one copy of everything: less memory than processes, and tables in private memory, which gets huge pages without root;
compiled loops and matrix products run without Python's lock. A thread cannot be ended from outside, so each looks at every step
whether it shall stop.
"""

from __future__ import annotations

import faulthandler
import queue
import selectors
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np

from kgdist.base.errors import Diverged, KgdistError, WorkerError
from kgdist.base.log import complain, log
from kgdist.runtime.processes.child import GRACE, Child, Event, end
from kgdist.runtime.processes.control import ARRIVED, DONE, POSITIVES, STOP, SharedControl
from kgdist.runtime.processes.forkserver import ForkServer

STALL = 300.0  # seconds
TICK = 0.02  # seconds between two looks at the shared numbers

Say = Callable[[str], None]


class Crew(Protocol):
    """Those who do the work, one of each rank: `Processes` or `Threads`; `kind` is what one of them is called."""

    kind: str

    def begin(self) -> None:
        """Let them start on their work."""

    def events(self, seconds: float) -> Iterable[tuple[int, Event]]:
        """(rank, event) for all that has happened since; waits at most `seconds` for the first."""

    def pids(self) -> list[int]:
        """Processes besides this one."""

    def show_stacks(self) -> None:
        """Let every one write to stderr where it stands, if it can."""

    def close(self) -> None:
        """End every one that is left."""


class Workers:
    """A crew at work on one job. Owns the crew and the numbers shared with it; closing twice is the same as once."""

    def __init__(self, crew: Crew, shared: SharedControl) -> None:
        self.crew = crew
        self.shared = shared
        self.world = len(shared.workers)
        self.done: dict[int, int] = {}
        self._steps = np.full(self.world, -1)  # int64[world], DONE of each worker at the last look
        self._moved = np.full(self.world, time.monotonic())  # float64[world], when it last changed
        self._ended = threading.Event()

    def begin(self, start: list[int]) -> None:
        """Let each worker train from the step that it has reached before."""
        self.shared.workers[:, DONE] = start
        threading.Thread(target=self.shared.beat, args=(self._ended,), daemon=True).start()
        self._moved[:] = time.monotonic()
        self.crew.begin()

    def watch(
        self,
        met: Callable[[int], None],
        tick: Callable[[SharedControl], None],
        say: Say,
        due: Callable[[], bool] = lambda: False,
        pause: Callable[[], None] = lambda: None,
    ) -> list[int]:
        """Stay until all workers have ended; returns the steps each has done.

        Args:
            met: called with the step when all workers that still train wait at it, before they go on; not after a stop.
            tick: called often, to show progress.
            due: asked often, whether all workers shall stand still wherever they are.
            pause: called when they do, before they go on.
        Raises WorkerError naming the first worker that died, with its traceback.
        """
        met_last = 0
        while len(self.done) < self.world:
            for rank, event in self.crew.events(TICK):
                self._hear(rank, event, say)
            tick(self.shared)
            arrived = self._arrived()
            if arrived > met_last and not self.shared.header[STOP]:
                met(arrived)
                met_last = arrived
                self.shared.release(arrived)
                self._moved[:] = time.monotonic()
            if not self.shared.holding and due():
                self.shared.hold()
            if self.shared.holding and self._still().all() and not self.shared.header[STOP]:
                pause()
                self.shared.free()
                self._moved[:] = time.monotonic()
            self._check_progress()
        tick(self.shared)
        return [self.done[rank] for rank in range(self.world)]

    def steps(self) -> list[int]:
        """Steps done by each worker since the run's first."""
        return [int(step) for step in self.shared.workers[:, DONE]]

    def positives(self) -> int:
        """Positives trained on so far, by all workers."""
        return int(self.shared.workers[:, POSITIVES].sum())

    def sums(self) -> np.ndarray:
        """Loss sums over all steps so far: float64[4] (positive, negative, total, regularisation)."""
        return np.asarray(self.shared.sums.sum(0))

    def _hear(self, rank: int, event: Event, say: Say) -> None:
        if "say" in event:
            say(event["say"])
        elif "done" in event:
            self.done[rank] = event["done"]
        elif "lost" in event:
            raise WorkerError(f"{self._who(rank)} {event['lost']}")
        else:
            for text in event["traceback"].splitlines():
                log.error("[proc %d] %s", rank, text)
            kind = WorkerError if event["traceback"] else Diverged if event["diverged"] else KgdistError
            failure = kind(f"{self._who(rank)} failed: {event['error']}")
            failure.exit_code = event["code"]
            raise failure

    def _who(self, rank: int) -> str:
        return f"{self.crew.kind} {rank} of {self.world}"

    def _arrived(self) -> int:
        """The step that every worker still at work has come to wait at; resumed ones may differ in their steps."""
        return min((int(step) for rank, step in enumerate(self.shared.workers[:, ARRIVED]) if rank not in self.done), default=0)

    def _still(self) -> np.ndarray:
        """bool[world], of each worker whether it stands still."""
        still = self.shared.still()
        still[list(self.done)] = True
        return still

    def _check_progress(self) -> None:
        now, steps = time.monotonic(), self.shared.workers[:, DONE].copy()
        self._moved[self._still() | (steps != self._steps)] = now
        self._steps = steps
        for rank in np.flatnonzero(now - self._moved > STALL):
            self.crew.show_stacks()
            who = self._who(int(rank))
            raise WorkerError(f"{who} has made no step for {STALL:.0f} s; the stacks of all that can still tell are above")

    def close(self) -> None:
        """End every worker that is left."""
        if self._ended.is_set():
            return
        self._ended.set()
        self.shared.stop()
        self.crew.close()
        self.shared.close()


class Processes:
    """A crew of `world` processes.

    Args:
        job: JSON for every process; `rank` is added.
        fds: descriptors that the job's handles name.
        threads: intra-op threads of each process.
    """

    kind = "process"

    def __init__(self, world: int, job: dict[str, Any], fds: list[int], *, threads: int) -> None:
        self.children: list[Child] = []
        self._job = job
        self._forks = ForkServer(fds, threads=threads)
        self._selector = selectors.DefaultSelector()
        try:
            for rank in range(world):
                child = Child(self._forks)
                self.children.append(child)
                self._selector.register(child.stdout, selectors.EVENT_READ, rank)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """See Crew: every process gets its job."""
        for rank, child in enumerate(self.children):
            child.send(self._job | {"rank": rank})

    def events(self, seconds: float) -> Iterator[tuple[int, Event]]:
        """See Crew. A process that ends without a word is told as lost."""
        self._selector.select(seconds)
        for rank, child in enumerate(self.children):
            for event in child.events():
                yield rank, event
            if not child.open and child.stdout in self._selector.get_map():
                self._selector.unregister(child.stdout)

    def pids(self) -> list[int]:
        return self._forks.pids()

    def show_stacks(self) -> None:
        """See Crew; processes that are stopped cannot."""
        for child in self.children:
            child.show_stack()
        time.sleep(1.0)

    def close(self) -> None:
        """End every process that is left: first by closing its stdin, then by force."""
        self._selector.close()
        end(self.children, time.monotonic() + GRACE)
        self._forks.close()


THREAD_GRACE = 5.0  # seconds that a thread has to end its step when all is over; one that hangs ends with the process


class Threads:
    """A crew of `world` threads, each of which does `work(rank, say)` and ends with its steps."""

    kind = "thread"

    def __init__(self, world: int, work: Callable[[int, Say], int]) -> None:
        self._events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._run, args=(rank, work), name=f"kgdist-worker-{rank}", daemon=True)
            for rank in range(world)
        ]

    def begin(self) -> None:
        for thread in self.threads:
            thread.start()

    def _run(self, rank: int, work: Callable[[int, Say], int]) -> None:
        def send(**event: Any) -> None:
            self._events.put((rank, event))

        try:
            send(done=work(rank, lambda line: send(say=line)))
        except KgdistError as error:
            send(error=str(error), traceback="", code=error.exit_code, diverged=isinstance(error, Diverged))
        except BaseException as error:  # whatever it is, the run must hear of it
            send(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc(), code=1)

    def events(self, seconds: float) -> Iterator[tuple[int, Event]]:
        try:
            yield self._events.get(timeout=seconds)
            while True:
                yield self._events.get_nowait()
        except queue.Empty:
            return

    def pids(self) -> list[int]:
        """See Crew: none besides this process."""
        return []

    def show_stacks(self) -> None:
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            complain(file.read().rstrip("\n"))

    def close(self) -> None:
        """Wait until the threads, which have been told to stop, have made their last step."""
        deadline = time.monotonic() + THREAD_GRACE
        for thread in filter(threading.Thread.is_alive, self.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
