"""Where a distributed graph can be: one process that holds all partitions, or servers of several machines. What holds in one
place holds in all of them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from kgdist.distributed.current import use
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.storage import Placement, Storage
from tests.distributed.machines import machines

Place = Callable[[Sequence[int], Sequence[int]], AbstractContextManager[Storage]]


def policies(nodes: Sequence[int], edges: Sequence[int]) -> list[PartitionPolicy]:
    """Of a graph "g" with so many nodes and edges in each partition."""
    return [
        PartitionPolicy("g", kind, type_name, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))
        for kind, type_name, counts in (("node", "_N", nodes), ("edge", "_N:_E:_N", edges))
    ]


@contextlib.contextmanager
def standalone(nodes: Sequence[int], edges: Sequence[int]) -> Iterator[Storage]:
    """All partitions in this process."""
    storage = Standalone()
    for policy in policies(nodes, edges):
        storage.policies.add(policy)
    use(storage)
    try:
        yield storage
    finally:
        use(Standalone())


@contextlib.contextmanager
def as_trainer(storage: Standalone, rank: int, trainers: int, machines: int) -> Iterator[None]:
    """Let a storage that holds all partitions be asked as one of several trainers would."""
    before, storage.placement = storage.placement, Placement(rank, trainers, machines)
    try:
        yield
    finally:
        storage.placement = before


@contextlib.contextmanager
def servers(nodes: Sequence[int], edges: Sequence[int]) -> Iterator[Storage]:
    """A machine for each partition, the first with two servers and the trainer."""
    with machines([2, *[1] * (len(nodes) - 1)]) as storage:
        for policy in policies(nodes, edges):
            storage.policies.add(replace(policy, part=0))
        use(storage)
        try:
            yield storage
        finally:
            use(Standalone())


PLACES: dict[str, Place] = {"standalone": standalone, "servers": servers}
