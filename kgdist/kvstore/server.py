"""One server process: answers pulls and reads from its range of its machine's tables, and applies pushes to them.

The tables are the machine's, in shared memory: trainers of the same machine may read and update them meanwhile, without locks
(Hogwild). Nothing a peer sends can stop the loop: what is no message is counted, and what is a wrong one is answered with ERROR
and changes nothing. Who starts a server, and what becomes of its job when it dies, is decided elsewhere.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kgdist.base.errors import ProtocolError
from kgdist.base.log import log
from kgdist.kvstore.answers import Answers, PutOff
from kgdist.kvstore.asking import Service, reason_of
from kgdist.kvstore.buffers import Buffers
from kgdist.kvstore.catalogue import Catalogue, TableSpec
from kgdist.kvstore.holdings import Holdings
from kgdist.kvstore.identity import Identity, read_body
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import ITEM, MAGIC, PIECE_BYTES, Kind, Message, bytes_of, pack_whole, parse, size_of
from kgdist.kvstore.session import Applied, Verdict
from kgdist.kvstore.tables import MemoryTables, TableMemory
from kgdist.kvstore.wire import STRANGER, Transport, Watch, Wire

BURST = 64  # messages between two looks at the rest of the world
TURN = 0.05  # seconds
MOST_MOVED = PIECE_BYTES  # that one envelope may bring or ask for: senders make them so, and others have their turn in between
MOST_LATE, LATE, SOON = 1024, 1.0, 0.002  # short replies that could not be sent at once; seconds of trying, and between tries
HEADS = 4096  # bytes before the values of an answer, for what is said with them
QUIET = 60.0  # seconds between two lines about what was refused
COUNTERS = ("turns", "rows_pulled", "rows_pushed", "repeated", "early", "refused", "garbage")
TURNS, PULLED, PUSHED, REPEATED, EARLY, REFUSED, GARBAGE = range(len(COUNTERS))


class Server:
    """The server `number` of the layout.

    Args:
        tables: the rows of its whole machine; local row 0 is the machine's first.
        wire: a socket of Transport.server; it stays the caller's.
        transport: counts refused keys, and knows whether strangers are kept out: where they are not, nobody is told why his HELLO
            was refused, for that names what would fit. None: they are not.
        clients: how many there can be; of others nothing is remembered.
        services: by name, what answers questions (see kgdist.kvstore.asking), each within milliseconds, for others wait.
        counters: int64[len(COUNTERS)], may be shared: a supervisor sees by `turns` that the loop runs.
    """

    def __init__(
        self,
        number: int,
        layout: Layout,
        tables: MemoryTables,
        identity: Identity,
        wire: Wire,
        *,
        transport: Transport | None = None,
        counters: np.ndarray | None = None,
        clients: int = 1 << 16,
        services: Mapping[str, Service] | None = None,
    ) -> None:
        self.number = number
        self._clients = clients
        self.catalogue = Catalogue(layout)
        self.tables = tables
        self.identity = identity
        self.counters = np.zeros(len(COUNTERS), np.int64) if counters is None else counters
        self.applied = Applied()
        self._holdings = Holdings(number, self.catalogue, tables)
        self._answers = Answers(services or {})
        self._wire = wire
        self._watch = Watch([wire])
        self._transport = transport
        self._strangers = 0
        self._peers: dict[bytes, tuple[int, int]] = {}  # socket's name for a connection -> client, incarnation
        self._buffers = Buffers()
        self._late: deque[tuple[float, list[Any]]] = deque(maxlen=MOST_LATE)  # until when to try it, and a short reply
        self._lent: list[np.ndarray] = []  # memory of the answers that are not sent yet
        self._said = -math.inf
        self._unsaid = ""
        self._kinds = {
            Kind.PULL: self._pull,
            Kind.READ: self._pull,
            Kind.ASSIGN: self._push,
            Kind.PUSH: self._push,
            Kind.ASK: self._ask,
            Kind.BYE: self._bye,
        }

    def add(self, spec: TableSpec, number: int, memory: TableMemory) -> None:
        """One more table: its rows of this machine, which servers of one process share. To be called between two turns. Raises
        UsageError for a name or number that is taken, ValueError for rows of another number."""
        new = spec.name not in self.tables.specs
        if new:
            self.tables.add(memory)
        try:
            self._holdings.add(spec, number)
        except BaseException:
            if new:
                self.tables.drop(spec.name)
            raise

    def drop(self, name: str) -> None:
        """Forget a table that was added: whoever asks for it is told so. Raises UsageError for one that is not there."""
        self._holdings.drop(name)
        if name in self.tables.specs:
            self.tables.drop(name)

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Work until told to stop; asked every twentieth of a second, whatever the traffic, for asking may cost."""
        asked = -math.inf
        while True:
            if time.monotonic() > asked + TURN:
                if stopping():
                    return
                asked = time.monotonic()
            self.step(TURN)

    def step(self, seconds: float) -> None:
        """Wait for messages, at most so long, and answer some of those that are here."""
        self.counters[TURNS] += 1
        patience = min(seconds, self._wire.guard(), SOON if self._late or self._answers.busy else math.inf)
        if (frames := self._wire.receive()) is None:  # asked first: under load there always is one, and waiting costs more
            self._watch.wait(patience)
            frames = self._wire.receive()
        now = time.monotonic()
        for _ in range(len(self._late)):
            until, reply = self._late.popleft()
            if now < until and self._wire.send(reply) is None:
                self._late.append((until, reply))
        if self._answers.busy:
            self._answers.turn(self._piece)
        left = BURST
        while frames is not None:
            self._handle(bytes(frames[0]), frames[1:])
            left -= 1
            frames = self._wire.receive() if left else None
        for event, _ in self._wire.events():
            self._odd(GARBAGE, "a peer that does not speak ZMTP as we do" if event == STRANGER else "a broken handshake")
        if self._transport is not None and self._transport.strangers > self._strangers:
            self._odd(REFUSED, "a peer whose key is not of this run", self._transport.strangers - self._strangers)
            self._strangers = self._transport.strangers
        self._tell()

    def _handle(self, peer: bytes, frames: list[Any]) -> None:
        """Answer an envelope, in the order of its messages, with another, or several where one would be too large."""
        try:
            messages = parse(frames)
        except ProtocolError as error:
            self._odd(GARBAGE, str(error))
            if frames and bytes(frames[0][:4]) == MAGIC:  # one of ours, of another release perhaps: it should know
                self._reply(peer, [Message(Kind.ERROR, text=str(error))])
            return
        replies: list[Message] = []
        room, moved = PIECE_BYTES, 0
        for number, message in enumerate(messages):
            reply: Message | None
            moved += bytes_of(message)
            if moved > MOST_MOVED and number:  # a client of ours asks for as much another time: others have their turn
                self._odd(REFUSED, f"an envelope for more than {MOST_MOVED >> 20} MiB of client {message.client}")
                reply = message.answer(Kind.ERROR, text=f"an envelope is for {MOST_MOVED >> 20} MiB of rows at most")
            else:
                reply = self._answer(peer, message)
            if reply is None:
                continue
            if replies and reply.kind is Kind.ACK is replies[-1].kind:
                replies.pop()  # this one confirms both
            elif reply.values is not None:
                if reply.values.nbytes > room:
                    latest = self._lent.pop()
                    self._reply(peer, replies)
                    self._lent.append(latest)
                    replies, room = [], PIECE_BYTES
                room -= reply.values.nbytes
            replies.append(reply)
        self._reply(peer, replies)

    def _answer(self, peer: bytes, message: Message) -> Message | None:
        if message.kind is Kind.HELLO:
            return self._hello(peer, message)
        if self._peers.get(peer) != (message.client, message.incarnation):
            return message.answer(Kind.WHO)
        try:
            return self._act(peer, message)
        except Exception as error:  # whatever a message can do that nobody thought of, it does to its sender alone
            reason = reason_of(error)
            self._odd(REFUSED, f"{message.kind.name} of client {message.client}: {reason}")
            return message.answer(Kind.ERROR, text=reason)

    def _hello(self, peer: bytes, message: Message) -> Message | None:
        client, incarnation = message.client, message.incarnation
        try:
            reason = self.identity.difference(message.text)
            who = read_body(message.text)["role"][:20]
        except ProtocolError as error:
            reason, who = str(error), "somebody"
        if reason is None and client >= self._clients:
            reason = f"there is no client {client}: {self._clients} clients"
        if reason is None and self._held(client, incarnation):
            self._odd(REFUSED, f"HELLO of {who} {client}: its incarnation {incarnation} comes while one before is connected")
            return None  # it asks again, and when that one has gone it is answered
        if reason is None and not self.applied.greet(client, incarnation):
            newest = self.applied.newest(client)
            reason = f"incarnation {incarnation} of client {client} has been replaced by {newest}"
        if reason is not None:
            self._odd(REFUSED, f"HELLO of {who} {client}: {reason}")
            told = reason if self._transport is not None and self._transport.closed else "HELLO does not fit this server"
            return message.answer(Kind.REFUSED, text=told)
        self._peers = {other: key for other, key in self._peers.items() if key[0] != client}  # it has one connection, this one
        self._peers[peer] = client, incarnation
        self._answers.forget(client)
        self._wire.vouch()
        last, text = self.applied.last(client, incarnation), self.identity.text("server", self.number)
        return message.answer(Kind.WELCOME, number=last, text=text)

    def _held(self, client: int, incarnation: int) -> bool:
        """Whether an older incarnation of this client is connected still: one that has died is not, and nobody takes the place of
        one that lives, whatever number he makes up. Only sending tells; it is told what it knows."""
        for peer, (other, older) in self._peers.items():
            if other == client and older < incarnation:
                known = Message(Kind.ACK, client, older, number=self.applied.last(client, older))
                return self._wire.send([peer, pack_whole([known])]) is not None
        return False

    def _act(self, peer: bytes, message: Message) -> Message | None:
        act = self._kinds.get(message.kind)
        if act is None:
            raise ProtocolError(f"a client does not say {message.kind.name}")
        self._holdings.check(message)
        return act(peer, message)

    def _taken(self, size: int) -> np.ndarray:
        """uint8[size] for an answer, given back when that is sent."""
        self._lent.append(self._buffers.take(HEADS + size))
        return self._lent[-1][HEADS:]

    def _pull(self, peer: bytes, message: Message) -> Message:
        size = size_of(message.parts, message.dtype)
        if size > MOST_MOVED and sum(part.rows for part in message.parts) > 1:
            raise ProtocolError(f"{size:,} bytes of rows: a message is for {MOST_MOVED >> 20} MiB at most")
        values = self._taken(size).view(ITEM[message.dtype])
        parts = self._holdings.read(message, values)
        self.counters[PULLED] += sum([part.rows for part in parts])
        _, client, incarnation, round_, number, dtype, *_ = message
        return Message(Kind.ROWS, client, incarnation, round_, number, dtype, 0.0, parts, values)

    def _ask(self, peer: bytes, message: Message) -> Message | None:
        try:
            return self._answers.ask(peer, message, self._taken)
        except PutOff as error:
            self._odd(REFUSED, f"ASK of client {message.client}: {error}")
            return None

    def _push(self, peer: bytes, message: Message) -> Message:
        client, incarnation, number = message.client, message.incarnation, message.number
        verdict = self.applied.judge(client, incarnation, number)
        if verdict is Verdict.APPLY:
            self.counters[PUSHED] += (self._holdings.update if message.kind is Kind.PUSH else self._holdings.assign)(message)
            self.applied.note(client, incarnation, number)
        else:
            self.counters[REPEATED if verdict is Verdict.AGAIN else EARLY] += 1
        kind = Kind.GAP if verdict is Verdict.GAP else Kind.ACK
        return Message(kind, client, incarnation, message.round, self.applied.last(client, incarnation))

    def _bye(self, peer: bytes, message: Message) -> None:
        self._peers.pop(peer, None)
        self._answers.forget(message.client)

    def _reply(self, peer: bytes, messages: list[Message]) -> None:
        """Send them if the peer can take them; one that is gone, or reads nothing, asks again when it is back. Short ones are
        tried again, for a while: libzmq's thread may only be late."""
        trackers = None
        if messages:
            frames = [peer, pack_whole(messages, self._lent[-1] if self._lent else None)]
            trackers = self._wire.send(frames)
            if trackers is None and all(message.values is None for message in messages):
                self._late.append((time.monotonic() + LATE, frames))
        while self._lent:
            self._buffers.give(self._lent.pop(), trackers or [])

    def _piece(self, peer: bytes, message: Message) -> bool:
        """Send one message, if the peer can take it now."""
        return self._wire.send([peer, pack_whole([message])]) is not None

    def _odd(self, counter: int, what: str, times: int = 1) -> None:
        self.counters[counter] += times
        self._unsaid = what

    def _tell(self) -> None:
        """One line a minute, at most."""
        if self._unsaid and time.monotonic() > self._said + QUIET:
            counts = f"{self.counters[REFUSED]} messages refused so far, {self.counters[GARBAGE]} that were none"
            log.warning("server %d: %s; the last: %s", self.number, counts, self._unsaid)
            self._said, self._unsaid = time.monotonic(), ""
