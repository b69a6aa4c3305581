"""One server process: answers pulls and reads from its range of its machine's tables, and applies pushes to them.

The tables are the machine's, in shared memory: trainers of the same machine may read and update them meanwhile, without locks
(Hogwild). Nothing a peer sends can stop the loop: what is no message is counted, and what is a wrong one is answered with ERROR
and changes nothing. Who starts a server, and what becomes of its job when it dies, is decided elsewhere.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from kgdist.errors import ProtocolError, one_line
from kgdist.kernels.adagrad import gather_rows
from kgdist.kernels.route import FINITE, gather_bfloat, shifted, widen, within
from kgdist.kernels.unique import unique
from kgdist.kvstore.buffers import Buffers
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import BF16, ITEM, MAGIC, PIECE_BYTES, Identity, Kind, Message, Part, pack, parse, read_body, size_of
from kgdist.kvstore.security import STRANGER, Transport, Watch, Wire
from kgdist.kvstore.session import Applied, Verdict
from kgdist.kvstore.tables import MemoryTables
from kgdist.log import log
from kgdist.optim import MOST_GRADIENT, MOST_RATE, MOST_SQUARES

BURST = 64  # messages between two looks at the rest of the world
TURN = 0.05  # seconds
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
    ) -> None:
        self.number = number
        self.layout = layout
        self.tables = tables
        self.identity = identity
        self.counters = np.zeros(len(COUNTERS), np.int64) if counters is None else counters
        self.applied = Applied()
        machine = int(layout.machine_of[number])
        self._names = list(layout.widths)
        self._first = {name: layout.machine_range(name, machine)[0] for name in self._names}
        self._served = {name: layout.served(name, number) for name in self._names}
        self._wire = wire
        self._watch = Watch([wire])
        self._transport = transport
        self._strangers = 0
        self._peers: dict[bytes, tuple[int, int]] = {}  # socket's name for a connection -> client, incarnation
        self._buffers = Buffers()
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
        ids, name = np.empty(0, np.int64), self._names[0]
        table, nothing = self.tables.rows[name], torch.empty(0, self.layout.widths[name])
        gather_rows(table, torch.from_numpy(ids), nothing)
        gather_bfloat(table.numpy(), ids, np.empty(nothing.shape, np.uint16))
        self.tables.apply(name, torch.from_numpy(ids), nothing, 0.0)
        within(nothing.numpy(), FINITE)
        unique(ids)
        for kind in (np.int32, np.int64):
            shifted(ids.astype(kind), 0, 0, 0)

    def state(self) -> list[list[int]]:
        """The last push applied, by client and incarnation: belongs into the checkpoint of the rows."""
        return self.applied.state()

    def load(self, state: list[list[int]]) -> None:
        """Take over what `state` gave."""
        self.applied.load(state)

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
        self._watch.wait(seconds)
        for _ in range(BURST):
            frames = self._wire.receive()
            if frames is None:
                break
            self._handle(bytes(frames[0]), frames[1:])
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
        for message in messages:
            reply = self._answer(peer, message)
            if reply is None:
                continue
            if replies and reply.kind is replies[-1].kind is Kind.ACK:
                replies.pop()  # this one confirms both
            elif sum(held.values.nbytes for held in (*replies, reply) if held.values is not None) > PIECE_BYTES:
                self._reply(peer, replies)
                replies = []
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

    def _hello(self, peer: bytes, message: Message) -> Message:
        client, incarnation = message.client, message.incarnation
        try:
            reason = self.identity.difference(message.text)
            who = read_body(message.text)["role"][:20]
        except ProtocolError as error:
            reason, who = str(error), "somebody"
        if reason is None and not self.applied.greet(client, incarnation):
            newest = self.applied.newest(client)
            reason = f"incarnation {incarnation} of client {client} has been replaced by {newest}"
        if reason is not None:
            self._odd(REFUSED, f"HELLO of {who} {client}: {reason}")
            told = reason if self._transport is not None and self._transport.closed else "HELLO does not fit this server"
            return message.answer(Kind.REFUSED, text=told)
        self._peers = {other: key for other, key in self._peers.items() if key[0] != client}  # it has one connection, this one
        self._peers[peer] = client, incarnation
        last, text = self.applied.last(client, incarnation), self.identity.text("server", self.number)
        return message.answer(Kind.WELCOME, number=last, text=text)

    def _act(self, peer: bytes, message: Message) -> Message | None:
        act = self._kinds.get(message.kind)
        if act is None:
            raise ProtocolError(f"a client does not say {message.kind.name}")
        tables = {part.table for part in message.parts}
        if len(tables) != len(message.parts):
            raise ProtocolError("a table comes twice in one message")
        for part in message.parts:
            if part.table >= len(self._names):
                raise ProtocolError(f"there is no table {part.table}: {len(self._names)} tables")
            name = self._names[part.table]
            if part.width != self.layout.widths[name]:
                raise ProtocolError(f"rows of {part.width} numbers: table {name} has {self.layout.widths[name]}")
        return act(peer, message)

    def _local(self, part: Part) -> np.ndarray | slice:
        """int64[n] or a span: the rows of the machine's table. Raises ProtocolError for one that is not this server's."""
        name, ids = self._names[part.table], part.ids
        first, last = self._served[name]
        if ids is not None:
            rows = shifted(ids, first, last, self._first[name])
            if rows is not None:
                return rows
            span = f"{int(ids.min())} to {int(ids.max())}"
        else:
            start, stop = part.first, part.first + part.rows
            if first <= start <= stop <= last:
                return slice(start - self._first[name], stop - self._first[name])
            span = f"{start} to {stop - 1}"
        raise ProtocolError(f"rows {span} of table {name}: server {self.number} has rows {first} to {last - 1}")

    def _pull(self, peer: bytes, message: Message) -> Message:
        places = [self._local(part) for part in message.parts]
        memory = self._buffers.take(size_of(message.parts, message.dtype))
        stripped = tuple(part._replace(ids=None) for part in message.parts)
        answer = message.answer(Kind.ROWS, parts=stripped, values=memory.view(ITEM[message.dtype]))
        for (part, out), rows in zip(answer.filled(), places, strict=True):
            table = self.tables.rows[self._names[part.table]]
            if isinstance(rows, slice):
                out[:] = table[rows].numpy()  # a copy: rows may change while they are sent
            elif message.dtype == BF16:
                gather_bfloat(table.numpy(), rows, out)
            else:
                gather_rows(table, torch.from_numpy(rows), torch.from_numpy(out))
            self.counters[PULLED] += part.rows
        self._lent.append(memory)
        return answer

    def _write(self, peer: bytes, message: Message) -> Message:
        assert message.values is not None
        places = [self._local(part) for part in message.parts]
        if not within(message.values, FINITE):
            raise ProtocolError("values that are not finite")
        for (part, values), rows in zip(message.filled(), places, strict=True):
            self.tables.rows[self._names[part.table]][rows] = torch.from_numpy(values)
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
        last = self.applied.last(client, incarnation)
        return message.answer(kind, number=last)

    def _apply(self, message: Message) -> None:
        """All of it or, with ProtocolError, nothing: within the limits of kgdist.optim whatever comes out is finite."""
        assert message.values is not None
        places: list[torch.Tensor] = []
        for part in message.parts:
            rows = self._local(part)
            assert isinstance(rows, np.ndarray)
            if len(unique(rows)[0]) != len(rows):
                raise ProtocolError("a row is updated twice in one push: sum its gradients")
            if part.squares is not None and not within(part.squares, MOST_SQUARES, signed=False):
                raise ProtocolError(f"squares of gradients that are no numbers from 0 to {MOST_SQUARES:.0e}")
            places.append(torch.from_numpy(rows))
        if not abs(message.lr) <= MOST_RATE:
            raise ProtocolError(f"a learning rate of {message.lr:g}: at most {MOST_RATE:.0e} is possible")
        values = widen(message.values) if message.dtype == BF16 else message.values
        if not within(values, MOST_GRADIENT):
            raise ProtocolError(f"gradients that are not finite, or over {MOST_GRADIENT:.0e}: rows could become infinite")
        for (part, grads), place in zip(message._replace(values=values).filled(), places, strict=True):
            squares = None if part.squares is None else torch.from_numpy(part.squares)
            self.tables.apply(self._names[part.table], place, torch.from_numpy(grads), message.lr, squares)
            self.counters[PUSHED] += part.rows

    def _bye(self, peer: bytes, message: Message) -> None:
        self._peers.pop(peer, None)

    def _reply(self, peer: bytes, messages: list[Message]) -> None:
        """Send them if the peer can take them; one that is gone, or reads nothing, asks again when it is back."""
        trackers = self._wire.send([peer, *pack(*messages)]) if messages else None
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
