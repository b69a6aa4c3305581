"""A client's connections: to one server, which carries a session and never waits, and to all of them over one socket.

What is to be said waits until `say`, so that all that concerns one server goes out as one envelope; deadlines are looked at a few
times a second. Looking after the connections costs as much as has happened, not as many as there are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from kgdist.base.errors import KgdistError, PeersLost, ProtocolError
from kgdist.kvstore.buffers import Loan
from kgdist.kvstore.identity import Identity, read_body
from kgdist.kvstore.messages import (
    MOST_TOGETHER,
    PIECE_BYTES,
    REQUESTS,
    Kind,
    Message,
    Sealed,
    pack,
    pack_stamped,
    parse,
    seal,
)
from kgdist.kvstore.places import allow_connections, at
from kgdist.kvstore.session import ClientSession, Entry
from kgdist.kvstore.wire import CONNECTED, STRANGER, Transport, Watch, Wire

ROUNDS = 6  # tries to get an answer before a silent server counts as lost
TURN = 0.05  # seconds of one wait for the network, and between two looks at deadlines
STUCK = 0.01  # the same while a socket takes nothing

Take = Callable[[Message], object]  # ROWS, or a piece of ANSWER and whether it was the last, or ERROR
Sizes = list[tuple[int, int, int]]  # (table, rows, width) of each part


class _Load:
    """What an entry of the session carries."""

    __slots__ = ("answer", "asked", "loan", "message", "size", "trackers")

    def __init__(
        self,
        message: Sealed,
        size: int,
        answer: Take | None = None,
        asked: Sizes | None = None,
        loan: Loan | None = None,
    ) -> None:
        self.message = message
        self.size = size  # bytes of values, there or back
        self.answer = answer
        self.asked = asked
        self.loan = loan  # of the memory that the message's values lie in
        self.trackers: list[Any] = []


def name_of(server: int) -> bytes:
    """By which a client's socket knows a server."""
    return b"server-%d" % server


class Connection:
    """A client's connection to one server. What it has to say goes out with `transmit`, as few envelopes as that takes.

    Args:
        hello: the HELLO of this client.
        identity: which the server must share.
        window: pushes that may be unconfirmed.
        patience: seconds of silence after which the server counts as lost, once it has welcomed us.
        first_patience: the same before.
        now: seconds of the clock that every other call is told.
    """

    def __init__(
        self, server: int, place: tuple[str, int], wire: Wire, hello: Message, identity: Identity, *, window: int,
        patience: float, first_patience: float, now: float,
    ) -> None:  # fmt: skip
        self.server = server
        self.place = at(*place)
        self.sent = self.received = 0  # bytes of frames
        self._name = name_of(server)
        self._wire = wire
        self._hello = hello
        self._identity = identity
        self._patience = patience
        self._session = ClientSession(window, retry=patience / ROUNDS, patience=first_patience, now=now)
        session = self._session
        self.room, self.waiting, self.unconfirmed, self.begin = session.room, session.waiting, session.unconfirmed, session.begin

    @property
    def open(self) -> bool:
        """Whether the server has welcomed us."""
        return self._session.open

    @property
    def acked(self) -> int:
        """The number of the last push that is confirmed."""
        return self._session.acked

    def push(self, message: Sealed, size: int, loan: Loan, now: float) -> None:
        """To be sent: PUSH or ASSIGN, whose values of `size` bytes lie in memory that is given back when it is confirmed. Needs
        room."""
        self._session.push(_Load(message, size, loan=loan), now)

    def request(self, message: Sealed, size: int, asked: Sizes | None, answer: Take, now: float) -> None:
        """To be sent: PULL or READ; `answer` is called once, when it has come with the rows that were `asked`. Or ASK, of which
        nothing is known: it is called with each piece, until it says that this was the last. Of either, with ERROR instead."""
        self._session.request(_Load(message, size, answer, asked), now)

    def tick(self, now: float) -> bool:
        """To be called now and then, after all that has arrived was received; True when that began a new round. Raises PeersLost
        after too long a silence."""
        before = self._session.round
        try:
            self._session.tick(now)
        except PeersLost as error:
            raise PeersLost(f"{self.place}: {error}") from error
        return self._session.round != before

    def transmit(self) -> bool:
        """Send all there is to say; False when the socket takes no more for now."""
        while entries := self._next():
            session = self._session
            frames = pack_stamped([(self._sealed(entry), session.round, entry.number) for entry in entries])
            trackers = self._wire.send([self._name, *frames])
            if trackers is None:
                return False
            self.sent += sum(map(len, frames))
            if trackers:
                for entry in entries:
                    if entry.payload is not None:
                        entry.payload.trackers += trackers
            session.sent(len(entries))
        return True

    def _next(self) -> list[Entry]:
        """What fits in one envelope, and its answers in another."""
        entries: list[Entry] = []
        room = PIECE_BYTES
        while (entry := self._session.next(len(entries))) is not None:
            room -= entry.payload.size if entry.payload is not None else 0
            if entries and (room < 0 or len(entries) == MOST_TOGETHER):
                break
            entries.append(entry)
        return entries

    def _sealed(self, entry: Entry) -> Sealed:
        return seal(self._hello) if entry.payload is None else entry.payload.message

    def receive(self, frames: list[Any], now: float) -> bool:
        """What the server has said; True when that began or opened a round. Raises KgdistError with its reason when it refuses us
        or a message of ours."""
        session = self._session
        before = session.round, session.open
        self.received += sum(map(len, frames))
        try:
            for message in parse(frames):
                self._hear(message, now)
        except (ProtocolError, PeersLost) as error:
            raise type(error)(f"{self.place}: {error}") from error
        return (session.round, session.open) != before

    def _hear(self, message: Message, now: float) -> None:
        kind = message.kind
        if kind in (Kind.ERROR, Kind.REFUSED):
            message = message._replace(text=f"{self.place}: {kind.name.lower()}: {message.text}")
            if kind is Kind.REFUSED or message.number < REQUESTS:
                raise KgdistError(message.text)
        elif kind is Kind.WELCOME:
            self._check(message.text)
        elif kind is Kind.ANSWER:
            entry = self._session.awaited(message.number, now)
            if entry is None or (entry.payload.asked is None and not entry.payload.answer(message)):
                return  # nobody waits for it, or more is to come
        for entry in self._session.receive(kind, message.number, message.round, now):
            load: _Load = entry.payload
            if load.answer is not None:
                came = [part[:3] for part in message.parts]
                if kind is not Kind.ERROR and (came or None) != load.asked:
                    raise ProtocolError(f"rows of tables {came} where {load.asked} were asked for")
                if kind is not Kind.ANSWER:
                    load.answer(message)
            elif load.loan is not None:
                load.loan.give(load.trackers)

    def _check(self, text: str) -> None:
        """That the server is the one we mean."""
        body, reason = read_body(text), self._identity.difference(text)
        if reason is None and (body["role"], body["rank"]) != ("server", self.server):
            reason = f"{body['role']} {body['rank']} is there, and server {self.server} should be"
        if reason is not None:
            raise ProtocolError(reason)
        self._session.patience = self._patience

    def close(self) -> None:
        """Say goodbye, if that is possible at once."""
        if self.open:
            self._wire.send([self._name, *pack(self._hello._replace(kind=Kind.BYE, text=""))])


