"""partition.json: what a partition folder says of itself, and of the whole of which it is a part.

    format   the version of this layout
    part     which partition this is
    graph    sha256 of `common`, as one hex digest: machines that train together compare it
    common   what all partitions of one partitioning have in common, the contents of each among it
    files    name -> size and sha256 of each file beside partition.json

So one folder alone shows whether it is whole, and two digests show whether two folders belong together. No arrays are read here.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError
from kgdist.base.files import read_json, sha256, sha256_of_json, write_json
from kgdist.partition.book import Book

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
    sizes: dict[str, Any]  # see `kgdist.partition.sizes.Sizes`
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
