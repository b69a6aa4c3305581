"""Telling of a file system that does not answer, where the work itself is what it holds."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from kgdist.base.files import Moved
from kgdist.base.log import log

NAMED = 30.0  # seconds in which nothing was read or written, after which that is said


@contextlib.contextmanager
def watched(path: Path) -> Iterator[Moved]:
    """Say it once when the block, which works on files at `path`, does nothing for too long; it calls what it is given.

    Nothing can be done about it: a process that is inside a call of the system's ends when that answers, also by a signal.
    """
    last, over = [time.monotonic()], threading.Event()

    def moved(count: int) -> None:
        last[0] = time.monotonic()

    def watch() -> None:
        while not over.wait(min(1.0, NAMED)):
            if time.monotonic() - last[0] > NAMED:
                log.warning("%s: nothing was written for %g s; the file system does not answer, and all wait for it", path, NAMED)
                return

    thread = threading.Thread(target=watch, name="kgdist-silence", daemon=True)
    thread.start()
    try:
        yield moved
    finally:
        over.set()
        thread.join(timeout=1.0)
