"""The workers of one machine, watched: who has come to a meeting, who has ended, who does nothing.

`Attendance` tells that from the numbers that they share. `Workers` holds a run on one machine together, whether its crew are
`Processes` (`child.py`) or `Threads` (`--worker thread`): words are passed on, meetings held. The first failure ends the run and
is the one that is told; a worker that makes no step for `STALL` seconds counts as failed. Trainers of a job on several machines,
which are started again, are looked after by `kgdist.runtime.agent.training_site`.

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
from kgdist.runtime.processes.child import GRACE, Child, Event, end, show_stacks, show_traceback
from kgdist.runtime.processes.control import ALIVE, ARRIVED, ASLEEP, DONE, POSITIVES, RELEASED, STOP, SharedControl
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.protocol import STALL

LEAVE = 30.0  # seconds without a step after a stop (Ctrl-C, early stop), when all that is left is to end the step
TICK = 0.02  # seconds between two looks at the shared numbers

Say = Callable[[str], None]


class Attendance:
    """What the workers of one machine do, by the numbers that they share.

    Attributes:
        done: worker -> steps, of those that have trained to the end.
        alive: int64[world], the signs of life of each at the last look.
        moved: float64[world], when each last showed that it does something, or need not; ahead of time for one that may be late.
    """

    def __init__(self, shared: SharedControl) -> None:
        self.shared = shared
        self.done: dict[int, int] = {}
        self.alive = shared.workers[:, ALIVE].copy()
        self.looked = time.monotonic()
        self.moved = np.full(len(shared.workers), self.looked)

    def steps(self) -> list[int]:
        """Steps done by each worker since the run's first."""
        return [int(step) for step in self.shared.workers[:, DONE]]

    def positives(self) -> int:
        """Positives trained on so far, by all workers."""
        return int(self.shared.workers[:, POSITIVES].sum())

    def sums(self) -> np.ndarray:
        """Loss sums over all steps so far: float64[4] (positive, negative, total, regularisation)."""
        return np.asarray(self.shared.sums.sum(0))

    def meeting(self) -> int:
        """The step at which all that still train wait to be released, 0 while they do not; resumed ones may differ in steps."""
        arrived = (int(step) for rank, step in enumerate(self.shared.workers[:, ARRIVED]) if rank not in self.done)
        step = min(arrived, default=0)
        return step if step > self.shared.header[RELEASED] else 0

    def still(self) -> np.ndarray:
        """bool[world], of each worker whether it stands still: after its end, or while it waits, unless all are to stop."""
        still = self.shared.still() & (not self.shared.header[STOP])
        still[list(self.done)] = True
        return still

    def excuse(self) -> None:
        """What was until now is held against nobody."""
        self.looked = time.monotonic()
        self.moved = np.maximum(self.moved, self.looked)

    def hung(self, seconds: float, busy: Iterable[int] = ()) -> list[int]:
        """The workers that have done nothing for so long: no step, nor another sign of life. Those that stand still need not,
        unless they are `busy` with something else. Time in which this process stood still, as they may have, does not count."""
        now, alive = time.monotonic(), self.shared.workers[:, ALIVE].copy()
        if (pause := now - self.looked) > ASLEEP:
            self.moved += pause
        self.looked = now
        resting = self.still()
        resting[list(busy)] = False
        self.moved[resting] = np.maximum(self.moved[resting], now)
        self.moved[alive != self.alive] = now
        self.alive = alive
        return [int(rank) for rank in np.flatnonzero(now - self.moved > seconds)]


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

    def kill(self, rank: int) -> bool:
        """End one that hangs, if that can be done; whether it can."""

    def close(self) -> None:
        """End every one that is left."""


