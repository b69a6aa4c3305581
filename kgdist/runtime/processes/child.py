"""The two ends of the pipes between a process of ours and its owner: `Child` as the owner sees it, `Owner` as the process does.

A child runs `worker.py`, forked from a process that has imported what it needs (`forkserver.py`). It reads the job as one line of
JSON on stdin, later lines as commands, and writes events as lines of JSON on stdout. When stdin closes, it ends: so it cannot
outlive its owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from kgdist.base.log import log
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.processes.pipes import Bell, Lines, message_of

GRACE = 5.0  # seconds between asking a process to end and making it
FORCE = 2.0  # seconds in which one that is made to end is gone, unless the system holds it

# {"say": line} and others of its job, and as the last one {"done": value}, {"error": line, "traceback": text, "code": exit code},
# which says of an error without a traceback whether the training has "diverged", or {"lost": how}
Event = dict[str, Any]
LAST = ("done", "error", "lost")


class Child:
    """A process without work yet.

    Args:
        forks: forks it; stays the caller's.
        name: stands in its command line, for those who look at the list of processes.
    """

    def __init__(self, forks: ForkServer, *, name: str = "") -> None:
        theirs, out = os.pipe()
        ours, their_out = os.pipe()
        self.stdin, self.stdout = os.fdopen(out, "wb"), os.fdopen(ours, "rb")
        self._forks = forks
        try:
            self._number = forks.fork(name, theirs, their_out)
        except BaseException:
            self.stdin.close()
            self.stdout.close()
            raise
        finally:
            os.close(theirs)
            os.close(their_out)
        os.set_blocking(ours, False)
        self.open = True  # whether it may still say something
        self._lines = Lines()
        self._ended = False  # it has said how
        self._killed = False  # by us

    @property
    def pid(self) -> int:
        """Of the process; 0 as long as there is none."""
        return self._forks.pid(self._number)

    @property
    def code(self) -> int | None:
        """Its exit code, or less than 0: the signal that has killed it; None while it runs."""
        return self._forks.code(self._number)

    def send(self, message: dict[str, Any]) -> None:
        """The job, or a command. A process that has ended hears nothing: its events tell."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.stdin.write(json.dumps(message).encode() + b"\n")
            self.stdin.flush()

    def events(self) -> Iterator[Event]:
        """What it has said since. One that ended without a last word is told as lost."""
        code = self.code  # before the pipe is read: nothing comes after
        data = self.stdout.read() if self.open else None
        self.open = self.open and data != b""
        for line in self._lines.feed(data or b""):
            event = json.loads(line)
            self._ended = self._ended or any(key in event for key in LAST)
            yield event
        if code is not None and not self._ended:
            self._ended = True
            yield {"lost": ending(code, by_us=self._killed)}

    def send_signal(self, which: signal.Signals) -> None:
        """Send it a signal; none when it has ended."""
        self._forks.send_signal(self._number, which)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._killed = True
        self.send_signal(signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether it has ended, now or in that time."""
        return self._forks.wait(self._number, seconds)

    def release(self) -> None:
        """Tell it to end."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def close(self, deadline: float) -> None:
        """End it: asked until `deadline` (time.monotonic()), then by force."""
        end([self], deadline)


def ending(code: int, *, by_us: bool = False) -> str:
    """In words what a process has done that left this code, less than 0: the signal; `by_us`: that killed it."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    memory = "; the system may have run out of memory" if code == -signal.SIGKILL and not by_us else ""
    return f"was killed by signal {name}{memory}"


def show_stacks(children: Sequence[Child]) -> None:
    """Let all of them write to stderr where they stand; stopped ones cannot."""
    for child in children:
        child.send_signal(signal.SIGUSR1)
    time.sleep(0.5)  # which takes them a moment


def show_traceback(who: str, event: Event) -> None:
    """Log that of an "error", if it has one."""
    for line in event["traceback"].splitlines():
        log.error("[%s] %s", who, line)


def end(children: Sequence[Child], deadline: float) -> None:
    """End all of them: asked until `deadline` (time.monotonic()), then by force. It is said which ones even that does not end:
    the system holds a process that waits for a file system, and ends it when that answers."""
    for child in children:
        child.release()
    left = [child for child in children if not child.wait(max(0.1, deadline - time.monotonic()))]
    for child in left:
        child.kill()
    deadline = time.monotonic() + FORCE
    for child in left:  # one that has not begun ends with its first look at stdin, if ever
        if child.pid and not child.wait(max(0.0, deadline - time.monotonic())):
            log.error(
                "process %d cannot be ended: the system holds it, perhaps for a file system that does not answer", child.pid
            )
    for child in children:
        child.stdout.close()


class Partner(Protocol):
    """Whom an agent works for: `Owner`, or a launcher that it has found by itself (`kgdist.runtime.agent.enlist`). `bell` rings
    when there may be something to receive."""

    bell: Bell

    def send(self, **event: Any) -> None:
        """Tell it. Raises EOFError when it is gone."""

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """What it says next, None if that is not in time. Raises EOFError when it is gone."""


class Owner:
    """Made once, at the start of a process whose stdin and stdout are its owner's pipes.

    Args:
        gone: called, in any thread, when the owner has closed a pipe or has ended.
    """

    def __init__(self, gone: Callable[[], None] = lambda: None) -> None:
        self._gone = gone
        self._inbox: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.bell = Bell()
        self._out = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
        self._lock = threading.Lock()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody's print may break the protocol
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in iter(sys.stdin.buffer.readline, b""):
            self._inbox.put(message_of(line) or {})  # which nobody understands, and who reads it says so
            self.bell.ring()
        self._inbox.put(None)
        self.bell.ring()
        self._gone()

    def send(self, **event: Any) -> None:
        """Tell it. Raises EOFError when it is gone."""
        try:
            with self._lock:
                self._out.write(json.dumps(event) + "\n")
                self._out.flush()
        except BrokenPipeError as error:
            self._gone()
            raise EOFError from error

    def say(self, line: str) -> None:
        """A line for the user."""
        self.send(say=line)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        """What it says next, None if that is not in time. Raises EOFError when it is gone."""
        try:
            message = self._inbox.get(timeout=seconds)
        except queue.Empty:
            return None
        if message is None:
            self._inbox.put(None)
            raise EOFError
        return message
