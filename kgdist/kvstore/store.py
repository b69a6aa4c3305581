"""A client's place in a store: which tables there are, who is asked for their rows, what it overwrites there and what it asks.

Whatever concerns one server goes out as one envelope, when it is said; there are no threads here: the socket is looked after
whenever the process comes by, and libzmq's own thread moves the bytes meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.kernels.route import gather_parts, put_rows
from kgdist.kvstore.asked import Inquiry, Reach
from kgdist.kvstore.asking import Asking, described, size_of_arrays, worded, write_arrays
from kgdist.kvstore.buffers import Buffers, Loan
from kgdist.kvstore.catalogue import Catalogue, Listed, TableSpec
from kgdist.kvstore.connection import Connections, hello
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import MOST_PARTS, PART, PIECE_BYTES, TEXT_BYTES, Kind, Message, Sealed, seal
from kgdist.kvstore.tables import Ids, MemoryTables, TableMemory
from kgdist.kvstore.wire import Transport

MOST_AHEAD = 8  # announced pulls of a table that nobody came for
TAKEN = 32 << 20  # bytes of what an assignment sends that are gathered at a time

Stretch = tuple[Reach, int, int]  # a table, and from where to where in the ids or rows that a server has of it


class StoreClient:
    """A process that is connected to the servers of a store.

    Args:
        endpoints: (host, port) of each server of the layout.
        transport: makes the sockets; it stays the caller's.
        client, incarnation: whose pushes these are. A pair is used once in the life of a job, also across its restarts.
        machine, local: the own machine and its rows, for a process that shares its memory. They are updated there too, unless the
            layout wants each row changed by its owner.
        transport_dtype: fp32 or bf16, of rows pulled and gradients pushed; blocks are always fp32.
        pull_ahead: steps whose rows are asked for, and whose pushes are sent, together.
        max_inflight: messages of pushes to a server that it has not confirmed.
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
        machine: int = -1,
        local: MemoryTables | None = None,
        transport_dtype: str = "fp32",
        pull_ahead: int = 1,
        max_inflight: int = 1,
        peer_timeout: float = 15.0,
        connect_timeout: float = 60.0,
    ) -> None:
        self.catalogue = Catalogue(layout)
        self._client, self._machine, self._endpoints = client, machine, endpoints
        self._who = client, incarnation
        self._local = local
        self._bf16, self._most_ahead = transport_dtype == "bf16", MOST_AHEAD * pull_ahead
        self._reach = {name: self._seen(listed) for name, listed in self.catalogue.named.items()}
        self._buffers = Buffers()
        own = layout.servers_of(machine) if local is not None and not layout.by_owner else ()
        places = {server: endpoints[server] for server in layout.targets(client) if server not in own}
        window = max_inflight * pull_ahead
        limits: dict[str, Any] = {"window": window, "peer_timeout": peer_timeout, "connect_timeout": connect_timeout}
        self._connections = Connections(places, transport, hello(identity, client, incarnation), identity, **limits)

    def _seen(self, listed: Listed) -> Reach:
        return Reach(listed, self._client, self._machine, self._local, bf16=self._bf16, most_ahead=self._most_ahead)

    @property
    def layout(self) -> Layout:
        """The servers, and the ranges of all policies so far."""
        return self.catalogue.layout

    def declare(self, policy: str, bounds: np.ndarray) -> None:
        """Ranges of tables to come: see `Catalogue.declare`."""
        self.catalogue.declare(policy, bounds)

    def add(self, spec: TableSpec, number: int, memory: TableMemory | None = None) -> None:
        """One more table, which its servers have already; `memory`: the rows of the own machine, for a process that shares them.
        Raises UsageError for a name or number that is taken, or ranges that nobody declared; ValueError for other rows.
        """
        listed = self.catalogue.add(spec, number)
        if self._local is None:
            self._local = MemoryTables({}, {}, self.layout.optimizer)
        new = memory is not None and spec.name not in self._local
        try:
            if memory is not None and new:
                self._local.add(memory)
            reach = self._reach[spec.name] = self._seen(listed)
        except BaseException:
            self.catalogue.drop(spec.name)
            if new:
                self._local.drop(spec.name)
            raise
        own = self.layout.servers_of(self._machine) if reach.direct else ()
        for server in reach.targets:
            if server not in own:
                self._connections.reach(server, self._endpoints[server])

    def drop(self, name: str) -> None:
        """Forget a table that was added, once all is confirmed that was pushed. Raises UsageError for one that is not there."""
        self.flush()
        self.catalogue.drop(name)
        del self._reach[name]
        if self._local is not None and name in self._local.specs:
            self._local.drop(name)

    def spec(self, name: str) -> TableSpec:
        """What a table is. Raises UsageError for one that is not there."""
        return self.catalogue[name].spec

    def _seal(
        self, kind: Kind, dtype: int, lines: list[bytes], arrays: list[memoryview], lr: float = 0.0, values: Any = None
    ) -> Sealed:
        """A message of these parts, packed: a dozen such are made for a machine and a step."""
        return Sealed(kind, *self._who, dtype, lr, len(lines), b"".join((*lines, *arrays)), values)

    def _loads(self, spans: list[Stretch]) -> list[list[Stretch]]:
        """The stretches, cut and put together so that each list fills one message, at most."""
        if sum([reach.cost * (stop - start) for reach, start, stop in spans]) <= PIECE_BYTES:
            spans = [span for span in spans if span[1] < span[2]]
            return [spans] if spans else []
        loads: list[list[Stretch]] = [[]]
        room = PIECE_BYTES
        for reach, start, stop in spans:
            size = reach.cost
            while start < stop:
                if loads[-1] and room < size:
                    loads.append([])
                    room = PIECE_BYTES
                end = min(stop, start + max(1, room // size))
                loads[-1].append((reach, start, end))
                start, room = end, room - size * (end - start)
        return loads

    def assign(self, name: str, ids: Ids | slice, values: torch.Tensor, *, wait: bool = True) -> None:
        """Overwrite the rows `ids`, int64[n], or those of a range start:stop, by [n, *row_shape] of the table's dtype.

        Where an id comes again, the last row stays. When it returns the owners have done so; without `wait` the next `flush` says
        so (until then rows of the own machine may be read as they were). Raises IndexError for a row that is not there,
        ValueError for values of another shape or dtype.
        """
        reach, values = self._reach_of(name), values.contiguous()
        words = reach.words_of(values)
        if isinstance(ids, slice):
            start, stop = ids.start or 0, reach.rows if ids.stop is None else ids.stop
            if not 0 <= start <= stop <= reach.rows or ids.step not in (None, 1):
                raise IndexError(f"rows {start} to {stop - 1} in a table of {reach.rows} rows")
            rows = None
        else:
            rows, start, stop = np.ascontiguousarray(ids, np.int64), 0, len(ids)
        if len(words) != stop - start:
            raise ValueError(f"table {name}: {len(words)} rows for {stop - start} ids")
        if rows is None:
            self._assign_range(reach, start, words)
        else:
            step = TAKEN // reach.cost
            for first in range(0, len(words), step):
                self._assign_rows(reach, rows[first : first + step], words[first : first + step])
        if wait:
            self.flush()

    def _assign_range(self, reach: Reach, start: int, words: np.ndarray) -> None:
        stop, low, high = start + len(words), reach.low, reach.high
        if reach.direct and reach.here is not None and (own := range(max(start, low), min(stop, high))):
            reach.here[own.start - low : own.stop - low] = words[own.start - start : own.stop - start]
        for server, first, last in self._pieces(reach, start, stop, local=reach.direct):
            part = words[first - start : last - start]
            memory = self._buffers.take(part.nbytes)
            memory[:] = part.reshape(-1).view(np.uint8)
            self._overwrite(server, reach, last - first, first, None, memory.data, Loan(self._buffers, memory, 1))
        self._connections.pump()

    def _assign_rows(self, reach: Reach, rows: np.ndarray, words: np.ndarray) -> None:
        routed = reach.routed(rows, local=reach.direct)
        here, groups, size = routed.here(), routed.bounds[1:], reach.row_bytes
        if len(here) and reach.here is not None:
            put_rows(reach.here, rows[here], reach.low, reach.high, reach.low, words[here])
        there, bounds = routed.places[groups[0] :], (groups - groups[0]).tolist()
        if not len(there):
            return
        memory = self._buffers.take(len(there) * size)
        gather_parts(words, routed.places, groups, (groups[:-1] - groups[0]) * reach.width, memory.view(words.dtype))
        loads = [
            (server, first, last)
            for server, start, stop in zip(reach.targets, bounds, bounds[1:], strict=False)
            for [(_, first, last)] in self._loads([(reach, start, stop)])
        ]
        loan, ids = Loan(self._buffers, memory, len(loads)), reach.wire_ids(rows[there])
        for server, first, last in loads:
            chosen, values = ids[first * reach.wide : last * reach.wide], memory.data[first * size : last * size]
            self._overwrite(server, reach, last - first, 0, chosen, values, loan)
        self._connections.pump()

    def _overwrite(
        self, server: int, reach: Reach, rows: int, first: int, ids: memoryview | None, values: memoryview, loan: Loan
    ) -> None:
        """Send ASSIGN."""
        line = PART.pack(reach.number, 0 if ids is None else reach.wide, False, rows, reach.width, first)
        message = self._seal(Kind.ASSIGN, reach.plain, [line], [] if ids is None else [ids], 0.0, values)
        self._connections.push(server, message, len(values), loan)
        self._connections.say()

    def ask(self, machine: int, what: str, args: Mapping[str, Any], arrays: Sequence[np.ndarray] = ()) -> Asking:
        """Put a question to a server of a machine: what its service `what` makes of small arguments, as JSON knows them, and of
        arrays, whose shapes do not travel. Many may be on their way; `result()` waits for the answer to one. Raises UsageError
        for a question that is longer than a message, TypeError for arrays that cannot travel."""
        servers = self.layout.servers_of(machine)
        server, text = servers[self._client % len(servers)], worded(what, args)
        columns = described(arrays)
        size = size_of_arrays(columns)
        if len(text.encode()) > TEXT_BYTES or size > PIECE_BYTES or len(arrays) > MOST_PARTS:
            most = f"{TEXT_BYTES} letters, {MOST_PARTS} arrays and {PIECE_BYTES:,} bytes"
            asked = f"{len(text)} letters, {len(arrays)} arrays and {size:,} bytes"
            raise UsageError(f"a question of {asked}; {most} are possible: ask about less at a time")
        memory = np.empty(size, np.uint8) if size else None
        if memory is not None:
            write_arrays([np.ascontiguousarray(array) for array in arrays], memory)
        self._connections.reach(server, self._endpoints[server])
        inquiry = Inquiry(self._connections)
        message = Message(Kind.ASK, *self._who, values=memory, text=text, arrays=columns)
        self._connections.request(server, seal(message), size, None, inquiry.take)
        self._connections.say()
        self._connections.pump()
        return inquiry

    def _reach_of(self, name: str) -> Reach:
        """Raises UsageError for a table that is not there."""
        if (reach := self._reach.get(name)) is None:
            self.catalogue[name]
            raise KeyError(name)
        return reach

    def _pieces(self, reach: Reach, start: int, stop: int, *, local: bool = True) -> list[tuple[int, int, int]]:
        """Ranges of rows that one message can hold, behind the server that is asked for each; in turn. `local`: not those of the
        own machine."""
        found: list[tuple[int, int, int, int]] = []
        for server, first, last in zip(reach.targets, reach.bounds.tolist(), reach.bounds[1:].tolist(), strict=False):
            if not (local and reach.low <= first < reach.high):
                loads = self._loads([(reach, max(first, start), min(last, stop))])
                found += [(turn, server, at, end) for turn, [(_, at, end)] in enumerate(loads)]
        return [piece for _, *piece in sorted(found)]  # type: ignore[misc]

    def shape(self, name: str) -> tuple[int, int]:
        """Rows of a table, on all machines, and numbers in a row."""
        reach = self._reach_of(name)
        return reach.rows, math.prod(reach.spec.row_shape)

    def names(self) -> list[str]:
        """All tables, in the order in which they were added."""
        return list(self.catalogue)

    def flush(self) -> None:
        """Wait until all that was pushed and assigned is confirmed: its owners have applied it."""
        self._connections.flush()

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, headers included."""
        return self._connections.traffic()

    def close(self) -> None:
        """Part from all servers. What was not flushed may be lost."""
        self._connections.close()