class Workers(Attendance):
    """A crew at work on one job. Owns the crew and the numbers shared with it; closing twice is the same as once."""

    def __init__(self, crew: Crew, shared: SharedControl) -> None:
        super().__init__(shared)
        self.crew = crew
        self.world = len(shared.workers)
        self._ended = threading.Event()

    def begin(self, start: list[int]) -> None:
        """Let each worker train from the step that it has reached before."""
        self.shared.workers[:, DONE] = start
        threading.Thread(target=self.shared.beat, args=(self._ended,), daemon=True).start()
        self.excuse()
        self.crew.begin()

    def watch(
        self,
        met: Callable[[int], None],
        tick: Callable[[SharedControl], None],
        say: Say,
        due: Callable[[], bool] = lambda: False,
        pause: Callable[[], None] = lambda: None,
    ) -> None:
        """Stay until all workers have ended.

        Args:
            met: called with the step when all workers that still train wait at it, before they go on; not after a stop.
            tick: called often, to show progress.
            due: asked often, whether all workers shall stand still wherever they are.
            pause: called when they do, before they go on.
        Raises WorkerError naming the first worker that died, with its traceback.
        """
        shared = self.shared
        while len(self.done) < self.world:
            for rank, event in self.crew.events(TICK):
                self._hear(rank, event, say)
            tick(shared)
            if (step := self.meeting()) and not shared.header[STOP]:
                met(step)
                shared.release(step)
                self.excuse()
            if not shared.holding and due():
                shared.hold()
            if shared.holding and self.still().all() and not shared.header[STOP]:
                pause()
                shared.free()
                self.excuse()
            patience = LEAVE if shared.header[STOP] else STALL
            for rank in self.hung(patience):
                self._end_hung(rank, patience)
        tick(shared)

    def _end_hung(self, rank: int, patience: float) -> None:
        """Where all are to stop, one that does nothing stops where it is: its rows are in memory that it does not own."""
        self.crew.show_stacks()
        who, how = self._who(rank), f"has made no step for {patience:.0f} s; the stacks of all that can still tell are above"
        if not (self.shared.header[STOP] and self.crew.kill(rank)):
            raise WorkerError(f"{who} {how}")
        log.warning("%s %s, and it is ended where it is", who, how)
        self.done[rank] = self.steps()[rank]

    def _hear(self, rank: int, event: Event, say: Say) -> None:
        if "say" in event:
            say(event["say"])
        elif rank in self.done:
            pass  # its last words, or that it was ended
        elif "done" in event:
            self.done[rank] = event["done"]
        elif "lost" in event:
            raise WorkerError(f"{self._who(rank)} {event['lost']}")
        else:
            show_traceback(f"proc {rank}", event)
            kind = WorkerError if event["traceback"] else Diverged if event["diverged"] else KgdistError
            failure = kind(f"{self._who(rank)} failed: {event['error']}")
            failure.exit_code = event["code"]
            raise failure

    def _who(self, rank: int) -> str:
        return f"{self.crew.kind} {rank} of {self.world}"

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

    def events(self, seconds: float) -> list[tuple[int, Event]]:
        """See Crew. A process that ends without a word is told as lost; of several lost at once the first is told first."""
        self._selector.select(seconds)
        heard = self._said()
        if any("lost" in event for _, event in heard):  # perhaps all of them, since the first was asked
            heard = sorted(heard + self._said(), key=lambda said: said[0])
        return heard

    def _said(self) -> list[tuple[int, Event]]:
        heard = []
        for rank, child in enumerate(self.children):
            heard += [(rank, event) for event in child.events()]
            if not child.open and child.stdout in self._selector.get_map():
                self._selector.unregister(child.stdout)
        return heard

    def pids(self) -> list[int]:
        return self._forks.pids()

    def show_stacks(self) -> None:
        show_stacks(self.children)

    def kill(self, rank: int) -> bool:
        self.children[rank].kill()
        return True

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

    def kill(self, rank: int) -> bool:
        """A thread cannot be ended from outside."""
        return False

    def close(self) -> None:
        """Wait until the threads, which have been told to stop, have made their last step."""
        deadline = time.monotonic() + THREAD_GRACE
        for thread in filter(threading.Thread.is_alive, self.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
