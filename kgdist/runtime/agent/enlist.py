"""kgdist-server and kgdist-client: processes of one machine that were started by hand, and find their launcher by a job file.

The first is the machine's agent (`kgdist.runtime.agent.agent.Agent`), whose conversation goes over an encrypted connection
instead of pipes; the second gives the word that trainers may begin, by being there, and ends with the job. Whose conversation has
ended for want of another process asks to take part again: the next attempt finds it there.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import queue
import socket
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

from kgdist.base.errors import OptionError, PeersLost, UsageError
from kgdist.base.log import log, tell
from kgdist.kvstore.wire import BROKEN, CONNECTED, LOST, STRANGER, Transport, Watch
from kgdist.runtime.agent.agent import Agent
from kgdist.runtime.cluster.jobfile import JobFile
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.processes.pipes import Bell, message_of
from kgdist.version import __version__

TICK = 0.01  # seconds between two looks at what is to be sent
CALL = 1.0  # seconds between two calls to a launcher that has not answered
RETURN = 30.0  # seconds in which it must
FAILURES = 10  # handshakes one after another: what listens there has another key; one may fail as a launcher ends
SETTLE = 60.0  # seconds that what was begun may take after the end of a conversation

Message = dict[str, Any]


class Line:
    """The connection to the launcher. One thread moves what is sent and received: sockets belong to one thread."""

    def __init__(self, job: JobFile) -> None:
        self.place = f"{job.host}:{job.port}"
        self.stranger = self.connected = False
        self._transport = Transport(job.keys, job.timeout)
        self._wire = self._transport.client(job.host, job.port)
        self._inbox: queue.Queue[Message] = queue.Queue()
        self.bell = Bell()
        self._outbox: deque[bytes] = deque()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._move, name="kgdist-line", daemon=True)
        self._thread.start()

    def post(self, **message: Any) -> None:
        """Send a message as soon as possible."""
        self._outbox.append(json.dumps(message, allow_nan=False).encode())

    def get(self, seconds: float) -> Message | None:
        """The next message, None if there is none in time; {"lost": True} when the connection has broken."""
        try:
            return self._inbox.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Say goodbye, as far as that is possible, and end."""
        self.post(gone=True)
        deadline = time.monotonic() + 2.0
        while self.connected and time.monotonic() < deadline:
            if (message := self.get(0.1)) is not None and ("bye" in message or "lost" in message):
                break
        self._ending.set()
        self._thread.join(timeout=5)
        self._transport.close()

    def _move(self) -> None:
        watch, broken = Watch([self._wire]), 0
        while not self._ending.is_set():
            watch.wait(TICK)
            while (frames := self._wire.receive()) is not None:
                if (message := message_of(bytes(frames[0]))) is not None:
                    self._inbox.put(message)
                    self.bell.ring()
            for event, _ in self._wire.events():
                broken += event == BROKEN
                self.stranger = self.stranger or event == STRANGER or broken >= FAILURES
                if event == CONNECTED:
                    self.connected, broken = True, 0
                elif event == LOST:
                    self._outbox.clear()  # of a conversation that is over
                    self.connected = False
                    self._inbox.put({"lost": True})
                    self.bell.ring()
            while self._outbox and self._wire.send([self._outbox[0]]) is not None:
                self._outbox.popleft()


class Conversation:
    """See Partner: one attempt, from the launcher's welcome to its end, which is then in `end`."""

    def __init__(self, line: Line, interrupts: Interrupts) -> None:
        self.end: Message | None = None
        self._line, self._interrupts, self.bell = line, interrupts, line.bell
        self._told = False

    @property
    def leaving(self) -> bool:
        """Whether there will be no other one: the job is over, or the user has said so."""
        return "over" in (self.end or {}) or self._interrupts.asked

    def send(self, **event: Any) -> None:
        if self.end is not None:
            raise EOFError
        self._line.post(**event)

    def receive(self, seconds: float) -> Message | None:
        if self._interrupts.asked and not self._told:
            self._told = True
            self._line.post(interrupt=True)
            log.warning("the job is asked to save and to end; once more, and this machine leaves it at once")
        message = self._line.get(seconds) if self.end is None else None
        if message is not None and any(key in message for key in ("close", "over", "lost")):
            self.end = message
        if self.end is not None:
            raise EOFError
        return message if message is not None and "do" in message else None


