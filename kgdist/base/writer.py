"""A file that may take nothing for hours: a terminal at Ctrl-S, a pipe that nobody reads. A thread of its own writes to it.

Whoever has words for it never waits and never fails. What does not fit into a bounded memory is dropped, and a line says so.
"""

from __future__ import annotations

import collections
import os
import select
import threading
import time

ROOM = 1 << 20  # bytes that wait; more are dropped
FLEETING = 1 << 16  # bytes that wait when pictures that the next one replaces are left out
PIECE = 4096  # bytes written at a time, so that one that is read slowly is seen to be read
STILL = 2.0  # seconds at the end in which nothing was taken: nobody reads
LAST = 10.0  # seconds at the end, for one that reads slowly


class Writer:
    """Writes to a copy of descriptor `fd`, in the order of `put`, until `close`."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._changed = threading.Condition()
        self._waiting: collections.deque[bytes] = collections.deque()
        self._size = 0  # bytes that wait, those being written among them
        self._taken = 0  # pieces that the file took or refused
        self._dropped = 0  # lines, since the last word about it
        self._why = ""
        self._ending = self._gone = False
        self._thread = threading.Thread(target=self._work, name="kgdist-writer", daemon=True)
        self._thread.start()

    def put(self, text: bytes, *, fleeting: bool = False) -> None:
        """Have `text` written, or dropped where there is no room; `fleeting` text is no line, and is not missed."""
        with self._changed:
            room = FLEETING if fleeting else ROOM // 2 if self._dropped else ROOM  # half is free before lines are taken again
            if self._ending or self._size > room:
                if not fleeting:
                    self._drop(text, "nobody read them")
                return
            if not fleeting:
                self._tell_dropped()
            self._append(text)

    def _append(self, text: bytes) -> None:
        self._waiting.append(text)
        self._size += len(text)
        self._changed.notify_all()

    def _drop(self, text: bytes, why: str) -> None:
        self._dropped += text.count(b"\n")
        self._why = why

    def _tell_dropped(self) -> None:
        if self._dropped:
            lines = "1 line was" if self._dropped == 1 else f"{self._dropped:,} lines were"
            self._append(f"\r({lines} dropped: {self._why})\n".encode())
            self._dropped = 0

    def _work(self) -> None:
        while (text := self._next()) is not None:
            problem = self._write(text)
            with self._changed:
                self._size -= len(text)
                if problem:
                    self._drop(text, problem)
                self._changed.notify_all()
        os.close(self._fd)

    def _next(self) -> bytes | None:
        """What is to be written next; None at the end."""
        with self._changed:
            while not self._waiting:
                if self._ending:
                    return None
                self._changed.wait(1.0)
            return self._waiting.popleft()

    def _write(self, text: bytes) -> str:
        """Write all of it, which may take for ever; why that cannot be done, if so."""
        left = memoryview(text)
        while len(left) and not self._gone:
            try:
                left = left[os.write(self._fd, left[:PIECE]) :]
            except BlockingIOError:  # another program has made the terminal so
                select.select([], [self._fd], [], 1.0)
                continue
            except OSError as error:
                return error.strerror or str(error)
            finally:
                self._taken += 1
        return ""

    def close(self) -> None:
        """Wait until all is written, as long as somebody takes it, and end."""
        with self._changed:
            self._tell_dropped()
            self._ending = True
            self._changed.notify_all()
            begun = moved = time.monotonic()
            taken = self._taken
            while self._size and (now := time.monotonic()) < min(moved + STILL, begun + LAST):
                if self._taken != taken:
                    taken, moved = self._taken, now
                self._changed.wait(0.1)
            self._waiting.clear()
            self._gone = True
        self._thread.join(1.0)  # where nobody reads it stays in its write, and ends with the process
