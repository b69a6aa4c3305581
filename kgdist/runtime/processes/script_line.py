"""The line of a script's process to its agent, as the process sees it; the agent's end is `scripted.py`.

One thing at a time: whoever calls for something waits for the answer, and nobody else speaks meanwhile. How long that takes is
the launcher's business, which knows who is missing; when it is gone, or the agent, so is this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Any

from kgdist.base.errors import PeersLost, UsageError
from kgdist.runtime.processes.pipes import Lines, message_of, ready
from kgdist.runtime.protocol import SCRIPT_HEARS, word_of

PIECE = 1 << 16
TICK = 1.0  # seconds of a wait, between which signals are taken


class ScriptLine:
    """The socket that this process has inherited under the number in KGDIST_LINE. Raises UsageError where it is not there."""

    def __init__(self) -> None:
        number = os.environ.get("KGDIST_LINE", "")
        try:
            self._line = socket.socket(fileno=int(number))
        except (OSError, ValueError) as error:
            what = f"KGDIST_LINE={number!r} leads to no agent"
            raise UsageError(f"{what}: only the process that kgdist-launch has started can call initialize()") from error
        self._line.set_inheritable(False)  # what this process starts has no part in it
        self._pid, self._number = os.getpid(), 0
        self._lines, self._heard = Lines(), deque[dict[str, Any]]()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """To be waited for."""
        return self._line.fileno()

    def say(self, **word: Any) -> None:
        """Tell the agent. Raises PeersLost, and UsageError in a process that was forked from this one."""
        if os.getpid() != self._pid:
            raise UsageError("only a trainer itself can do this, not a process that it has forked")
        try:
            self._line.sendall(json.dumps(word, allow_nan=False).encode() + b"\n")
        except OSError as error:
            raise PeersLost("the agent of this machine is gone") from error

    def hear(self, seconds: float) -> tuple[str, Any] | None:
        """What it says next, None if that is not in time. Raises PeersLost."""
        if not self._heard and ready(self._line, seconds):
            try:
                data = self._line.recv(PIECE)
            except OSError:
                data = b""
            if not data:
                raise PeersLost("the agent of this machine is gone")
            self._heard += filter(None, map(message_of, self._lines.feed(data)))
        return word_of(self._heard.popleft(), SCRIPT_HEARS) if self._heard else None

    def ask(self, wanted: str, **word: Any) -> Any:
        """Say it, and wait for the word `wanted`. Raises PeersLost."""
        self.say(**word)
        while (heard := self.hear(TICK)) is None or heard[0] != wanted:
            pass
        return heard[1]

    def call(self, what: str, **value: Any) -> dict[str, Any]:
        """Do with all other trainers what they do as well; what comes of it. Raises UsageError for what cannot be, PeersLost."""
        with self._lock:
            self._number += 1
            answer = self.ask("reply", call={"number": self._number, "what": what, "value": value})
        if answer["problem"]:
            raise UsageError(answer["problem"])
        return dict(answer["value"])

    def post(self, what: str, **value: Any) -> None:
        """Let the launcher know; there is no answer. Raises PeersLost."""
        with self._lock:
            self.say(call={"number": 0, "what": what, "value": value})

    def tell_errors(self) -> None:
        """Tell the agent of an error that ends this process when it is raised: before others notice that it has ended."""
        before = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            if os.getpid() == self._pid:
                with contextlib.suppress(Exception):
                    self.say(raised=f"{kind.__name__}: {error}"[:500])
            before(kind, error, trace)

        sys.excepthook = hook
