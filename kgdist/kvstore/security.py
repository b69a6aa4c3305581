"""Sockets: all of them are made here, with one set of limits, and with CURVE between machines. What is said over them is not.

With keys, a connection is encrypted and both ends are authenticated: clients know the servers' public key, and servers admit only
the key of the run's clients (ZAP, an explicit domain that is enforced, the authenticator started before any socket is bound).
Without keys anyone who reaches the port can take part; that must be asked for. Keys are made for one run and travel as data,
never in a file, an argument or the environment.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import logging
import os
import resource
import socket
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

from kgdist.errors import KgdistError, OptionError, UsageError
from kgdist.kvstore.messages import MOST_BYTES, MOST_FRAMES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

DOMAIN = "kgdist"
TCP_BYTES = 4 << 20  # socket buffers: 1.5 times the speed of the system's default
# The same over loopback, where nothing is far and what is on its way should stay in the cache: training through the store is 10 %
# faster than with 4 MB.
LOOPBACK_BYTES = 1 << 19
MOST_WAITING = 256  # messages queued for a peer, and from one
MORE, LAST, READABLE = int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.NOBLOCK), int(zmq.POLLIN)
COPIED = 1 << 16  # bytes of a frame below which copying is cheaper than tracking
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
    """The two CURVE key pairs of a run, in Z85 text: all servers have one, all clients the other."""

    server_public: str
    server_secret: str = field(repr=False)
    client_public: str
    client_secret: str = field(repr=False)

    @classmethod
    def make(cls) -> Keys:
        """New ones. Raises KgdistError when this libzmq was built without CURVE."""
        if not zmq.has("curve"):
            raise KgdistError("this libzmq was built without CURVE: reinstall pyzmq, or give --transport_security none")
        server, client = zmq.curve_keypair(), zmq.curve_keypair()
        return cls(*(part.decode() for part in (*server, *client)))

    def to_json(self) -> dict[str, str]:
        """For a pipe to a process of the run."""
        return dict(vars(self))

    @classmethod
    def from_json(cls, value: dict[str, str]) -> Keys:
        """What `to_json` gave."""
        return cls(**value)


def curve_wanted(choice: str, hosts: Iterable[str]) -> bool:
    """Whether connections between these hosts are encrypted: `auto` means unless all of them are this machine itself."""
    return choice == "curve" or (choice == "auto" and not all(_is_loopback(host) for host in hosts))


def _is_loopback(host: str) -> bool:
    return all(ipaddress.ip_address(address).is_loopback for address, _ in _resolve(host, 1))


def _resolve(host: str, port: int) -> list[tuple[str, bool]]:
    """Addresses of a host, and whether each is IPv6. Raises UsageError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"{host!r}: no address of that name is known ({error})") from error
    return [(str(address[0]), family == socket.AF_INET6) for family, _, _, _, address in found]


def at(host: str, port: int) -> str:
    """`host:port`, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _endpoint(host: str, port: int) -> tuple[str, dict[int, int]]:
    """A place in libzmq's words, and the options of sockets there. Raises UsageError."""
    address, ipv6 = _resolve(host, port)[0]
    size = LOOPBACK_BYTES if ipaddress.ip_address(address).is_loopback else TCP_BYTES
    return f"tcp://{at(address, port)}", {zmq.IPV6: int(ipv6), zmq.SNDBUF: size, zmq.RCVBUF: size}


