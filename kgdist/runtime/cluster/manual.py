"""Backend manual, the launcher's end: agents that were started by hand or by a scheduler, and come by themselves.

Every machine has two processes (`kgdist.runtime.agent.enlist`): kgdist-server is its agent, with its servers and trainers, and
kgdist-client gives the word that they may begin, and waits for the end. An attempt needs both of every machine. Connections are
always encrypted, and whoever has the job file may connect: there is no other way in.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from kgdist.base.errors import KgdistError, OptionError, PeersLost
from kgdist.base.log import log, say
from kgdist.kvstore.wire import Keys, Transport, Watch
from kgdist.options.cluster import ReachOptions
from kgdist.runtime.channels.channel import Ending, Heard
from kgdist.runtime.cluster.fleet import AttemptFailed, Fleet
from kgdist.runtime.cluster.jobfile import JobFile, computer
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.processes.pipes import message_of
from kgdist.version import __version__

PATIENCE = 600.0  # seconds for all to come
REMIND = 30.0  # seconds between two lines that name who is missing
RETURN = 5.0  # seconds until the first such line when an attempt before has ended
TICK = 0.01  # seconds between two looks at what is to be sent
TWIN = 1.0  # seconds in which one of two that claim the same place must show that it lives
PARTING = 10.0  # seconds for all to end
HURRY = 3.0  # the same where one of them has not done what was asked of it
SERVER, CLIENT = ROLES = ("server", "client")


def control_of(config: ReachOptions, machines: list[Machine]) -> tuple[str, int]:
    """Where the launcher waits for them: host and port. Raises OptionError."""
    if config.control is None:
        first = machines[0]
        taken = {port for machine in machines if machine.address == first.address for port in machine.ports}
        return first.address, next(port for port in range(first.ports[-1] + 1, 1 << 16) if port not in taken)
    host, colon, port = config.control.rpartition(":")
    if not colon or not port.isdecimal() or not 1 <= int(port) <= 65535:
        raise OptionError("--control", f"expected host:port, not {config.control!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


@dataclass
class Peer:
    """A kgdist-server or kgdist-client, as it has introduced itself."""

    name: bytes  # of its connection
    machine: int
    role: str
    turn: int  # conversations it has had before
    pid: int
    host: str
    heard: float
    outbox: deque[bytes] = field(default_factory=deque)
    channel: ManualChannel | None = None  # whose conversation it is in

    def post(self, **message: Any) -> None:
        """Send a message as soon as possible."""
        self.outbox.append(json.dumps(message, allow_nan=False).encode())


class ManualChannel:
    """A machine as its launcher sees it: commands in, events like those of a Channel out. Its agent is in kgdist-server; of
    kgdist-client it only takes note whether it is there."""

    def __init__(self, number: int, peers: dict[str, Peer], events: queue.Queue[Heard]) -> None:
        self.number = number
        self._peers = peers
        self._events = events
        self._over = threading.Event()
        self.closing = False

    def send(self, message: dict[str, Any]) -> None:
        """Tell the agent; the end is for both to know."""
        for role in ROLES if message["do"] == "end" else (SERVER,):
            self._peers[role].post(**message)

    def close(self, grace: float = PARTING) -> None:
        """End the conversation with both, after they have carried out what they were told. Waits at most `grace` seconds."""
        self.closing = True
        for peer in self._peers.values():
            peer.post(close=True)
        self._over.wait(timeout=grace)

    def hear(self, role: str, message: dict[str, Any]) -> None:
        """What one of them says."""
        for kind, value in message.items():
            if kind == "log":
                self._tell("log", f"kgdist-{role}: {value}")
            elif kind != "here":
                self._tell("message", {kind: value})

    def lose(self, role: str, how: str) -> None:
        """One of them is in this conversation no longer."""
        if all(peer.channel is not self for peer in self._peers.values()):
            self._over.set()
        self._tell("closed", Ending(None, f"(kgdist-{role}) {how}"))

    def _tell(self, kind: str, value: Any) -> None:
        self._events.put(Heard(self.number, kind, value, time.monotonic()))


class Reception:
    """Where they come: a socket and a job file, for all attempts at a job; both are made by the first `connect`.

    Args:
        patience: seconds for all to come.
    """

    def __init__(
        self, config: ReachOptions, machines: list[Machine], interrupts: Interrupts, *, patience: float = PATIENCE
    ) -> None:
        self.config, self.machines, self.interrupts, self.patience = config, machines, interrupts, patience
        self.path = Path(config.job)
        self.code = 0  # that all of them end with
        self.file: JobFile | None = None
        self._peers: dict[bytes, Peer] = {}
        self._places: dict[tuple[int, str], Peer] = {}
        self._twins: dict[bytes, float] = {}  # connection that claims a place which another one has -> since when
        self._parting = self._warned = False
        self._lock = threading.Lock()
        self._ending = threading.Event()

    # ---- for the launcher

    def connect(self) -> Fleet:
        """Wait until both of every machine are there. Raises AttemptFailed, naming those that are missing, UsageError."""
        began = reminded = time.monotonic()
        if self.file is None:
            self._open()
        else:
            reminded -= REMIND - RETURN  # most come back by themselves
        while missing := self._missing():
            if time.monotonic() > began + self.patience:
                raise AttemptFailed(f"not started within {self.patience:g} s: {missing}")
            if time.monotonic() > reminded + REMIND:
                reminded = time.monotonic()
                log.info("waiting for %s", missing)
            with self.interrupts.immediate():
                time.sleep(0.05)
        events: queue.Queue[Heard] = queue.Queue()
        with self._lock:
            channels = {machine.number: self._channel(machine, events) for machine in self.machines}
        return Fleet(self.machines, channels, events, self.config.peer_timeout)

    def _channel(self, machine: Machine, events: queue.Queue[Heard]) -> ManualChannel:
        peers = {role: self._places[machine.number, role] for role in ROLES}
        channel = ManualChannel(machine.number, peers, events)
        for peer in peers.values():
            peer.channel, peer.heard = channel, time.monotonic()
            peer.post(welcome=True)
        return channel

    def _missing(self) -> str:
        with self._lock:
            ready = {place for place, peer in self._places.items() if peer.channel is None}
        lacking = [(m, role) for m in self.machines for role in ROLES if (m.number, role) not in ready]
        return ", ".join(f"kgdist-{role} of {machine.name}" for machine, role in lacking)

    def _open(self) -> None:
        host, port = control_of(self.config, self.machines)
        mine, theirs = Keys.make(), Keys.make()
        keys = theirs.knowing({f"{host}:{port}": mine.public})
        self._transport = Transport(mine.knowing({"": theirs.public}), self.config.peer_timeout)
        try:
            self._wire = self._transport.server(host, port)
            run, count, timeout = uuid.uuid4().hex, len(self.machines), self.config.peer_timeout
            file = JobFile(run, host, port, count, timeout, keys, os.getpid(), computer())
            file.write(self.path)
        except BaseException:
            self._transport.close()
            raise
        self.file = file
        self._thread = threading.Thread(target=self._serve, name="kgdist-reception", daemon=True)
        self._thread.start()
        what = f"kgdist-server {self.path} --machine i, and kgdist-client {self.path} --machine i"
        wait = f"waiting at {host}:{port} for {self.patience / 60:g} minutes"
        say(f"start on each machine i, 0 to {len(self.machines) - 1}: {what}; {wait}")

    def __enter__(self) -> Reception:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Send everybody home, and take the file away."""
        if self.file is None:
            return
        if self.interrupts.asked or isinstance(error, KeyboardInterrupt):
            self.code = 130
        elif error is not None:
            self.code = error.exit_code if isinstance(error, KgdistError) else 1
        self.file.remove(self.path)
        with self._lock:
            self._parting = True
            for peer in self._peers.values():
                peer.post(over=self.code)
        hangs = self.interrupts.asked and isinstance(error, PeersLost)  # and the user wants to leave
        deadline = time.monotonic() + (HURRY if hangs else PARTING)
        while self._peers and time.monotonic() < deadline:
            time.sleep(TICK)
        self._ending.set()
        self._thread.join(timeout=5)
        self._transport.close()

    # ---- the thread of the socket

    def _serve(self) -> None:
        watch = Watch([self._wire])
        while not self._ending.is_set():
            watch.wait(min(TICK, self._wire.guard()))
            with self._lock:
                while (frames := self._wire.receive()) is not None:
                    if len(frames) == 2 and (message := message_of(bytes(frames[1]))) is not None:
                        try:
                            self._hear(bytes(frames[0]), message)
                        except (AttributeError, LookupError, TypeError, ValueError) as error:
                            log.warning("a message that is not one of ours was ignored (%s: %s)", type(error).__name__, error)
                for peer in list(self._peers.values()):
                    self._look_after(peer)
            strangers = len(list(self._wire.events())) + self._transport.strangers
            if strangers and not self._warned:
                self._warned = True
                log.warning("somebody without the keys of %s has tried to connect", self.path)

    def _look_after(self, peer: Peer) -> None:
        while peer.outbox and self._wire.send([peer.name, peer.outbox[0]]) is not None:
            peer.outbox.popleft()
        ending = self._parting or (peer.channel is not None and peer.channel.closing)  # and says nothing while its processes end
        patience = self.config.peer_timeout + (PARTING if ending else 0)
        if time.monotonic() - peer.heard > patience:
            self._drop(peer, f"has said nothing for {patience:g} s")
            del self._peers[peer.name]

    def _drop(self, peer: Peer, how: str) -> None:
        """It has no place, and takes part in nothing, until it enlists again."""
        if self._places.get((peer.machine, peer.role)) is peer:
            del self._places[peer.machine, peer.role]
        channel, peer.channel = peer.channel, None
        if channel is not None:
            channel.lose(peer.role, how)

    def _hear(self, name: bytes, message: dict[str, Any]) -> None:
        if "enlist" in message:
            self._enlist(name, message["enlist"])
            return
        peer = self._peers.get(name)
        if peer is not None:
            peer.heard = time.monotonic()
        if "gone" in message:
            if peer is not None:
                self._drop(peer, "has ended")
                del self._peers[name]
            self._reply(name, bye=True)
        elif peer is None:
            return
        elif "left" in message:
            self._drop(peer, f"has ended with exit code {message['left']}")
        elif peer.channel is not None:
            peer.channel.hear(peer.role, message)

    def _enlist(self, name: bytes, body: dict[str, Any]) -> None:
        """Somebody asks for a place."""
        if reason := self._refusal(body):
            self._reply(name, refused=reason)
            return
        self._wire.vouch()
        now, place = time.monotonic(), (body["machine"], body["role"])
        holder = self._places.get(place)
        if holder is not None and holder.name != name:  # is that one still alive?
            if holder.heard > self._twins.setdefault(name, now) + TWIN:
                del self._twins[name]
                where = f"process {holder.pid} on {holder.host}"
                self._reply(name, refused=f"machine {place[0]} has a kgdist-{place[1]} already: {where}; see --machine")
            else:
                self._reply(name, wait=True)
            return
        if not body["ready"] and not self._parting:
            self._reply(name, wait=True)
            return
        if holder is not None and holder.turn == body["turn"]:  # called again before it could hear that it was welcome
            holder.heard = now
            holder.post(wait=True)
            return
        if holder is not None:
            self._drop(holder, "has begun anew")
        fields = {key: body[key] for key in ("machine", "role", "turn", "pid", "host")}
        self._peers[name] = self._places[place] = Peer(name, heard=now, **fields)
        self._peers[name].post(**({"over": self.code} if self._parting else {"wait": True}))

    def _refusal(self, body: dict[str, Any]) -> str:
        assert self.file is not None
        if body.get("run") != self.file.run:
            return f"{self.path} is of another job by now"
        if body.get("version") != __version__:
            return f"kgdist is {body.get('version')} here and {__version__} at the launcher; take the same everywhere"
        if body["role"] not in ROLES or body["machine"] not in range(len(self.machines)):
            return f"there is no kgdist-{body['role']} of machine {body['machine']} in this job"
        return ""

    def _reply(self, name: bytes, **message: Any) -> None:
        self._wire.send([name, json.dumps(message).encode()])
