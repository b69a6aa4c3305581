"""Tables whose rows lie on many machines: a trainer's end of the store.

Rows of the own machine are read, and with `direct` updates also changed, in shared memory; all others go to the servers that own
them, ids different and batched by owner. A pull that was announced (`ahead`) is on its way while the trainer computes; pushes are
sent and confirmed behind its back, at most `max_inflight` of them to each server. There are no threads here: sockets are looked
after whenever the trainer comes by, and libzmq's own thread moves the bytes meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kgdist.errors import PeersLost
from kgdist.kernels.adagrad import gather_rows
from kgdist.kernels.route import Route, gather_bfloat, route, scatter_rows
from kgdist.kvstore.buffers import Buffers
from kgdist.kvstore.connection import Connection, hello
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import BF16, FP32, ITEM, PIECE_BYTES, Identity, Kind, Message, Part, size_of
from kgdist.kvstore.places import at
from kgdist.kvstore.security import Transport, Watch
from kgdist.kvstore.tables import Ids, MemoryTables, Update

MOST_AHEAD = 8  # announced pulls of a table that nobody came for
AT_ONCE = 4  # pieces of a block asked for at a time
AHEAD_BYTES = 8 << 20  # of the blocks that are on their way while another one is looked at
TURN = 0.05  # seconds of one wait for the network
STUCK = 0.01  # the same while a socket takes nothing

Span = tuple[str, int, int]  # a table, and from where to where in the ids or rows that a server has of it


class _Pull:
    """A pull under way: who was asked, and what has come."""

    def __init__(self, ids: np.ndarray, routed: Route) -> None:
        self.ids = ids  # int64[n]
        self.route = routed
        self.left = 0  # pieces still to come
        self.pieces: list[tuple[int, int, np.ndarray]] = []  # server, place of the first in route.ids, rows

    def settle(self, out: np.ndarray) -> None:
        """The rows to the places that asked for them, float32[n, width]."""
        for server, first, values in self.pieces:
            places = self.route.of(server)
            rows = self.route.slots[places] - first
            if len(values) < self.route.offsets[server + 1] - self.route.offsets[server]:
                inside = (rows >= 0) & (rows < len(values))
                places, rows = places[inside], rows[inside]
            scatter_rows(values, rows, places, out)


class StoreTables:
    """See kgdist.kvstore.tables.Tables.

    Args:
        endpoints: (host, port) of each server of the layout.
        transport: makes the sockets; it stays the caller's.
        client, incarnation: whose pushes these are. A pair is used once in the life of a job, also across its restarts.
        machine, local: the own machine and its rows, for a process that shares its memory.
        local_update: `direct` in that memory, or by the `owner`.
        transport_dtype: fp32 or bf16, of rows pulled and gradients pushed; blocks are always fp32.
        max_inflight: pushes to a server that it has not confirmed.
        peer_timeout: after twice so many seconds of silence a server that we wait for counts as lost.
        connect_timeout: seconds that servers may take to appear.

    Raises PeersLost when a server is or becomes unreachable, KgdistError with its reason when one refuses us or a push of ours.
    """

    def __init__(
        self,
        layout: Layout,
        endpoints: Sequence[tuple[str, int]],
        transport: Transport,
        identity: Identity,
        *,
        client: int,
        incarnation: int = 0,
        role: str = "trainer",
        machine: int = -1,
        local: MemoryTables | None = None,
        local_update: str = "direct",
        transport_dtype: str = "fp32",
        max_inflight: int = 1,
        peer_timeout: float = 15.0,
        connect_timeout: float = 60.0,
    ) -> None:
        self.layout = layout
        self._names = list(layout.widths)
        self._local = local
        self._direct = local is not None and local_update == "direct"
        self._range = {name: layout.machine_range(name, machine) if local is not None else (0, 0) for name in self._names}
        self._dtype = BF16 if transport_dtype == "bf16" else FP32
        self._buffers = Buffers()
        self._ahead: dict[str, deque[_Pull]] = {name: deque(maxlen=MOST_AHEAD) for name in self._names}
        here = layout.servers_of(machine) if local is not None else ()
        own = here if self._direct else ()
        greeting = hello(identity, role, client, incarnation)
        limits: dict[str, Any] = {"window": max_inflight, "patience": 2 * peer_timeout, "first_patience": connect_timeout}
        self._connections: dict[int, Connection] = {}
        for server, (host, port) in enumerate(endpoints):
            if server not in own:
                wire = transport.client(host, port)
                self._connections[server] = Connection(at(host, port), wire, greeting, self._buffers, **limits)
        self._watch = Watch(connection.wire for connection in self._connections.values())
        try:
            self._until(lambda: all(connection.open for connection in self._connections.values()))
        except BaseException:
            self.close()
            raise

    def _pump(self) -> None:
        for connection in self._connections.values():
            connection.pump()

    def _until(self, done: Callable[[], bool]) -> None:
        """Look after the connections until `done`. Ends, for each that is waited for has its own deadline."""
        self._pump()
        while not done():
            if not any(connection.waiting() for connection in self._connections.values()):
                raise PeersLost("nothing is on its way, and something is missing")
            stuck = any(connection.blocked for connection in self._connections.values())
            self._watch.wait(STUCK if stuck else TURN)
            self._pump()

    def _part(self, name: str, rows: int, **fields: Any) -> Part:
        return Part(self._names.index(name), rows, self.layout.widths[name], **fields)

    def _wire_ids(self, name: str, ids: np.ndarray) -> np.ndarray:
        """As int32 where the table's rows fit."""
        return np.ascontiguousarray(ids, np.int32 if self.layout.rows(name) <= 1 << 31 else np.int64)

    def _loads(self, spans: Iterable[Span]) -> Iterator[list[Span]]:
        """The spans, cut and put together so that each list fills one message, at most."""
        load: list[Span] = []
        room = PIECE_BYTES
        for name, start, stop in spans:
            size = 4 * self.layout.widths[name]
            while start < stop:
                if load and room < size:
                    yield load
                    load, room = [], PIECE_BYTES
                end = min(stop, start + max(1, room // size))
                load.append((name, start, end))
                start, room = end, room - size * (end - start)
        if load:
            yield load

    def ahead(self, wanted: Mapping[str, np.ndarray]) -> None:
        """See Tables; the requests are sent, and nothing is waited for.

        What is pushed after this call is not in the rows, so a trainer that looks one batch ahead reads rows a step old, its own
        updates among them. FB15k in four parts reaches the same MRR with them; asking after the push costs a third of the speed.
        """
        pulls = {name: self._pull(name, np.array(ids, np.int64)) for name, ids in wanted.items()}
        self._ask(pulls)
        for name, pull in pulls.items():
            self._ahead[name].append(pull)

    def _pull(self, name: str, ids: np.ndarray) -> _Pull:
        return _Pull(ids, route(ids, self.layout.starts[name], *self._range[name]))

    def _ask(self, pulls: Mapping[str, _Pull]) -> None:
        """Send for the rows; what one server has of all tables, in one message where it fits."""
        for server, connection in self._connections.items():
            for load in self._loads((name, *pull.route.offsets[server : server + 2].tolist()) for name, pull in pulls.items()):
                parts, asking = [], []
                for name, first, last in load:
                    ids = self._wire_ids(name, pulls[name].route.ids[first:last])
                    parts.append(self._part(name, len(ids), ids=ids))
                    asking.append((pulls[name], first))
                    pulls[name].left += 1

                def take(message: Message, server: int = server, asking: list[tuple[_Pull, int]] = asking) -> None:
                    for (pull, first), (_, values) in zip(asking, message.filled(), strict=True):
                        pull.pieces.append((server, first, values))
                        pull.left -= 1

                connection.request(Message(Kind.PULL, parts=tuple(parts), dtype=self._dtype), take)
        self._pump()

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Tables. Rows that were announced are as they were then, or later."""
        wanted = ids.numpy()
        pull = self._announced(name, wanted)
        if pull is None:
            pull = self._pull(name, wanted)
            self._ask({name: pull})
        if out is None:
            out = torch.empty(len(wanted), self.layout.widths[name])
        here = pull.route.here()
        if len(here) and self._local is not None:
            rows = wanted[here] - self._range[name][0]
            scatter_rows(self._local.rows[name].numpy(), rows, here, out.numpy())
        self._until(lambda: not pull.left)
        pull.settle(out.numpy())
        return out

    def _announced(self, name: str, ids: np.ndarray) -> _Pull | None:
        queue = self._ahead[name]
        for place, pull in enumerate(queue):
            if np.array_equal(pull.ids, ids):
                for _ in range(place + 1):
                    queue.popleft()  # nobody comes for those before it any more
                return pull
        return None

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """See Tables; waits only while `max_inflight` pushes to a server are unconfirmed."""
        routes = {name: self._routed(name, update) for name, update in updates.items()}
        for server, connection in self._connections.items():
            for load in self._loads((name, 0, len(routed.of(server))) for name, routed in routes.items()):
                places = {name: routes[name].of(server)[start:stop] for name, start, stop in load}
                self._send(connection, updates, places, lr)
        if self._direct and self._local is not None:
            for name, (ids, grads, squares) in updates.items():
                here, first = routes[name].here(), self._range[name][0]
                if len(here) == len(ids):
                    self._local.apply(name, torch.from_numpy(ids - first), grads, lr, squares)
                elif len(here):
                    self._local.apply(name, torch.from_numpy(ids[here] - first), grads, lr, squares, torch.from_numpy(here))

    def _routed(self, name: str, update: Update) -> Route:
        """Who updates which rows. Raises ValueError for arrays that disagree, or a row that comes twice."""
        ids, grads, squares = update
        if grads.shape != (len(ids), self.layout.widths[name]) or (squares is not None and len(squares) != len(ids)):
            raise ValueError(f"table {name}: {len(ids)} ids and gradients {tuple(grads.shape)} do not fit together")
        routed = route(ids, self.layout.starts[name], *(self._range[name] if self._direct else (0, 0)))
        if len(routed.ids) + len(routed.here()) != len(ids):
            raise ValueError(f"table {name}: a row is updated twice in one push")
        return routed

    def _send(self, connection: Connection, updates: Mapping[str, Update], places: Mapping[str, np.ndarray], lr: float) -> None:
        """One message, of the gradients at these places."""
        if not connection.room():
            self._until(connection.room)
        parts = []
        for name, which in places.items():
            ids, squares = self._wire_ids(name, updates[name].ids[which]), updates[name].squares
            given = None if squares is None else squares.detach().numpy()[which]
            parts.append(self._part(name, len(which), ids=ids, squares=given))
        memory = self._buffers.take(size_of(parts, self._dtype))
        message = Message(Kind.PUSH, parts=tuple(parts), values=memory.view(ITEM[self._dtype]), lr=lr, dtype=self._dtype)
        for (name, which), (_, out) in zip(places.items(), message.filled(), strict=True):
            values = updates[name].grads.detach().contiguous()
            if self._dtype == BF16:
                gather_bfloat(values.numpy(), which, out)
            else:
                gather_rows(values, torch.from_numpy(which), torch.from_numpy(out))
        connection.push(message, memory)
        connection.transmit()

    def flush(self) -> None:
        """See Tables: every push is confirmed, so every owner has applied it."""
        self._until(lambda: not any(connection.unconfirmed() for connection in self._connections.values()))

    def local(self, name: str) -> torch.Tensor | None:
        """See Tables: never all of it."""
        return None

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        """See Tables: rows of this machine without a copy where they are all; else read in pieces of at most 16 MB."""
        return self._come(*self._read(name, start, stop))

    def blocks(self, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[torch.Tensor]:
        """See Tables. What was sent for and is not looked at yet is AHEAD_BYTES at most, or one block."""
        coming: deque[tuple[torch.Tensor, list[int]]] = deque()
        for start, stop in spans:
            coming.append(self._read(name, start, stop))
            if len(coming) > max(1, AHEAD_BYTES // max(1, 4 * self.layout.widths[name] * (stop - start))):
                yield self._come(*coming.popleft())
        while coming:
            yield self._come(*coming.popleft())

    def _come(self, rows: torch.Tensor, left: list[int]) -> torch.Tensor:
        """The rows, when all are there."""
        self._until(lambda: not left[0])
        return rows

    def _read(self, name: str, start: int, stop: int) -> tuple[torch.Tensor, list[int]]:
        """Send for a block: float32[stop - start, width], and how many pieces of it have not come yet."""
        if not 0 <= start <= stop <= self.layout.rows(name):
            raise IndexError(f"rows {start} to {stop - 1} in a table of {self.layout.rows(name)} rows")
        low, high = self._range[name]
        if self._local is not None and low <= start and stop <= high:
            return self._local.rows[name][start - low : stop - low], [0]
        out = torch.empty(stop - start, self.layout.widths[name])
        if self._local is not None and max(start, low) < min(stop, high):
            own = slice(max(start, low), min(stop, high))
            out[own.start - start : own.stop - start] = self._local.rows[name][own.start - low : own.stop - low]
        left = [0]
        for connection, first, last in self._pieces(name, start, stop):

            def take(message: Message, place: slice = slice(first - start, last - start)) -> None:
                assert message.values is not None
                out[place] = torch.from_numpy(message.values).view(-1, out.shape[1])
                left[0] -= 1

            self._until(lambda: left[0] < AT_ONCE * len(self._connections))
            left[0] += 1
            connection.request(Message(Kind.READ, parts=(self._part(name, last - first, first=first),)), take)
        return out, left

    def write(self, name: str, start: int, rows: torch.Tensor) -> None:
        """Overwrite rows start, start + 1, ... by float32[n, width] wherever they live; done when it returns."""
        stop, left = start + len(rows), [0]
        if not 0 <= start <= stop <= self.layout.rows(name) or rows.shape[1] != self.layout.widths[name]:
            raise IndexError(f"rows {start} to {stop - 1} in a table of {self.layout.rows(name)} rows")
        low, high = self._range[name]
        if self._local is not None and max(start, low) < min(stop, high):
            own = slice(max(start, low), min(stop, high))
            self._local.rows[name][own.start - low : own.stop - low] = rows[own.start - start : own.stop - start]

        def took(message: Message) -> None:
            left[0] -= 1

        for connection, first, last in self._pieces(name, start, stop):
            self._until(lambda: left[0] < AT_ONCE * len(self._connections))
            left[0] += 1
            values = rows[first - start : last - start].contiguous().numpy().reshape(-1)
            connection.request(Message(Kind.WRITE, parts=(self._part(name, last - first, first=first),), values=values), took)
        self._until(lambda: not left[0])

    def _pieces(self, name: str, start: int, stop: int) -> list[tuple[Connection, int, int]]:
        """Ranges of rows of other machines that one message can hold, and who has them; servers in turn."""
        low, high = self._range[name]
        found: list[tuple[int, Connection, int, int]] = []
        for server, connection in self._connections.items():
            first, last = self.layout.range_of(name, server)
            if self._local is not None and low <= first < high:
                continue
            loads = self._loads([(name, max(first, start), min(last, stop))])
            found += [(turn, connection, at, end) for turn, [(_, at, end)] in enumerate(loads)]
        return [(connection, at, end) for _, connection, at, end in sorted(found, key=lambda piece: piece[0])]

    def shape(self, name: str) -> tuple[int, int]:
        """See Tables: of the whole table, on all machines."""
        return self.layout.rows(name), self.layout.widths[name]

    def names(self) -> list[str]:
        """See Tables."""
        return list(self._names)

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, headers included."""
        connections = self._connections.values()
        return sum(connection.sent for connection in connections), sum(connection.received for connection in connections)

    def close(self) -> None:
        """Part from all servers. What was not flushed may be lost."""
        for connection in self._connections.values():
            connection.close()
