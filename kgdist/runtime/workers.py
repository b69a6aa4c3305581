"""The workers of a run on one machine, watched: their words passed on, their meetings held, the first failure told.

It does not matter here whether they are processes or threads (`Crew`). The first failure ends the run and is the one that is
told; a worker that makes no step for `STALL` seconds counts as failed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np

from kgdist.base.errors import Diverged, KgdistError, WorkerError
from kgdist.base.log import log
from kgdist.runtime.child import Event
from kgdist.runtime.control import ARRIVED, DONE, POSITIVES, STOP, SharedControl

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
