"""What `initialize` makes of a process that kgdist-launch has started: a trainer with the storage of all servers, or a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kgdist.distributed.context import Handles, Job, serve_with, when_joined
from kgdist.distributed.current import use
from kgdist.distributed.hosting import Host
from kgdist.distributed.remote import SLOTS, Remote
from kgdist.distributed.storage import Placement
from kgdist.graphs.structure import Draw, InEdges, Question
from kgdist.kvstore.asking import Service
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.connection import name_of
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.server import Server
from kgdist.kvstore.tables import MemoryTables
from kgdist.runtime.processes.script_line import ScriptLine
from kgdist.sampling.loaders import Defaults

LOOK = 0.01  # seconds that a server without work lets its agent wait


def layout_of(job: Job) -> Layout:
    """The servers, and no tables yet. Each row is changed by the server that owns it."""
    return Layout.build({}, {}, [machine.servers for machine in job.machines], by_owner=True)


def compiled() -> None:
    """Have the loops that draw neighbours compiled before anybody waits for them, for all that a partition and a question may
    hold: a server that compiles, half a minute where nothing is in numba's cache, shows its agent no beat and answers nobody."""
    nodes, none = np.zeros(1, np.int64), np.zeros(0, np.int64)
    for wide in (np.int32, np.int64):
        edges = InEdges(np.zeros(2, np.int64), np.zeros(0, wide))
        for weights in (None, *(np.zeros(0, dtype) for dtype in (np.bool_, np.float32, np.float64))):  # others become these
            for exclude in (none, nodes):
                question = Question(("", "", ""), nodes, 1, False, None, False, exclude)
                edges.neighbours(question, Draw(0, 0, 0), 0, weights)


def join(job: Job) -> None:
    """Give this trainer its storage."""

    def connect(client: int, incarnation: int) -> StoreTables:
        patience = {"peer_timeout": job.plan.config.peer_timeout}
        given: dict[str, Any] = {"client": client, "incarnation": incarnation, "machine": job.machine, **patience}
        return StoreTables(layout_of(job), job.plan.addresses, job.transport(), job.identity(), **given)

    Defaults.workers = job.num_workers
    placement = Placement(job.rank, job.plan.trainers, len(job.machines))
    use(Remote(job, connect, placement, job.machine, f"{job.plan.run}-{job.plan.attempt}", job.part_config))


class Hosted:
    """A server of a job."""

    def __init__(self, job: Job) -> None:
        self._transport = job.transport()
        wire = self._transport.server(*job.plan.addresses[job.rank], name_of(job.rank))
        layout, identity = layout_of(job), job.identity()
        compiled()

        def serving(services: Mapping[str, Service]) -> Server:
            tables = MemoryTables({}, {}, layout.optimizer)
            limits: dict[str, Any] = {"transport": self._transport, "clients": SLOTS * job.plan.trainers}
            return Server(job.rank, layout, tables, identity, wire, services=services, **limits)

        self._host = Host(serving, job.machine, job.rank == job.plan.servers(job.machine)[0])

    def make(self, number: int, name: str, spec: Mapping[str, Any], handles: Handles, bounds: Sequence[int]) -> None:
        """See Host."""
        self._host.make(number, name, spec, handles, bounds)

    def drop(self, name: str) -> None:
        """See Host."""
        self._host.drop(name)

    def turn(self, seconds: float, line: ScriptLine) -> None:
        """See Host."""
        self._host.turn(min(seconds, LOOK))

    def close(self) -> None:
        """All have left."""
        self._host.close()
        self._transport.close()


serve_with(lambda job: Hosted(job))
when_joined(join)
