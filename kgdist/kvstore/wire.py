"""Sockets: all of them are made here, with one set of limits, and closed to strangers. What is said over them is not.

With keys, a connection is encrypted and both ends are authenticated: clients know each server's public key, and servers admit the
keys of the run alone (ZAP, an explicit domain that is enforced, the authenticator started before any socket is bound).
Each machine makes a pair for one attempt at a job; of it the public key alone leaves the machine, and nothing of it is ever in a
file, an argument or the environment.

Where all is on this machine, the system itself says who is at the other end: connections are Unix-domain sockets, and only
processes of the same user have them. A server refuses others before it reads a byte, so they reach neither the parser nor libzmq.
The names of these sockets are no secret (all see them in /proc/net/unix) and lie in the abstract namespace, where they leave
nothing behind; whoever takes one before us is found at the first word, for a client looks whose process listens there.
The TCP port that is the name of a server is held as well, with nobody listening: ports are as taken as with TCP.
Without either, anyone who reaches the port can take part; that must be asked for.
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import math
import os
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

from kgdist.base.errors import KgdistError, OptionError
from kgdist.kvstore.door import SOONEST, Door, is_ours
from kgdist.kvstore.messages import MOST_FRAMES, PIECE_BYTES
from kgdist.kvstore.places import allow_connections, at, hold, resolve, taken, user_name

DOMAIN = "kgdist"
TCP_BYTES = 4 << 20  # socket buffers: 1.5 times the speed of the system's default
# The same over loopback: what is on its way stays in the cache, and training through the store is 10 % faster than with 4 MB.
LOOPBACK_BYTES = 1 << 19
MOST_WAITING = 256  # messages queued for a peer, and from one, at a client
MOST_SERVED = 16  # the same at a server, where peers may be many, and each message as large as they like
FRAME_BYTES = PIECE_BYTES + (1 << 18)  # of one frame, where no row is longer: values, and the heads of all messages with them
MORE, LAST, READABLE = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK), int(zmq.POLLIN)
COPIED = 1 << 18  # bytes of a frame below which copying is cheaper than tracking: 30 us
EVENT = struct.Struct("=Hi")  # as libzmq tells of it: what, and whose descriptor; pyzmq's parser takes 20 us
CURVE, USER, NONE = "curve", "user", "none"
CONNECTED, LOST, STRANGER, BROKEN = "connected", "lost", "stranger", "broken"
EVENTS: dict[int, str] = {
    zmq.EVENT_HANDSHAKE_SUCCEEDED: CONNECTED,
    zmq.EVENT_DISCONNECTED: LOST,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH: STRANGER,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: STRANGER,
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL: BROKEN,
}


@dataclass(frozen=True)
class Keys:
    """A CURVE key pair, in Z85 text, and the public keys of the others who take part, by where they listen ("host:port").

    Servers admit all of these, and who has the same pair.
    """

    public: str
    secret: str = field(repr=False)
    others: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def make(cls) -> Keys:
        """A new pair. Raises KgdistError when this libzmq was built without CURVE."""
        if not zmq.has("curve"):
            raise KgdistError("this libzmq was built without CURVE: reinstall pyzmq, or give --transport_security none")
        public, secret = zmq.curve_keypair()
        return cls(public.decode(), secret.decode())

    def knowing(self, others: Mapping[str, str]) -> Keys:
        """The same pair, with these others."""
        return replace(self, others=dict(others))

    def at(self, host: str, port: int) -> str:
        """The public key of who listens there."""
        return self.others.get(f"{host}:{port}", self.public)

    def admit(self, key: str) -> bool:
        """Whether somebody with this public key takes part."""
        return key == self.public or key in self.others.values()

    def to_json(self) -> dict[str, Any]:
        """For a pipe to a process of the same machine."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Keys:
        """What `to_json` gave."""
        return cls(**value)


def secured(choice: str, hosts: Iterable[str]) -> str:
    """How connections between these hosts are closed to strangers, CURVE, USER or NONE: `auto` means USER where all of them are
    this machine itself, on a system that has that (Linux), else CURVE. An empty name is a host that is not known yet."""
    if choice == "auto":
        return USER if sys.platform == "linux" and all(host and _is_loopback(host) for host in hosts) else CURVE
    return choice


def _is_loopback(host: str) -> bool:
    return all(ipaddress.ip_address(address).is_loopback for address, _ in resolve(host, 1))


def _endpoint(host: str, port: int) -> tuple[str, dict[int, int]]:
    """A place of TCP in libzmq's words, and the options of sockets there. Raises UsageError."""
    address, ipv6 = resolve(host, port)[0]
    size = LOOPBACK_BYTES if ipaddress.ip_address(address).is_loopback else TCP_BYTES
    return f"tcp://{at(address, port)}", {zmq.IPV6: int(ipv6), zmq.SNDBUF: size, zmq.RCVBUF: size}


