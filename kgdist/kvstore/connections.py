"""All connections of a client over one socket. Looking after them costs as much as has happened, not as many as there are.

What is to be said waits until `say`, so that all that concerns one server goes out as one envelope; deadlines are looked at a few
times a second.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kgdist.base.errors import KgdistError, PeersLost
from kgdist.kvstore.buffers import Loan
from kgdist.kvstore.connection import Answer, Connection, Sizes, name_of
from kgdist.kvstore.messages import Identity, Message, Sealed
from kgdist.kvstore.wire import CONNECTED, STRANGER, Transport, Watch

TURN = 0.05  # seconds of one wait for the network, and between two looks at deadlines
STUCK = 0.01  # the same while a socket takes nothing


class Connections:
    """To the servers of these numbers, at these (host, port).

    Args:
        hello: the HELLO of this client.
        identity: which the servers must share.
        window: pushes to a server that may be unconfirmed.
        peer_timeout: after twice so many seconds of silence a server that we wait for counts as lost.
        connect_timeout: seconds that servers may take to appear.

    Every call raises PeersLost when a server is or becomes unreachable, KgdistError with its reason when one refuses us.
    """

    def __init__(
        self, places: Mapping[int, tuple[str, int]], transport: Transport, hello: Message, identity: Identity, *, window: int,
        peer_timeout: float, connect_timeout: float,
    ) -> None:  # fmt: skip
        self._wire = transport.router(len(places))
        self._ticked = time.monotonic()
        limits: dict[str, Any] = {
            "window": window,
            "patience": 2 * peer_timeout,
            "first_patience": connect_timeout,
            "now": self._ticked,
        }
        self.of = {n: Connection(n, place, self._wire, hello, identity, **limits) for n, place in places.items()}  # by number
        self._named = {name_of(number): connection for number, connection in self.of.items()}
        self._at = {transport.connect(self._wire, *places[number]): connection for number, connection in self.of.items()}
        self._unsaid: dict[Connection, None] = {}
        self._urgent: dict[Connection, None] = {}  # that could not send, or begin again: nothing of theirs waits for `say`
        self._watch = Watch([self._wire])
        try:
            for connection in self.of.values():
                self.until(lambda connection=connection: connection.open)  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def push(self, server: int, message: Sealed, size: int, loan: Loan) -> None:
        """See Connection; waits while the window is full."""
        connection = self.of[server]
        if not connection.room():
            if connection in self._unsaid:
                del self._unsaid[connection]
                self._transmit(connection)
            self.until(connection.room)
        connection.push(message, size, loan, time.monotonic())
        self._unsaid[connection] = None

    def request(self, server: int, message: Sealed, size: int, asked: Sizes, answer: Answer) -> None:
        connection = self.of[server]
        connection.request(message, size, asked, answer, time.monotonic())
        self._unsaid[connection] = None

    def say(self) -> None:
        """Send what was pushed and requested."""
        waiting, self._unsaid = self._unsaid, {}
        for connection in waiting:
            self._transmit(connection)

    def _transmit(self, connection: Connection) -> None:
        if connection.transmit():
            self._urgent.pop(connection, None)
        else:
            self._urgent[connection] = None

    def pump(self) -> None:
        """Receive what has arrived, and send what cannot wait."""
        now = time.monotonic()
        for event, place in self._wire.events():
            connection = self._at.get(place)
            if connection is not None and event == CONNECTED:
                connection.begin(now)
                self._urgent[connection] = None
            elif connection is not None and event == STRANGER:
                raise KgdistError(f"{connection.place}: what listens there is no server of this run, or has other keys")
        while (frames := self._wire.receive()) is not None:
            connection = self._named.get(bytes(frames[0]))
            if connection is not None and connection.receive(frames[1:], now):
                self._urgent[connection] = None
        if now > self._ticked + TURN:
            self._ticked = now
            for connection in self.of.values():
                if connection.tick(now):
                    self._urgent[connection] = None
        for connection in list(self._urgent):
            self._transmit(connection)

    def until(self, done: Callable[[], bool]) -> None:
        """Look after the connections until `done`. Ends, for each that is waited for has its own deadline."""
        self.pump()
        while not done():
            happened = self._watch.wait(STUCK if self._urgent else TURN)
            if not (happened or any(connection.waiting() for connection in self.of.values())):
                raise PeersLost("nothing is on its way, and something is missing")
            self.pump()

    def flush(self) -> None:
        """Wait until every push is confirmed."""
        self.say()
        for connection in self.of.values():
            self.until(lambda connection=connection: not connection.unconfirmed())  # type: ignore[misc]

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, headers included."""
        return sum(each.sent for each in self.of.values()), sum(each.received for each in self.of.values())

    def close(self) -> None:
        """Part from all servers. What is unsaid or unconfirmed may be lost."""
        for connection in self.of.values():
            connection.close()
        self._wire.close()
