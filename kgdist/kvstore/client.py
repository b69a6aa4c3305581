"""Tables whose rows lie on many machines: a trainer's end of the store.

Rows of the own machine are read, and with `direct` updates also changed, in shared memory; all others go to a server of the
machine that has them (`Layout.targets`), ids different and batched. A pull that was announced (`ahead`) is on its way while the
trainer computes. What a step has for one machine is one envelope: its push, and behind it the request that is announced next; so
pushes wait for that, or for whatever else must be sent. There are no threads here: the socket is looked after whenever the
trainer comes by, and libzmq's own thread moves the bytes meanwhile.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.kernels.route import Route, gather_parts, scatter_rows
from kgdist.kvstore.asked import Pull, Reach, Requested, Span, pulls
from kgdist.kvstore.buffers import Loan
from kgdist.kvstore.messages import ITEM, PART, Kind, Message, Part, seal
from kgdist.kvstore.store import StoreClient, Stretch
from kgdist.kvstore.tables import Ids, Update

AT_ONCE = 4  # pieces of a block asked for at a time
AHEAD_BYTES = 8 << 20  # of the blocks that are on their way while another one is looked at


class StoreTables(StoreClient):
    """See kgdist.kvstore.tables.Tables, and StoreClient for what it is made with."""

    def _kinds(self, names: Iterable[str]) -> list[list[Reach]]:
        """These tables, those together whose rows travel in one message."""
        kinds: dict[tuple[int, bool], list[Reach]] = {}
        for name in names:
            kinds.setdefault(self._reach[name].kind, []).append(self._reach[name])
        return list(kinds.values())

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """See Tables; the requests are sent with what was pushed before, and nothing is waited for.

        What is pushed after this call is not in the rows: a trainer that asks for those of step n + 2 after the push of step n
        reads rows that lack one of its own updates. FB15k in four parts reaches the same MRR with them; asking after every push
        for the rows of the next step costs a third of the speed.
        """
        asked = {}
        for name in wanted[0]:
            reach, ids = self._reach_of(name), [np.array(each[name], np.int64) for each in wanted]
            if not all(map(reach.all_here, ids)):  # else there is nothing to send for
                asked[name] = ids
        for name, found in self._wanted(asked).items():
            self._reach[name].ahead += found

    def _wanted(self, wanted: Mapping[str, Sequence[np.ndarray]]) -> dict[str, list[Pull]]:
        """Send for the rows; what one server has of all tables and pulls, in one message where it fits."""
        found = {}
        for name, each in wanted.items():
            reach = self._reach[name]
            found[name] = Requested(reach.routed(np.concatenate(each), local=True), reach.width)
        for tables in self._kinds(wanted):
            ids = [reach.wire_ids(found[reach.name].route.ids) for reach in tables]
            ends = [found[reach.name].route.offsets.tolist() for reach in tables]
            given = dict(zip(tables, ids, strict=True))
            for place, server in enumerate(tables[0].targets):
                for load in self._loads([(reach, end[place], end[place + 1]) for reach, end in zip(tables, ends, strict=True)]):
                    self._request(server, load, given, found)
        self._connections.say()
        self._connections.pump()
        return {name: pulls(wanted[name], asked) for name, asked in found.items()}

    def _request(self, server: int, load: list[Stretch], ids: Mapping[Reach, memoryview], found: Mapping[str, Requested]) -> None:
        """One PULL of stretches of what is different in the ids."""
        lines, arrays, sizes, asking, size = [], [], [], [], 0
        for reach, first, last in load:
            wide, line = reach.wide, (reach.number, last - first, reach.width)
            lines.append(PART.pack(line[0], wide, False, line[1], line[2], 0))
            arrays.append(ids[reach][first * wide : last * wide])
            sizes.append(line)
            asked = found[reach.name]
            asking.append((asked, first))
            asked.left += 1
            size += reach.item * line[1] * line[2]

        def take(message: Message) -> None:
            if message.kind is Kind.ERROR:
                for asked, _ in asking:
                    asked.problem = message.text
                    asked.left -= 1
                return
            for (asked, first), (_, values) in zip(asking, message.filled(), strict=True):
                asked.take(first, values)

        self._connections.request(server, self._seal(Kind.PULL, load[0][0].dtype, lines, arrays), size, sizes, take)

    def forget(self) -> None:
        """Nobody comes for what was announced: rows may have been written since."""
        for reach in self._reach.values():
            reach.ahead.clear()

    def here(self, name: str, ids: np.ndarray) -> torch.Tensor | None:
        """The rows int64[n], as `pull` gives them, or None unless all are in this memory."""
        reach = self._reach_of(name)
        # most often the first one tells
        return reach.own_rows(ids) if len(ids) and reach.low <= ids[0] < reach.high else None

    def pull(self, name: str, ids: Ids, out: torch.Tensor | None = None, *, announced: bool = True) -> torch.Tensor:
        """See Tables. Rows that were announced are as they were then, or later; not so with `announced=False`. Of a raw table:
        [U, *row_shape] of its dtype. Raises IndexError for an id that is not there, KgdistError for what a server refuses."""
        reach, wanted = self._reach_of(name), ids.numpy()
        if out is None:
            out = reach.spec.empty(len(wanted))
        words, pull = reach.words_of(out), self._announced(reach, wanted) if announced and reach.ahead else None
        if pull is None:
            if reach.look_up(wanted, words):
                return out
            pull = self._wanted({name: [wanted]})[name][0]
        here = pull.here()
        if len(here) and reach.here is not None:
            scatter_rows(reach.here, wanted[here] - reach.low, here, words)
        self._connections.until(lambda: not pull.asked.left)
        pull.settle(words)
        return out

    def _announced(self, reach: Reach, ids: np.ndarray) -> Pull | None:
        queue = reach.ahead
        for place, pull in enumerate(queue):
            if np.array_equal(pull.ids, ids):
                for _ in range(place + 1):
                    queue.popleft()  # nobody comes for those before it any more
                return pull
        return None

    def push(self, updates: Mapping[str, Update], lr: float) -> None:
        """See Tables; waits only while the window is full. Sent with what is announced, asked for or waited for next."""
        routes = {name: self._checked(name, update) for name, update in updates.items()}
        for tables in self._kinds(updates):
            self._send(tables, updates, routes, lr)
        for name, (ids, grads, squares, _) in updates.items():
            reach = self._reach[name]
            if reach.direct and self._local is not None:
                here, first = routes[name].here(), reach.low
                if len(here) == len(ids):
                    self._local.apply(name, torch.from_numpy(ids - first), grads, lr, squares)
                elif len(here):
                    self._local.apply(name, torch.from_numpy(ids[here] - first), grads, lr, squares, torch.from_numpy(here))

    def _checked(self, name: str, update: Update) -> Route:
        """Who updates which rows. Raises UsageError for a table without optimiser, ValueError for arrays that disagree, a row
        that appears twice, or a rate of its own."""
        ids, grads, squares, rate = update
        reach = self._reach_of(name)
        if reach.spec.raw:
            raise UsageError(f"table {name} has no optimiser: its rows are assigned")
        if rate is not None:
            raise ValueError(f"table {name}: a push to other machines has one rate")
        if grads.shape != (len(ids), reach.width) or (squares is not None and len(squares) != len(ids)):
            raise ValueError(f"table {name}: {len(ids)} ids and gradients {tuple(grads.shape)} do not fit together")
        routed = reach.routed(ids, local=reach.direct)
        if len(routed.ids) + len(routed.here()) != len(ids):
            raise ValueError(f"table {name}: a row is updated twice in one push")
        return routed

    def _send(self, tables: list[Reach], updates: Mapping[str, Update], routes: Mapping[str, Route], lr: float) -> None:
        """Each server's rows in one message, where they fit; gradients are gathered for all at once, server by server."""
        widths = np.array([[reach.width] for reach in tables])
        counts = np.array([np.diff(routes[reach.name].bounds[1:]) for reach in tables])  # [tables, T]
        ends = np.cumsum((counts * widths).T).reshape(-1, len(tables))
        starts = ends - (counts * widths).T  # [T, tables], in the values of all
        if not ends.size or not ends[-1, -1]:
            return
        dtype, item = tables[0].dtype, tables[0].item
        memory = self._buffers.take(int(ends[-1, -1]) * item)
        ids, squares, bounds = {}, {}, {}
        for reach, first in zip(tables, starts.T, strict=True):
            update, routed = updates[reach.name], routes[reach.name]
            places, groups, grads = routed.places, routed.bounds[1:], update.grads.detach().contiguous().numpy()
            gather_parts(grads, places, groups, np.ascontiguousarray(first), memory.view(ITEM[dtype]))
            there = places[groups[0] :]
            ids[reach] = reach.wire_ids(update.ids[there])
            squares[reach] = None if update.squares is None else update.squares.detach().numpy()[there].view(np.uint8).data
            bounds[reach] = (groups - groups[0]).tolist()
        loads = [
            (server, load)
            for place, server in enumerate(tables[0].targets)
            for load in self._loads([(reach, bounds[reach][place], bounds[reach][place + 1]) for reach in tables])
        ]
        loan, at, values = Loan(self._buffers, memory, len(loads)), 0, memory.data
        for server, load in loads:
            lines, arrays, more, end = [], [], [], at
            for reach, start, stop in load:
                given, wide, width = squares[reach], reach.wide, reach.width
                lines.append(PART.pack(reach.number, wide, given is not None, stop - start, width, 0))
                arrays.append(ids[reach][start * wide : stop * wide])
                if given is not None:
                    more.append(given[4 * start : 4 * stop])
                end += (stop - start) * width * item
            message = self._seal(Kind.PUSH, dtype, lines, arrays + more, lr, values[at:end])
            self._connections.push(server, message, end - at, loan)
            at = end

    def local(self, name: str) -> torch.Tensor | None:
        """See Tables: never all of it."""
        return None

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        """See Tables: rows of this machine without a copy where they are all; else read in pieces of at most 4 MB."""
        return self._read(self._reach_of(name), start, stop).come(self._connections)

    def blocks(self, name: str, spans: Iterable[tuple[int, int]]) -> Iterator[torch.Tensor]:
        """See Tables. What was sent for and is not looked at yet is AHEAD_BYTES at most, or one block."""
        reach, coming = self._reach_of(name), deque[Span]()
        for start, stop in spans:
            coming.append(self._read(reach, start, stop))
            if len(coming) > max(1, AHEAD_BYTES // max(1, reach.spec.row_bytes * (stop - start))):
                yield coming.popleft().come(self._connections)
        while coming:
            yield coming.popleft().come(self._connections)

    def _read(self, reach: Reach, start: int, stop: int) -> Span:
        """Send for a block: [stop - start, *row_shape]."""
        if not 0 <= start <= stop <= reach.rows:
            raise IndexError(f"rows {start} to {stop - 1} in a table of {reach.rows} rows")
        low, high, name = reach.low, reach.high, reach.name
        if self._local is not None and reach.here is not None and low <= start and stop <= high:
            return Span(self._local.block(name, start - low, stop - low), reach.here[:0])
        out = reach.spec.empty(stop - start)
        words = reach.words_of(out)
        if reach.here is not None and max(start, low) < min(stop, high):
            own = slice(max(start, low), min(stop, high))
            words[own.start - start : own.stop - start] = reach.here[own.start - low : own.stop - low]
        span, code = Span(out, words), reach.plain
        for server, first, last in self._pieces(reach, start, stop):
            self._connections.until(lambda: span.left < AT_ONCE * len(reach.targets))
            span.left += 1
            part = Part(reach.number, last - first, reach.width, first)
            message = seal(Message(Kind.READ, *self._who, dtype=code, parts=(part,)))
            size = ITEM[code].itemsize * part.rows * part.width
            take = functools.partial(span.take, first - start, last - start)
            self._connections.request(server, message, size, [part[:3]], take)
            self._connections.say()
        return span