class Transport:
    """What a process needs to open sockets of one run.

    Args:
        keys: of the run, for connections by TCP; None leaves these open to anyone.
        peer_timeout: seconds after which a silent connection is given up.
        user: connections are those between processes of this user on this machine, without keys.
        row_bytes: of the longest row: a frame holds one at least.
    """

    def __init__(self, keys: Keys | None, peer_timeout: float = 15.0, *, user: bool = False, row_bytes: int = 0) -> None:
        self.keys = keys
        self.user = user
        self._frame_bytes = max(FRAME_BYTES, row_bytes + FRAME_BYTES - PIECE_BYTES)
        self.peer_timeout = peer_timeout
        self.strangers = 0  # keys that were refused
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._wires: list[Wire] = []

    @property
    def closed(self) -> bool:
        """Whether whoever gets a message through is of the same run, or at least the same user."""
        return self.user or self.keys is not None

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator for each CURVE peer, with its public key."""
        known = self.keys is not None and domain == DOMAIN and self.keys.admit(key.decode("ascii", "replace"))
        self.strangers += not known
        return known

    def server(self, host: str, port: int, name: bytes = b"") -> Wire:
        """A bound ROUTER, with the name by which a `router` at the other end knows it. Raises UsageError when the port is taken,
        or the address is none of this machine."""
        if self.keys is not None and self._authenticator is None:
            if not zmq.has("curve"):
                raise OptionError("--transport_security", "this libzmq was built without CURVE: reinstall pyzmq, or give none")
            silent = logging.Logger("zap", logging.CRITICAL)
            self._authenticator = ThreadAuthenticator(self._context, log=silent)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(domain=DOMAIN, credentials_provider=self)
        if self.user:
            held = hold(host, port)
            end, options = f"ipc://@{user_name(host, held.getsockname()[1])}", {int(zmq.IPC_FILTER_UID): os.getuid()}
        else:
            held, (end, options) = None, _endpoint(host, port)
        allow_connections()
        router = self._socket(zmq.ROUTER, options)
        router.set(zmq.BACKLOG, 1024)
        router.set(zmq.SNDHWM, MOST_SERVED)
        router.set(zmq.RCVHWM, MOST_SERVED)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.ROUTER_HANDOVER, 0)
        if name:
            router.set(zmq.ROUTING_ID, name)
        if self.keys is not None:
            router.set(zmq.CURVE_SERVER, 1)
            router.set(zmq.CURVE_SECRETKEY, self.keys.secret.encode())
            router.set(zmq.ZAP_DOMAIN, DOMAIN.encode())
            router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        events = zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        if self.user:
            wire = self._wire(router, events, held)
        else:
            wire = self._wire(router, events | zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED, door=Door())
        try:
            router.bind(end)
        except zmq.ZMQError as error:
            wire.close()
            raise taken(host, port, error.errno or 0) from error
        return wire

    def client(self, host: str, port: int) -> Wire:
        """A DEALER that connects, again and again, until it is closed."""
        end, options = self._end(host, port)
        dealer = self._socket(zmq.DEALER, options)
        self._show(dealer)
        self._know(dealer, host, port)
        wire = self._wire(dealer, sum(EVENTS) | (zmq.EVENT_CONNECTED if self.user else 0))
        dealer.connect(end)
        return wire

    def router(self, peers: int) -> Wire:
        """A ROUTER that will `connect` to so many servers: one socket for all of them, each known by the name that it has.

        Raises KgdistError where the system does not let a process have so many connections.
        """
        allow_connections(peers)
        router = self._socket(zmq.ROUTER, {})
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.ROUTER_HANDOVER, 1)  # a server that was connected anew is the same server
        self._show(router)
        return self._wire(router, sum(EVENTS) | (zmq.EVENT_CONNECTED if self.user else 0))

    def connect(self, wire: Wire, host: str, port: int) -> str:
        """Connect a `router` to one more server, again and again; returns the place in the words of its events."""
        end, options = self._end(host, port)
        for option, value in options.items():  # of the connections made from now on
            wire.socket.set(option, value)
        self._know(wire.socket, host, port)
        wire.socket.connect(end)
        return str(wire.socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\0")

    def _end(self, host: str, port: int) -> tuple[str, dict[int, int]]:
        """Where a client connects to, and the options of its sockets."""
        return (f"ipc://@{user_name(host, port)}", {}) if self.user else _endpoint(host, port)

    def _show(self, made: zmq.Socket[bytes]) -> None:
        """The pair of a client."""
        if self.keys is not None:
            made.set(zmq.CURVE_PUBLICKEY, self.keys.public.encode())
            made.set(zmq.CURVE_SECRETKEY, self.keys.secret.encode())

    def _know(self, made: zmq.Socket[bytes], host: str, port: int) -> None:
        """The key of the server that is connected to next."""
        if self.keys is not None:
            made.set(zmq.CURVE_SERVERKEY, self.keys.at(host, port).encode())

    def _socket(self, kind: int, options: dict[int, int]) -> zmq.Socket[bytes]:
        made = self._context.socket(kind)
        beat = max(1, round(self.peer_timeout * 1000 / 3))
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.IMMEDIATE, 1),
            (zmq.SNDTIMEO, beat),
            (zmq.RCVTIMEO, beat),
            (zmq.HEARTBEAT_IVL, beat),
            (zmq.HEARTBEAT_TIMEOUT, 3 * beat),
            (zmq.HEARTBEAT_TTL, 3 * beat),
            (zmq.HANDSHAKE_IVL, beat),
            (zmq.CONNECT_TIMEOUT, beat),
            (zmq.MAXMSGSIZE, self._frame_bytes),
            (zmq.SNDHWM, MOST_WAITING),
            (zmq.RCVHWM, MOST_WAITING),
            *options.items(),
        ):
            made.set(option, value)
        return made

    def _wire(self, made: zmq.Socket[bytes], events: int, held: socket.socket | None = None, door: Door | None = None) -> Wire:
        wire = Wire(made, made.get_monitor_socket(events), held, door, wary=bool(events & zmq.EVENT_CONNECTED))
        self._wires.append(wire)
        return wire

    def close(self) -> None:
        """Close every socket, and give up what is unsent."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        self._context.destroy(0)


