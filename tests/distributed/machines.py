"""Servers of several machines in threads of this process, and what a launcher does for them: real sockets, real tables."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import zmq
from zmq.utils import garbage

from kgdist.base.errors import KgdistError
from kgdist.distributed.hosting import Host
from kgdist.distributed.initialisers import initialised
from kgdist.distributed.remote import Remote
from kgdist.distributed.storage import Initialiser, Placement
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.server import Server
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.kvstore.tables import MemoryTables
from kgdist.kvstore.wire import Transport
from tests.patience import patience

IDENTITY = Identity("1.0", "run-15", 1, "config", "graph")
HOST = "127.0.0.1"


class Thread:
    """One server; `do` lets its thread do something between two turns."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._queue: queue.SimpleQueue[tuple[Callable[[], None], queue.SimpleQueue[BaseException | None]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(queue.Empty):
                act, done = self._queue.get(block=False)
                try:
                    act()
                    done.put(None)
                except BaseException as error:
                    done.put(error)
            self.host.turn(0.002)

    def do(self, act: Callable[[], None]) -> None:
        done: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._queue.put((act, done))
        if (error := done.get(timeout=patience(30))) is not None:
            raise error

    def end(self) -> None:
        self._stop.set()
        self._thread.join(timeout=patience(60))


def handles(arrays: Mapping[str, SharedArray]) -> dict[str, dict[str, Any]]:
    return {key: array.handle(pid=True) for key, array in arrays.items()}


class Machines:
    """So many servers on each machine, and one trainer, on machine 0. It is also what its storage agrees with others by."""

    def __init__(self, servers: Sequence[int]) -> None:
        self.layout = Layout.build({}, {}, servers, by_owner=True)
        self.transports: list[Transport] = []
        self.endpoints: list[tuple[str, int]] = []
        self.threads: list[Thread] = []
        self.tables: dict[str, tuple[int, list[dict[str, SharedArray]], int]] = {}  # number, arrays by machine, users
        self._numbers = 0
        for number, machine in enumerate(self.layout.machine_of.tolist()):
            transport = self._transport()
            wire = transport.server(HOST, 0, name_of(number))
            self.endpoints.append((HOST, int(wire.socket.get(zmq.LAST_ENDPOINT).rpartition(b":")[2])))

            def serving(services: Any, number: int = number, wire: Any = wire, transport: Transport = transport) -> Server:
                tables = MemoryTables({}, {}, self.layout.optimizer)
                return Server(number, self.layout, tables, IDENTITY, wire, transport=transport, services=services)

            first = number == 0 or int(self.layout.machine_of[number - 1]) != machine
            self.threads.append(Thread(Host(serving, machine, first)))

    def _transport(self) -> Transport:
        self.transports.append(Transport(None, patience(3)))
        return self.transports[-1]

    def connect(self, client: int, incarnation: int) -> StoreTables:
        wait = {"peer_timeout": patience(3), "connect_timeout": patience(20)}
        given = {"client": client, "incarnation": incarnation, "machine": 0}
        return StoreTables(self.layout, self.endpoints, self._transport(), IDENTITY, **given, **wait)  # type: ignore[arg-type]

    def create(
        self,
        name: str,
        spec: Mapping[str, Any],
        arrays: Mapping[str, tuple[str, Sequence[int]]],
        bounds: Sequence[int],
        initialiser: Initialiser | None = None,
    ) -> tuple[int, dict[str, dict[str, Any]]]:
        if name not in self.tables:
            self._numbers += 1
            made: list[dict[str, SharedArray]] = []
            try:
                for machine in range(self.layout.machines):
                    rows = bounds[machine + 1] - bounds[machine] if bounds else 0
                    mine = {key: SharedArray.allocate((rows, *shape), dtype) for key, (dtype, shape) in arrays.items()}
                    made.append(mine)
                    if initialiser is not None:  # as the first server of the machine would
                        given = initialised(initialiser, mine[""].array.shape, getattr(torch, spec["dtype"]), name)
                        mine[""].array[...] = (given.view(torch.int16) if given.dtype == torch.bfloat16 else given).numpy()
            except BaseException:
                for array in (array for mine in made for array in mine.values()):
                    array.close()
                raise
            self.tables[name] = self._numbers, made, 0
            for thread in self.threads:
                told = self._numbers, name, spec, handles(made[thread.host.machine]), bounds
                thread.do(lambda host=thread.host, told=told: host.make(*told))  # type: ignore[misc]
        number, made, users = self.tables[name]
        self.tables[name] = number, made, users + 1
        return number, handles(made[0])

    def drop(self, name: str) -> None:
        number, made, users = self.tables[name]
        self.tables[name] = number, made, users - 1
        if users == 1:
            del self.tables[name]
            for array in (array for mine in made for array in mine.values()):
                array.close()
            for thread in self.threads:
                thread.do(lambda host=thread.host: host.drop(name))  # type: ignore[misc]

    def barrier(self, name: str = "", problem: str = "") -> None:
        """Nobody else is there."""
        if problem:
            raise KgdistError(problem)

    def close(self) -> None:
        for thread in self.threads:
            thread.end()
            thread.host.close()
        for transport in self.transports:
            transport.close()
        for _, made, _ in self.tables.values():
            for array in (array for mine in made for array in mine.values()):
                array.close()
        self.tables.clear()
        garbage.gc.stop()  # pyzmq's own thread
        gc.collect()  # connections know each other


@contextlib.contextmanager
def machines(servers: Sequence[int]) -> Iterator[Remote]:
    """The storage of the one trainer of these machines."""
    running = Machines(servers)
    storage = Remote(running, running.connect, Placement(0, 1, 1), 0, f"test-{id(running)}")
    try:
        yield storage
    finally:
        storage.close()
        running.close()
