"""Which partition owns which rows of a distributed tensor: the ranges of one node type or edge type of a graph.

Nothing here reads or sends anything.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError


@dataclass(frozen=True, eq=False)
class PartitionPolicy:
    """Rows are dealt out as the nodes of one type, or the edges of one type, of a partitioned graph; equal ones are of one graph,
    kind and type.

    `part` is the partition of this process's machine; None where one process holds all of them.
    """

    graph: str  # its name; behind that of a graph that took the place of one of its name there is a number
    kind: str  # "node" or "edge"
    type_name: str  # a node type, or an edge type as "source:relation:destination"
    bounds: np.ndarray  # int64[k+1]: partition p owns rows bounds[p]:bounds[p+1]
    part: int | None = None

    @property
    def policy_str(self) -> str:
        """`node~_N`, `edge~_N:_E:_N`."""
        return f"{self.kind}~{self.type_name}"

    @property
    def graph_name(self) -> str:
        """What the graph was called when it was partitioned."""
        return self.graph.partition("~")[0]

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two of them one."""
        return self.graph, self.kind, self.type_name

    @property
    def name(self) -> str:
        """The same as a text."""
        return f"{self.graph}~{self.policy_str}"

    @property
    def parts(self) -> int:
        """k, the number of partitions."""
        return len(self.bounds) - 1

    @property
    def part_id(self) -> int | None:
        """The partition of this machine; None where one process holds all."""
        return self.part

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PartitionPolicy) and self.key == other.key and np.array_equal(self.bounds, other.bounds)

    def __hash__(self) -> int:
        return hash(self.key)

    def __str__(self) -> str:
        return f"{self.kind}s of type {self.type_name} of graph {self.graph_name!r}"

    def is_of(self, type_name: Any) -> bool:
        """Whether these rows are of that node type, or of that edge type: three names, or the middle one."""
        names = self.type_name.split(":")
        short = names[1] if self.kind == "edge" and len(names) == 3 else self.type_name
        return (":".join(type_name) if isinstance(type_name, tuple | list) else type_name) in (self.type_name, short)

    def get_size(self) -> int:
        """Rows altogether."""
        return int(self.bounds[-1])

    def get_part_size(self, part: int | None = None) -> int:
        """Rows of partition `part`, by default of this machine's, or of all where one process holds all."""
        start, stop = self.range(self.part if part is None else part)
        return stop - start

    def range(self, part: int | None) -> tuple[int, int]:
        """First row of a partition and the one after its last; of all partitions for None."""
        if part is None:
            return 0, self.get_size()
        return int(self.bounds[part]), int(self.bounds[part + 1])

    def owners(self, rows: np.ndarray) -> np.ndarray:
        """int64[n] rows -> int64[n] partitions."""
        return np.searchsorted(self.bounds[1:], rows, side="right")

    def to_partid(self, rows: torch.Tensor) -> torch.Tensor:
        """int64[n] rows -> int64[n] partitions. Raises UsageError for a row that is not there."""
        ids = np.asarray(rows, np.int64)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.get_size():
            raise UsageError(f"rows {int(ids.min())} to {int(ids.max())}: there are {self.get_size()} {self}")
        return torch.from_numpy(self.owners(ids))

    def to_local(self, rows: torch.Tensor) -> torch.Tensor:
        """int64[n] rows -> int64[n] places within the partition of each."""
        return torch.as_tensor(rows) - torch.from_numpy(self.bounds)[self.to_partid(rows)]


class Policies:
    """The policies of all graphs that a process has opened, and the one that a number of rows stands for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], PartitionPolicy] = {}

    def add(self, policy: PartitionPolicy) -> None:
        """Know one; a graph that is opened again takes the place of the one before."""
        self._known[policy.key] = policy

    def forget(self, graph: str) -> None:
        """Find no more of a graph's."""
        self._known = {key: policy for key, policy in self._known.items() if policy.graph != graph}

    def __iter__(self) -> Iterator[PartitionPolicy]:
        return iter(self._known.values())

    def find(self, rows: int, what: str, kind: str | None = None, type_name: Any = None) -> PartitionPolicy:
        """The only one of that many rows, and of that kind and type if they are said. Raises UsageError, in which `what` is what
        needs it, for none or several."""
        if not self._known:
            raise UsageError(f"{what}: open a DistGraph first, rows are dealt out as its nodes or edges are")
        known = [policy for policy in self._known.values() if kind in (None, policy.kind)]
        fitting = [policy for policy in known if type_name is None or policy.is_of(type_name)]
        if not fitting and type_name is not None:
            raise UsageError(f"{what}: there is no type {type_name!r}; there are the {', '.join(map(str, known)) or 'none'}")
        known, fitting = fitting, [policy for policy in fitting if policy.get_size() == rows]
        if not fitting:
            sizes = ", ".join(f"{policy.get_size()} {policy}" for policy in known)
            raise UsageError(f"{what}: {rows} rows are as many as no type of the graph has; there are {sizes or 'none'}")
        if len(fitting) > 1:
            several = ", ".join(map(str, fitting))
            raise UsageError(
                f"{what}: {rows} rows could be the {several}; say which by part_policy=g.get_node_partition_policy(type) "
                "or get_edge_partition_policy(type)"
            )
        return fitting[0]
