"""Tables and graphs that servers of several machines have: the storage of a trainer in a launched script.

Rows of the own machine are read from its memory, and its partition is asked here. All rows are changed by the servers that own
them. A process that a trainer has forked (a worker of a loader) finds the servers by itself when it first needs them.
"""

from __future__ import annotations

import functools
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import numpy as np
import torch

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import PathLike
from kgdist.distributed.hosting import attached
from kgdist.distributed.opening import Part, described, features_of, part_of
from kgdist.distributed.policy import PartitionPolicy, Policies
from kgdist.distributed.rows import Rows
from kgdist.distributed.services import Owner, OwnRows
from kgdist.distributed.storage import Answer, Initialiser, Learns, OpenedGraph, Placement, Spec, agree
from kgdist.kvstore.catalogue import TableSpec
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.optim import rule_of
from kgdist.kvstore.tables import TableMemory, Update

SLOTS = 64  # processes of one trainer that may be connected at once: itself, and workers of loaders

Handles = dict[str, dict[str, Any]]  # see kgdist.kvstore.shared_memory

Given = ParamSpec("Given")
Made = TypeVar("Made")


def _in_turn(method: Callable[Concatenate[Remote, Given], Made]) -> Callable[Concatenate[Remote, Given], Made]:
    """One thread of the process at a time: sockets of ZeroMQ abort the process that uses them in two."""

    @functools.wraps(method)
    def call(self: Remote, /, *args: Given.args, **kwargs: Given.kwargs) -> Made:
        with self.turn:
            return method(self, *args, **kwargs)

    return call


class Together(Protocol):
    """What trainers do together, through their agents."""

    def create(
        self,
        name: str,
        spec: Mapping[str, Any],
        arrays: Mapping[str, tuple[str, Sequence[int]]],
        bounds: Sequence[int],
        initialiser: Initialiser | None = None,
    ) -> tuple[int, Handles]:
        """Make a table with all trainers, or share the one of this name: its number, and what maps this machine's part of it."""

    def drop(self, name: str) -> None:
        """One user less of a table. Waits for nobody."""

    def barrier(self, name: str = "", problem: str = "") -> None:
        """Wait for all trainers. Raises KgdistError, for all, where one has a problem."""


class Connecting(Protocol):
    """Makes the connections of a process."""

    def __call__(self, client: int, incarnation: int) -> StoreTables:
        """As this client, which no other process is at the time, in a life of it that is new and later than those before."""


class Held:
    """A table that this process knows: what it is, this machine's rows, and what goes with it."""

    def __init__(self, spec: Spec, number: int, memory: TableMemory) -> None:
        self.spec, self.number, self.memory = spec, number, memory
        self.users = 0
        self.learns: Learns | None = None
        self.states: dict[str, Spec] = {}


