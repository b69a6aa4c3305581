"""partition.json, which says what lies beside it in the folder of a partition, of whatever kind, and the names of such folders.

    format   the layout: 1 is that of kgdist.partition.folder, 2 that of kgdist.partition.typed_folder, 3 that of
             kgdist.partition.edges_folder
    part     which partition this is
    graph    sha256 of `common`, as one hex digest: machines that train together compare it
    common   what all partitions of one partitioning have in common, the contents of each among it
    files    name -> size and sha256 of each file beside partition.json

So one folder alone shows whether it is whole, and two digests show whether two folders belong together.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, load_npy, read_json, sha256, write_json

_FOLDER = re.compile(r"partition_(0|[1-9][0-9]*)")
NAME = "partition.json"
_FILE = re.compile(r"[a-z][a-z0-9.]*\.npy")
Files = dict[str, tuple[int, str]]  # name -> bytes, sha256


class InCommon(Protocol):
    """What all partitions of one partitioning have in common, whatever they are partitions of."""

    FORMAT: ClassVar[int]
    KIND: ClassVar[str]  # in words

    @property
    def contents(self) -> tuple[str, ...]:
        """`digest_of` the files of each partition."""

    @property
    def graph(self) -> str:
        """sha256 of all of it, in hex."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""

    @classmethod
    def from_json(cls, value: Any) -> Any:
        """The inverse of `to_json`. Raises KeyError, TypeError or ValueError for what is no such thing."""


C = TypeVar("C", bound=InCommon)
KINDS = {
    1: "triples, which kgdist-dist-train trains on",
    2: "a graph, which DistGraph opens",
    3: "triples with all that encoders need of others",
}
HINTS = {  # what there is, and what is wanted
    (3, 1): ": it was made with --edges, so name an --encoder, or partition again without",
    (1, 3): ": partition again with --edges",
}


@dataclass(frozen=True)
class Manifest(Generic[C]):
    """One partition.json, understood."""

    part: int
    common: C
    files: Files

    def write(self, folder: Path) -> None:
        """Write it into `folder`."""
        files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in sorted(self.files.items())}
        common, version = self.common.to_json(), self.common.FORMAT
        write_json(
            folder / NAME, {"format": version, "part": self.part, "graph": self.common.graph, "common": common, "files": files}
        )

    @staticmethod
    def read(folder: Path, kind: type[C]) -> Manifest[C]:
        """Raises CheckpointError naming the file: not there, of another kind, of a newer format, or not as it was written."""
        file = folder / NAME
        value = read_json(file)
        if not isinstance(value, dict) or type(value.get("format")) is not int or value["format"] < 1:
            raise CheckpointError(f"{file}: not the description of a partition of kgdist")
        if value["format"] not in KINDS:
            raise CheckpointError(f"{file}: written by a newer kgdist (format {value['format']}, this one reads {max(KINDS)})")
        if value["format"] != kind.FORMAT:
            hint = HINTS.get((value["format"], kind.FORMAT), "")
            raise CheckpointError(f"{file}: a partition of {KINDS[value['format']]}; wanted is one of {kind.KIND}{hint}")
        try:
            common = kind.from_json(value["common"])
            files = _listed(value["files"])
            part = value["part"]
            if set(value) != {"format", "part", "graph", "common", "files"} or type(part) is not int:
                raise ValueError("unknown or missing entries")
            if not all(_FILE.fullmatch(name) for name in files):
                raise ValueError("names of files that cannot be")
            contents = common.contents
            if value["graph"] != common.graph or not 0 <= part < len(contents) or contents[part] != digest_of(files):
                raise ValueError("its digests differ from its contents")
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise CheckpointError(f"{file}: damaged ({error}); make the partitions again") from error
        return Manifest(part, common, files)

    def check(self, folder: Path, *, verify: bool) -> None:
        """See `check_files`."""
        check_files(folder, self.files, verify=verify)

    def map(self, folder: Path, name: str, dtype: np.dtype | type, shape: tuple[int, ...]) -> np.ndarray:
        """An array of the partition, mapped. Raises CheckpointError unless it is there and what it should be."""
        file = folder / name
        if name not in self.files:
            raise CheckpointError(f"{file}: not among the files of the partition")
        array = load_npy(file, mmap=True)
        if array.dtype != dtype or array.shape != shape:
            raise CheckpointError(
                f"{file}: expected {np.dtype(dtype).name}{list(shape)} by {NAME}, found {array.dtype}{list(array.shape)}"
            )
        return array


def _listed(files: dict[str, Any]) -> Files:
    return {str(name): (int(entry["bytes"]), str(entry["sha256"])) for name, entry in files.items()}


def check_files(folder: Path, files: Files, *, verify: bool) -> None:
    """Raises CheckpointError unless all files are in `folder`, of their sizes; with `verify`, of their contents and alone."""
    for name, (size, digest) in files.items():
        file = folder / name
        if not file.is_file():
            raise CheckpointError(f"{file}: missing; make or copy the partition again")
        if file.stat().st_size != size:
            raise CheckpointError(f"{file}: {file.stat().st_size} bytes instead of {size}; make or copy the partition again")
        if verify and sha256(file) != digest:
            raise CheckpointError(
                f"{file}: its content has changed since it was written (sha256 differs); make or copy the partition again"
            )
    if verify and (strange := {file.name for file in folder.iterdir()} - {*files, NAME}):
        raise CheckpointError(f"{folder / min(strange)}: not a file of this partition; remove it")


def check_part(folder: Path, graph: str, part: int, teller: Path) -> None:
    """Raises CheckpointError unless `folder` has partition `part` of the graph of this digest, as the file `teller` tells, of
    whatever kind, with all files, of their sizes. Costs the reading of one small file."""
    file = folder / NAME
    value = read_json(file)
    try:
        found, files = (str(value["graph"]), int(value["part"])), _listed(value["files"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{file}: damaged ({error!r}); make or copy the partitions again") from error
    check_belongs(folder, found, (graph, part), teller)
    check_files(folder, files, verify=False)


def check_belongs(folder: Path, found: tuple[str, int], wanted: tuple[str, int], teller: Path) -> None:
    """Raises CheckpointError unless the graph's digest and the partition found in `folder` are those of which `teller` tells."""
    if found != wanted:
        what, other = (f"partition {part} of graph {graph[:12]}..." for graph, part in (found, wanted))
        raise CheckpointError(f"{folder}: is {what}, but {teller} names {other}; make or copy the partitions again")


def version_of(folder: Path) -> int:
    """The format of the partition in `folder`; 0 where none can be read."""
    try:
        value = read_json(folder / NAME)
        return int(value["format"])
    except (CheckpointError, KeyError, TypeError, ValueError):
        return 0


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
