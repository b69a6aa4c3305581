"""Tables whose rows lie on many machines: a trainer's end of the store.

Rows of the own machine are read, and with `direct` updates also changed, in shared memory; all others go to a server of the
machine that has them (`Layout.targets`), ids different and batched. A pull that was announced (`ahead`) is on its way while the
trainer computes. What a step has for one machine is one envelope: its push, and behind it the request that is announced next; so
pushes wait for that, or for whatever else must be sent. There are no threads here: the socket is looked after whenever the
trainer comes by, and libzmq's own thread moves the bytes meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kgdist.kernels.route import Route, gather_parts, route, scatter_rows
from kgdist.kvstore.buffers import Buffers, Loan
from kgdist.kvstore.connection import Connections, hello
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.messages import BF16, FP32, ID_WIDTHS, ITEM, PART, PIECE_BYTES, Identity, Kind, Message, Part, Sealed, seal
from kgdist.kvstore.tables import Ids, MemoryTables, Update
from kgdist.kvstore.wire import Transport

MOST_AHEAD = 8  # announced pulls of a table that nobody came for
AT_ONCE = 4  # pieces of a block asked for at a time
AHEAD_BYTES = 8 << 20  # of the blocks that are on their way while another one is looked at

Span = tuple[str, int, int]  # a table, and from where to where in the ids or rows that a server has of it


class StoreTables:
    """See kgdist.kvstore.tables.Tables.

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
        self.layout = layout
        self._names = list(layout.widths)
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._wide = {name: 4 if layout.rows(name) <= 1 << 31 else 8 for name in self._names}  # bytes of an id
        self._who = client, incarnation
        self._local = local
        self._direct = local is not None and not layout.by_owner
        self._range = {name: layout.machine_range(name, machine) if local is not None else (0, 0) for name in self._names}
        self._targets = layout.targets(client)
        self._bounds = {name: layout.bounds(name) for name in self._names}
        self._dtype = BF16 if transport_dtype == "bf16" else FP32
        # Bytes of a row in the larger frame: its values, or its id and its square.
        self._costs = {name: max(4 * width, 12) for name, width in layout.widths.items()}
        self._buffers = Buffers()
        self._ahead: dict[str, deque[Pull]] = {name: deque(maxlen=MOST_AHEAD * pull_ahead) for name in self._names}
        own = layout.servers_of(machine) if self._direct else ()
        places = {server: endpoints[server] for server in self._targets if server not in own}
        window = max_inflight * pull_ahead
        limits: dict[str, Any] = {"window": window, "peer_timeout": peer_timeout, "connect_timeout": connect_timeout}
        self._connections = Connections(places, transport, hello(identity, client, incarnation), identity, **limits)

    def _wire_ids(self, name: str, ids: np.ndarray) -> memoryview:
        """Of as many bytes as the table's rows need."""
        return np.ascontiguousarray(ids, ID_WIDTHS[self._wide[name]]).view(np.uint8).data

    def _seal(self, kind: Kind, lines: list[bytes], arrays: list[memoryview], lr: float = 0.0, values: Any = None) -> Sealed:
        """A message of these parts, packed: a dozen such are made for a machine and a step."""
        return Sealed(kind, *self._who, self._dtype, lr, len(lines), b"".join((*lines, *arrays)), values)

    def _loads(self, spans: list[Span]) -> list[list[Span]]:
        """The spans, cut and put together so that each list fills one message, at most."""
        costs = self._costs
        if sum([costs[name] * (stop - start) for name, start, stop in spans]) <= PIECE_BYTES:
            spans = [span for span in spans if span[1] < span[2]]
            return [spans] if spans else []
        loads: list[list[Span]] = [[]]
        room = PIECE_BYTES
        for name, start, stop in spans:
            size = costs[name]
            while start < stop:
                if loads[-1] and room < size:
                    loads.append([])
                    room = PIECE_BYTES
                end = min(stop, start + max(1, room // size))
                loads[-1].append((name, start, end))
                start, room = end, room - size * (end - start)
        return loads

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """See Tables; the requests are sent with what was pushed before, and nothing is waited for.

        What is pushed after this call is not in the rows: a trainer that asks for those of step n + 2 after the push of step n
        reads rows that lack one of its own updates. FB15k in four parts reaches the same MRR with them; asking after every push
        for the rows of the next step costs a third of the speed.
        """
        asked = {name: [np.array(each[name], np.int64) for each in wanted] for name in wanted[0]}
        for name, found in self._ask(asked).items():
            self._ahead[name] += found

    def _ask(self, wanted: Mapping[str, Sequence[np.ndarray]]) -> dict[str, list[Pull]]:
        """Send for the rows; what one server has of all tables and pulls, in one message where it fits."""
        widths, item = self.layout.widths, ITEM[self._dtype].itemsize
        found = {
            name: Requested(self._routed(name, np.concatenate(each), local=True), widths[name]) for name, each in wanted.items()
        }
        ids = {name: self._wire_ids(name, asked.route.ids) for name, asked in found.items()}
        ends = {name: asked.route.offsets.tolist() for name, asked in found.items()}
        for place, server in enumerate(self._targets):
            for load in self._loads([(name, ends[name][place], ends[name][place + 1]) for name in found]):
                lines, arrays, sizes, asking = [], [], [], []
                for name, first, last in load:
                    asked, wide, line = found[name], self._wide[name], (self._numbers[name], last - first, widths[name])
                    lines.append(PART.pack(line[0], wide, False, line[1], line[2], 0))
                    arrays.append(ids[name][first * wide : last * wide])
                    sizes.append(line)
                    asking.append((asked, first))
                    asked.left += 1

                def take(message: Message, asking: list[tuple[Requested, int]] = asking) -> None:
                    for (asked, first), (_, values) in zip(asking, message.filled(), strict=True):
                        asked.take(first, values)

                size = item * sum([rows * width for _, rows, width in sizes])
                self._connections.request(server, self._seal(Kind.PULL, lines, arrays), size, sizes, take)
        self._connections.say()
        self._connections.pump()
        return {name: pulls(wanted[name], asked) for name, asked in found.items()}

    def _routed(self, name: str, ids: np.ndarray, *, local: bool) -> Route:
        """To whom these ids go; `local`: not those of the own machine."""
        return route(ids, self._bounds[name], *(self._range[name] if local else (0, 0)))

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None) -> torch.Tensor:
        """See Tables. Rows that were announced are as they were then, or later."""
        wanted = ids.numpy()
        pull = self._announced(name, wanted) or self._ask({name: [wanted]})[name][0]
        if out is None:
            out = torch.empty(len(wanted), self.layout.widths[name])
        here = pull.here()
        if len(here) and self._local is not None:
            rows = wanted[here] - self._range[name][0]
            scatter_rows(self._local.rows[name].numpy(), rows, here, out.numpy())
        self._connections.until(lambda: not pull.asked.left)
        pull.settle(out.numpy())
        return out

    def _announced(self, name: str, ids: np.ndarray) -> Pull | None:
        queue = self._ahead[name]
        for place, pull in enumerate(queue):
            if np.array_equal(pull.ids, ids):
                for _ in range(place + 1):
                    queue.popleft()  # nobody comes for those before it any more
                return pull
        return None

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """See Tables; waits only while the window is full. Sent with what is announced, asked for or waited for next."""
        routes = {name: self._checked(name, update) for name, update in updates.items()}
        self._send(updates, routes, lr)
        if self._direct and self._local is not None:
            for name, (ids, grads, squares) in updates.items():
                here, first = routes[name].here(), self._range[name][0]
                if len(here) == len(ids):
                    self._local.apply(name, torch.from_numpy(ids - first), grads, lr, squares)
                elif len(here):
                    self._local.apply(name, torch.from_numpy(ids[here] - first), grads, lr, squares, torch.from_numpy(here))

    def _checked(self, name: str, update: Update) -> Route:
        """Who updates which rows. Raises ValueError for arrays that disagree, or a row that comes twice."""
        ids, grads, squares = update
        if grads.shape != (len(ids), self.layout.widths[name]) or (squares is not None and len(squares) != len(ids)):
            raise ValueError(f"table {name}: {len(ids)} ids and gradients {tuple(grads.shape)} do not fit together")
        routed = self._routed(name, ids, local=self._direct)
        if len(routed.ids) + len(routed.here()) != len(ids):
            raise ValueError(f"table {name}: a row is updated twice in one push")
        return routed

    def _send(self, updates: Mapping[str, Update], routes: Mapping[str, Route], lr: float) -> None:
        """Each server's rows in one message, where they fit; gradients are gathered for all at once, server by server."""
        widths = np.array([[self.layout.widths[name]] for name in updates])
        counts = np.array([np.diff(routed.bounds[1:]) for routed in routes.values()])  # [tables, T]
        ends = np.cumsum((counts * widths).T).reshape(-1, len(updates))
        starts = ends - (counts * widths).T  # [T, tables], in the values of all
        if not ends.size or not ends[-1, -1]:
            return
        item = ITEM[self._dtype].itemsize
        memory = self._buffers.take(int(ends[-1, -1]) * item)
        ids, squares, bounds = {}, {}, {}
        for (name, update), first in zip(updates.items(), starts.T, strict=True):
            places, groups, grads = routes[name].places, routes[name].bounds[1:], update.grads.detach().contiguous().numpy()
            gather_parts(grads, places, groups, np.ascontiguousarray(first), memory.view(ITEM[self._dtype]))
            there = places[groups[0] :]
            ids[name] = self._wire_ids(name, update.ids[there])
            squares[name] = None if update.squares is None else update.squares.detach().numpy()[there].view(np.uint8).data
            bounds[name] = (groups - groups[0]).tolist()
        loads = [
            (server, load)
            for place, server in enumerate(self._targets)
            for load in self._loads([(name, bounds[name][place], bounds[name][place + 1]) for name in updates])
        ]
        loan, at, values = Loan(self._buffers, memory, len(loads)), 0, memory.data
        for server, load in loads:
            lines, arrays, more, end = [], [], [], at
            for name, start, stop in load:
                given, wide, width = squares[name], self._wide[name], self.layout.widths[name]
                lines.append(PART.pack(self._numbers[name], wide, given is not None, stop - start, width, 0))
                arrays.append(ids[name][start * wide : stop * wide])
                if given is not None:
                    more.append(given[4 * start : 4 * stop])
                end += (stop - start) * width * item
            message = self._seal(Kind.PUSH, lines, arrays + more, lr, values[at:end])
            self._connections.push(server, message, end - at, loan)
            at = end

    def flush(self) -> None:
        """See Tables: every push is confirmed, so every owner has applied it."""
        self._connections.flush()

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
        self._connections.until(lambda: not left[0])
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
        for server, first, last in self._pieces(name, start, stop):

            def take(message: Message, place: slice = slice(first - start, last - start)) -> None:
                assert message.values is not None
                out[place] = torch.from_numpy(message.values).view(-1, out.shape[1])
                left[0] -= 1

            self._connections.until(lambda: left[0] < AT_ONCE * len(self._targets))
            left[0] += 1
            part = Part(self._numbers[name], last - first, self.layout.widths[name], first)
            message = seal(Message(Kind.READ, *self._who, parts=(part,)))
            self._connections.request(server, message, 4 * part.rows * part.width, [part[:3]], take)
            self._connections.say()
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

        for server, first, last in self._pieces(name, start, stop):
            self._connections.until(lambda: left[0] < AT_ONCE * len(self._targets))
            left[0] += 1
            values = rows[first - start : last - start].contiguous().numpy().reshape(-1)
            part = Part(self._numbers[name], last - first, self.layout.widths[name], first)
            message = seal(Message(Kind.WRITE, *self._who, parts=(part,), values=values))
            self._connections.request(server, message, values.nbytes, [], took)
            self._connections.say()
        self._connections.until(lambda: not left[0])

    def _pieces(self, name: str, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Ranges of rows of other machines that one message can hold, behind the server that is asked for each; in turn."""
        low, high = self._range[name]
        found: list[tuple[int, int, int, int]] = []
        for server, first, last in zip(self._targets, self._bounds[name].tolist(), self._bounds[name][1:].tolist(), strict=False):
            if self._local is None or not low <= first < high:
                loads = self._loads([(name, max(first, start), min(last, stop))])
                found += [(turn, server, at, end) for turn, [(_, at, end)] in enumerate(loads)]
        return [piece for _, *piece in sorted(found)]  # type: ignore[misc]

    def shape(self, name: str) -> tuple[int, int]:
        """See Tables: of the whole table, on all machines."""
        return self.layout.rows(name), self.layout.widths[name]

    def names(self) -> list[str]:
        return list(self._names)

    def traffic(self) -> tuple[int, int]:
        """Bytes sent and received so far, headers included."""
        return self._connections.traffic()

    def close(self) -> None:
        """Part from all servers. What was not flushed may be lost."""
        self._connections.close()


class Requested:
    """Rows of one table that were asked for together, each once, whichever of some pulls need it."""

    def __init__(self, routed: Route, width: int) -> None:
        self.route = routed
        self.left = 0  # messages still to come
        self._shape = len(routed.ids), width
        self._rows: np.ndarray | None = None  # float32 or the bits of bfloat16 [U, width], in the order of route.ids

    def take(self, first: int, values: np.ndarray) -> None:
        """Rows first, first + 1, ... of route.ids have come, [n, width]."""
        if len(values) == self._shape[0]:
            self._rows = values  # all of them: read where the network has put them
        else:
            if self._rows is None:
                self._rows = np.empty(self._shape, values.dtype)
            self._rows[first : first + len(values)] = values
        self.left -= 1


class Pull:
    """One pull that was announced: its part of what was asked for."""

    def __init__(self, ids: np.ndarray, asked: Requested, slots: np.ndarray) -> None:
        self.ids = ids  # int64[n]
        self.asked = asked
        self._slots = slots  # int64[n], the place of each in asked.route.ids, or -1 where it is here

    def here(self) -> np.ndarray:
        """int64[.], positions of the ids whose rows are in this memory."""
        return np.flatnonzero(self._slots < 0)

    def settle(self, out: np.ndarray) -> None:
        """The rows that have come, to the places that asked for them, float32[n, width]."""
        if self.asked._rows is not None:
            places = np.flatnonzero(self._slots >= 0)
            scatter_rows(self.asked._rows, self._slots[places], places, out)


def pulls(ids: Sequence[np.ndarray], asked: Requested) -> list[Pull]:
    """One for each of these ids, which were routed together, one after another."""
    ends = np.cumsum([len(each) for each in ids])
    return [Pull(each, asked, asked.route.slots[end - len(each) : end]) for each, end in zip(ids, ends, strict=True)]
