"""The seam between a launcher and its machines: a process there with which its owner exchanges lines of JSON.

What arrives from all channels is put on one queue, so the owner waits in one place. `Channel` holds what all kinds share
(framing, bounds, deadlines, the order of closing), `LocalChannel` is a child process here,
`kgdist.runtime.channels.ssh.SshChannel` one over SSH. What the messages mean is no business of this file; nor is silence: a
frozen peer is noticed by whoever waits for it.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

from kgdist.base.log import log
from kgdist.runtime.processes.child import ending
from kgdist.runtime.processes.forkserver import environment, program
from kgdist.runtime.processes.pipes import Lines, message_of, readable, ready

AGENT = "kgdist.runtime.agent.agent"
LONGEST = 64 << 20  # bytes of a message, and of all those that wait to be sent
LOG_LONGEST = 64 << 10  # bytes of a line for people; longer ones come in pieces
PATIENCE = 30.0  # seconds in which a peer must take some of what is sent to it
GRACE = 5.0  # seconds between closing a process's stdin and asking it to end
FORCE = 2.0  # seconds between asking and making, and for what is then left
TICK = 0.5  # seconds between two looks at what cannot be waited for
PIECE = 1 << 16


class Heard(NamedTuple):
    """What a channel puts on its owner's queue: kind is "message" (a dict), "log" (a line of text), "closed" (an Ending).

    "closed" comes once, and last.
    """

    machine: int
    kind: str
    value: Any
    at: float  # of time.monotonic(), when it came


@dataclass(frozen=True)
class Ending:
    """How a channel's process ended; `code` is None unless it ended by itself with an exit code that has arrived."""

    code: int | None
    words: str  # goes on after the machine's name: "ended with exit code 3"
    last: str = ""  # its last line for people, which often has the reason


