"""Pipes between processes: waited for, their bytes put together to lines, and those understood: JSON, or text for people."""

from __future__ import annotations

import contextlib
import json
import os
import select
from typing import Any, Protocol


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
    """Wakes a loop that waits for pipes and would have to look at queues in turn otherwise: any thread can make it readable.

    It is readable from `ring` to `quiet`. What is written to the descriptor `rope` rings it, too (signal.set_wakeup_fd)."""

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


class Lines:
    """Pieces of a byte stream put together to lines, in time linear in them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0  # bytes that have no line end yet

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = self.rest() + whole[0]
        self._pieces.append(last)
        self.size += len(last)
        return whole

    def rest(self) -> bytes:
        """Take what has no line end yet."""
        line = b"".join(self._pieces)
        self._pieces, self.size = [], 0
        return line


def message_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line is, or None when it is something else."""
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def readable(line: bytes) -> str:
    """A line for a terminal: what a bar has overwritten left out, control characters spelled out."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\t" else repr(letter)[1:-1] for letter in text)