class Remote:
    """The storage of trainer `placement.rank` on machine `machine`."""

    def __init__(
        self,
        together: Together,
        connect: Connecting,
        placement: Placement,
        machine: int,
        run: str,
        part_config: PathLike | None = None,
    ) -> None:
        self.policies = Policies()
        self.placement, self.machine = placement, machine
        self._together, self._connect, self._run, self._part_config = together, connect, run, part_config
        self._held: dict[str, Held] = {}
        self._bounds: dict[str, np.ndarray] = {}
        self._rules: dict[str, tuple[TableSpec, int, TableMemory]] = {}  # by the name of a table: the same one with its optimiser
        self._parts: dict[str, Part] = {}
        self._owner = Owner(self._own_rows, self._parts)
        self._gone: deque[str] = deque()  # released, wherever Python happened to be; looked at when it is safe
        self._pushed = False
        self._trainer, self._process = os.getpid(), 0
        self._turn = os.getpid(), threading.RLock()
        self._slot: socket.socket | None = None
        self._connected: StoreTables | None = None

    @property
    def turn(self) -> threading.RLock:
        """Held by the thread that speaks with servers; a process that was forked meanwhile has its own."""
        if self._turn[0] != os.getpid():
            self._turn = os.getpid(), threading.RLock()
        return self._turn[1]

    @property
    def tables(self) -> StoreTables:
        """The connections of this process."""
        if self._connected is None or self._process != os.getpid():
            self._process, self._pushed = os.getpid(), False
            self._connected = self._connect(self._client(), time.time_ns() // 10**6 & 0x7FFFFFFF)
            for policy, bounds in self._bounds.items():
                self._connected.declare(policy, bounds)
            for held in self._held.values():
                self._connected.add(held.memory.spec, held.number, held.memory)
            for spec, number, memory in self._rules.values():
                self._connected.add(spec, number, memory)
        return self._connected

    def _client(self) -> int:
        """A number that no other process of the job has: the first one of this trainer that is free on this machine."""
        for slot in range(SLOTS):
            held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            try:
                held.bind(f"\0kgdist-{self._run}-{self.placement.rank}-{slot}")
            except OSError:
                held.close()
                continue
            os.set_inheritable(held.fileno(), False)
            self._slot = held  # until this process ends
            return self.placement.rank * SLOTS + slot
        raise KgdistError(f"trainer {self.placement.rank} has {SLOTS} processes that read from servers; use fewer workers")

    def _mine(self) -> bool:
        """Whether this is the trainer itself, not a process that it has forked."""
        return self._trainer == os.getpid()

    def _tidy(self) -> None:
        with self.turn:
            while self._gone and self._mine():
                self._release(self._gone.popleft())

    def open_graph(self, name: str, part_config: PathLike | None) -> OpenedGraph:
        """See Storage. Servers map their partitions, and fill tables with their features when the graph is first opened."""
        self._tidy()
        path = self._part_config if part_config is None else os.path.abspath(part_config)
        if path is None:
            raise UsageError(f"DistGraph({name!r}): kgdist-launch was given no --part_config; say part_config= here")
        part = part_of(name, path, self.machine)
        opened = described(name, part.partition, self.machine)
        self._together.create(f"{name}~graph", {"graph": name, "path": str(path), "digest": part.partition.graph}, {}, [])
        self._parts[name] = part
        for key, spec in features_of(opened):
            self._make(spec, None, {"feature": [name, spec.policy.kind, spec.policy.type_name, key]})
        for policy in (*opened.nodes.values(), *opened.edges.values()):
            self.policies.add(policy)
        return opened

    def create(self, spec: Spec, initialise: Initialiser | None) -> None:
        """See Storage. `initialise` is found by its name in the servers."""
        self._tidy()
        self._make(spec, initialise, {})

    def _make(self, spec: Spec, initialise: Initialiser | None, more: Mapping[str, Any]) -> None:
        """`more`: what servers are told besides, to fill it."""
        if (there := self._held.get(spec.name)) is not None:
            agree(spec, there.spec)
        table = spec.table
        told = {"table": table.to_json(), "dtype": table.dtype, **more}
        arrays = {"": (table.storage.str, list(table.row_shape))}
        number, mine = self._together.create(spec.name, told, arrays, spec.policy.bounds.tolist(), initialise)
        if there is None:
            with self.turn:
                self._declare(spec.policy)
                there = self._held[spec.name] = Held(spec, number, attached(table, mine))
                self.tables.add(table, number, there.memory)
        there.users += 1

    def _declare(self, policy: PartitionPolicy) -> None:
        tables = self.tables
        self._bounds[policy.name] = policy.bounds
        tables.declare(policy.name, policy.bounds)

    def release(self, name: str) -> None:
        """See Storage. Called by the collector of garbage, at any time: so it is only noted."""
        self._gone.append(name)

    def _release(self, name: str) -> None:
        if (held := self._held.get(name)) is None:
            return
        held.users -= 1
        self._together.drop(name)
        if held.users:
            return
        if (rule := self._rules.pop(name, None)) is not None:
            self.tables.drop(rule[0].name)
            self._together.drop(rule[0].name)
        for state in held.states.values():
            self._release(state.name)
        self.tables.drop(name)
        del self._held[name]

    def names(self) -> list[str]:
        """See Storage: those that this trainer uses."""
        return list(self._held)

    def here(self, name: str, ids: np.ndarray) -> torch.Tensor | None:
        """See Storage."""
        with self.turn:
            if self._gone:
                self._tidy()
            if self._pushed:
                self.flush()
            return self.tables.here(name, ids)

    @_in_turn
    def read(self, name: str, rows: Rows, announced: bool = False) -> torch.Tensor:
        """See Storage; what this trainer has pushed is in it."""
        self._tidy()
        if self._pushed:
            self.flush()
        if isinstance(rows, range):
            return self.tables.block(name, rows.start, max(rows.start, rows.stop)).clone()
        return self.tables.pull(name, torch.from_numpy(rows), announced=announced)

    @_in_turn
    def ahead(self, name: str, rows: np.ndarray) -> None:
        """See Storage."""
        self.tables.ahead({name: rows})

    @_in_turn
    def write(self, name: str, rows: Rows, values: torch.Tensor) -> None:
        """See Storage."""
        self._tidy()
        where = slice(rows.start, max(rows.start, rows.stop)) if isinstance(rows, range) else torch.from_numpy(rows)
        self.tables.assign(name, where, values)
        self.tables.forget()

    def local(self, name: str) -> torch.Tensor | None:
        """See Storage."""
        memory = self._held[name].memory
        return memory.spec.tensor_of(memory.arrays[""])

    @_in_turn
    def learn(self, name: str, rule: str, settings: Mapping[str, float]) -> dict[str, Spec]:
        """See Storage. The optimiser is a table of its own over the same memory, so that rows can be written as well."""
        self._tidy()
        held = self._held[name]
        if held.learns == (rule, dict(settings)):
            return held.states
        width = int(np.prod(held.spec.row_shape, dtype=np.int64))
        states = {
            key: Spec(f"{name}.{rule}.{key}", held.spec.policy, torch.float32, (state_width,))
            for key, state_width in rule_of(rule, settings).widths(width).items()
        }
        for state in states.values():
            self.create(state, None)
        spec = TableSpec(f"{name}.{rule}", held.spec.policy.name, "float32", held.spec.row_shape, rule, dict(settings))
        parts = {"": name} | {key: state.name for key, state in states.items()}
        number, _ = self._together.create(spec.name, {"table": spec.to_json(), "of": parts}, {}, held.spec.policy.bounds.tolist())
        memory = TableMemory(spec, {key: self._held[part].memory.arrays[""] for key, part in parts.items()})
        if (before := self._rules.pop(name, None)) is not None:
            self.tables.drop(before[0].name)
            self._together.drop(before[0].name)
        self.tables.add(spec, number, memory)
        self._rules[name] = spec, number, memory
        for state in held.states.values():
            self._release(state.name)
        held.learns, held.states = (rule, dict(settings)), states
        return states

    def learns(self, name: str) -> Learns | None:
        """See Storage."""
        return self._held[name].learns

    @_in_turn
    def push(self, name: str, rows: np.ndarray, grads: torch.Tensor, lr: float) -> None:
        """See Storage."""
        self.tables.push({self._rules[name][0].name: Update(rows, grads.flatten(1))}, lr)
        self._pushed = True

    @_in_turn
    def flush(self) -> None:
        """See Storage."""
        self.tables.flush()
        self._pushed = False

    @_in_turn
    def ask(self, part: int, what: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Answer:
        """See Storage."""
        self._tidy()
        if self._pushed:
            self.flush()
        if part == self.machine:
            found = list(self._owner.services()[what](dict(arguments), list(arrays)))
            return lambda: found
        return functools.partial(self._arrived, self.tables.ask(part, what, arguments, arrays).result)

    @_in_turn
    def _arrived(self, answer: Answer) -> list[np.ndarray]:
        return answer()

    def close(self) -> None:
        """Let go of all rows; the connections stay their maker's."""
        self._held.clear()
        self._rules.clear()
        self._connected = None
        if self._slot is not None:
            self._slot.close()

    def _own_rows(self, name: str) -> OwnRows | None:
        held = self._held.get(name)
        local = self.local(name) if held is not None else None
        return None if held is None or local is None else OwnRows(held.spec.policy.range(self.machine)[0], local)

    def originals(self, policy: PartitionPolicy, part: int) -> np.ndarray:
        """See Storage."""
        if policy.graph not in self._parts:
            return np.arange(*policy.range(part), dtype=np.int64)
        return self.ask(part, "originals", {"graph": policy.graph, "kind": policy.kind, "type": policy.type_name}, [])()[0]

    def barrier(self, problem: str = "") -> None:
        """See Storage."""
        self._tidy()
        if self._pushed:
            self.flush()
        self._together.barrier(problem=problem)
        with self.turn:
            self.tables.forget()
