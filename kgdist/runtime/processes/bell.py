"""A descriptor that can be waited for together with pipes, and that any thread can make readable: for a loop that would have to
look at queues and pipes in turn otherwise."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Protocol


class Descriptor(Protocol):
    """A file, a socket or a bell."""

    def fileno(self) -> int:
        """Its number."""


def ready(what: int | Descriptor, seconds: float, event: int = select.POLLIN) -> bool:
    """Whether a descriptor can be read, or what `event` asks, now or in that time."""
    poll = select.poll()  # select.select knows no descriptors above 1023
    poll.register(what, event)
    return bool(poll.poll(seconds * 1000))


class Bell:
    """Readable from `ring` to `quiet`. What is written to the descriptor `rope` rings it, too (signal.set_wakeup_fd)."""

    def __init__(self) -> None:
        self._ear, self.rope = os.pipe()
        self._open: tuple[int, ...] = self._ear, self.rope
        for fd in self._open:
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        """To be waited for."""
        return self._ear

    def ring(self) -> None:
        """Wake whoever waits; from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: it rings already
            os.write(self.rope, b"\0")

    def quiet(self) -> None:
        """Before one looks at what it has rung for."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._ear, 1 << 16)

    def close(self) -> None:
        """Give it up; twice is the same as once."""
        for fd in self._open:
            os.close(fd)
        self._open = ()

    def __del__(self) -> None:
        self.close()
