"""The process that started this one, as this one sees it: lines of JSON on stdin and stdout."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Protocol

from kgdist.runtime.processes.bell import Bell


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
            self._inbox.put(json.loads(line))
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