def hello(identity: Identity, client: int, incarnation: int) -> Message:
    """The HELLO of a client."""
    return Message(Kind.HELLO, client, incarnation, text=identity.text("trainer", client))


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
        self._transport, self._identities = transport, (hello, identity)
        self._limits: dict[str, Any] = {"window": window, "first_patience": connect_timeout, "patience": 2 * peer_timeout}
        self.of: dict[int, Connection] = {}  # by number
        self._named: dict[bytes, Connection] = {}
        self._at: dict[str, Connection] = {}
        for number, place in places.items():
            self._connect(number, place)
        self._unsaid: dict[Connection, None] = {}
        self._urgent: dict[Connection, None] = {}  # that could not send, or begin again: nothing of theirs waits for `say`
        self._watch = Watch([self._wire])
        try:
            for connection in self.of.values():
                self.until(lambda connection=connection: connection.open)  # type: ignore[misc]
        except BaseException:
            self.close()
            raise

    def _connect(self, number: int, place: tuple[str, int]) -> Connection:
        limits = {**self._limits, "now": time.monotonic()}
        made = self.of[number] = Connection(number, place, self._wire, *self._identities, **limits)
        self._named[name_of(number)] = self._at[self._transport.connect(self._wire, *place)] = made
        return made

    def reach(self, number: int, place: tuple[str, int]) -> None:
        """Connect to one more server, where that has not been done."""
        if number not in self.of:
            allow_connections(len(self.of) + 1)
            connection = self._connect(number, place)
            self.until(lambda: connection.open)

    def push(self, server: int, message: Sealed, size: int, loan: Loan) -> None:
        """As Connection does; waits while the window is full."""
        connection = self.of[server]
        if not connection.room():
            if connection in self._unsaid:
                del self._unsaid[connection]
                self._transmit(connection)
            self.until(connection.room)
        connection.push(message, size, loan, time.monotonic())
        self._unsaid[connection] = None

    def request(self, server: int, message: Sealed, size: int, asked: Sizes | None, answer: Take) -> None:
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
                raise KgdistError(f"{connection.place}: what listens there is not a server of this run, or has other keys")
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