class Wire:
    """One socket and what happens to its connections. Nothing here waits.

    Raises KgdistError when what a client has been connected to is of another user (see above), before anything it said is read.
    """

    def __init__(
        self,
        made: zmq.Socket[bytes],
        monitor: zmq.Socket[bytes],
        held: socket.socket | None = None,
        door: Door | None = None,
        *,
        wary: bool = False,
    ) -> None:
        self.socket = made
        self.monitor = monitor
        self._held = held
        self._wary = wary  # whether peers may be of another user
        self._door = door
        self._last: zmq.Frame | None = None  # of what was received
        self._drained = False
        self._seen: deque[tuple[str, str]] = deque()  # events, and whose

    def send(self, frames: list[Any]) -> list[Any] | None:
        """Hand over a message; None when that is not possible now, or never will be (a peer that is gone).

        Large frames are not copied: their memory must stay as it is until every tracker in the list says `done`.
        """
        try:
            trackers = []
            for number, part in enumerate(frames, 1):
                flags = MORE if number < len(frames) else LAST
                if len(part) < COPIED:
                    self.socket.send(part, flags)
                else:
                    trackers.append(self.socket.send(part, flags, copy=False, track=True))
            return trackers
        except zmq.ZMQError as error:
            if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
                return None
            raise

    def receive(self) -> list[Any] | None:
        """The frames of one message, without copying them, or None. Of too many frames, most are dropped."""
        if not int(self.socket.get(zmq.EVENTS)) & READABLE:
            self._drained = True
            return None
        frame = self._last = self.socket.recv(LAST, copy=False)
        frames = [frame.buffer]
        while frame.more:  # all parts have arrived
            frame = self.socket.recv(LAST, copy=False)
            if len(frames) < MOST_FRAMES + 2:  # the name of the peer, the parts, and one too many
                frames.append(frame.buffer)
        if self._wary:
            self._look()  # an event is told before anything that comes from its connection
        if self._door is not None:
            self._door.heard.add(bytes(frames[0]))
        return frames

    def vouch(self) -> None:
        """Whoever sent what was received last is one of ours: see kgdist.kvstore.door."""
        if self._door is not None and self._last is not None:
            self._look()  # it is told that a connection was opened before what comes from there
            self._door.vouch(int(self._last.get(zmq.SRCFD)), bytes(self._last.buffer))

    def guard(self) -> float:
        """Shut connections that cost too much, at every turn of a loop that receives; seconds until the next turn, at most."""
        if self._door is None:
            return math.inf
        self._look()
        self._door.look(drained=self._drained)
        self._drained = False
        return SOONEST if self._door.waiting else math.inf

    def events(self) -> Iterator[tuple[str, str]]:
        """What has happened to connections, and to which: where the other end listens, at a client's."""
        if self._door is None:  # else `guard` has looked
            self._look()
        while self._seen:
            yield self._seen.popleft()

    def _look(self) -> None:
        while int(self.monitor.get(zmq.EVENTS)) & READABLE:
            kind, value = EVENT.unpack(self.monitor.recv(LAST))
            end = self.monitor.recv(LAST)
            if self._door is not None and kind in (zmq.EVENT_ACCEPTED, zmq.EVENT_DISCONNECTED):
                (self._door.opened if kind == zmq.EVENT_ACCEPTED else self._door.closed)(value)
            elif kind != zmq.EVENT_CONNECTED:
                self._seen.append((EVENTS.get(kind, ""), end.decode(errors="replace")))
            elif not is_ours(value):
                place = end.decode(errors="replace").rpartition("/")[2]
                raise KgdistError(f"{place}: a process of another user listens there, which is not a server of this run")

    def close(self) -> None:
        """Close it; what is unsent is lost."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)
            if self._held is not None:
                self._held.close()


class Watch:
    """Waits until something happens on any of some wires."""

    def __init__(self, wires: Iterable[Wire]) -> None:
        self._poller = zmq.Poller()
        for wire in wires:
            self._poller.register(wire.socket, zmq.POLLIN)
            self._poller.register(wire.monitor, zmq.POLLIN)

    def wait(self, seconds: float) -> bool:
        """At most so long; whether something has happened."""
        return bool(self._poller.poll(max(0, round(seconds * 1000))))
