"""The connections of a listening TCP socket, and what each of them costs us before anybody has vouched for it.

libzmq reads what a stranger sends before it knows who that is: a frame of a handshake may be as long as any message, and frames
of a message that never ends pile up without limit. It has no bound for either, but tells the descriptor of each connection, and
the system tells how many bytes have come in through it. So the one who looks after the socket looks at these numbers, too, and
shuts what has gone too far; libzmq sees the end of the connection and frees what it has of it. One of ours that is shut connects
again.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import socket
import struct
import time
from collections.abc import Iterator

STRANGER_BYTES = 1 << 16  # of a connection nobody has vouched for: a handshake and HELLO are less than 8 KB
STRANGERS = 512  # such connections, at most: the oldest goes first
UNFINISHED = 32 << 20  # bytes that have come since the last whole message, although none waits to be read
STRANGE_SHARE, OWN_SHARE = 0.1, 0.01  # of the time, at most, that is spent on looking at either kind
SOONEST = 0.005  # seconds between two looks at strangers; ten times that at the others
TIDY, TIDY_SHARE = 0.25, 0.02  # seconds until what strangers have left is given back to the system; of the time, at most
CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
RECEIVED = struct.Struct("<Q"), 128  # tcpi_bytes_received in Linux' struct tcp_info, and where it is


@contextlib.contextmanager
def _borrowed(family: socket.AddressFamily, descriptor: int) -> Iterator[socket.socket]:
    """A connection of libzmq's, which stays libzmq's."""
    end = socket.socket(family, socket.SOCK_STREAM, 0, descriptor)
    try:
        yield end
    finally:
        end.detach()


def received(descriptor: int) -> int:
    """Bytes that have come in through a TCP connection of this process; 0 where the system does not tell. Raises OSError when
    there is no such connection any more."""
    layout, offset = RECEIVED
    with _borrowed(socket.AF_INET, descriptor) as end:
        told = end.getsockopt(socket.IPPROTO_TCP, getattr(socket, "TCP_INFO", 11), offset + layout.size)
    return int(layout.unpack_from(told, offset)[0]) if len(told) >= offset + layout.size else 0


def is_ours(descriptor: int) -> bool:
    """Whether the process at the other end of a Unix-domain socket is, or was when it began to listen, of this user."""
    try:
        with _borrowed(socket.AF_UNIX, descriptor) as end:
            peer = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    except OSError:
        return True  # closed by now: nothing more comes from there
    return bool(CREDENTIALS.unpack(peer)[1] == os.getuid())


def shut(descriptor: int) -> None:
    """End a connection of libzmq's, which then closes it."""
    with contextlib.suppress(OSError), _borrowed(socket.AF_INET, descriptor) as end:  # it may have ended by itself
        end.shutdown(socket.SHUT_RDWR)


def give_back() -> None:
    """Give the system what was freed and the C library keeps (see kgdist.base.machine): the frames that strangers began are as
    long as any, lie here and there, and touch a little each, until all of the heap is in use. Only with glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class Door:
    """See above. Connections are known by their descriptors; `name` is by what libzmq calls the peer."""

    def __init__(self) -> None:
        self.shut = 0  # connections that were
        self.heard: set[bytes] = set()  # who has sent a whole message since the last look
        self._strangers: dict[int, None] = {}  # in the order in which they came
        self._own: dict[int, tuple[bytes, int]] = {}  # name, and bytes received when its last whole message came
        self._next_strange = self._next_own = 0.0
        self._tidy, self._next_tidy = math.inf, 0.0  # when it is to be, at the earliest: inf where nothing is to be done

    @property
    def waiting(self) -> bool:
        """Whether somebody is there whom nobody has vouched for."""
        return bool(self._strangers)

    def opened(self, descriptor: int) -> None:
        """A connection was accepted."""
        self._own.pop(descriptor, None)
        self._strangers[descriptor] = None
        if len(self._strangers) > STRANGERS:
            self._shut(next(iter(self._strangers)))

    def closed(self, descriptor: int) -> None:
        """A connection has ended."""
        if descriptor in self._strangers:
            del self._strangers[descriptor]
            self._tidy = min(self._tidy, time.monotonic() + TIDY)
        self._own.pop(descriptor, None)

    def vouch(self, descriptor: int, name: bytes) -> None:
        """It is one of ours."""
        if descriptor in self._strangers:
            del self._strangers[descriptor]
            self._own[descriptor] = name, 0
            self.heard.add(name)

    def look(self, *, drained: bool) -> None:
        """Shut what has gone too far; `drained`: every whole message that has come has been read."""
        now = time.monotonic()
        if self._strangers and now >= self._next_strange:
            for descriptor in list(self._strangers):
                if self._received(descriptor) > STRANGER_BYTES:
                    self._shut(descriptor)
            self._next_strange = time.monotonic() + max(SOONEST, (time.monotonic() - now) / STRANGE_SHARE)
        now = time.monotonic()
        if now >= self._next_own and drained:
            for descriptor, (name, before) in list(self._own.items()):
                come = self._received(descriptor)
                if name in self.heard:
                    self._own[descriptor] = name, come
                elif come - before > UNFINISHED:
                    self._shut(descriptor)
            self.heard.clear()
            self._next_own = time.monotonic() + max(10 * SOONEST, (time.monotonic() - now) / OWN_SHARE)

        now = time.monotonic()
        if now >= max(self._tidy, self._next_tidy):
            give_back()
            self._tidy, self._next_tidy = math.inf, time.monotonic() + (time.monotonic() - now) / TIDY_SHARE

    def _received(self, descriptor: int) -> int:
        try:
            return received(descriptor)
        except OSError:
            self.closed(descriptor)
            return 0

    def _shut(self, descriptor: int) -> None:
        self.closed(descriptor)
        shut(descriptor)
        self.shut += 1
