"""One machine's part of a job, as its agent sees it: what a training and a script have in common. No libraries that take long.

The agent's work without its conversation. Processes are children of the agent's and end with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from kgdist.base.files import Moved
from kgdist.runtime.processes.pipes import Descriptor
from kgdist.runtime.protocol import Doing

LOOKS = 10  # in the time that a server may stand still


class Tell(Protocol):
    """Sends an event to the launcher."""

    def __call__(self, **event: Any) -> None: ...


class Failure(Exception):
    """The attempt is over. `recoverable`: another one, from the last checkpoint, may fare better."""

    def __init__(self, what: str, *, recoverable: bool, code: int = 1) -> None:
        super().__init__(what)
        self.recoverable = recoverable
        self.code = code


class Turns:
    """Which loops have not turned for `patience` seconds of ours: time in which nobody looked (this machine slept) does not
    count. `counters`: int64[n], grows with every turn of each."""

    def __init__(self, counters: np.ndarray, patience: float) -> None:
        self._counters, self._interval = counters, patience / LOOKS
        self._last, self._missed = counters.copy(), np.zeros(len(counters), np.int64)
        self._looked = 0.0

    def begin(self, index: int) -> None:
        """The time of one begins now: it was not to turn before."""
        self._missed[index] = 0

    def still(self, now: float) -> list[int]:
        """Those that stand still; each is told once in that time."""
        if now - self._looked < self._interval:
            return []
        self._looked = now
        self._missed = np.where(self._counters != self._last, 0, self._missed + 1)
        self._last = self._counters.copy()
        found = np.flatnonzero(self._missed > LOOKS)
        self._missed[found] = 0
        return [int(index) for index in found]


class Site(ABC):
    """What runs on one machine of a job."""

    graph: str  # digest of the graph of which a partition is here; empty where there is none

    @abstractmethod
    def problems(self, *, copied: bool, moved: Moved) -> list[str]:
        """One line for everything that keeps the job from running here; `copied`: the partition is here, or where it is fetched
        from."""

    @abstractmethod
    def checkpoints(self, run: str, moved: Moved) -> list[list[Any]]:
        """The checkpoints of `run` that are here."""

    @abstractmethod
    def look(self) -> None:
        """See what the processes have said and done, and tell what is new. Raises Failure."""

    @abstractmethod
    def outputs(self) -> Sequence[Descriptor]:
        """What they write to."""

    @property
    @abstractmethod
    def doing(self) -> Doing:
        """What is done now, and a number that grows as long as something is."""

    @abstractmethod
    def stop(self, leave: bool = False) -> None:
        """Let what is under way come to its end; `leave`: as soon as possible."""

    @abstractmethod
    def memory(self) -> int:
        """Bytes that all processes of this machine hold now."""

    @abstractmethod
    def close(self) -> None:
        """End every process and give up what they shared."""
