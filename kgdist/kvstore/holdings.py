"""The rows that one server answers for: looked up, overwritten, updated. Whatever a message says, it is checked before anything
is changed; ProtocolError says what is wrong with it. Who may ask, and in which order, is the server's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kgdist.base.errors import ProtocolError
from kgdist.kernels.route import FINE, FINITE, GRADIENTS, OUTSIDE, SQUARES, TWICE, look_up, put_rows, vetted, widen, within
from kgdist.kvstore.catalogue import Catalogue, Listed, TableSpec
from kgdist.kvstore.messages import BF16, ITEM, Kind, Message, Part
from kgdist.kvstore.optim import MOST_GRADIENT, MOST_RATE, MOST_SQUARES, Updater
from kgdist.kvstore.tables import MemoryTables

WRONG = {
    TWICE: "a row is updated twice in one push: sum its gradients",
    SQUARES: f"squares of gradients that are not numbers from 0 to {MOST_SQUARES:.0e}",
    GRADIENTS: f"gradients that are not finite, or over {MOST_GRADIENT:.0e}: rows could become infinite",
}


class _Holding:
    """A table of the machine, and which of its rows this server answers for."""

    def __init__(self, listed: Listed, server: int, machine: int, tables: MemoryTables) -> None:
        self.name, self.width, self.raw = listed.name, listed.width, listed.spec.raw
        self.dtypes = (listed.dtype,) if self.raw else (listed.dtype, BF16)
        self.rows = tables.words(self.name)  # float32[n, width] or uint8[n, width]
        self.update: Updater | None = None if self.raw else tables.updater(self.name)
        self.first, end = listed.machine_range(machine)  # of rows
        self.low, self.high = listed.served(server)
        if len(self.rows) != end - self.first:
            raise ValueError(f"table {self.name}: {len(self.rows)} rows in memory, and {end - self.first} of this machine")
        self._warm(ITEM[listed.dtype])

    def _warm(self, dtype: np.dtype[Any]) -> None:
        """Load the loops, or compile them, before anyone waits for an answer: seconds that would look like a dead server."""
        nothing, first = np.empty((0, self.width), dtype), self.first
        for kind in (np.int32, np.int64):
            ids = np.empty(0, kind)
            look_up(self.rows, ids, first, first, first, nothing.reshape(-1))
            put_rows(self.rows, ids, first, first, first, nothing)
            if self.update is not None:
                look_up(self.rows, ids, first, first, first, np.empty(0, np.uint16))
                _, rows = vetted(ids, first, first, first, nothing, MOST_GRADIENT, None, MOST_SQUARES)
                self.update(rows, nothing, 0.0, None)
                within(nothing, FINITE)

    def refuse(self, server: int, first: int, last: int) -> None:
        """Say that these rows are not served here."""
        has = f"server {server} has rows {self.low} to {self.high - 1}"
        raise ProtocolError(f"rows {first} to {last} of table {self.name}: {has}")


class Holdings:
    """Of the server `number`, in the tables of its machine, whose local row 0 is the machine's first."""

    def __init__(self, number: int, catalogue: Catalogue, tables: MemoryTables) -> None:
        self.number, self.catalogue, self.tables = number, catalogue, tables
        self._machine = int(catalogue.layout.machine_of[number])
        self._held = {listed.number: self._holding(listed) for listed in catalogue.numbered.values()}

    def _holding(self, listed: Listed) -> _Holding:
        return _Holding(listed, self.number, self._machine, self.tables)

    def add(self, spec: TableSpec, number: int) -> None:
        """One more, which the tables have already. Raises UsageError, ValueError for what does not fit."""
        listed = self.catalogue.add(spec, number)
        try:
            self._held[number] = self._holding(listed)
        except BaseException:
            self.catalogue.drop(spec.name)
            raise

    def drop(self, name: str) -> None:
        """Answer for its rows no more. Raises UsageError for one that is not there."""
        del self._held[self.catalogue.drop(name).number]

    def check(self, message: Message) -> None:
        """That its parts are of different tables that are here, in words as these have them."""
        seen: set[int] = set()
        for part in message.parts:
            if (table := self._held.get(part.table)) is None:
                raise ProtocolError(
                    f"there is no table {part.table}: {len(self._held)} tables; it has been dropped, or is not here yet"
                )
            if part.table in seen:
                raise ProtocolError("a table appears twice in one message")
            seen.add(part.table)
            if part.width != table.width:
                raise ProtocolError(f"rows of {part.width} numbers: table {table.name} has {table.width}")
            if message.dtype not in table.dtypes:
                raise ProtocolError(f"rows of table {table.name} in dtype {message.dtype}: they travel in {table.dtypes[0]}")
            if message.kind is Kind.PUSH and table.raw:
                raise ProtocolError(f"table {table.name} has no optimiser: its rows are assigned")

    def _refuse(self, part: Part, first: int, last: int) -> None:
        self._held[part.table].refuse(self.number, first, last)

    def _span(self, part: Part) -> slice:
        """The rows of the machine's table that a part without ids means."""
        table, start, stop = self._held[part.table], part.first, part.first + part.rows
        if not table.low <= start <= stop <= table.high:
            self._refuse(part, start, stop - 1)
        return slice(start - table.first, stop - table.first)

    def read(self, message: Message, values: np.ndarray) -> tuple[Part, ...]:
        """Copy the rows that PULL or READ is for, part after part; returns the parts of the answer."""
        at, parts = 0, []
        for part in message.parts:
            number, rows, width, _, ids, _ = part
            table, end = self._held[number], at + rows * width
            out = values[at:end]
            if ids is None:
                out[:] = table.rows[self._span(part)].reshape(-1)  # a copy: rows may change while they are sent
            elif not look_up(table.rows, ids, table.low, table.high, table.first, out):
                self._refuse(part, int(ids.min()), int(ids.max()))
            parts.append(Part(number, rows, width, part.first))
            at = end
        return tuple(parts)

    def assign(self, message: Message) -> int:
        """Overwrite the rows of ASSIGN, all or none; returns how many. Those of a table with an optimiser stay finite."""
        done = 0
        for part, values in message.filled():
            table, ids = self._held[part.table], part.ids
            if ids is None:
                self._span(part)
            elif part.rows and not table.low <= int(ids.min()) <= int(ids.max()) < table.high:
                self._refuse(part, int(ids.min()), int(ids.max()))
            if not table.raw and not within(values, FINITE):
                raise ProtocolError("values that are not finite")
        for part, values in message.filled():
            table, ids = self._held[part.table], part.ids
            if ids is None:
                table.rows[self._span(part)] = values
            else:
                put_rows(table.rows, ids, table.low, table.high, table.first, values)
            done += part.rows
        return done

    def update(self, message: Message) -> int:
        """Apply PUSH: all of it or, with ProtocolError, nothing; returns how many rows. Within the limits of kgdist.kvstore.optim
        whatever comes out is finite."""
        assert message.values is not None
        if not abs(message.lr) <= MOST_RATE:
            raise ProtocolError(f"a learning rate of {message.lr:g}: at most {MOST_RATE:.0e} is possible")
        found, at, done = [], 0, 0
        values = widen(message.values) if message.dtype == BF16 else message.values
        for part in message.parts:
            table, end = self._held[part.table], at + part.rows * part.width
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
            assert table.update is not None
            table.update(rows, grads, message.lr, squares)
            done += len(rows)
        return done
