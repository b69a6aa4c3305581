"""The link between the training loops of one machine and the process that runs them.

`SharedControl` is a few numbers that loops in other processes or threads share with the one that runs them: each slot has one
writer, so no lock is needed, and a reader that is late by a moment loses nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kgdist.base.errors import WorkerError
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.training.step import Losses

STOP, RELEASED, BEAT, HOLD, FREED, LOWERED = 0, 1, 2, 3, 4, 5  # slots of the coordinator
HEADER = 6
DONE, POSITIVES, ARRIVED, ALIVE, HELD = 0, 1, 2, 3, 4  # slots of each worker
SLOTS = 5
PATIENCE = 300.0  # seconds without a sign of life from the coordinator
ASLEEP = 5.0  # seconds between two looks after which who looks has stood still (Ctrl-Z): they are held against nobody


class SharedControl:
    """Shared numbers: int64[6 + 5 * world] of counters, float64[world, 4] of loss sums."""

    def __init__(self, counters: SharedArray, sums: SharedArray) -> None:
        self._arrays = (counters, sums)
        self.header = counters.array[:HEADER]
        self.workers = counters.array[HEADER:].reshape(-1, SLOTS)  # int64[world, 5]
        self.sums = sums.array  # float64[world, 4]

    @classmethod
    def create(cls, world: int) -> SharedControl:
        """For the coordinator of `world` processes."""
        return cls(SharedArray.allocate((HEADER + SLOTS * world,), np.int64), SharedArray.allocate((world, 4), np.float64))

    @classmethod
    def attach(cls, handles: list[dict[str, Any]]) -> SharedControl:
        """For one of the processes."""
        counters, sums = (SharedArray.attach(handle) for handle in handles)
        return cls(counters, sums)

    def handles(self) -> list[dict[str, Any]]:
        """What `attach` needs, see SharedArray.handle."""
        return [array.handle() for array in self._arrays]

    def stop(self, *, leave: bool = False) -> None:
        """Ask all loops to end before their next step; `leave`: and not to evaluate afterwards."""
        self.header[STOP] = max(int(self.header[STOP]), 2 if leave else 1)

    def leaving(self) -> bool:
        """Whether nothing is to be evaluated any more."""
        return bool(self.header[STOP] > 1)

    def hold(self) -> None:
        """Let all processes stand still before their next step, wherever they are."""
        self.header[HOLD] += 1

    @property
    def holding(self) -> bool:
        """Whether they shall stand still."""
        return bool(self.header[HOLD] > self.header[FREED])

    def free(self) -> None:
        """Let processes that were to stand still go on."""
        self.header[FREED] = self.header[HOLD]

    def still(self) -> np.ndarray:
        """bool[world], of each process whether it stands still at a meeting, or because it was to."""
        return np.asarray((self.workers[:, ARRIVED] > self.header[RELEASED]) | (self.workers[:, HELD] > self.header[FREED]))

    def release(self, step: int) -> None:
        """Let processes that wait at `step` go on."""
        self.header[RELEASED] = step

    def lower(self, times: int) -> None:
        """Say how often the rate was lowered, before those who wait go on."""
        self.header[LOWERED] = times

    def beat(self, ended: threading.Event) -> None:
        """Show every second that the coordinator lives; the body of a thread."""
        while not ended.wait(1.0):
            self.header[BEAT] += 1

    def close(self) -> None:
        """Give up the descriptors."""
        for array in self._arrays:
            array.close()


class WorkerControl:
    """`Control` of worker `rank`, in a process or a thread of its own. `say` sends a line to the coordinator."""

    def __init__(self, shared: SharedControl, rank: int, meeting: Callable[[int], bool], say: Callable[[str], None]) -> None:
        self.shared = shared
        self.rank = rank
        self.mine = shared.workers[rank]
        self.start = int(self.mine[DONE])  # the steps that this worker has done before
        self.sums = shared.sums[rank]
        self._meeting = meeting
        self._say = say

    def stopping(self) -> bool:
        return bool(self.shared.header[STOP])

    def lowered(self) -> int:
        return int(self.shared.header[LOWERED])

    def report(self, step: int, positives: int, losses: Losses) -> None:
        self.sums += (losses.positive, losses.negative, losses.total, losses.regularization)
        self.mine[POSITIVES] += positives
        self.mine[DONE] = step
        self.mine[ALIVE] += 1

    def meeting(self, step: int) -> bool:
        return self.shared.holding or self._meeting(step)

    def meet(self, step: int) -> None:
        """See Control. Raises WorkerError when the coordinator shows no life for five minutes."""
        shared = self.shared
        if shared.holding:
            number = self.mine[HELD] = int(shared.header[HOLD])
            self._wait(lambda: bool(shared.header[FREED] >= number))
        if self._meeting(step) and shared.header[RELEASED] < step:
            self.arrive(step)
            self._wait(lambda: bool(shared.header[RELEASED] >= step))

    def _wait(self, over: Callable[[], bool]) -> None:
        beat, since = self.shared.header[BEAT], time.monotonic()
        looked = since
        while not over() and not self.stopping():
            self.idle()
            if (pause := time.monotonic() - looked) > ASLEEP:
                since += pause
            looked = time.monotonic()
            if self.shared.header[BEAT] != beat:
                beat, since = self.shared.header[BEAT], time.monotonic()
            elif time.monotonic() - since > PATIENCE:
                raise WorkerError(f"the coordinating process has been silent for {PATIENCE:.0f} s")

    def arrive(self, step: int) -> None:
        """Show that this worker waits."""
        self.mine[ARRIVED] = step

    def idle(self) -> None:
        """Let a moment pass."""
        time.sleep(0.001)

    def say(self, line: str) -> None:
        self._say(line)
