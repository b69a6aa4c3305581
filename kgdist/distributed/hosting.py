"""What a server of a launched script has: its part of tables, and of graphs, and who asks for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kgdist.base.errors import ProtocolError
from kgdist.distributed.opening import Part, part_of
from kgdist.distributed.services import Owner, OwnRows
from kgdist.kvstore.asking import Service
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import TableMemory

Serving = Callable[[Mapping[str, Service]], Server]  # makes the server, which answers by these services


def attached(table: TableSpec, handles: Mapping[str, dict[str, Any]]) -> TableMemory:
    """This machine's part of a table. The mapping keeps the memory, so descriptors need not stay open."""
    memory = TableMemory.attach(table, handles)
    memory.close()
    return memory


class Host:
    """A server on machine `machine`, the first there or not: that one fills tables with features. All is called in its thread."""

    def __init__(self, serving: Serving, machine: int, first: bool = True) -> None:
        self.machine, self.first = machine, first
        self._parts: dict[str, Part] = {}
        self._tables: dict[str, TableMemory] = {}
        self.server = serving(Owner(self._own_rows, self._parts).services())

    def make(
        self, number: int, name: str, spec: Mapping[str, Any], handles: dict[str, dict[str, Any]], bounds: Sequence[int]
    ) -> None:
        """A table is there: its rows, or one that looks at those of others (see Remote.learn). Raises KgdistError."""
        if "graph" in spec:
            self._parts[str(spec["graph"])] = part_of(str(spec["graph"]), str(spec["path"]), self.machine)
            return
        if "table" not in spec:
            return  # memory that trainers share, of which the store knows nothing
        try:
            table = TableSpec.from_json(spec["table"])
            parts = {key: self._tables[part].arrays[""] for key, part in spec.get("of", {}).items()}
        except (KeyError, TypeError) as error:
            raise ProtocolError(f"table {name!r} is not one of ours: {spec!r:.200}") from error
        memory = TableMemory(table, parts) if parts else attached(table, handles)
        if "feature" in spec and self.first:
            graph, *which = spec["feature"]
            table.tensor_of(memory.arrays[""]).copy_(self._parts[graph].feature(*which))
        self.server.catalogue.declare(table.policy, np.array(bounds, np.int64))
        self.server.add(table, number, memory)
        self._tables[name] = memory

    def drop(self, name: str) -> None:
        """It is not there any more."""
        if name in self._tables:  # not a graph, of which what was mapped stays
            self.server.drop(name)
            del self._tables[name]

    def turn(self, seconds: float) -> None:
        """Answer who asks, for so long at most."""
        self.server.step(seconds)

    def close(self) -> None:
        """Let go of all rows."""
        for name in list(self._tables):
            self.drop(name)

    def _own_rows(self, name: str) -> OwnRows | None:
        if (memory := self._tables.get(name)) is None:
            return None
        first, _ = self.server.catalogue[name].machine_range(self.machine)
        return OwnRows(first, memory.spec.tensor_of(memory.arrays[""]))
