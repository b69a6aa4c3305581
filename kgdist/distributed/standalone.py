"""Tables and graphs of one process that holds all partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import PathLike
from kgdist.distributed.initialisers import initialised
from kgdist.distributed.opening import described, features_of, parts_of
from kgdist.distributed.policy import PartitionPolicy, Policies
from kgdist.distributed.rows import Rows
from kgdist.distributed.services import Owner, OwnPart, OwnRows
from kgdist.distributed.storage import Answer, Initialiser, Learns, OpenedGraph, Placement, Spec, agree
from kgdist.kernels.route import look_up, scatter_rows
from kgdist.kvstore.optim import AdagradRow, State, rule_of


class Table:
    """A table all of whose partitions are in this process: one tensor of each, views of one where it was made here."""

    def __init__(self, spec: Spec, parts: Sequence[torch.Tensor]) -> None:
        self.spec, self.table = spec, spec.table
        self.parts = list(parts)
        self.whole = parts[0] if len(parts) == 1 else None
        self.users = 0
        self.rule: tuple[str, dict[str, float], AdagradRow] | None = None
        self.states: dict[str, Spec] = {}  # of the optimiser, by name

    @classmethod
    def make(cls, spec: Spec, initialise: Initialiser | None) -> Table:
        """Raises UsageError for an initialiser that does not give what was asked for."""
        whole = torch.zeros(spec.shape, dtype=spec.dtype)
        bounds = spec.policy.bounds
        table = cls(spec, [whole[start:stop] for start, stop in pairwise(bounds)])
        table.whole = whole
        if initialise is not None:
            for part in table.parts:
                part[...] = initialised(initialise, tuple(part.shape), spec.dtype, spec.name)
        return table

    def here(self, ids: np.ndarray) -> torch.Tensor | None:
        """See Storage; partitions that lie apart are not looked at."""
        if self.whole is None:
            return None
        found = self.table.empty(len(ids))
        words = self.table.words_of(found).reshape(-1)
        return found if look_up(self.table.words_of(self.whole), ids, 0, len(self.whole), 0, words) else None

    def read(self, rows: Rows) -> torch.Tensor:
        """See Storage."""
        if self.whole is not None and isinstance(rows, range):
            return self.whole[rows.start : rows.stop].clone()
        table = self.table
        found = table.empty(len(rows))
        words = table.words_of(found)
        if self.whole is not None:
            look_up(table.words_of(self.whole), np.asarray(rows), 0, len(self.whole), 0, words.reshape(-1))
            return found
        for part, places, local in self._apart(rows):  # three times as fast as torch's own indexing on both sides
            scatter_rows(table.words_of(self.parts[part]), local.numpy(), places.numpy(), words)
        return found

    def write(self, rows: Rows, values: torch.Tensor) -> None:
        """See Storage."""
        for part, places, local in self._apart(rows):
            # NumPy writes in order, so that the last of equal rows counts; torch may not. It has no bfloat16, but other 16 bits.
            target, given = self.parts[part], values[places]
            if target.dtype == torch.bfloat16:
                target, given = target.view(torch.int16), given.view(torch.int16)
            target.numpy()[local.numpy()] = given.numpy()

    def _apart(self, rows: Rows) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
        """For each partition that owns some: the places of its rows in `rows`, ascending, and in its own tensor."""
        ids = np.asarray(rows, np.int64)
        if self.whole is not None and len(self.parts) == 1:
            return [(0, torch.arange(len(ids)), torch.from_numpy(ids))]
        owners = self.spec.policy.owners(ids)
        found = []
        for part in np.unique(owners):
            places = np.flatnonzero(owners == part)
            local = ids[places] - self.spec.policy.bounds[part]
            found.append((int(part), torch.from_numpy(places), torch.from_numpy(local)))
        return found


class Standalone:
    """Tables and graphs of this process alone, of any number of partitions."""

    def __init__(self) -> None:
        self.policies = Policies()
        self.placement = Placement(0, 1, 1)
        self.tables: dict[str, Table] = {}
        self.graphs: dict[str, OpenedGraph] = {}
        self._keys: dict[tuple[str, str], str] = {}  # of graphs opened from files: name and digest -> what they are called
        self._owners: dict[int, Owner] = {}
        self._parts: dict[int, dict[str, OwnPart]] = {}  # of each partition, by the name of the graph

    def open_graph(self, name: str, part_config: PathLike | None) -> OpenedGraph:
        """See Storage. A graph that is open already, from the same files, keeps what was written to it. One of the same name from
        other files takes its place, and who has opened the one before keeps it as it was."""
        if part_config is None:
            raise UsageError(
                f"DistGraph({name!r}): give part_config=, the JSON file of its partitions; only a script that kgdist-launch has "
                "started knows it"
            )
        parts = parts_of(name, part_config)
        graph = parts[0].partition.graph
        before = [key for (other, _), key in self._keys.items() if other == name]
        key = self._keys.setdefault((name, graph), f"{name}~{len(before)}" if before else name)
        for each in before:
            self.policies.forget(each)
        if key not in self.graphs:
            opened = described(key, parts[0].partition, None)
            for feature, spec in features_of(opened):
                rows = [part.feature(spec.policy.kind, spec.policy.type_name, feature) for part in parts]
                self.adopt(spec, rows)
            self.hold(key, opened, parts)
        self._know(self.graphs[key])
        return self.graphs[key]

    def hold(self, name: str, opened: OpenedGraph, parts: Sequence[OwnPart]) -> None:
        """Take a graph all of whose partitions are here."""
        self.graphs[name] = opened
        self._owners.clear()  # with what they have made of another graph of this name
        for part, own in enumerate(parts):
            self._parts.setdefault(part, {})[name] = own
        self._know(opened)

    def _know(self, opened: OpenedGraph) -> None:
        for policy in (*opened.nodes.values(), *opened.edges.values()):
            self.policies.add(policy)

    def create(self, spec: Spec, initialise: Initialiser | None) -> None:
        """See Storage."""
        if spec.name in self.tables:
            agree(spec, self.tables[spec.name].spec)
        else:
            self.tables[spec.name] = Table.make(spec, initialise)
        self.tables[spec.name].users += 1

    def adopt(self, spec: Spec, parts: Sequence[torch.Tensor]) -> None:
        """Take tensors that are there, one of each partition, as a table; it stays."""
        self.tables[spec.name] = Table(spec, parts)
        self.tables[spec.name].users += 1

    def release(self, name: str) -> None:
        """See Storage."""
        if (table := self.tables.get(name)) is None:
            return
        table.users -= 1
        if table.users <= 0:
            del self.tables[name]
            for state in table.states.values():
                self.release(state.name)

    def names(self) -> list[str]:
        return list(self.tables)

    def read(self, name: str, rows: Rows, announced: bool = False) -> torch.Tensor:
        return self.tables[name].read(rows)

    def here(self, name: str, ids: np.ndarray) -> torch.Tensor | None:
        return self.tables[name].here(ids)

    def ahead(self, name: str, rows: np.ndarray) -> None:
        """See Storage; all rows are here."""

    def write(self, name: str, rows: Rows, values: torch.Tensor) -> None:
        self.tables[name].write(rows, values)

    def local(self, name: str) -> torch.Tensor | None:
        return self.tables[name].whole

    def learn(self, name: str, rule: str, settings: Mapping[str, float]) -> dict[str, Spec]:
        """See Storage."""
        table = self.tables[name]
        if table.rule is not None and table.rule[:2] == (rule, dict(settings)):
            return table.states
        for state in table.states.values():
            self.release(state.name)
        made = rule_of(rule, settings)
        width = int(np.prod(table.spec.row_shape, dtype=np.int64))
        table.rule, table.states = (rule, dict(settings), made), {}
        for key, state_width in made.widths(width).items():
            table.states[key] = Spec(f"{name}.{rule}.{key}", table.spec.policy, torch.float32, (state_width,))
            self.create(table.states[key], None)
        return table.states

    def learns(self, name: str) -> Learns | None:
        """See Storage."""
        rule = self.tables[name].rule
        return None if rule is None else rule[:2]

    def push(self, name: str, rows: np.ndarray, grads: torch.Tensor, lr: float) -> None:
        """See Storage."""
        table = self.tables[name]
        assert table.rule is not None and table.whole is not None
        states: State = {}
        for key, state in table.states.items():
            whole = self.tables[state.name].whole
            assert whole is not None
            states[key] = whole
        table.rule[2].apply(table.whole.flatten(1), states, torch.from_numpy(rows), grads.flatten(1), lr)

    def flush(self) -> None:
        """See Storage; updates are made at once."""

    def ask(self, part: int, what: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Answer:
        """See Storage; answered at once."""
        found = list(self._owner(part).services()[what](dict(arguments), list(arrays)))
        return lambda: found

    def _owner(self, part: int) -> Owner:
        if part not in self._owners:
            self._owners[part] = Owner(partial(self._own_rows, part), self._parts.setdefault(part, {}))
        return self._owners[part]

    def _own_rows(self, part: int, name: str) -> OwnRows | None:
        table = self.tables.get(name)
        return None if table is None else OwnRows(table.spec.policy.range(part)[0], table.parts[part])

    def originals(self, policy: PartitionPolicy, part: int) -> np.ndarray:
        """See Storage; rows of a graph that was never partitioned have the ids that they had."""
        if policy.graph not in self.graphs:
            return np.arange(*policy.range(part), dtype=np.int64)
        arguments = {"graph": policy.graph, "kind": policy.kind, "type": policy.type_name}
        return self.ask(part, "originals", arguments, [])()[0]

    def barrier(self, problem: str = "") -> None:
        """See Storage; nobody else is there."""
        if problem:
            raise KgdistError(problem)
