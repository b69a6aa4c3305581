"""One partition folder, opened: its triples, the original ids of its rows, and what evaluation needs, all memory-mapped.

    partition.json                          see manifest.py
    train.npy, train.weights.npy            int32[T_p, 3] new ids, in the order of the data set; float32[T_p] if there are weights
    entities.npy, relations.npy             int32, the original id of each own entity and relation, by new id
    valid.npy, test.npy                     int32[., 3] new ids, whole in every partition
    <split>.known.<side>.<array>.npy        the filter for the queries of that split, see data/known.py

and, of partition 0 alone, for reports:

    entity.*.npy, relation.*.npy            the names of original ids, see data/vocabulary.py
    originals.npy                           int32[entities], the original id of every entity, by new id
    categories.npy                          int8[relations], by original id, see data/statistics.py

Nothing is made here: writing is in writer.py, comparing with the data set in verify.py.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, load_npy, sha256
from kgdist.data.dataset import Triples
from kgdist.data.known import KnownTriples
from kgdist.data.vocabulary import Vocabulary
from kgdist.partition.book import Book
from kgdist.partition.manifest import NAME, Files, Manifest

_FOLDER = re.compile(r"partition_(0|[1-9][0-9]*)")


def folder_of(root: PathLike, part: int) -> Path:
    """Where partition `part` of the partitions in `root` lies."""
    return Path(root) / f"partition_{part}"


def numbered(root: PathLike) -> list[Path]:
    """The folders partition_0, partition_1, ... in `root`, in that order; those that are there."""
    found = [(int(match[1]), path) for path in Path(root).glob("partition_*") if (match := _FOLDER.fullmatch(path.name))]
    return [path for _, path in sorted(found) if path.is_dir()]


class Partition:
    """A partition of a graph. Ids are new ids everywhere, see `kgdist.partition.book`."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        common = manifest.common
        self.folder = folder
        self.manifest = manifest
        self.name = common.dataset
        self.part = manifest.part
        self.book: Book = common.book
        self.graph = common.graph  # equal for all partitions that belong together
        own = common.triples[self.part]
        weights = self._map("train.weights.npy", np.float32, (own,)) if common.weighted else None
        self.train = Triples(self._map("train.npy", np.int32, (own, 3)), weights)
        self.splits = {"train": self.train}  # train: its own triples only
        for split, count in common.splits.items():
            if split != "train":
                self.splits[split] = Triples(self._map(f"{split}.npy", np.int32, (count, 3)))
        rows = (int(starts[self.part + 1] - starts[self.part]) for starts in (self.book.entities, self.book.relations))
        # int32[.]: original ids of the own rows
        self.entities, self.relations = (
            self._map(f"{name}.npy", np.int32, (count,)) for name, count in zip(("entities", "relations"), rows, strict=True)
        )

    @classmethod
    def open(cls, folder: PathLike, *, verify: bool = False) -> Partition:
        """Map a folder that kgdist-partition wrote; sizes are compared, and with `verify` every byte (a second for each GB).

        Raises CheckpointError naming the file that is missing or is not as it was written.
        """
        path = Path(folder)
        if not path.is_dir():
            raise CheckpointError(f"{path}: no such folder; kgdist-partition makes it")
        if not (path / NAME).exists() and (path / "local_to_global.txt").exists():
            raise CheckpointError(f"{path}: a text partition; kgdist-partition --method dglke takes it over")
        manifest = Manifest.read(path)
        for name, (size, digest) in manifest.files.items():
            file = path / name
            if not file.is_file():
                raise CheckpointError(f"{file}: missing; make or copy the partition again")
            if file.stat().st_size != size:
                raise CheckpointError(f"{file}: {file.stat().st_size} bytes instead of {size}; make or copy the partition again")
            if verify and sha256(file) != digest:
                raise CheckpointError(
                    f"{file}: its content has changed since it was written (sha256 differs); make or copy the partition again"
                )
        if verify and (strange := {file.name for file in path.iterdir()} - {*manifest.files, NAME}):
            raise CheckpointError(f"{path / min(strange)}: not a file of this partition; remove it")
        return cls(path, manifest)

    def known(self, split: str) -> KnownTriples:
        """The known answers, among all triples of train, valid and test, to the queries of "valid" or "test"."""
        if split == "train" or split not in self.splits:
            raise CheckpointError(f"{self.folder}: has no split {split} to evaluate on")
        return KnownTriples.open(self.folder, f"{split}.known", self.book.num_entities, self.book.num_relations)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The names of entities and relations by original id; partition 0 has them."""
        self._first("the names")
        entities, relations = (
            Vocabulary.load(self.folder, stem) if count is None else Vocabulary.numbered(count)
            for stem, count in zip(("entity", "relation"), self.manifest.common.numbered, strict=True)
        )
        if (len(entities), len(relations)) != (self.book.num_entities, self.book.num_relations):
            raise CheckpointError(f"{self.folder}: its names are not as many as the ids of the partition book")
        return entities, relations

    def categories(self) -> np.ndarray:
        """int8[relations] of `relation_categories`, by original id as the names; partition 0 has them."""
        self._first("the categories of relations")
        return self._map("categories.npy", np.int8, (self.book.num_relations,))

    def originals(self) -> np.ndarray:
        """int32[entities], the original id of every entity of the graph, by new id; partition 0 has them."""
        self._first("the ids of all entities")
        return self._map("originals.npy", np.int32, (self.book.num_entities,))

    def files(self) -> Files:
        """Name -> (bytes, sha256) of every file of the folder, partition.json among them."""
        return {**self.manifest.files, NAME: self._own}

    @functools.cached_property
    def _own(self) -> tuple[int, str]:
        file = self.folder / NAME
        return file.stat().st_size, sha256(file)

    def _first(self, what: str) -> None:
        if self.part:
            raise CheckpointError(f"{self.folder}: {what} are in partition_0 only")

    def _map(self, name: str, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
        file = self.folder / name
        if name not in self.manifest.files:
            raise CheckpointError(f"{file}: not among the files of the partition")
        array = load_npy(file, mmap=True)
        if array.dtype != dtype or array.shape != shape:
            raise CheckpointError(
                f"{file}: expected {np.dtype(dtype).name}{list(shape)} by {NAME}, found {array.dtype}{list(array.shape)}"
            )
        return array
