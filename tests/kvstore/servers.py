"""Servers of a small store in threads of this process, on ports that the system picks; real sockets, real tables."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
import zmq
from zmq.utils import garbage

from kgdist.kvstore.asking import Service
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.optim import Squares
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables, TableMemory, Tables, Update
from kgdist.kvstore.wire import Keys, Transport
from tests.patience import patience

IDENTITY = Identity("1.0", "run-7", 1, "config", "graph")
HOST = "127.0.0.1"


def push(tables: Tables, name: str, ids: torch.Tensor, grads: torch.Tensor, lr: float, squares: Squares = None) -> None:
    """An update of one table."""
    tables.push({name: Update(ids.numpy(), grads, squares)}, lr)


class Store:
    """The servers, the tables of each machine, and clients on request; all end with the `with`."""

    def __init__(
        self, layout: Layout, optimizer: str, keys: Keys | None, timeout: float, user: bool = False,
        services: dict[str, Service] | None = None,
    ) -> None:  # fmt: skip
        self.layout, self.keys, self.timeout, self.user = layout, keys, timeout, user
        self.transports: list[Transport] = []
        self.machines: list[MemoryTables] = []
        self.servers: list[Server] = []
        self.endpoints: list[tuple[str, int]] = []
        self._stop = threading.Event()
        self.failed: list[BaseException] = []
        for machine in range(layout.machines):
            shapes = {}
            for name, width in layout.widths.items():
                low, high = layout.machine_range(name, machine)
                shapes[name] = (high - low, width)
            self.machines.append(MemoryTables.create(shapes, optimizer))
        for number, machine in enumerate(layout.machine_of):
            transport = self.transport()
            wire = transport.server(HOST, 0, name_of(number))
            self.endpoints.append((HOST, int(wire.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2])))
            given: dict[str, Any] = {"transport": transport, "services": services}
            self.servers.append(Server(number, layout, self.machines[machine], IDENTITY, wire, **given))
        self._threads = [threading.Thread(target=self._serve, args=(server,)) for server in self.servers]
        for thread in self._threads:
            thread.start()

    def _serve(self, server: Server) -> None:
        try:
            server.serve(self._stop.is_set)
        except BaseException as error:
            self.failed.append(error)

    def transport(self, keys: Keys | None = None) -> Transport:
        """One with the keys of the store, unless others are given."""
        self.transports.append(Transport(keys or self.keys, self.timeout, user=self.user and not keys))
        return self.transports[-1]

    def client(self, number: int = 0, **options: Any) -> StoreTables:
        """A trainer, by default on no machine of the store."""
        machine = options.get("machine", -1)
        if machine >= 0:
            options.setdefault("local", self.machines[machine])
        given = {"client": number, "peer_timeout": self.timeout, "connect_timeout": 20.0} | options
        given["connect_timeout"] = patience(given["connect_timeout"])
        identity, endpoints = given.pop("identity", IDENTITY), given.pop("endpoints", self.endpoints)
        return StoreTables(self.layout, endpoints, given.pop("transport", None) or self.transport(), identity, **given)

    def add(self, spec: TableSpec, number: int, bounds: np.ndarray) -> list[TableMemory]:
        """One more table, on all machines and servers; its memory there."""
        memory = [TableMemory.allocate(spec, int(rows)) for rows in np.diff(bounds)]
        for server in self.servers:
            server.catalogue.declare(spec.policy, bounds)
            server.add(spec, number, memory[int(self.layout.machine_of[server.number])])
        return memory

    def drop(self, name: str) -> None:
        """From all servers."""
        for server in self.servers:
            server.drop(name)

    def whole(self, name: str) -> np.ndarray:
        """The rows of all machines, one after another, as they lie in memory."""
        return np.concatenate([tables.rows[name].numpy() for tables in self.machines])

    def whole_raw(self, name: str) -> np.ndarray:
        """The same of a raw table."""
        return np.concatenate([tables.raw[name] for tables in self.machines])

    def counted(self, counter: int) -> int:
        """The sum of one counter over all servers."""
        return int(sum(server.counters[counter] for server in self.servers))

    def end(self, *, sockets: bool) -> None:
        """Stop the servers' loops, and close their sockets or leave them to libzmq, which goes on answering heartbeats."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=patience(60))
        for transport in self.transports[: len(self.servers)] if sockets else ():
            transport.close()

    def close(self) -> None:
        """End it all."""
        self.end(sockets=True)
        for transport in self.transports:
            transport.close()
        garbage.gc.stop()  # pyzmq's own thread
        assert not self.failed, self.failed


@contextlib.contextmanager
def store(
    *, entities: Sequence[int] = (7, 5), relations: Sequence[int] = (2, 3), servers: Sequence[int] = (2, 1), width: int = 4,
    optimizer: str = "adagrad_row", keys: Keys | None = None, timeout: float = 3.0, user: bool = False, by_owner: bool = False,
    services: dict[str, Service] | None = None,
) -> Iterator[Store]:  # fmt: skip
    """A store of so many machines, open unless there are keys or it is only for this `user`."""
    bounds = {name: np.concatenate([[0], np.cumsum(n)]) for name, n in (("entity", entities), ("relation", relations))}
    layout = Layout.build({"entity": width, "relation": width // 2}, bounds, servers, by_owner=by_owner)
    running = Store(layout, optimizer, keys, patience(timeout), user, services)
    try:
        yield running
    finally:
        running.close()


def eventually(condition: Any) -> None:
    """It comes true within a minute."""
    deadline = time.monotonic() + patience(60)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
