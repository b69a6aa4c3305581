"""A ledger beside the job: its own servers and trainers of the store, under the same faults, whose rows are counted to the unit.

Every push adds 1 to rows that follow from its trainer, incarnation and step. A trainer that is lost comes back as a new
incarnation; when a server is lost, all go back to the rows and numbers of the last time that the books were right, as a job goes
back to its checkpoint. When every trainer has made its steps the rows are compared with the numbers that servers say they
applied, and those with what was confirmed.
"""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.kvstore.layout import Layout
from kgdist.kvstore.tables import MemoryTables
from kgdist.kvstore.wire import Keys
from tests.faults.role import Role
from tests.faults.store_roles import rows_of

ROWS, WIDTH, STEPS, TRAINERS, TIMEOUT = 40, 3, 400, 3, 5.0
Where = tuple[tuple[str, ...], tuple[str, int]]  # words before the commands of a machine, and where its server listens


@dataclass
class Count:
    """What the books were about."""

    audits: int = 0
    pushes: int = 0
    incarnations: int = 0
    returns: int = 0


class Books:
    """The ledger on two machines. `look` moves it on and has to be called often; it never waits for long."""

    def __init__(self, stack: ExitStack, machines: list[Where], variables: dict[str, str], log: Path) -> None:
        self.machines, self.variables, self.log = machines, variables, log
        self.layout = Layout.build({"entity": WIDTH}, {"entity": np.array([0, ROWS // 2, ROWS])}, [1, 1], by_owner=True)
        self.tables = [MemoryTables.create({"entity": (ROWS // 2, WIDTH)}, "sgd", shared=True) for _ in machines]
        for tables in self.tables:
            stack.callback(tables.close)
        self.common = {"layout": self.layout.to_json(), "keys": Keys.make().to_json(), "timeout": TIMEOUT}
        self.count, self.attempt = Count(), 0
        self.saved: list[tuple[torch.Tensor, Any]] = [(tables.rows["entity"].clone(), []) for tables in self.tables]
        self.made: dict[tuple[int, int], Role] = {}  # all trainers of the books as they are now
        self.trainers: dict[int, tuple[int, Role]] = {}  # client -> incarnation, process
        self._asked: list[int] = []
        stack.callback(self.end)
        self._open()

    def _role(self, machine: int, job: dict[str, Any]) -> Role:
        handles = self.tables[machine].handles()
        given = self.common | job | {"handles": handles, "attempt": self.attempt}
        fds = [handle["fd"] for handle in handles.values()]
        return Role(given, fds, inside=self.machines[machine][0], variables=self.variables, log=self.log)

    def _open(self) -> None:
        """Start everything at what was saved."""
        self.attempt += 1
        for tables, (rows, _) in zip(self.tables, self.saved, strict=True):
            tables.load({"entity": rows.numpy()})
        jobs = [
            {"role": "server", "number": n, "state": state, "at": self.machines[n][1]} for n, (_, state) in enumerate(self.saved)
        ]
        self.servers = [self._role(n, job) for n, job in enumerate(jobs)]
        self._asked = []
        for client in range(TRAINERS):
            self._train(client)

    def _train(self, client: int) -> None:
        """The next incarnation of a trainer."""
        self.count.incarnations += 1
        incarnation = self.count.incarnations
        job = {"role": "trainer", "client": client, "incarnation": incarnation, "steps": STEPS}
        job |= {"window": 1 + 2 * client, "together": 1 + 2 * client}
        machine = client % len(self.machines)
        role = self._role(machine, job | {"machine": machine, "ends": [end for _, end in self.machines]})
        self.made[client, incarnation] = role
        self.trainers[client] = incarnation, role

    def pids(self, role: str) -> list[int]:
        """Its processes that run."""
        every = self.servers if role == "server" else [found for _, found in self.trainers.values()]
        return [found.process.pid for found in every if found.process.poll() is None]

    def strike(self, role: str, which: int, how: signal.Signals) -> int | None:
        """Send a signal to one of them; its number."""
        pids = self.pids(role)
        if not pids:
            return None
        os.kill(pids[which % len(pids)], how)
        return pids[which % len(pids)]

    def look(self) -> None:
        """Replace what was lost; when all have made their steps, compare and go on. Raises AssertionError for wrong books."""
        if any(server.process.poll() is not None for server in self.servers):
            self.count.returns += 1
            self._close()
            self.made = {}
            self._open()
            return
        for client, (_, role) in list(self.trainers.items()):
            if role.process.poll() is not None and not self._done(role):
                self._train(client)
        if not all(self._done(role) for _, role in self.trainers.values()):
            return
        if not self._asked:
            self._asked = [sum("state" in facts for facts in server.said) for server in self.servers]
            for server in self.servers:
                server.ask()
        elif all(sum("state" in facts for facts in s.said) > asked for s, asked in zip(self.servers, self._asked, strict=True)):
            self._compare()
            self._asked = []
            for client in self.trainers:
                self._train(client)

    @staticmethod
    def _done(role: Role) -> bool:
        """Whether that trainer has made all its steps, and ended."""
        return role.process.poll() == 0 and not role._thread.is_alive() and role.fact("done") is not None

    def _compare(self) -> None:
        expected = np.concatenate([rows.numpy()[:, 0] for rows, _ in self.saved]).astype(np.float64)
        known = [{(client, incarnation): last for client, incarnation, last in state} for _, state in self.saved]
        states = [server.fact("state") for server in self.servers]
        for number, state in enumerate(states):
            low, high = self.layout.range_of("entity", number)
            for client, incarnation, last in state:
                if (client, incarnation) not in self.made:
                    assert known[number].get((client, incarnation)) == last, "a trainer of before was heard again"
                    continue
                role, applied = self.made[client, incarnation], 0
                for step in range(STEPS):
                    mine = [row for row in rows_of(client, incarnation, step, ROWS) if low <= row < high]
                    if mine and applied < last:  # the pushes that have rows of this server are numbered by it
                        expected[mine] += 1
                        applied += 1
                self.count.pushes += applied
                acked = (role.fact("done") or role.fact("acked") or {}).get(str(number), 0)
                assert acked <= last == applied, (
                    f"trainer {client} of incarnation {incarnation}: {acked} confirmed, {last} applied"
                )
                assert acked == last or not role.fact("done"), "what was never sent was applied"
        found = np.concatenate([tables.rows["entity"].numpy() for tables in self.tables])
        np.testing.assert_array_equal(found, np.repeat(expected[:, None], WIDTH, 1), "rows that are not what was applied")
        self.saved = [(tables.rows["entity"].clone(), state) for tables, state in zip(self.tables, states, strict=True)]
        self.made = {}
        self.count.audits += 1

    def _close(self) -> None:
        for role in (*self.made.values(), *self.servers):
            role.process.kill()
            role.end()

    def end(self) -> None:
        """Kill all of it."""
        self._close()
