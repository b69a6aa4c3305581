"""One server process: answers pulls and reads from its range of its machine's tables, and applies pushes to them.

The tables are the machine's, in shared memory: trainers of the same machine may read and update them meanwhile, without locks
(Hogwild). Nothing a peer sends can stop the loop: what is no message is counted, and what is a wrong one is answered with ERROR
and changes nothing. Who starts a server, and what becomes of its job when it dies, is decided elsewhere.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from kgdist.base.errors import ProtocolError, one_line
from kgdist.base.log import log
from kgdist.kernels.route import FINE, FINITE, GRADIENTS, OUTSIDE, SQUARES, TWICE, look_up, vetted, widen, within
from kgdist.kvstore.buffers import Buffers
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import BF16, ITEM, MAGIC, PIECE_BYTES, Identity, Kind, Message, Part, pack, parse, read_body, size_of
from kgdist.kvstore.optim import MOST_GRADIENT, MOST_RATE, MOST_SQUARES
from kgdist.kvstore.session import Applied, Verdict
from kgdist.kvstore.tables import MemoryTables
from kgdist.kvstore.wire import STRANGER, Transport, Watch, Wire

BURST = 64  # messages between two looks at the rest of the world
TURN = 0.05  # seconds
MOST_MOVED = PIECE_BYTES  # that one envelope may bring or ask for: senders make them so, and others have their turn in between
MOST_LATE, LATE, SOON = 1024, 1.0, 0.002  # short replies that could not be sent at once; seconds of trying, and between tries
QUIET = 60.0  # seconds between two lines about what was refused
COUNTERS = ("turns", "rows_pulled", "rows_pushed", "repeated", "early", "refused", "garbage")
TURNS, PULLED, PUSHED, REPEATED, EARLY, REFUSED, GARBAGE = range(len(COUNTERS))


WRONG = {
    TWICE: "a row is updated twice in one push: sum its gradients",
    SQUARES: f"squares of gradients that are no numbers from 0 to {MOST_SQUARES:.0e}",
    GRADIENTS: f"gradients that are not finite, or over {MOST_GRADIENT:.0e}: rows could become infinite",
}


class _Table:
    """A table of the machine, and which of its rows this server answers for."""

    def __init__(self, name: str, server: int, layout: Layout, tables: MemoryTables) -> None:
        self.name = name
        self.width = layout.widths[name]
        self.rows = tables.rows[name].numpy()  # float32[n, width]
        self.update = tables.updater(name)
        self.first = layout.machine_range(name, int(layout.machine_of[server]))[0]  # of rows
        self.low, self.high = layout.served(name, server)


class Server:
    """The server `number` of the layout.

    Args:
        tables: the rows of its whole machine; local row 0 is the machine's first.
        wire: a socket of Transport.server; it stays the caller's.
        transport: counts refused keys, and knows whether strangers are kept out: where they are not, nobody is told why his HELLO
            was refused, for that names what would fit. None: they are not.
        clients: how many there can be; of others nothing is remembered.
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
    ) -> None:
        self.number = number
        self._clients = clients
        self.layout = layout
        self.tables = tables
        self.identity = identity
        self.counters = np.zeros(len(COUNTERS), np.int64) if counters is None else counters
        self.applied = Applied()
        self._tables = [_Table(name, number, layout, tables) for name in layout.widths]
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
            Kind.WRITE: self._write,
            Kind.PUSH: self._push,
            Kind.BYE: self._bye,
        }
        self._warm()

    def _warm(self) -> None:
        """Load the loops, or compile them, before anyone waits for an answer: seconds that would look like a dead server."""
        table, first = self._tables[0], self._tables[0].first
        nothing, bits = np.empty((0, table.width), np.float32), np.empty(0, np.uint16)
        for kind in (np.int32, np.int64):
            ids = np.empty(0, kind)
            _, rows = vetted(ids, first, first, first, nothing, MOST_GRADIENT, None, MOST_SQUARES)
            for out in (nothing.reshape(-1), bits):
                look_up(table.rows, ids, first, first, first, out)
        table.update(rows, nothing, 0.0, None)
        within(nothing, FINITE)

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
        patience = min(seconds, self._wire.guard(), SOON if self._late else math.inf)
        if (frames := self._wire.receive()) is None:  # asked first: under load there always is one, and waiting costs more
            self._watch.wait(patience)
            frames = self._wire.receive()
        now = time.monotonic()
        for _ in range(len(self._late)):
            until, reply = self._late.popleft()
            if now < until and self._wire.send(reply) is None:
                self._late.append((until, reply))
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
            moved += size_of(message.parts, message.dtype)
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
            reason = str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {one_line(str(error))}"
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
        self._wire.vouch()
        last, text = self.applied.last(client, incarnation), self.identity.text("server", self.number)
        return message.answer(Kind.WELCOME, number=last, text=text)

    def _held(self, client: int, incarnation: int) -> bool:
        """Whether an older incarnation of this client is connected still: one that has died is not, and nobody takes the place of
        one that lives, whatever number he makes up. Only sending tells; it is told what it knows."""
        for peer, (other, older) in self._peers.items():
            if other == client and older < incarnation:
                known = Message(Kind.ACK, client, older, number=self.applied.last(client, older))
                return self._wire.send([peer, *pack(known)]) is not None
        return False

    def _act(self, peer: bytes, message: Message) -> Message | None:
        act = self._kinds.get(message.kind)
        if act is None:
            raise ProtocolError(f"a client does not say {message.kind.name}")
        seen = 0
        for part in message.parts:
            if part.table >= len(self._tables):
                raise ProtocolError(f"there is no table {part.table}: {len(self._tables)} tables")
            if seen >> part.table & 1:
                raise ProtocolError("a table comes twice in one message")
            seen |= 1 << part.table
            table = self._tables[part.table]
            if part.width != table.width:
                raise ProtocolError(f"rows of {part.width} numbers: table {table.name} has {table.width}")
        return act(peer, message)

    def _refuse(self, part: Part, first: int, last: int) -> None:
        table = self._tables[part.table]
        has = f"server {self.number} has rows {table.low} to {table.high - 1}"
        raise ProtocolError(f"rows {first} to {last} of table {table.name}: {has}")

    def _span(self, part: Part) -> slice:
        """The rows of the machine's table that a part without ids means. Raises ProtocolError for one that is not served here."""
        table, start, stop = self._tables[part.table], part.first, part.first + part.rows
        if not table.low <= start <= stop <= table.high:
            self._refuse(part, start, stop - 1)
        return slice(start - table.first, stop - table.first)

    def _pull(self, peer: bytes, message: Message) -> Message:
        size = size_of(message.parts, message.dtype)
        if size > MOST_MOVED and sum(part.rows for part in message.parts) > 1:
            raise ProtocolError(f"{size:,} bytes of rows: a message is for {MOST_MOVED >> 20} MiB at most")
        memory = self._buffers.take(size)
        self._lent.append(memory)
        values, at, parts = memory.view(ITEM[message.dtype]), 0, []
        for part in message.parts:
            number, rows, width, _, ids, _ = part
            table, end = self._tables[number], at + rows * width
            out = values[at:end]
            if ids is None:
                out[:] = table.rows[self._span(part)].reshape(-1)  # a copy: rows may change while they are sent
            elif not look_up(table.rows, ids, table.low, table.high, table.first, out):
                self._refuse(part, int(ids.min()), int(ids.max()))
            parts.append(Part(number, rows, width, part.first))
            at = end
            self.counters[PULLED] += rows
        _, client, incarnation, round_, number, dtype, *_ = message
        return Message(Kind.ROWS, client, incarnation, round_, number, dtype, 0.0, tuple(parts), values)

    def _write(self, peer: bytes, message: Message) -> Message:
        assert message.values is not None
        places = [self._span(part) for part in message.parts]
        if not within(message.values, FINITE):
            raise ProtocolError("values that are not finite")
        for (part, values), rows in zip(message.filled(), places, strict=True):
            self._tables[part.table].rows[rows] = values
        return message.answer(Kind.WRITTEN)

    def _push(self, peer: bytes, message: Message) -> Message:
        client, incarnation, number = message.client, message.incarnation, message.number
        verdict = self.applied.judge(client, incarnation, number)
        if verdict is Verdict.APPLY:
            self._apply(message)
            self.applied.note(client, incarnation, number)
        else:
            self.counters[REPEATED if verdict is Verdict.AGAIN else EARLY] += 1
        kind = Kind.GAP if verdict is Verdict.GAP else Kind.ACK
        return Message(kind, client, incarnation, message.round, self.applied.last(client, incarnation))

    def _apply(self, message: Message) -> None:
        """All of it or, with ProtocolError, nothing: within the limits of kgdist.kvstore.optim whatever comes out is finite."""
        assert message.values is not None
        if not abs(message.lr) <= MOST_RATE:
            raise ProtocolError(f"a learning rate of {message.lr:g}: at most {MOST_RATE:.0e} is possible")
        found, at = [], 0
        values = widen(message.values) if message.dtype == BF16 else message.values
        for part in message.parts:
            table, end = self._tables[part.table], at + part.rows * part.width
            grads, ids = values[at:end].reshape(part.rows, part.width), part.ids
            assert ids is not None
            given = grads, MOST_GRADIENT, part.squares, MOST_SQUARES
            wrong, rows = vetted(ids, table.low, table.high, table.first, *given)
            if wrong == OUTSIDE:
                self._refuse(part, int(ids.min()), int(ids.max()))
            if wrong != FINE:
                raise ProtocolError(WRONG[wrong])
            found.append((table, rows, grads, part.squares))
            at = end
        for table, rows, grads, squares in found:
            table.update(rows, grads, message.lr, squares)
            self.counters[PUSHED] += len(rows)

    def _bye(self, peer: bytes, message: Message) -> None:
        self._peers.pop(peer, None)

    def _reply(self, peer: bytes, messages: list[Message]) -> None:
        """Send them if the peer can take them; one that is gone, or reads nothing, asks again when it is back. Short ones are
        tried again, for a while: libzmq's thread may only be late."""
        frames = [peer, *pack(*messages)] if messages else []
        trackers = self._wire.send(frames) if messages else None
        if trackers is None and len(frames) == 2:
            self._late.append((time.monotonic() + LATE, frames))
        while self._lent:
            self._buffers.give(self._lent.pop(), trackers or [])

    def _odd(self, counter: int, what: str, times: int = 1) -> None:
        self.counters[counter] += times
        self._unsaid = what

    def _tell(self) -> None:
        """One line a minute, at most."""
        if self._unsaid and time.monotonic() > self._said + QUIET:
            counts = f"{self.counters[REFUSED]} messages refused so far, {self.counters[GARBAGE]} that were none"
            log.warning("server %d: %s; the last: %s", self.number, counts, self._unsaid)
            self._said, self._unsaid = time.monotonic(), ""