def attend(role: str, path: Path, machine: int) -> int:
    """Be the `server` or `client` of machine `machine` of the job at `path` until it is over; its exit code.

    Raises UsageError, PeersLost; KeyboardInterrupt at the second signal, or the first where nothing runs.
    """
    job = JobFile.read(path)
    if machine >= job.machines:
        raise OptionError("--machine", f"{machine}: the job has {job.machines} machines, 0 to {job.machines - 1}")
    with Interrupts() as interrupts:
        line = Line(job)
        try:
            return _serve(line, interrupts, job, path, role, machine)
        finally:
            line.close()


def _serve(line: Line, interrupts: Interrupts, job: JobFile, path: Path, role: str, machine: int) -> int:
    me: Message = {"run": job.run, "version": __version__, "machine": machine, "role": role, "ready": False, "turn": 0}
    me |= {"pid": os.getpid(), "host": socket.gethostname()}
    ended = False
    while True:
        try:
            answer = _enlist(line, interrupts, path, me)
        except PeersLost:
            if ended:  # and did not wait to say so once more
                return 0
            raise
        if "over" in answer:
            return int(answer["over"])
        tell(f"kgdist-{role} of machine {machine}: begun")
        conversation = Conversation(line, interrupts)
        ended = (_train if role == "server" else _wait)(conversation, line)
        if conversation.leaving:
            return int((conversation.end or {}).get("over", 130))
        me["turn"] += 1
        gc.collect()  # the rows: those of the next attempt need their room


def _train(conversation: Conversation, line: Line) -> bool:
    """Be the agent of an attempt; whether it was told to end. Raises PeersLost."""
    agent, code = Agent(conversation), 1

    def forward(record: logging.LogRecord) -> bool:
        if conversation.end is None:
            line.post(log=f"{record.levelname}: {record.getMessage()}")
        return True

    log.addFilter(forward)
    try:
        code = agent.run()
    except EOFError:
        pass  # the launcher has gone before it could hear why
    except Exception as error:
        line.post(failed={"what": f"{type(error).__name__}: {error}", "recoverable": False, "code": 1})
        raise
    finally:
        log.removeFilter(forward)
        line.post(left=code)
    if not conversation.leaving and not agent.settle(SETTLE):
        raise PeersLost(f"what was begun has not ended within {SETTLE:.0f} s; start kgdist-server again")
    return agent.ended


def _wait(conversation: Conversation, line: Line) -> bool:
    """Show during an attempt that this process is there; whether that was told to end."""
    ended = False
    try:
        while True:
            ended |= conversation.receive(1.0) is not None  # {"do": "end"}: nothing else is said to a client
            conversation.send(here=True)
    except EOFError:
        line.post(left=0)
    return ended


def _enlist(line: Line, interrupts: Interrupts, path: Path, me: Message) -> Message:
    """Ask to take part until the launcher lets us ({"welcome": ...}), or tells that the job is over ({"over": exit code}).

    First we ask whether we may at all, then, with the libraries loaded, to begin.
    """
    called, deadline = 0.0, time.monotonic() + RETURN
    while time.monotonic() < deadline:
        if line.connected and time.monotonic() > called + CALL:
            line.post(enlist=me)
            called = time.monotonic()
        if line.stranger:
            raise UsageError(f"{line.place}: what listens there has other keys; {path} is not of the job that runs there")
        with interrupts.immediate():
            message = line.get(0.1) or {}
        if "refused" in message:
            raise UsageError(f"{line.place}: {message['refused']}")
        if "wait" in message:
            if not me["ready"]:
                from kgdist.runtime.agent import training_site  # noqa: F401  seconds, in which nobody waits for a sign of life yet

                me["ready"], called = True, 0.0
            deadline = time.monotonic() + RETURN
        elif "welcome" in message or "over" in message:
            return message
        elif "lost" in message:
            called = 0.0
    raise PeersLost(f"{line.place}: no launcher of {path} has answered for {RETURN:.0f} s; is it still running?")
