"""A partition of triples: what its partition.json says, and the folder opened, all arrays memory-mapped.

    partition.json                          see kgdist.partition.manifest; this is format 1
    train.npy, train.weights.npy            int32[T_p, 3] new ids, in the order of the data set; float32[T_p] if there are weights
    entities.npy, relations.npy             int32, the original id of each own entity and relation, by new id
    valid.npy, test.npy                     int32[., 3] new ids, whole in every partition
    <split>.known.<side>.<array>.npy        the filter for the queries of that split, see data/known.py
    types.npy                               int32[., 2], new ids and types of all entities, where there are types

and, of partition 0 alone, for reports:

    entity.*.npy, relation.*.npy            the names of original ids, see data/vocabulary.py
    originals.npy                           int32[entities], the original id of every entity, by new id
    categories.npy                          int8[relations], by original id, see data/statistics.py

No array is made here: writing is in write.py, comparing with the data set in verify.py.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, sha256, sha256_of_json
from kgdist.data.dataset import Triples
from kgdist.data.known import KnownTriples
from kgdist.data.vocabulary import Vocabulary
from kgdist.partition.book import Book
from kgdist.partition.manifest import KINDS, NAME, Files, Manifest


@dataclass(frozen=True)
class Common:
    """What is the same in every partition."""

    FORMAT: ClassVar[int] = 1
    KIND: ClassVar[str] = KINDS[1]

    dataset: str
    digest: str  # of the data set, as `Dataset.digest`
    method: str
    balance: str
    seed: int
    book: Book
    splits: dict[str, int]  # "train", and "valid" and "test" where there are such -> triples
    weighted: bool  # the triples of train have weights
    numbered: tuple[int | None, int | None]  # how many entities and relations there are, where they have no names
    sizes: dict[str, Any]  # see `kgdist.partition.graph.Sizes`
    contents: tuple[str, ...]  # `digest_of` the files of each partition
    source: dict[str, Any] = dataclasses.field(default_factory=dict)  # the options that the data set was read with
    types: int = 0  # rows of types.npy
    implied: float = 0.0  # see `kgdist.data.leaks.implied`

    @property
    def triples(self) -> tuple[int, ...]:
        """Triples of train in each partition."""
        return tuple(self.sizes["triples"])

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "dataset": self.dataset,
            "digest": self.digest,
            "parts": self.book.parts,
            "method": self.method,
            "balance": self.balance,
            "seed": self.seed,
            "book": self.book.to_json(),
            "splits": self.splits,
            "weighted": self.weighted,
            "numbered": list(self.numbered),
            "sizes": self.sizes,
            "contents": list(self.contents),
            "source": self.source,
            **({"types": self.types} if self.types else {}),  # an older kgdist knows of none
            **({"implied": self.implied} if self.implied else {}),
        }

    @classmethod
    def from_json(cls, value: Any) -> Common:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for what is no such thing."""
        entities, relations = value["numbered"]
        found = cls(
            str(value["dataset"]),
            str(value["digest"]),
            str(value["method"]),
            str(value["balance"]),
            int(value["seed"]),
            Book.from_json(value["book"]),
            {str(split): int(count) for split, count in value["splits"].items()},
            bool(value["weighted"]),
            (entities, relations),
            dict(value["sizes"]),
            tuple(str(content) for content in value["contents"]),
            dict(value["source"]),
            int(value.get("types", 0)),
            float(value.get("implied", 0.0)),
        )
        if found.to_json() != value or len(found.contents) != found.book.parts or "train" not in found.splits:
            raise ValueError("its numbers contradict one another")
        if len(found.triples) != found.book.parts or sum(found.triples) != found.splits["train"]:
            raise ValueError("the triples of the partitions do not add up")
        return found

    @property
    def graph(self) -> str:
        """sha256 of all of it, in hex."""
        return sha256_of_json(self.to_json())


class Partition:
    """A partition of a graph. Ids are new ids everywhere, see `kgdist.partition.book`."""

    def __init__(self, folder: Path, manifest: Manifest[Common]) -> None:
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
        manifest = Manifest.read(path, Common)
        manifest.check(path, verify=verify)
        return cls(path, manifest)

    @property
    def types(self) -> np.ndarray | None:
        """int32[n, 2] of entity and type, for all entities, if the graph was divided with types."""
        count = self.manifest.common.types
        return self._map("types.npy", np.int32, (count, 2)) if count else None

    def known(self, split: str) -> KnownTriples:
        """The known answers, among all triples of train, valid and test, to the queries of "valid" or "test"."""
        if split == "train" or split not in self.splits:
            raise CheckpointError(f"{self.folder}: has no split {split} to evaluate on")
        return KnownTriples.open(self.folder, f"{split}.known", self.book.num_entities, self.book.num_relations)

    def vocabularies(self) -> tuple[Vocabulary, Vocabulary]:
        """The names of entities and relations by original id; partition 0 has them."""
        self._first("the names")
        counts = self.book.num_entities, self.book.num_relations
        return names_in(self.folder, self.manifest.common.numbered, counts)

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
        return self.manifest.map(self.folder, name, dtype, shape)


def names_in(folder: Path, numbered: Sequence[int | None], counts: tuple[int, int]) -> tuple[Vocabulary, Vocabulary]:
    """The names of entities and relations in a folder, or numbers where `numbered` says how many. Raises CheckpointError unless
    there are `counts` of them."""
    entities, relations = (
        Vocabulary.load(folder, stem) if count is None else Vocabulary.numbered(count)
        for stem, count in zip(("entity", "relation"), numbered, strict=True)
    )
    if (len(entities), len(relations)) != counts:
        raise CheckpointError(f"{folder}: its names are not as many as its ids")
    return entities, relations
