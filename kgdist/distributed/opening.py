"""A partitioned graph on disk, as storages need it: its policies and features, and what the owner of a partition has of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.files import PathLike
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.storage import OpenedGraph, Spec
from kgdist.graphs.structure import EType, InEdges
from kgdist.partition.partition_graph import open_partition, open_partitions
from kgdist.partition.typed_folder import LocalPartition


class Part:
    """One partition, mapped from its files, which all processes of a machine share."""

    def __init__(self, partition: LocalPartition) -> None:
        self.partition = partition
        self.canonical_etypes = partition.book.canonical_etypes
        self._edges: dict[EType, InEdges] = {}

    def own_edges(self, etype: EType) -> InEdges:
        """See kgdist.distributed.services.OwnPart."""
        if etype not in self._edges:
            part, (first, _), (low, _) = self.partition, self.partition.range(etype), self.partition.range(etype[2])
            below = part.book.num_nodes(etype[0])
            self._edges[etype] = InEdges(part.starts[etype], part.sources[etype], None, first, low, below)
        return self._edges[etype]

    def originals(self, kind: str, type_name: str) -> np.ndarray:
        """See kgdist.distributed.services.OwnPart."""
        if kind == "node":
            return self.partition.node_ids[type_name]
        return self.partition.edge_ids[self._etype(type_name)]

    def feature(self, kind: str, type_name: str, name: str) -> torch.Tensor:
        """A row for each own node or edge of a type."""
        if kind == "node":
            return self.partition.node_features[type_name][name]
        return self.partition.edge_features[self._etype(type_name)][name]

    def _etype(self, joined: str) -> EType:
        """An edge type by its three names with colons between; the names may have some, too."""
        return next(each for each in self.canonical_etypes if ":".join(each) == joined)


def parts_of(name: str, part_config: PathLike) -> list[Part]:
    """All partitions. Raises UsageError for those of another graph, CheckpointError for what is not there."""
    return [Part(_named(name, part_config, each)) for each in open_partitions(part_config)]


def part_of(name: str, part_config: PathLike, part: int) -> Part:
    """One of them; raises the same."""
    return Part(_named(name, part_config, open_partition(part_config, part)))


def _named(name: str, part_config: PathLike, partition: LocalPartition) -> LocalPartition:
    if partition.name != name:
        raise UsageError(f"{part_config}: has the partitions of graph {partition.name!r}, not of {name!r}")
    return partition


def described(name: str, partition: LocalPartition, part: int | None) -> OpenedGraph:
    """What trainers know of a graph; `part` is the partition of their machine, None where one process holds all."""
    book = partition.book
    nodes = {each: PartitionPolicy(name, "node", each, book.nodes[each], part) for each in book.ntypes}
    edges = {each: PartitionPolicy(name, "edge", ":".join(each), book.edges[each], part) for each in book.canonical_etypes}
    on_nodes = {each: _specs(policy, partition.node_features[each]) for each, policy in nodes.items()}
    on_edges = {each: _specs(policy, partition.edge_features[each]) for each, policy in edges.items()}
    return OpenedGraph(nodes, edges, on_nodes, on_edges, book)


def _specs(policy: PartitionPolicy, features: dict[str, torch.Tensor]) -> dict[str, Spec]:
    return {key: Spec(f"{policy.name}~{key}", policy, rows.dtype, tuple(rows.shape[1:])) for key, rows in features.items()}


def features_of(opened: OpenedGraph) -> Sequence[tuple[str, Spec]]:
    """Every feature by its name, and the table that it is."""
    by_type = [*opened.node_features.values(), *opened.edge_features.values()]
    return [(key, spec) for features in by_type for key, spec in features.items()]
