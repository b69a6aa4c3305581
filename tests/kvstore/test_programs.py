"""Tables that come and go, of every dtype, are NumPy's arrays under any program: in memory, by sockets, while these are cut."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from kgdist.kvstore import answers
from kgdist.kvstore import store as store_module
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.tables import MemoryTables, TableMemory
from kgdist.kvstore.wire import Wire
from tests.faults.proxy import Proxy
from tests.kvstore.programs import POLICIES, Model, Step, programs, run, services
from tests.kvstore.servers import Store, store

LASTING = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
NUMBERS = itertools.count(10)


def memory() -> MemoryTables:
    return MemoryTables({}, {}, "sgd")


@given(programs())
@LASTING
def test_in_memory(program: list[Step]) -> None:
    tables = memory()
    tables.services = services({})
    run(program, tables, Model(memory()),
        lambda spec: tables.add(TableMemory.allocate(spec, int(POLICIES[spec.policy][-1]))), tables.drop)  # fmt: skip


def played(program: list[Step], running: Store, tables: StoreTables, machine: int) -> None:
    """One program on a running store, and all tables gone behind it."""
    there: list[str] = []

    def make(spec: TableSpec) -> None:
        number, bounds = next(NUMBERS), POLICIES[spec.policy]
        made = running.add(spec, number, bounds)
        tables.declare(spec.policy, bounds)
        tables.add(spec, number, made[machine] if machine >= 0 else None)
        there.append(spec.name)

    def unmake(name: str) -> None:
        tables.drop(name)
        running.drop(name)
        there.remove(name)

    try:
        run(program, tables, Model(memory()), make, unmake)
    finally:
        for name in list(there):
            unmake(name)


PLACES: dict[str, dict[str, Any]] = {
    "elsewhere": {},
    "first": {"machine": 0},
    "second": {"machine": 1},
    "bf16": {"transport_dtype": "bf16"},
}


@pytest.mark.parametrize("place", PLACES)
def test_over_sockets(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whatever a server says is one frame behind the name of whom it is for: see kgdist.kvstore.messages."""
    options, send = PLACES[place], Wire.send

    def listen(wire: Wire, frames: list[Any]) -> Any:
        assert len(frames) == 2 or frames[0].startswith(b"server-")
        return send(wire, frames)

    monkeypatch.setattr(Wire, "send", listen)
    with store(services=services({})) as running:
        tables = running.client(**options)

        @given(programs(raw=place == "bf16"))  # what has an optimiser is rounded
        @LASTING
        def law(program: list[Step]) -> None:
            played(program, running, tables, options.get("machine", -1))

        law()


@pytest.mark.parametrize("place", ["elsewhere", "first"])
def test_over_connections_that_are_cut(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After random bytes, again and again, while answers come in many pieces: every assignment once, and in its order."""
    monkeypatch.setattr(answers, "PIECE_BYTES", 200)
    monkeypatch.setattr(store_module, "PIECE_BYTES", 800)
    with store(services=services({}), timeout=3.0) as running, contextlib.ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(end, seed=end[1])) for end in running.endpoints]
        for proxy in proxies:
            proxy.cut_after = 2_000, 12_000
        tables = running.client(endpoints=[proxy.address for proxy in proxies], **PLACES[place])

        @given(programs())
        @settings(LASTING, max_examples=15)
        def law(program: list[Step]) -> None:
            played(program, running, tables, PLACES[place].get("machine", -1))

        law()
        assert sum(proxy.connections for proxy in proxies) > len(proxies)  # some were cut
