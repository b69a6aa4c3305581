"""A partition folder: what partition.json says of it, and the folder opened, all arrays memory-mapped.

    partition.json                          see below
    train.npy, train.weights.npy            int32[T_p, 3] new ids, in the order of the data set; float32[T_p] if there are weights
    entities.npy, relations.npy             int32, the original id of each own entity and relation, by new id
    valid.npy, test.npy                     int32[., 3] new ids, whole in every partition
    <split>.known.<side>.<array>.npy        the filter for the queries of that split, see data/known.py

and, of partition 0 alone, for reports:

    entity.*.npy, relation.*.npy            the names of original ids, see data/vocabulary.py
    originals.npy                           int32[entities], the original id of every entity, by new id
    categories.npy                          int8[relations], by original id, see data/statistics.py

partition.json holds

    format   the version of this layout
    part     which partition this is
    graph    sha256 of `common`, as one hex digest: machines that train together compare it
    common   what all partitions of one partitioning have in common, the contents of each among it
    files    name -> size and sha256 of each file beside partition.json

So one folder alone shows whether it is whole, and two digests show whether two folders belong together. No array is made here:
writing is in write.py, comparing with the data set in verify.py.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, load_npy, read_json, sha256, sha256_of_json, write_json
from kgdist.data.dataset import Triples
from kgdist.data.known import KnownTriples
from kgdist.data.vocabulary import Vocabulary
from kgdist.partition.book import Book

_FOLDER = re.compile(r"partition_(0|[1-9][0-9]*)")
FORMAT = 1
NAME = "partition.json"
_FILE = re.compile(r"[a-z][a-z.]*\.npy")
Files = dict[str, tuple[int, str]]  # name -> bytes, sha256


@dataclass(frozen=True)
class Common:
    """What is the same in every partition."""

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


@dataclass(frozen=True)
class Manifest:
    """One partition.json, understood."""

    part: int
    common: Common
    files: Files

    def write(self, folder: Path) -> None:
        """Write it into `folder`."""
        files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in sorted(self.files.items())}
        common = self.common.to_json()
        write_json(
            folder / NAME, {"format": FORMAT, "part": self.part, "graph": self.common.graph, "common": common, "files": files}
        )

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Raises CheckpointError naming the file: not there, of a newer format, or not as it was written."""
        file = folder / NAME
        value = read_json(file)
        if not isinstance(value, dict) or type(value.get("format")) is not int or value["format"] < 1:
            raise CheckpointError(f"{file}: not the description of a partition of kgdist")
        if value["format"] > FORMAT:
            raise CheckpointError(f"{file}: written by a newer kgdist (format {value['format']}, this one reads {FORMAT})")
        try:
            common = Common.from_json(value["common"])
            files = {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in value["files"].items()}
            part = value["part"]
            if set(value) != {"format", "part", "graph", "common", "files"} or type(part) is not int:
                raise ValueError("unknown or missing entries")
            if not all(_FILE.fullmatch(name) for name in files):
                raise ValueError("names of files that cannot be")
            if value["graph"] != common.graph or not 0 <= part < common.book.parts or common.contents[part] != digest_of(files):
                raise ValueError("its digests differ from its contents")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{file}: damaged ({error}); make the partitions again") from error
        return cls(part, common, files)


def files_of(folder: Path) -> Files:
    """Size and sha256 of every file of `folder` but partition.json."""
    return {file.name: (file.stat().st_size, sha256(file)) for file in sorted(folder.iterdir()) if file.name != NAME}


def digest_of(files: Files) -> str:
    """One sha256 for the names, sizes and contents of files."""
    lines = [f"{name}\0{size}\0{digest}\n" for name, (size, digest) in sorted(files.items())]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


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