class Transport:
    """What a process needs to open sockets of one run.

    Args:
        keys: of the run; None leaves connections open to anyone.
        peer_timeout: seconds after which a silent connection is given up.
    """

    def __init__(self, keys: Keys | None, peer_timeout: float = 15.0) -> None:
        self.keys = keys
        self.peer_timeout = peer_timeout
        self.strangers = 0  # keys that were refused
        self._context = zmq.Context()
        self._authenticator: ThreadAuthenticator | None = None
        self._wires: list[Wire] = []

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator for each CURVE peer, with its public key."""
        known = self.keys is not None and domain == DOMAIN and key == self.keys.client_public.encode()
        self.strangers += not known
        return known

    def server(self, host: str, port: int) -> Wire:
        """A bound ROUTER. Raises UsageError when the port is taken or the address is none of this machine."""
        if self.keys is not None and self._authenticator is None:
            if not zmq.has("curve"):
                raise OptionError("--transport_security", "this libzmq was built without CURVE: reinstall pyzmq, or give none")
            silent = logging.Logger("zap", logging.CRITICAL)
            self._authenticator = ThreadAuthenticator(self._context, log=silent)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(domain=DOMAIN, credentials_provider=self)
        end, options = _endpoint(host, port)
        _allow_connections()
        router = self._socket(zmq.ROUTER, options)
        router.set(zmq.BACKLOG, 1024)
        router.set(zmq.ROUTER_MANDATORY, 1)
        router.set(zmq.ROUTER_HANDOVER, 0)
        if self.keys is not None:
            router.set(zmq.CURVE_SERVER, 1)
            router.set(zmq.CURVE_SECRETKEY, self.keys.server_secret.encode())
            router.set(zmq.ZAP_DOMAIN, DOMAIN.encode())
            router.set(zmq.ZAP_ENFORCE_DOMAIN, 1)
        wire = self._wire(router, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        try:
            router.bind(end)
        except zmq.ZMQError as error:
            wire.close()
            if error.errno == errno.EADDRINUSE:
                pid = port_holder(_resolve(host, port)[0][0], port)
                raise UsageError(f"{at(host, port)} is in use" + (f" (pid {pid})" if pid else "")) from error
            raise UsageError(f"{at(host, port)} cannot be listened on: {error.strerror}") from error
        return wire

    def client(self, host: str, port: int) -> Wire:
        """A DEALER that connects, again and again, until it is closed."""
        end, options = _endpoint(host, port)
        dealer = self._socket(zmq.DEALER, options)
        if self.keys is not None:
            dealer.set(zmq.CURVE_SERVERKEY, self.keys.server_public.encode())
            dealer.set(zmq.CURVE_PUBLICKEY, self.keys.client_public.encode())
            dealer.set(zmq.CURVE_SECRETKEY, self.keys.client_secret.encode())
        wire = self._wire(dealer, sum(EVENTS))
        dealer.connect(end)
        return wire

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
            (zmq.MAXMSGSIZE, MOST_BYTES),
            (zmq.SNDHWM, MOST_WAITING),
            (zmq.RCVHWM, MOST_WAITING),
            *options.items(),
        ):
            made.set(option, value)
        return made

    def _wire(self, made: zmq.Socket[bytes], events: int) -> Wire:
        wire = Wire(made, made.get_monitor_socket(events))
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
    """One socket and what happens to its connections. Nothing here waits."""

    def __init__(self, made: zmq.Socket[bytes], monitor: zmq.Socket[bytes]) -> None:
        self.socket = made
        self.monitor = monitor

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
            return None
        frame = self.socket.recv(LAST, copy=False)
        frames = [frame.buffer]
        while frame.more:  # all parts have arrived
            frame = self.socket.recv(LAST, copy=False)
            if len(frames) < MOST_FRAMES + 2:  # the name of the peer, the parts, and one too many
                frames.append(frame.buffer)
        return frames

    def events(self) -> Iterator[str]:
        """What has happened to connections."""
        while int(self.monitor.get(zmq.EVENTS)) & READABLE:
            yield EVENTS.get(parse_monitor_message(self.monitor.recv_multipart(zmq.NOBLOCK))["event"], "")

    def close(self) -> None:
        """Close it; what is unsent is lost."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.monitor.close(0)
            self.socket.close(0)


class Watch:
    """Waits until something happens on any of some wires."""

    def __init__(self, wires: Iterable[Wire]) -> None:
        self._poller = zmq.Poller()
        for wire in wires:
            self._poller.register(wire.socket, zmq.POLLIN)
            self._poller.register(wire.monitor, zmq.POLLIN)

    def wait(self, seconds: float) -> None:
        """At most so long."""
        self._poller.poll(max(0, round(seconds * 1000)))


def _allow_connections() -> None:
    """As many descriptors as the system lets us have: each connection takes one, also that of a stranger."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def port_holder(address: str, port: int, proc: Path = Path("/proc")) -> int | None:
    """The process that keeps others from listening on a TCP port of this address, where the system tells us.

    Another one may listen on the same port of another address. A socket of all addresses keeps them all, and is named when there
    is none of this very address.
    """
    wanted, clashes = _plain(address), dict[str, int]()
    for table in ("net/tcp", "net/tcp6"):
        with contextlib.suppress(OSError):
            for line in (proc / table).read_text(encoding="ascii").splitlines()[1:]:
                words = line.split()
                place, _, number = words[1].rpartition(":")
                if words[3] == "0A" and int(number, 16) == port:  # LISTEN
                    other = _in_table(place)
                    if other == wanted or _covers(other, wanted) or _covers(wanted, other):
                        clashes[f"socket:[{words[9]}]"] = (other != wanted) + (other.version != wanted.version)
    nearest = {inode for inode, distance in clashes.items() if distance == min(clashes.values())}
    for link in proc.glob("[0-9]*/fd/*") if nearest else ():
        with contextlib.suppress(OSError):
            if os.readlink(link) in nearest:
                return int(link.parts[-3])
    return None


def _covers(one: Address, other: Address) -> bool:
    """Whether a socket of the address `one` is one of `other` as well: IPv6's also takes in IPv4, unless told not to."""
    return one.is_unspecified and one.version >= other.version


def _plain(text: str) -> Address:
    """Without a zone, and as IPv4 where it is one in IPv6's clothes."""
    address = ipaddress.ip_address(text.partition("%")[0])
    return address.ipv4_mapped or address if isinstance(address, ipaddress.IPv6Address) else address


def _in_table(digits: str) -> Address:
    """An address of /proc/net/tcp: 32-bit words of the network's bytes, printed as numbers of this machine."""
    words = (int(digits[start : start + 8], 16) for start in range(0, len(digits), 8))
    return _plain(str(ipaddress.ip_address(b"".join(word.to_bytes(4, sys.byteorder) for word in words))))