class Channel(ABC):
    """A process on machine `number`, owned by whoever made this. A subclass moves the bytes; all waits are here.

    Three threads serve it: one listens and tells the end, one listens to what is for people, one sends. They end with it. When
    `events` has a bound and is full, they wait, and so does the process.
    """

    remedy = ""  # what goes on after a last line that names a missing module

    def __init__(self, number: int, name: str, events: queue.Queue[Heard], *, patience: float = PATIENCE) -> None:
        self.number = number
        self.name = name
        self._events = events
        self._patience = patience
        self._outbox: queue.Queue[bytes | None] = queue.Queue()  # None: no more, close its stdin
        self._waiting = 0  # bytes in the outbox
        self._counting, self._lock = threading.Lock(), threading.Lock()
        self._lost = ""  # why the channel was given up
        self._last = ""
        self._overheard = 0  # pieces of its stderr
        self._closing = False
        self._over = False  # the end was told
        self._done = threading.Event()  # ... and nothing is left
        self._threads = [
            threading.Thread(target=work, args=args, name=f"channel-{number}-{what}", daemon=True)
            for what, work, args in (("in", self._converse, ()), ("log", self._overhear, ()), ("out", self._deliver, ()))
        ]

    # What a subclass does with its process. None of these may wait longer than about TICK.

    @abstractmethod
    def _read(self, stream: int) -> bytes | None:
        """Some bytes of stdout (1) or stderr (2), b"" at the end, None when there were none within TICK."""

    @abstractmethod
    def _write(self, data: memoryview) -> int:
        """Send some of `data`; how many bytes were taken, 0 when none were within TICK. Raises OSError when none ever will be."""

    @abstractmethod
    def _end_input(self) -> None:
        """Close its stdin."""

    @abstractmethod
    def _ending(self) -> tuple[int | None, str] | None:
        """How the process ended, or None while it has not."""

    @abstractmethod
    def _stop(self, *, force: bool) -> None:
        """Ask the process to end, or make it; over SSH, where neither can be done, the connection is ended."""

    @abstractmethod
    def _release(self) -> None:
        """Give back what the system holds; the threads no longer use it."""

    # What an owner does.

    def send(self, message: dict[str, Any]) -> None:
        """Send a JSON object; returns at once. After the end messages go nowhere: "closed" tells.

        A peer that takes nothing for the channel's patience, or lets 64 MiB queue up, is given up as lost. Raises ValueError for
        what is not JSON (NaN is not) or longer than 64 MiB.
        """
        data = json.dumps(message, allow_nan=False).encode() + b"\n"
        if len(data) > LONGEST:
            raise ValueError(f"a message of {len(data) >> 20} MiB is too long for a channel")
        with self._counting:
            self._waiting += len(data)
            full = self._waiting > LONGEST
        if full:
            self._lose("does not read what is sent to it")
        elif not self._over:
            self._outbox.put(data)

    def close(self, grace: float = GRACE) -> None:
        """End the process: its stdin is closed after what was sent; then it is asked; then it is made to. Never waits longer
        than `grace` + 4 seconds. May be called again."""
        self._closing = True
        self._outbox.put(None)
        if self._done.wait(timeout=grace):
            return
        for force in (False, True):
            self._stop(force=force)
            if self._done.wait(timeout=FORCE):
                return
        log.warning("%s: its process could not be ended from here", self.name)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # Threads.

    def _begin(self) -> None:
        for thread in self._threads:
            thread.start()

    def _lose(self, why: str) -> None:
        self._lost = self._lost or why
        self._stop(force=True)

    def _tell(self, kind: str, value: Any) -> None:
        told = False
        while not told:
            with self._lock:  # so that nothing comes after "closed"
                if self._over:
                    return
                try:
                    self._events.put(Heard(self.number, kind, value, time.monotonic()), timeout=0.0 if self._closing else TICK)
                    told = True
                except queue.Full:
                    told = self._closing  # to nobody: the queue is not read any more
                self._over = told and kind == "closed"

    def _say(self, line: bytes) -> None:
        self._last = readable(line) or self._last
        self._tell("log", readable(line))

    def _converse(self) -> None:
        """Read messages to the end, tell it, and leave nothing behind."""
        try:
            self._listen(1)
        except Exception as error:  # whatever it is, the owner must hear of the end
            self._lose(f"could not be listened to any more ({type(error).__name__}: {error})")
        deadline = time.monotonic() + GRACE
        while (how := self._ending()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        if how is None:
            self._lose("closed its output, but did not end")
        until, before = time.monotonic() + self._patience, -1
        while self._threads[1].is_alive() and self._overheard != before and time.monotonic() < until:  # its last words
            before = self._overheard
            self._threads[1].join(timeout=FORCE)
        code, words = how or (None, "was lost")
        if self._lost:
            code, words = None, f"was given up: it {self._lost}"
        last = self._last + self.remedy * ("No module named" in self._last)
        self._tell("closed", Ending(code, words, last))
        self._outbox.put(None)
        for thread in self._threads[1:]:
            thread.join(timeout=2 * TICK + FORCE)
        self._release()
        self._done.set()

    def _overhear(self) -> None:
        with contextlib.suppress(Exception):  # lines for people; the end is told by the other thread
            self._listen(2)

    def _listen(self, stream: int) -> None:
        lines = Lines()
        while not self._over:
            ended = self._ending() is not None  # asked first: what it wrote before its end is read after
            data = self._read(stream)
            if data == b"" or (data is None and ended):  # a grandchild may hold the pipe open
                break
            self._overheard += stream == 2 and data is not None
            for line in lines.feed(data or b""):
                self._take(stream, line)
            if stream == 1 and lines.size > LONGEST:
                return self._lose("sent a line of more than 64 MiB")
            if stream == 2 and lines.size > LOG_LONGEST:
                self._take(stream, lines.rest())
        if rest := lines.rest():
            self._take(stream, rest)

    def _take(self, stream: int, line: bytes) -> None:
        message = message_of(line) if stream == 1 else None
        if message is not None:
            self._tell("message", message)
        elif line.strip():
            self._say(line)

    def _deliver(self) -> None:
        """Write what is in the outbox, then close the peer's stdin."""
        try:
            while not self._over:
                try:
                    data = self._outbox.get(timeout=TICK)
                except queue.Empty:
                    continue
                if data is None:
                    break
                self._deliver_one(memoryview(data))
                with self._counting:
                    self._waiting -= len(data)
        except OSError:  # it has closed its stdin, or has ended; the listener knows how
            pass
        except Exception as error:
            self._lose(f"could not be written to any more ({type(error).__name__}: {error})")
        with contextlib.suppress(Exception):
            self._end_input()

    def _deliver_one(self, view: memoryview) -> None:
        since = time.monotonic()
        while view and not self._over:
            if taken := self._write(view[:PIECE]):
                view, since = view[taken:], time.monotonic()
            elif time.monotonic() - since > self._patience:
                return self._lose(f"read nothing for {self._patience:g} seconds")


class Piped:
    """`main` of a module of ours in a process of its own, with this process's Python and environment and in a session of its own,
    and its pipes. No call waits longer than TICK."""

    def __init__(self, module: str, threads: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program(module)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(threads),
            start_new_session=True,
        )
        pipes = (self.process.stdin, self.process.stdout, self.process.stderr)
        self._fds = [pipe.fileno() for pipe in pipes if pipe is not None]
        for fd in self._fds:
            os.set_blocking(fd, False)

    def read(self, stream: int) -> bytes | None:
        """See Channel._read."""
        return os.read(self._fds[stream], PIECE) if ready(self._fds[stream], TICK) else None

    def write(self, data: bytes | memoryview) -> int:
        """See Channel._write."""
        try:
            return os.write(self._fds[0], data) if ready(self._fds[0], TICK, select.POLLOUT) else 0
        except BlockingIOError:  # less room than a piece: a pipe takes 4 KiB or more at once, or nothing
            return 0

    def end_input(self) -> None:
        """Close its stdin."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ending(self) -> tuple[int | None, str] | None:
        """See Channel._ending."""
        code = self.process.poll()
        return None if code is None else (code if code >= 0 else None, ending(code))

    def stop(self, *, force: bool) -> None:
        """Ask it to end, or make it."""
        if self.process.poll() is None:
            with contextlib.suppress(OSError):
                if force:
                    os.killpg(self.process.pid, signal.SIGKILL)  # and the children that share its session
                else:
                    self.process.terminate()

    def release(self) -> None:
        """Close the pipes."""
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=FORCE)


class LocalChannel(Channel):
    """A process of this machine, `main` of `module`: see Piped.

    Args:
        threads: intra-op threads that it may start by importing libraries.
    """

    def __init__(
        self,
        number: int,
        name: str,
        events: queue.Queue[Heard],
        *,
        module: str = AGENT,
        threads: int = 1,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(number, name, events, patience=patience)
        self._piped = Piped(module, threads)
        self.process = self._piped.process
        self._begin()

    def _read(self, stream: int) -> bytes | None:
        return self._piped.read(stream)

    def _write(self, data: memoryview) -> int:
        return self._piped.write(data)

    def _end_input(self) -> None:
        self._piped.end_input()

    def _ending(self) -> tuple[int | None, str] | None:
        return self._piped.ending()

    def _stop(self, *, force: bool) -> None:
        self._piped.stop(force=force)

    def _release(self) -> None:
        self._piped.release()
