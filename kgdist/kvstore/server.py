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

from kgdist.errors import ProtocolError
from kgdist.kernels.adagrad import gather_rows
from kgdist.kernels.route import finite, gather_bfloat, widen
from kgdist.kernels.unique import unique
from kgdist.kvstore.buffers import Buffers
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import BF16, FP32, ITEM, MAGIC, Identity, Kind, Message, pack, parse, read_body
from kgdist.kvstore.security import STRANGER, Transport, Watch, Wire
from kgdist.kvstore.session import Applied, Verdict
from kgdist.kvstore.tables import MemoryTables
from kgdist.log import log

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
        transport: told apart only to count refused keys; None where there are none.
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
        self._wire = wire
        self._watch = Watch([wire])
        self._transport = transport
        self._strangers = 0
        self._peers: dict[bytes, tuple[int, int]] = {}  # socket's name for a connection -> client, incarnation
        self._buffers = Buffers()
        self._said = -math.inf
        self._unsaid = ""
        self._kinds = {
            Kind.PULL: self._pull,
            Kind.READ: self._read,
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
        self.tables.push(name, torch.from_numpy(ids), nothing, 0.0)
        finite(nothing.numpy())
        unique(ids)

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
        for event in self._wire.events():
            self._odd(GARBAGE, "a peer that does not speak ZMTP as we do" if event == STRANGER else "a broken handshake")
        if self._transport is not None and self._transport.strangers > self._strangers:
            self._odd(REFUSED, "a peer whose key is not of this run", self._transport.strangers - self._strangers)
            self._strangers = self._transport.strangers
        self._tell()

    def _handle(self, peer: bytes, frames: list[Any]) -> None:
        try:
            message = parse(frames)
        except ProtocolError as error:
            self._odd(GARBAGE, str(error))
            if frames and bytes(frames[0][:4]) == MAGIC:  # one of ours, of another release perhaps: it should know
                self._reply(peer, Message(Kind.ERROR, text=str(error)))
            return
        if message.kind is Kind.HELLO:
            self._hello(peer, message)
        elif self._peers.get(peer) != (message.client, message.incarnation):
            self._reply(peer, message.answer(Kind.WHO))
        else:
            try:
                self._act(peer, message)
            except ProtocolError as error:
                self._odd(REFUSED, f"{message.kind.name} of client {message.client}: {error}")
                self._reply(peer, message.answer(Kind.ERROR, text=str(error)))

    def _hello(self, peer: bytes, message: Message) -> None:
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
            self._reply(peer, message.answer(Kind.REFUSED, text=reason))
            return
        self._peers = {other: key for other, key in self._peers.items() if key[0] != client}  # it has one connection, this one
        self._peers[peer] = client, incarnation
        last, text = self.applied.last(client, incarnation), self.identity.text("server", self.number)
        self._reply(peer, message.answer(Kind.WELCOME, number=last, text=text))

    def _act(self, peer: bytes, message: Message) -> None:
        act = self._kinds.get(message.kind)
        if act is None:
            raise ProtocolError(f"a client does not say {message.kind.name}")
        name = ""
        if message.kind is not Kind.BYE:
            if message.table >= len(self._names):
                raise ProtocolError(f"there is no table {message.table}: {len(self._names)} tables")
            name = self._names[message.table]
            if message.width != self.layout.widths[name]:
                raise ProtocolError(f"rows of {message.width} numbers: table {name} has {self.layout.widths[name]}")
        act(peer, message, name)

    def _local(self, name: str, ids: np.ndarray) -> np.ndarray:
        """int64[n], the rows of the machine's table. Raises ProtocolError for one that is not this server's."""
        first, last = self.layout.range_of(name, self.number)
        if len(ids) and (int(ids.min()) < first or int(ids.max()) >= last):
            span = f"{int(ids.min())} to {int(ids.max())}"
            raise ProtocolError(f"rows {span} of table {name}: server {self.number} has rows {first} to {last - 1}")
        return ids.astype(np.int64) - self._first[name]

    def _span(self, name: str, message: Message) -> tuple[int, int]:
        """The same for first..first + count."""
        first, last = self.layout.range_of(name, self.number)
        start, stop = message.first, message.first + message.count
        if not first <= start <= stop <= last:
            raise ProtocolError(
                f"rows {start} to {stop - 1} of table {name}: server {self.number} has rows {first} to {last - 1}"
            )
        return start - self._first[name], stop - self._first[name]

    def _pull(self, peer: bytes, message: Message, name: str) -> None:
        assert message.ids is not None
        rows, table = self._local(name, message.ids), self.tables.rows[name]
        out = self._buffers.take(len(rows), message.width, ITEM[message.dtype])
        if message.dtype == BF16:
            gather_bfloat(table.numpy(), rows, out)
        else:
            gather_rows(table, torch.from_numpy(rows), torch.from_numpy(out))
        self.counters[PULLED] += len(rows)
        trackers = self._reply(peer, message.answer(Kind.ROWS, values=out))
        self._buffers.give(out, trackers)

    def _read(self, peer: bytes, message: Message, name: str) -> None:
        start, stop = self._span(name, message)
        out = self._buffers.take(stop - start, message.width, ITEM[FP32])
        out[:] = self.tables.rows[name][start:stop].numpy()  # a copy: rows may change while they are sent
        self.counters[PULLED] += stop - start
        trackers = self._reply(peer, message.answer(Kind.ROWS, values=out))
        self._buffers.give(out, trackers)

    def _write(self, peer: bytes, message: Message, name: str) -> None:
        assert message.values is not None
        start, stop = self._span(name, message)
        if not finite(message.values):
            raise ProtocolError("values that are not finite")
        self.tables.rows[name][start:stop] = torch.from_numpy(message.values)
        self._reply(peer, message.answer(Kind.WRITTEN))

    def _push(self, peer: bytes, message: Message, name: str) -> None:
        client, incarnation, number = message.client, message.incarnation, message.number
        verdict = self.applied.judge(client, incarnation, number)
        if verdict is Verdict.APPLY:
            self._apply(message, name)
            self.applied.note(client, incarnation, number)
        else:
            self.counters[REPEATED if verdict is Verdict.AGAIN else EARLY] += 1
        kind = Kind.GAP if verdict is Verdict.GAP else Kind.ACK
        last = self.applied.last(client, incarnation)
        self._reply(peer, message.answer(kind, number=last))

    def _apply(self, message: Message, name: str) -> None:
        """All of it or, with ProtocolError, nothing."""
        assert message.ids is not None and message.values is not None
        rows, squares = self._local(name, message.ids), message.squares
        if len(unique(rows)[0]) != len(rows):
            raise ProtocolError("a row is updated twice in one push: sum its gradients")
        values = widen(message.values) if message.dtype == BF16 else message.values
        if not (finite(values) and math.isfinite(message.lr) and (squares is None or finite(squares))):
            raise ProtocolError("gradients that are not finite")
        given = None if squares is None else torch.from_numpy(squares)
        self.tables.push(name, torch.from_numpy(rows), torch.from_numpy(values), message.lr, given)
        self.counters[PUSHED] += len(rows)

    def _bye(self, peer: bytes, message: Message, name: str) -> None:
        self._peers.pop(peer, None)

    def _reply(self, peer: bytes, message: Message) -> list[Any]:
        """Send it if the peer can take it; one that is gone, or reads nothing, asks again when it is back."""
        return self._wire.send([peer, *pack(message)]) or []

    def _odd(self, counter: int, what: str, times: int = 1) -> None:
        self.counters[counter] += times
        self._unsaid = what

    def _tell(self) -> None:
        """One line a minute, at most."""
        if self._unsaid and time.monotonic() > self._said + QUIET:
            counts = f"{self.counters[REFUSED]} messages refused so far, {self.counters[GARBAGE]} that were none"
            log.warning("server %d: %s; the last: %s", self.number, counts, self._unsaid)
            self._said, self._unsaid = time.monotonic(), ""
