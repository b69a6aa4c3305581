"""A descriptor that can be waited for together with pipes, and that any thread can make readable: for a loop that would have to
look at queues and pipes in turn otherwise."""

from __future__ import annotations

import contextlib
import os


class Bell:
    """Readable from `ring` to `quiet`."""

    def __init__(self) -> None:
        self._ear, self._rope = os.pipe()
        for fd in (self._ear, self._rope):
            os.set_blocking(fd, False)

    def fileno(self) -> int:
        """To be waited for."""
        return self._ear

    def ring(self) -> None:
        """Wake whoever waits; from any thread."""
        with contextlib.suppress(BlockingIOError):  # full: it rings already
            os.write(self._rope, b"\0")

    def quiet(self) -> None:
        """Before one looks at what it has rung for."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._ear, 1 << 16)

    def __del__(self) -> None:
        for fd in (self._ear, self._rope):
            os.close(fd)
