"""What a client has asked for, and what has come of it; and one table as a client sees it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch

from kgdist.base.errors import KgdistError
from kgdist.kernels.route import Route, look_up, route, scatter_rows
from kgdist.kvstore.asking import read_arrays, size_of_arrays
from kgdist.kvstore.catalogue import Listed
from kgdist.kvstore.messages import BF16, ID_WIDTHS, ITEM, Kind, Message
from kgdist.kvstore.tables import MemoryTables


class Looks(Protocol):
    """Who looks after the connections."""

    def pump(self) -> None:
        """Receive what has arrived."""

    def until(self, done: Callable[[], bool]) -> None:
        """Wait."""


class Reach:
    """One table: who is asked for its rows, and which of them are in this memory.

    Attributes:
        low, high: the rows of the own machine, which are read from its memory, `here`: float32[n, width] or uint8[n, width].
        direct: whether they are also changed there.
        dtype, item: of its rows on the wire, and bytes of a number; `plain` and `row_bytes` where they are never rounded.
        targets, bounds: whom to ask, T servers, and their rows, int64[T + 1].
        kind: tables of the same kind travel in one message.
        ahead: announced pulls that nobody came for.
    """

    def __init__(
        self, listed: Listed, client: int, machine: int, local: MemoryTables | None, *, bf16: bool, most_ahead: int
    ) -> None:
        self.spec, self.name, self.number = listed.spec, listed.name, listed.number
        self.rows, self.width, self.wide = listed.rows, listed.width, listed.wide
        if local is not None and self.name not in local:
            local = None
        self.low, self.high = listed.machine_range(machine) if local is not None else (0, 0)
        self.here = None if local is None else local.words(self.name)
        if self.here is not None and self.here.shape != (self.high - self.low, self.width):  # compiled loops look at ids alone
            raise ValueError(f"table {self.name}: rows {self.low} to {self.high - 1} in memory of {len(self.here)} rows")
        self.direct = local is not None and not self.spec.by_owner
        self.dtype = BF16 if bf16 and not self.spec.raw else listed.dtype
        self.item, self.plain = ITEM[self.dtype].itemsize, listed.dtype
        self.row_bytes = self.spec.row_bytes
        self.targets, self.bounds = listed.targets(client), listed.bounds()
        self.cost = max(self.row_bytes, 12)  # of a row in the larger frame: values, or id and square
        self.kind = self.dtype, self.spec.by_owner
        self.ahead: deque[Pull] = deque(maxlen=most_ahead)

    def wire_ids(self, ids: np.ndarray) -> memoryview:
        """Of as many bytes as the table's rows need."""
        return np.ascontiguousarray(ids, ID_WIDTHS[self.wide]).view(np.uint8).data

    def routed(self, ids: np.ndarray, *, local: bool) -> Route:
        """To whom these ids go; `local`: not those of the own machine."""
        return route(ids, self.bounds, *((self.low, self.high) if local else (0, 0)))

    def all_here(self, ids: np.ndarray) -> bool:
        """Whether none of int64[n] is elsewhere; told at once where the first one is."""
        if self.here is None or not len(ids) or not self.low <= ids[0] < self.high:
            return False
        return self.low <= int(ids.min()) and int(ids.max()) < self.high

    def look_up(self, ids: np.ndarray, out: np.ndarray) -> bool:
        """Copy the rows int64[n] from this memory into [n, width]; or nothing, and False, where one of them is elsewhere."""
        return self.here is not None and look_up(self.here, ids, self.low, self.high, self.low, out.reshape(-1))

    def own_rows(self, ids: np.ndarray) -> torch.Tensor | None:
        """A copy of the rows int64[n], or None unless all of them are in this memory."""
        if self.here is None:
            return None
        words = np.empty((len(ids), self.width), self.here.dtype)
        return self.spec.rows_of(words) if self.look_up(ids, words) else None

    def words_of(self, rows: torch.Tensor) -> np.ndarray:
        """[n, *row_shape], or, where there is an optimiser, float32[n, width] as well -> their words, a view."""
        return rows.detach().numpy() if not self.spec.raw and rows.ndim == 2 else self.spec.words_of(rows)


class Requested:
    """Rows of one table that were asked for together, each once, whichever of some pulls need it."""

    def __init__(self, routed: Route, width: int) -> None:
        self.route = routed
        self.left = 0  # messages still to come
        self.problem = ""  # why rows have not come
        self._shape = len(routed.ids), width
        self._rows: np.ndarray | None = None  # words or the bits of bfloat16 [U, width], in the order of route.ids

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
        """The rows that have come, to the places that asked for them, [n, width]. Raises KgdistError where some were refused."""
        if self.asked.problem:
            raise KgdistError(self.asked.problem)
        if self.asked._rows is not None:
            places = np.flatnonzero(self._slots >= 0)
            scatter_rows(self.asked._rows, self._slots[places], places, out)


def pulls(ids: Sequence[np.ndarray], asked: Requested) -> list[Pull]:
    """One for each of these ids, which were routed together, one after another."""
    ends = np.cumsum([len(each) for each in ids])
    return [Pull(each, asked, asked.route.slots[end - len(each) : end]) for each, end in zip(ids, ends, strict=True)]


class Span:
    """A range of rows that is on its way, in pieces."""

    def __init__(self, rows: torch.Tensor, words: np.ndarray) -> None:
        self.rows = rows
        self.left = 0  # messages still to come
        self.problem = ""
        self._words = words  # [n, width], the memory of rows

    def take(self, first: int, last: int, message: Message) -> None:
        """Rows first..last have come, or will not."""
        self.left -= 1
        if message.values is None:
            self.problem = message.text
        else:
            self._words[first:last] = message.values.reshape(last - first, -1)

    def come(self, looks: Looks) -> torch.Tensor:
        """The rows, when all are there. Raises KgdistError where some were refused."""
        looks.until(lambda: not self.left)
        if self.problem:
            raise KgdistError(self.problem)
        return self.rows


class Inquiry:
    """A question to a server: see kgdist.kvstore.asking.Asking."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._arrays: tuple[tuple[int, int], ...] = ()
        self._pieces: list[np.ndarray] = []
        self._come = self._round = 0
        self._complete, self._problem = False, ""

    def take(self, message: Message) -> bool:
        """A piece of the answer, or why there is none; whether that was the last. Pieces of an earlier try are passed over."""
        if message.kind is Kind.ERROR:
            self._complete, self._problem = True, message.text
            return True
        if not message.first:
            self._arrays, self._round = message.arrays, message.round
            self._pieces, self._come = [], 0
        elif (message.round, message.first, message.arrays) != (self._round, self._come, self._arrays):
            return False
        if message.values is not None:
            self._pieces.append(message.values)
            self._come += message.values.nbytes
        self._complete = self._come == size_of_arrays(self._arrays)
        return self._complete

    def done(self) -> bool:
        """See Asking."""
        if not self._complete:
            self._looks.pump()
        return self._complete

    def result(self) -> list[np.ndarray]:
        """See Asking."""
        self._looks.until(lambda: self._complete)
        if self._problem:
            raise KgdistError(self._problem)
        if len(self._pieces) > 1:
            self._pieces = [np.concatenate(self._pieces)]
        return read_arrays(self._arrays, self._pieces[0] if self._pieces else None)
