"""The ledger, with real sockets and servers, when whole messages are lost, doubled and overtaken on the client's wires."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.kvstore import connection
from kgdist.kvstore.server import EARLY, REPEATED
from kgdist.kvstore.wire import Wire
from tests.kvstore.servers import Store, push, store


class RoughWire(Wire):
    """Loses one message in ten, doubles one in ten, and lets one in ten be overtaken by the next; both ways."""

    def __init__(self, wire: Wire, seed: int) -> None:
        super().__init__(wire.socket, wire.monitor)
        self._chance = random.Random(seed)
        self._late: list[list[Any]] = []
        self._came: list[list[Any]] = []

    def send(self, frames: list[Any]) -> list[Any] | None:
        copied = [bytes(part) for part in frames]  # those that are late may find their memory used for others
        fate = self._chance.randrange(10)
        if fate == 0:
            return []
        if fate == 1:
            self._late.append(copied)
            return []
        if super().send(copied) is None:
            return None
        for again in [*self._late, *([copied] if fate == 2 else [])]:
            super().send(again)
        self._late.clear()
        return []

    def receive(self) -> list[Any] | None:
        while (frames := super().receive()) is not None:
            fate = self._chance.randrange(10)
            self._came[len(self._came) - (fate == 1) :] = [frames] * (0 if fate == 0 else 2 if fate == 2 else 1)
        return self._came.pop(0) if self._came else None


def rough(running: Store, seed: int) -> Any:
    transport = running.transport()
    router = transport.router
    transport.router = lambda peers: RoughWire(router(peers), seed)  # type: ignore[method-assign]
    return transport


@pytest.mark.parametrize("window", [pytest.param(1, marks=pytest.mark.slow), 64])
def test_the_ledger_is_exact(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ROUNDS", 100)  # lost messages cost 60 ms each
    random_rows = np.random.default_rng(window)
    with store(optimizer="sgd", timeout=3.0, entities=(20, 20), by_owner=True) as running:
        expected = np.zeros(40)
        clients = [
            running.client(
                number,
                transport=rough(running, number),
                machine=number,
                max_inflight=window,
                connect_timeout=20.0,
            )
            for number in range(2)
        ]
        for _ in range(25):
            for tables in clients:
                rows = np.flatnonzero(random_rows.random(40) < 0.4)
                tables.ahead({"entity": rows})
                push(tables, "entity", torch.from_numpy(rows), torch.ones(len(rows), 4), -1.0)
                expected[rows] += 1
                seen = tables.pull("entity", torch.from_numpy(rows))
                assert (seen <= torch.from_numpy(expected[rows, None])).all()
        for tables in clients:
            tables.flush()
        np.testing.assert_array_equal(running.whole("entity"), np.repeat(expected[:, None], 4, 1))
        assert running.counted(REPEATED) + running.counted(EARLY)
        assert sum(last for server in running.servers for _, _, last in server.applied.state()) <= 2 * 25 * 6
