"""A self-sufficient partition: the triples to train on, and those that carry messages to their entities; mapped.

    partition.json                        see kgdist.partition.manifest; this is format 3
    entities.npy                          int32[n], the original id of each local id: core entities, then those of hop 1, 2, ...;
                                          ascending within each
    core.npy, support.npy                 int32[., 3] head and tail as local ids, relation as its original one; in the order of
                                          the data set
    core.ids.npy, support.ids.npy         int32[.], the number of each in the train split (int64 from 2^31 triples on)
    core.weights.npy, support.weights.npy float32[.], where the data set has weights
    valid.npy, test.npy                   int32[., 3] original ids, whole in every partition
    types.npy                             int32[., 2], original ids and types of all entities, where there are types

and, of partition 0 alone, entity.*.npy and relation.*.npy, the names of original ids, see data/vocabulary.py.

A triple is core in exactly one partition. Messages to the core entities of a partition, through as many layers as it has hops,
come along its core and support triples and no others. Entities without triples are in no partition.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, sha256, sha256_of_json
from kgdist.data.dataset import Triples
from kgdist.data.vocabulary import Vocabulary
from kgdist.partition.expansion import Reach
from kgdist.partition.folder import names_in
from kgdist.partition.manifest import KINDS, NAME, Manifest
from kgdist.partition.typed_folder import whole

SETS = ("core", "support")


@dataclass(frozen=True)
class EdgesInCommon:
    """What is the same in every partition."""

    FORMAT: ClassVar[int] = 3
    KIND: ClassVar[str] = KINDS[3]

    dataset: str
    digest: str  # of the data set, as `Dataset.digest`
    method: str
    reach: Reach
    entities: int  # of the whole graph
    relations: int
    splits: dict[str, int]  # "train", and "valid" and "test" where there are such -> triples
    weighted: bool
    numbered: tuple[int | None, int | None]  # how many entities and relations there are, where they have no names
    sizes: dict[str, Any]  # see `kgdist.partition.expansion.EdgeSizes`
    contents: tuple[str, ...]  # `digest_of` the files of each partition
    source: dict[str, Any]  # the options that the data set was read with
    types: int = 0  # rows of types.npy

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        plain = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        reach = {**dataclasses.asdict(self.reach), "fanout": list(self.reach.fanout)}
        if not plain["types"]:  # an older kgdist knows of none
            del plain["types"]
        return {**plain, "reach": reach, "numbered": list(self.numbered), "contents": list(self.contents)}

    @classmethod
    def from_json(cls, value: Any) -> EdgesInCommon:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for what is no such thing."""
        reach, (entities, relations) = value["reach"], value["numbered"]
        fanout = tuple(int(count) for count in reach["fanout"])
        found = cls(
            str(value["dataset"]),
            str(value["digest"]),
            str(value["method"]),
            Reach(int(reach["hops"]), fanout, bool(reach["inverse"]), int(reach["seed"])),
            int(value["entities"]),
            int(value["relations"]),
            {str(split): int(count) for split, count in value["splits"].items()},
            bool(value["weighted"]),
            (entities, relations),
            dict(value["sizes"]),
            tuple(str(content) for content in value["contents"]),
            dict(value["source"]),
            int(value.get("types", 0)),
        )
        if found.to_json() != value or len(fanout) not in (0, found.reach.hops):
            raise ValueError("its numbers contradict one another")
        hops, sizes = found.reach.hops + 1, found.sizes
        counts = [*sizes["core"], *sizes["support"], *(count for each in sizes["vertices"] for count in each)]
        if any(type(count) is not int or count < 0 for count in counts) or any(len(each) != hops for each in sizes["vertices"]):
            raise ValueError("sizes that cannot be")
        if {len(sizes[name]) for name in (*SETS, "vertices")} != {len(found.contents)}:
            raise ValueError("sizes of another number of partitions")
        if sum(sizes["core"]) != found.splits["train"]:
            raise ValueError("the triples of the partitions do not add up")
        return found

    @property
    def graph(self) -> str:
        """sha256 of all of it, in hex."""
        return sha256_of_json(self.to_json())


