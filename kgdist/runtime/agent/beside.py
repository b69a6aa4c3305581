"""What an agent does beside its loop: reading and writing files, one after another, in a thread that a file system may hold.

The loop must go on, to hear what it is told and to end everything when it has to; so nothing here ever waits for that thread.
How far it has come (`doing`) goes to the launcher with every sign of life: it decides how long a silence of the disk may last.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from kgdist.runtime.processes.pipes import Bell
from kgdist.runtime.protocol import Doing


def nothing() -> None:
    """Nothing is to be done afterwards."""


class Beside:
    """Work that is done in the order in which it came. Its thread lives while there is some; `bell` rings when some has ended."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._lock = threading.Lock()
        self._todo: deque[tuple[str, str, Callable[[], None], Callable[[], None]]] = deque()
        self._over: deque[Callable[[], None] | BaseException] = deque()
        self._thread: threading.Thread | None = None
        self._now = ("", "")
        self._count = 0

    def later(self, verb: str, what: str, work: Callable[[], None], then: Callable[[], None] = nothing) -> None:
        """Do `work`, by which `what` is "read" or "written", and let the loop (`look`) do `then`."""
        with self._lock:
            self._todo.append((verb, what, work, then))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="kgdist-beside", daemon=True)
                self._thread.start()

    def moved(self, count: int) -> None:
        """`count` bytes more were read or written."""
        self._count += count

    @property
    def doing(self) -> Doing:
        """What is done now (empty words: nothing), and how much has been done so far."""
        return (*self._now, self._count)

    def look(self) -> None:
        """Do what comes after work that has ended; raises what it has raised."""
        while self._over:
            end = self._over.popleft()
            if isinstance(end, BaseException):
                raise end
            end()

    def settle(self, seconds: float) -> bool:
        """Wait until all of it has ended; whether it has."""
        thread = self._thread
        if thread is not None:
            thread.join(timeout=seconds)
        return self._thread is None

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._todo:
                    self._thread, self._now = None, ("", "")
                    return
                verb, what, work, then = self._todo.popleft()
            self._now = verb, what
            self._count += 1
            try:
                work()
                self._over.append(then)
            except BaseException as error:  # whatever it is, the loop must hear of it
                self._over.append(error)
            self._bell.ring()
