"""Where the rows and the structure of distributed graphs lie, seen from a trainer: the seam beneath DistGraph, DistTensor and
DistEmbedding.

`Standalone` holds all partitions in this process; the client of servers is its twin for a launched script. Nothing else in this
folder knows which of them is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.files import PathLike
from kgdist.distributed.policy import PartitionPolicy, Policies
from kgdist.distributed.rows import NAMES, Rows
from kgdist.kvstore.catalogue import TableSpec

Answer = Callable[[], list[np.ndarray]]  # waits for it, and is it
Initialiser = Callable[[tuple[int, ...], torch.dtype], torch.Tensor]  # the shape and dtype of an owner's rows -> the rows


Learns = tuple[str, dict[str, float]]  # a rule of kgdist.kvstore.optim and its settings


class Spec(NamedTuple):
    """What a table of rows is: equal ones can be shared by name."""

    name: str
    policy: PartitionPolicy
    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole table."""
        return (self.policy.get_size(), *self.row_shape)

    @property
    def table(self) -> TableSpec:
        """The same as the store knows it: written and read, and changed by one owner."""
        return TableSpec(self.name, self.policy.name, NAMES[self.dtype], self.row_shape)


class OpenedGraph(NamedTuple):
    """What a trainer knows of a graph that is open."""

    nodes: dict[str, PartitionPolicy]
    edges: dict[tuple[str, str, str], PartitionPolicy]
    node_features: dict[str, dict[str, Spec]]
    edge_features: dict[tuple[str, str, str], dict[str, Spec]]
    book: Any

    @property
    def key(self) -> str:
        """What owners call it when they are asked: its name, and more where another one of its name was open before."""
        return next(iter(self.nodes.values())).graph


class Placement(NamedTuple):
    """Which trainer this is, and where the others are: trainers are numbered machine by machine, as many on each."""

    rank: int
    trainers: int
    machines: int

    @property
    def per_machine(self) -> int:
        """Trainers of each machine."""
        return self.trainers // self.machines

    def cared_for(self, parts: int) -> list[int]:
        """Of so many partitions those that this trainer, and no other one, does something for: its machine's, or all."""
        if self.machines != parts:
            return list(range(parts)) if self.rank == 0 else []
        return [self.rank // self.per_machine] if self.rank % self.per_machine == 0 else []


class Storage(Protocol):
    """Tables of rows, partitioned, and the graphs they belong to."""

    policies: Policies
    placement: Placement

    def open_graph(self, name: str, part_config: PathLike | None) -> OpenedGraph:
        """See DistGraph; the policies of its types are known from then on, and its features are tables."""

    def create(self, spec: Spec, initialise: Initialiser | None) -> None:
        """Make a table, of zeros or of what `initialise` gives for the rows of each owner, or count one more user of that which
        is there by this name; all trainers together. Raises UsageError where dtype, shape or policy disagree."""

    def release(self, name: str) -> None:
        """One user less; after the last one, of any trainer, the table goes. Waits for nobody."""

    def names(self) -> list[str]:
        """All tables that are there."""

    def read(self, name: str, rows: Rows, announced: bool = False) -> torch.Tensor:
        """A copy of rows, which may repeat, in their order; with all that this trainer has pushed. `announced`: as they were when
        `ahead` named them, or later."""

    def here(self, name: str, ids: np.ndarray) -> torch.Tensor | None:
        """As `read`, of int64[n] ids that nobody has looked at; None unless all of them are rows in this process's memory. What a
        machine reads most is its own, and looking twice took a tenth of the time."""

    def ahead(self, name: str, rows: np.ndarray) -> None:
        """These int64[n] rows will be read with `announced`: those that lie far away can be sent for now, as they are. Forgotten
        at the next write or barrier."""

    def write(self, name: str, rows: Rows, values: torch.Tensor) -> None:
        """Overwrite rows; of those that come twice the last counts. Returns when all owners have done it."""

    def local(self, name: str) -> torch.Tensor | None:
        """The rows of this machine in its memory, of all partitions where one process holds all; None where that needs a copy."""

    def learn(self, name: str, rule: str, settings: Mapping[str, float]) -> dict[str, Spec]:
        """Give a float32 table an optimiser of kgdist.kvstore.optim; all trainers together. Returns its state by name: tables
        that can be read and written, and that stay where the table has this optimiser already; another one's go."""

    def learns(self, name: str) -> Learns | None:
        """What `learn` was told last."""

    def push(self, name: str, rows: np.ndarray, grads: torch.Tensor, lr: float) -> None:
        """One step of the optimiser on int64[n] unique rows, where they live; float32[n, *row shape]. Does not wait."""

    def flush(self) -> None:
        """Wait until every push of this trainer has been applied."""

    def ask(self, part: int, what: str, arguments: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Answer:
        """Ask whoever owns partition `part`; what is asked is answered by kgdist.distributed.services."""

    def originals(self, policy: PartitionPolicy, part: int) -> np.ndarray:
        """int64[n]: the ids that the nodes or edges of a partition had before, by their new ones."""

    def barrier(self, problem: str = "") -> None:
        """Wait until all trainers are here. Raises KgdistError, for all of them, where one has a problem."""


def agree(spec: Spec, there: Spec) -> None:
    """Raises UsageError unless `spec` can use the table that is there by its name."""
    if spec.dtype != there.dtype or spec.shape != there.shape:
        one, other = (f"{NAMES[each.dtype]}{list(each.shape)}" for each in (there, spec))
        raise UsageError(f"{spec.name!r} is there already, as {one}, not {other}; take another name")
    if spec.policy != there.policy:
        raise UsageError(f"{spec.name!r} is there already, for the {there.policy}, not the {spec.policy}; take another name")
