"""Workers as processes of their own (`kgdist.runtime.child`): a crew that is started, given its job, listened to, and ended.

What they come to mean for a run is the business of `kgdist.runtime.workers`.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Iterator
from typing import Any

from kgdist.runtime import child as children
from kgdist.runtime.child import Child, Event
from kgdist.runtime.forkserver import ForkServer


class Processes:
    """A crew (see kgdist.runtime.workers) of `world` processes.

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
        """See Crew."""
        return self._forks.pids()

    def show_stacks(self) -> None:
        """See Crew; processes that are stopped cannot."""
        for child in self.children:
            child.show_stack()
        time.sleep(1.0)

    def close(self) -> None:
        """End every process that is left: first by closing its stdin, then by force."""
        self._selector.close()
        children.end(self.children, time.monotonic() + children.GRACE)
        self._forks.close()
