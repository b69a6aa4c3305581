"""Workers as threads of this process (`--worker thread`): compiled loops and matrix products run without Python's lock.

One copy of everything: less memory than processes, and tables in private memory, which gets huge pages without root. A thread
cannot be ended from outside, so each looks at every step whether it shall stop.
"""

from __future__ import annotations

import faulthandler
import queue
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from kgdist.base.errors import Diverged, KgdistError
from kgdist.base.log import complain
from kgdist.runtime.child import Event
from kgdist.runtime.workers import Say

GRACE = 5.0  # seconds that a thread has to end its step when all is over; one that hangs ends with the process


class Threads:
    """A crew (see kgdist.runtime.workers) of `world` threads, each of which does `work(rank, say)` and ends with its steps."""

    kind = "thread"

    def __init__(self, world: int, work: Callable[[int, Say], int]) -> None:
        self._events: queue.SimpleQueue[tuple[int, Event]] = queue.SimpleQueue()
        self.threads = [
            threading.Thread(target=self._run, args=(rank, work), name=f"kgdist-worker-{rank}", daemon=True)
            for rank in range(world)
        ]

    def begin(self) -> None:
        """See Crew."""
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
        """See Crew."""
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
        """See Crew."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            complain(file.read().rstrip("\n"))

    def close(self) -> None:
        """Wait until the threads, which have been told to stop, have made their last step."""
        deadline = time.monotonic() + GRACE
        for thread in filter(threading.Thread.is_alive, self.threads):
            thread.join(max(0.0, deadline - time.monotonic()))
