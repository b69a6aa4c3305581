"""Which server owns which rows of which table: contiguous ranges, known to every process. Plain data; rows live elsewhere.

A machine owns one range of each table (its partition), and its servers share that range evenly, in order. So servers are
numbered through all machines, and a server's range follows that of the one before. Whom a client asks for a row is said here,
too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError
from kgdist.kvstore.messages import MOST_BYTES


@dataclass(frozen=True)
class Layout:
    """S servers.

    Attributes:
        widths: table -> numbers in a row, in the order of the tables.
        starts: policy -> int64[S + 1]; server s owns rows starts[s]:starts[s + 1]. A table has those of the policy of its
            name; there may be more policies, for tables to come (`kgdist.kvstore.catalogue`).
        machine_of: int64[S], the machine of each server, ascending; every machine has one at least.
        by_owner: a row is changed by the server that owns it and by nobody else (`--local_update owner`). Otherwise any server of
            a machine answers for all of its rows, for all map the same memory: a client asks one server of each machine.
        optimizer: of these tables.
    """

    widths: dict[str, int]
    starts: dict[str, np.ndarray]
    machine_of: np.ndarray
    by_owner: bool = False
    optimizer: str = "adagrad_row"

    def __post_init__(self) -> None:
        if not self.servers or self.machine_of[0] != 0 or set(np.diff(self.machine_of).tolist()) - {0, 1}:
            raise ValueError(f"machines of servers cannot be {self.machine_of.tolist()}")
        for name, starts in self.starts.items():
            if len(starts) != self.servers + 1 or starts[0] != 0 or (np.diff(starts) < 0).any():
                raise ValueError(f"{name}: ranges of {self.servers} servers cannot be {starts.tolist()}")
        if not self.widths.keys() <= self.starts.keys():
            raise ValueError("every table needs ranges")
        for name, width in self.widths.items():
            if 4 * width > MOST_BYTES:
                raise KgdistError(f"table {name}: a row of {width} numbers is longer than a message of {MOST_BYTES >> 20} MiB")

    @classmethod
    def build(
        cls, widths: Mapping[str, int], machines: Mapping[str, np.ndarray], servers: Sequence[int], *, by_owner: bool = False,
        optimizer: str = "adagrad_row",
    ) -> Layout:  # fmt: skip
        """From the machines' ranges (policy -> int64[k + 1]) and the number of servers of each machine (k numbers)."""
        if not servers or min(servers) < 1:
            raise ValueError(f"every machine needs a server, not {list(servers)}")
        starts = {name: shared_among(name, np.asarray(bounds, np.int64), servers) for name, bounds in machines.items()}
        return cls(dict(widths), starts, np.repeat(np.arange(len(servers), dtype=np.int64), servers), by_owner, optimizer)

    @property
    def servers(self) -> int:
        """S, of all machines."""
        return len(self.machine_of)

    @property
    def machines(self) -> int:
        """How many there are."""
        return int(self.machine_of[-1]) + 1

    def servers_of(self, machine: int) -> range:
        """The numbers of a machine's servers. Raises ValueError for a machine that is not there."""
        if not 0 <= machine < self.machines:
            raise ValueError(f"there is no machine {machine}: {self.machines} machines")
        first, last = np.searchsorted(self.machine_of, [machine, machine + 1])
        return range(int(first), int(last))

    def rows(self, name: str) -> int:
        """Rows of a table, on all machines."""
        return int(self.starts[name][-1])

    def range_of(self, name: str, server: int) -> tuple[int, int]:
        """First row of a server, and the row after its last."""
        return int(self.starts[name][server]), int(self.starts[name][server + 1])

    def machine_range(self, name: str, machine: int) -> tuple[int, int]:
        """The same of a machine."""
        servers = self.servers_of(machine)
        return int(self.starts[name][servers.start]), int(self.starts[name][servers.stop])

    def served(self, name: str, server: int) -> tuple[int, int]:
        """The rows that a server answers for: first, and the one after the last."""
        return self.range_of(name, server) if self.by_owner else self.machine_range(name, int(self.machine_of[server]))

    def targets(self, client: int) -> list[int]:
        """The T servers that a client asks, in the order of their rows; clients spread over the servers of a machine."""
        machines = [self.servers_of(machine) for machine in range(self.machines)]
        return list(range(self.servers)) if self.by_owner else [servers[client % len(servers)] for servers in machines]

    def bounds(self, name: str) -> np.ndarray:
        """int64[T + 1], the ranges of any client's targets."""
        starts = self.starts[name]
        if self.by_owner:
            return starts
        firsts = np.searchsorted(self.machine_of, np.arange(self.machines))
        return np.append(starts[firsts], starts[-1])

    def to_json(self) -> dict[str, Any]:
        """Numbers, lists and names."""
        starts = {name: bounds.tolist() for name, bounds in self.starts.items()}
        plain = {"widths": dict(self.widths), "by_owner": self.by_owner, "optimizer": self.optimizer}
        return plain | {"starts": starts, "machine_of": self.machine_of.tolist()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Layout:
        """What `to_json` gave. Raises ValueError if it does not fit together."""
        starts = {name: np.array(bounds, np.int64) for name, bounds in value["starts"].items()}
        machine_of = np.array(value["machine_of"], np.int64)
        return cls(dict(value["widths"]), starts, machine_of, value["by_owner"], value["optimizer"])


def shared_among(name: str, bounds: np.ndarray, servers: Sequence[int]) -> np.ndarray:
    """int64[S + 1], the servers' ranges: those of the k machines, int64[k + 1], shared evenly by the servers of each. Raises
    ValueError for bounds of another number of machines."""
    if len(bounds) != len(servers) + 1:
        raise ValueError(f"rows of {name} lie on {len(bounds) - 1} machines, but {len(servers)} have servers")
    parts = [first + (last - first) * np.arange(n) // n for first, last, n in zip(bounds, bounds[1:], servers, strict=False)]
    return np.concatenate([*parts, bounds[-1:]]).astype(np.int64)