class EdgePartition:
    """A self-sufficient partition. Entities have local ids, core entities first; relations keep their original ids.

    Attributes:
        core: the triples to train on, int32[C, 3]; their ends are 0..num_core - 1.
        support: triples that only carry messages, int32[S, 3].
        core_ids, support_ids: int[C], int[S], their numbers in the train split of the data set.
        entities: int32[n], the original id of each local id.
        hops: int64[hops + 2]; local ids hops[h]:hops[h + 1] are reached from the core in h hops and no fewer.
        splits: "valid" and "test" where there are such, in original ids.
        graph: a digest, equal for all partitions that belong together.
    """

    def __init__(self, folder: Path, manifest: Manifest[EdgesInCommon]) -> None:
        common = manifest.common
        self.folder, self.manifest = folder, manifest
        self.name, self.part, self.graph = common.dataset, manifest.part, common.graph
        self.hops = np.concatenate([[0], np.cumsum(common.sizes["vertices"][self.part])]).astype(np.int64)
        self.entities = self._map("entities.npy", np.int32, (int(self.hops[-1]),))
        self.core, self.support = (self._triples(name, common.sizes[name][self.part]) for name in SETS)
        numbers = whole(common.splits["train"])
        self.core_ids, self.support_ids = (
            self._map(f"{name}.ids.npy", numbers, (common.sizes[name][self.part],)) for name in SETS
        )
        self.splits = {
            split: Triples(self._map(f"{split}.npy", np.int32, (count, 3)))
            for split, count in common.splits.items()
            if split != "train"
        }

    @classmethod
    def open(cls, folder: PathLike, *, verify: bool = False) -> EdgePartition:
        """Map a folder that kgdist-partition --edges wrote; sizes are compared, and with `verify` every byte.

        Raises CheckpointError naming the file that is missing or is not as it was written.
        """
        path = Path(folder)
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such folder; kgdist-partition --edges makes it")
        manifest = Manifest.read(path, EdgesInCommon)
        manifest.check(path, verify=verify)
        return cls(path, manifest)

    @property
    def types(self) -> np.ndarray | None:
        """int32[n, 2] of original id and type, for all entities, if the graph was divided with types."""
        count = self.manifest.common.types
        return self._map("types.npy", np.int32, (count, 2)) if count else None

    @property
    def num_core(self) -> int:
        """How many core entities there are."""
        return int(self.hops[1])

    def whole(self, layers: int) -> np.ndarray:
        """bool[n]: the entities whose messages through so many layers are all here, as in the whole graph. Core entities are,
        by as many hops, and others that lie inside. With fan-outs core entities alone count as such."""
        reach, found = self.manifest.common.reach, np.ones(len(self.entities), bool)
        if reach.fanout:
            found[self.num_core :] = False
            return found
        heard = np.arange(len(found)) < self.hops[reach.hops]  # all edges into these are here
        if len(self.core) + len(self.support) == self.manifest.common.splits["train"]:
            heard[:] = True
        for _ in range(layers):
            last, found = found, found & heard
            for triples in (self.core.array, self.support.array):
                found[triples[~last[triples[:, 0]], 2]] = False
                if reach.inverse:
                    found[triples[~last[triples[:, 2]], 0]] = False
        return found

    def files(self) -> dict[str, tuple[int, str]]:
        """Name -> bytes and sha256 of each file, partition.json too: what copying the partition means."""
        path = self.folder / NAME
        return {**self.manifest.files, NAME: (path.stat().st_size, sha256(path))}

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The names of entities and relations by original id; partition 0 has them."""
        if self.part:
            raise CheckpointError(f"{self.folder}: the names are in partition_0 only")
        common = self.manifest.common
        return names_in(self.folder, common.numbered, (common.entities, common.relations))

    def _triples(self, name: str, count: int) -> Triples:
        weights = self._map(f"{name}.weights.npy", np.float32, (count,)) if self.manifest.common.weighted else None
        return Triples(self._map(f"{name}.npy", np.int32, (count, 3)), weights)

    def _map(self, name: str, dtype: np.dtype | type, shape: tuple[int, ...]) -> np.ndarray:
        return self.manifest.map(self.folder, name, dtype, shape)
