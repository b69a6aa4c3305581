"""What a worker trains on that trains side by side with others: its partition, with numbers for the entities that it has."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, OptionError, UsageError, counted
from kgdist.data.dataset import Dataset, Triples
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.encoders.encode import encode_tables
from kgdist.models.encoders.encoder import TABLE as ENCODER
from kgdist.models.encoders.encoder import Encoding
from kgdist.options.config import Config
from kgdist.partition.edges_folder import EdgePartition
from kgdist.runtime.checks import features_of
from kgdist.runtime.cluster.training_plan import partition_folder
from kgdist.runtime.job import Seat, trainer_of
from kgdist.training.loop import Trainer
from kgdist.training.peers import Peers, PeerTables


class Share(NamedTuple):
    """What a worker trains on. Its entities have numbers of their own: first those of its partition, core entities before others;
    then those that have no triples, and so are in no partition; and, of the first worker, all others."""

    part: EdgePartition
    entities: np.ndarray  # int64[n], the number in the whole graph of each
    cores: list[np.ndarray]  # int64[.] of each worker, the numbers in the whole graph of its core entities

    @classmethod
    def of(cls, config: Config, peers: Peers) -> Share:
        """The partition of this worker. Raises CheckpointError, OptionError, UsageError, also for attributes that are not those
        of the other workers."""
        part = EdgePartition.open(partition_folder(config, peers.rank))
        if part.part != peers.rank:
            raise CheckpointError(f"{part.folder}: is partition {part.part}, not {peers.rank}; make or copy the partitions again")
        check_partitions(config, part, peers.world)
        if not peers.same(part.graph):
            raise UsageError(f"{part.folder}: the workers have partitions of different graphs; copy them again")
        if not peers.same(features_of(config).get("attributes", "none")):
            raise OptionError("--attributes", f"{config.attributes}: is not the same folder for all workers; copy it again")
        entities = part.entities.astype(np.int64)
        cores = [each.numpy() for each in peers.each(torch.from_numpy(entities[: part.num_core]))]
        alone = np.ones(part.manifest.common.entities, bool)
        alone[np.concatenate(cores)] = False
        entities = np.concatenate([entities, np.flatnonzero(alone)])
        if peers.rank == 0:
            others = np.ones(len(alone), bool)
            others[entities] = False
            entities = np.concatenate([entities, np.flatnonzero(others)])
        return cls(part, entities, cores)

    @property
    def total(self) -> int:
        """Entities of the whole graph."""
        return self.part.manifest.common.entities

    @property
    def relations(self) -> int:
        """Of the whole graph."""
        return self.part.manifest.common.relations

    def encoding(self, config: Config) -> Encoding:
        """What makes rows of its entities."""
        messages = np.concatenate([self.part.core.array, self.part.support.array])
        made = Encoding.of(config, messages, len(self.entities), self.relations, self.entities, self.total)
        assert made is not None, "an encoder is named"
        return made

    def seat(self, config: Config, peers: Peers) -> Seat:
        """Among the workers, as if each had as many triples as the one with most: all make as many steps."""
        shares = tuple(self.part.manifest.common.sizes["core"])
        own = (0, self.part.num_core)
        return Seat(peers.rank, peers.world, peers.world * max(shares), own, shares, self.total, self._pool(config))

    def _pool(self, config: Config) -> np.ndarray | None:
        """int64[n]: the entities that negatives are drawn from, None for core entities: all whose rows are here what the whole
        graph makes of them. One that is never a negative keeps whatever score it has, and stands before right answers."""
        if config.negatives == "local":
            return None
        reached, alone = len(self.part.entities), self.total - len(np.unique(np.concatenate(self.cores)))
        return np.concatenate([np.flatnonzero(self.part.whole(config.num_layers)), np.arange(reached, reached + alone)])

    def trainer(self, config: Config, seat: Seat, tables: MemoryTables, encoding: Encoding, peers: Peers) -> Trainer:
        """The training of its worker. Raises OptionError where it has no triples."""
        shared = PeerTables(tables, peers, self.entities, self.total)
        return trainer_of(config, self.part.core, shared, 0, seat, encoding, self._types())

    def _types(self) -> np.ndarray | None:
        """int32[n, 2], the types of its entities by its own numbers."""
        if self.part.types is None:
            return None
        place = np.full(self.total, -1, np.int32)
        place[self.entities] = np.arange(len(self.entities), dtype=np.int32)
        found = np.stack([place[self.part.types[:, 0]], self.part.types[:, 1]], axis=1)
        return found[found[:, 0] >= 0]

    def encode(self, encoding: Encoding, tables: MemoryTables) -> torch.Tensor:
        """float32[n, D], rows of its entities; right are those of core entities, and of those without triples."""
        return encode_tables(encoding, tables.rows["entity"], tables.rows[ENCODER])

    def dataset(self, config: Config, peers: Peers) -> Dataset | None:
        """The whole graph for the first worker, of all workers' triples: it ranks, and has the names."""
        common = self.part.manifest.common
        core = np.array(self.part.core.array)
        core[:, 0::2] = self.entities[core[:, 0::2]]
        weights = self.part.core.weights
        columns = [torch.from_numpy(np.array(array)) for array in (self.part.core_ids, core, weights) if array is not None]
        if peers.rank:
            peers.send(torch.tensor([len(core)]))
            for column in columns:
                peers.send(column)
            return None
        train = np.empty((common.splits["train"], 3), np.int32)
        weighing = np.empty(len(train), np.float32) if weights is not None else None
        for rank in range(peers.world):
            if rank:
                count = int(peers.receive(torch.empty(1, dtype=torch.int64), rank))
                columns = [peers.receive(torch.empty(count, *column.shape[1:], dtype=column.dtype), rank) for column in columns]
            places = columns[0].numpy()
            train[places] = columns[1].numpy()
            if weighing is not None:
                weighing[places] = columns[2].numpy()
        entities, relations = self.part.vocabularies()
        held = self.part.splits
        valid, test = held.get("valid"), held.get("test")
        whole = Triples(train, weighing)
        folder, source = self.part.folder, common.source
        return Dataset(self.part.name, entities, relations, whole, valid, test, common.digest, folder, source)


def check_partitions(config: Config, part: EdgePartition, workers: int) -> None:
    """Refuse partitions of another number, or that do not hold all that the encoder needs. Raises OptionError, UsageError."""
    common = part.manifest.common
    if len(common.contents) != workers:
        many = f"{part.name} is in {counted(len(common.contents), 'partition')}"
        raise UsageError(f"{many}, and there are {counted(workers, 'worker')}: one worker trains one partition")
    if common.reach.hops < config.num_layers:
        hops = f"the partitions reach {counted(common.reach.hops, 'hop')}"
        raise OptionError("--num_layers", f"{hops}, and each layer needs one; partition again with --expand {config.num_layers}")
    if common.reach.inverse == config.no_inverse:
        other = "with" if common.reach.inverse else "without"
        raise OptionError("--no_inverse", f"the partitions were made for messages {other} inverse relations")
    if config.entity_types is not None:
        raise OptionError(
            "--entity_types", "is for kgdist-partition where several workers train: partitions hold the types; drop it"
        )
    if config.has_edge_importance and not common.weighted:
        raise OptionError("--has_edge_importance", f"the triples of {part.name} have no weights; partition with it as well")
