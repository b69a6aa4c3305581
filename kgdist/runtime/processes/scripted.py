"""A process of a user's own command, as the agent sees it: what it prints, its line, its end.

The line is a socket over which both say lines of JSON; whoever does not know of it leaves it alone. What is printed is read at
once, whatever becomes of it, so that no command waits for a terminal.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Iterator
from typing import Any

from kgdist.runtime.processes.keeper import Keeper
from kgdist.runtime.processes.pipes import Descriptor, Lines, message_of

LINE = 3  # the descriptor of the line in the command: the first after stdin, stdout and stderr
PIECE = 1 << 16  # bytes that are read of one stream in a turn
TURNS = 16  # of reading the line, before others get theirs
LONGEST = 8 << 10  # bytes of a line that is printed; longer ones come in pieces
WORDS = 64 << 20  # bytes that may wait on the line, either way
LAST = 20  # lines of stderr that are remembered


class ScriptProcess:
    """A command that was ordered.

    Args:
        keeper: starts it; stays the caller's.
        env: changes to its environment.
    """

    def __init__(self, keeper: Keeper, name: str, argv: list[str], cwd: str, env: dict[str, str]) -> None:
        self.name = name
        self.last: deque[bytes] = deque(maxlen=LAST)  # lines of stderr
        self.ended = False  # its code and all it has printed were taken
        self._keeper = keeper
        self._line, theirs = socket.socketpair()
        pipes = [os.pipe(), os.pipe()]
        nothing = os.open(os.devnull, os.O_RDONLY)
        given = [nothing, *(out for _, out in pipes), theirs.fileno()]
        try:
            self._number = keeper.start(name, argv, cwd, env | {"KGDIST_LINE": str(LINE)}, *given)
        finally:
            theirs.close()
            for fd in given[:3]:
                os.close(fd)
        self._files = [os.fdopen(ours, "rb", buffering=0) for ours, _ in pipes]
        self._streams = [Lines(), Lines()]
        for file in self._files:
            os.set_blocking(file.fileno(), False)
        self._line.setblocking(False)
        self._heard, self._unsent = Lines(), b""

    @property
    def pid(self) -> int:
        """Of the process; 0 as long as there is none."""
        return self._keeper.pid(self._number)

    @property
    def code(self) -> int | None:
        """Its exit code, or less than 0: the signal that has killed it; None while it runs."""
        return self._keeper.code(self._number)

    def outputs(self) -> list[Descriptor]:
        """What it writes to."""
        return [] if self.ended else [*(file for file in self._files if not file.closed), self._line]

    def send(self, message: dict[str, Any]) -> None:
        """Say something on the line. What it does not take now goes with the next look; nothing waits for it."""
        self._unsent += json.dumps(message, allow_nan=False).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what is unsent, as far as it is taken."""
        try:
            while self._unsent and len(self._unsent) < WORDS:
                self._unsent = self._unsent[self._line.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:  # it has closed the line, or has ended
            self._unsent = b""

    def messages(self) -> Iterator[dict[str, Any]]:
        """What it has said on the line since."""
        with contextlib.suppress(OSError):
            for _ in range(TURNS):
                if not (data := self._line.recv(PIECE)):
                    break
                for line in self._heard.feed(data):
                    if (message := message_of(line)) is not None:
                        yield message
                if self._heard.size > WORDS:
                    self._line.close()

    def printed(self, *, rest: bool = False) -> Iterator[tuple[bool, bytes]]:
        """Lines that it has printed since, and whether on stderr; at most some of them, but with `rest` all there are, and that
        which has no end. They are bytes, for of a flood few are shown (`kgdist.runtime.processes.pipes.readable`)."""
        for number, (file, lines) in enumerate(zip(self._files, self._streams, strict=True)):
            while not file.closed:
                data = file.read(PIECE)
                if data == b"":
                    file.close()
                for line in lines.feed(data or b""):
                    yield from self._pieces(line, number == 1)
                if lines.size > LONGEST:
                    yield from self._pieces(lines.rest(), number == 1)
                if not data or not rest:
                    break
            if rest and (line := lines.rest()):
                yield from self._pieces(line, number == 1)

    def _pieces(self, line: bytes, error: bool) -> Iterator[tuple[bool, bytes]]:
        for start in range(0, max(len(line), 1), LONGEST):
            piece = line[start : start + LONGEST]
            if error and piece.strip():
                self.last.append(piece)
            yield error, piece

    def send_signal(self, which: signal.Signals) -> None:
        """Send it a signal; none when it has ended."""
        self._keeper.send_signal(self._number, which)

    def close(self) -> None:
        """Give up what it was heard by; it is the keeper that ends it."""
        self.ended = True
        self._line.close()
        for file in self._files:
            file.close()
