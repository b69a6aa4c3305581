"""The ledger: every push adds 1 to some rows, and in the end each row holds exactly the pushes that its owner says it applied.

Real processes over real sockets, through proxies that delay, stall and cut; trainers are killed and come back with a new
incarnation. What each push contains follows from (client, incarnation, step), so the sum of every row is known to the unit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import torch
from zmq.utils import garbage

from kgdist.base.errors import KgdistError, PeersLost
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.kvstore.wire import Keys, Transport
from tests.faults.proxy import Proxy
from tests.faults.role import Role
from tests.faults.store_roles import identity, rows_of
from tests.patience import patience

pytestmark = pytest.mark.timeout(240)
ROWS, WIDTH, LIMIT = 40, 3, patience(200.0)


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


class Ledger:
    """Two machines with a server each, and trainers on both; their sockets go through one proxy for each server."""

    def __init__(self, stack: ExitStack, *, keys: bool, timeout: float) -> None:
        bounds = {"entity": np.array([0, ROWS // 2, ROWS])}
        self.layout = Layout.build({"entity": WIDTH}, bounds, [1, 1], by_owner=True)
        self.tables = [MemoryTables.create({"entity": (ROWS // 2, WIDTH)}, "sgd", shared=True) for _ in range(2)]
        self.common = {"layout": self.layout.to_json(), "keys": Keys.make().to_json() if keys else None, "timeout": timeout}
        self.stack = stack
        self.servers = self.serve()
        ports = [until(lambda s=s: s.fact("port")) for s in self.servers]
        self.proxies = [stack.enter_context(Proxy(("127.0.0.1", port), seed=port)) for port in ports]
        self.trainers: dict[tuple[int, int], Role] = {}

    def serve(self, attempt: int = 1, states: tuple[list[list[int]], ...] = ([], [])) -> list[Role]:
        """Start the servers, from these states."""
        jobs = [{"role": "server", "number": n, "attempt": attempt, "state": states[n]} for n in range(2)]
        return [self.role(number, job) for number, job in enumerate(jobs)]

    def role(self, machine: int, job: dict[str, Any]) -> Role:
        handles = self.tables[machine].handles()
        made = Role(self.common | job | {"handles": handles}, [handle["fd"] for handle in handles.values()])
        self.stack.callback(made.end, kill=True)
        return made

    def train(self, client: int, incarnation: int, steps: int) -> None:
        machine = client % 2
        ends = [proxy.address for proxy in self.proxies]
        given = {
            "client": client,
            "incarnation": incarnation,
            "attempt": 1,
            "steps": steps,
            "ends": ends,
            "window": 1 + 2 * client,
            "together": 1 + 2 * client,
        }
        self.trainers[client, incarnation] = self.role(machine, {"role": "trainer", "machine": machine} | given)

    def check(self, steps: int) -> None:
        """End the servers, and add up what they say they applied."""
        expected = np.zeros(ROWS)
        for number, server in enumerate(self.servers):
            server.end()
            low, high = self.layout.range_of("entity", number)
            for client, incarnation, last in server.fact("state"):
                sent, applied = 0, 0
                for step in range(steps):
                    mine = [row for row in rows_of(client, incarnation, step, ROWS) if low <= row < high]
                    sent += bool(mine)
                    if mine and applied < last:  # the pushes that have rows of this server are numbered by it
                        expected[mine] += 1
                        applied += 1
                trainer = self.trainers[client, incarnation]
                acked = (trainer.fact("done") or trainer.fact("acked") or {}).get(str(number), 0)
                assert acked <= last <= sent, (client, incarnation, number)
                if trainer.fact("done"):
                    assert acked == last == sent
        found = np.concatenate([tables.rows["entity"].numpy() for tables in self.tables])
        np.testing.assert_array_equal(found, np.repeat(expected[:, None], WIDTH, 1))
        assert expected.sum() > 0


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    with ExitStack() as stack:
        made = Ledger(stack, keys=True, timeout=patience(3.0))
        yield made
    for tables in made.tables:
        tables.close()
    made.tables.clear()


@pytest.mark.slow
def test_after_cuts_stalls_and_kills_every_row_has_its_exact_sum(ledger: Ledger) -> None:
    """At a fifth of the default times: connections cut after random bytes, reset, half-open, half a second of a black hole, and a
    trainer killed."""
    steps, chance = 100, random.Random(0)
    for proxy in ledger.proxies:
        proxy.cut_after, proxy.jitter = (3_000, 30_000), 0.01
    ledger.train(0, 0, steps)
    ledger.train(1, 0, steps)
    until(lambda: all(len(t.said) > 10 for t in ledger.trainers.values()))
    ledger.trainers[1, 0].end(kill=True)
    ledger.train(1, 1, steps)
    for proxy in ledger.proxies:
        proxy.stall()
    time.sleep(patience(0.6))
    before = len(ledger.trainers[0, 0].said)
    time.sleep(patience(0.5))
    assert before == len(ledger.trainers[0, 0].said) < steps
    done, began = [ledger.trainers[0, 0], ledger.trainers[1, 1]], time.monotonic()
    while not all(trainer.fact("done") for trainer in done):
        assert time.monotonic() < began + LIMIT and all(t.process.poll() in (None, 0) for t in done)
        for proxy in ledger.proxies:
            proxy.resume()
            if time.monotonic() > began + patience(5):
                proxy.cut_after = None  # long enough; let them finish
            else:
                chance.choice([proxy.reset, proxy.half_open, proxy.stall, proxy.resume, proxy.resume])()
        time.sleep(patience(0.1))  # in its own time the network is as bad on a slow machine
    assert sum(proxy.connections for proxy in ledger.proxies) > 10
    ledger.check(steps)


@pytest.mark.slow
def test_when_a_server_is_killed_all_go_back_to_a_checkpoint_of_rows_and_numbers(ledger: Ledger) -> None:
    keys = Keys.from_json(ledger.common["keys"])
    transport = Transport(keys, 1.5)

    def trainer(attempt: int, incarnation: int, servers: list[Role]) -> StoreTables:
        ends = [("127.0.0.1", int(until(lambda s=s: s.fact("port")))) for s in servers]
        given = {"client": 0, "incarnation": incarnation, "peer_timeout": patience(3.0)}
        return StoreTables(ledger.layout, ends, transport, identity(attempt), **given)

    def push(tables: StoreTables, incarnation: int, steps: range) -> np.ndarray:
        added = np.zeros(ROWS)
        for step in steps:
            rows = rows_of(0, incarnation, step, ROWS)
            tables.push({"entity": Update(rows, torch.ones(len(rows), WIDTH))}, -1.0)
            added[rows] += 1
        return added

    try:
        first = trainer(1, 0, ledger.servers)
        saved = push(first, 0, range(20))
        first.flush()
        for server in ledger.servers:
            server.ask()
        states = tuple(until(lambda s=s: s.fact("state")) for s in ledger.servers)
        rows = [tables.rows["entity"].clone() for tables in ledger.tables]
        push(first, 0, range(20, 23))
        ledger.servers[1].end(kill=True)
        with pytest.raises(PeersLost, match=r"127.0.0.1:\d+: not a word for"):
            for step in range(100):
                push(first, 0, range(23 + step, 24 + step))
        ledger.servers[0].end(kill=True)

        for tables, old in zip(ledger.tables, rows, strict=True):
            tables.load({"entity": old.numpy()})
        again = ledger.serve(2, states)
        with pytest.raises(KgdistError, match="attempt is 1 there and 2 here"):
            trainer(1, 0, again)
        with pytest.raises(KgdistError, match="used before"):
            trainer(2, 0, again)
        second = trainer(2, 1, again)
        saved += push(second, 1, range(20))
        second.flush()
        found = np.concatenate([tables.rows["entity"].numpy() for tables in ledger.tables])
        np.testing.assert_array_equal(found, np.repeat(saved[:, None], WIDTH, 1))
    finally:
        transport.close()
        garbage.gc.stop()
