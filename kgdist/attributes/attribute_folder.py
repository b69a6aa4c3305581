"""A folder of attributes: what `kgdist-preprocess` leaves, and reading it, mapped.

manifest.json               the node types; of each attribute its kind, settings, width, coverage; a digest of every file
<node type>/entities.*.npy  the names of the entities, in the order of the dictionary or of the file
<node type>/rows.npy        int64[entities]: the row of each in the arrays below, -1 without attributes
<node type>/fitted.json     what was fitted, and <n>.components.npy: entities never seen can be transformed by it
<node type>/<n>.starts.npy  int64[rows + 1], and <n>.indices.npy, int32: rows of ones, compressed (attribute number n)
<node type>/<n>.values.npy  float32[rows, width], and <n>.present.npy, bool[rows]: rows of numbers
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import CheckpointError, UnknownName
from kgdist.base.files import PathLike, load_npy, read_json, sha256, sha256_of_json
from kgdist.data.vocabulary import Vocabulary

MANIFEST, FORMAT = "manifest.json", "kgdist attributes 1"


class OnesOfRows(NamedTuple):
    """An attribute whose rows are ones, compressed: mapped."""

    width: int
    starts: np.ndarray  # int64[rows + 1]
    indices: np.ndarray  # int32[ones], the columns of row r from starts[r] to starts[r + 1]; none where it is missing

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows, int64[n], -1 for those who have none: their (starts int64[n + 1], indices int32)."""
        known = np.flatnonzero(rows >= 0)
        begins = np.zeros(len(rows), np.int64)
        counts = np.zeros(len(rows), np.int64)
        begins[known] = self.starts[rows[known]]
        counts[known] = self.starts[rows[known] + 1] - begins[known]
        starts = np.concatenate([[0], np.cumsum(counts)])
        places = np.arange(starts[-1]) + np.repeat(begins - starts[:-1], counts)
        return starts, np.asarray(self.indices[places])


class NumbersOfRows(NamedTuple):
    """An attribute whose rows are numbers: mapped."""

    width: int
    present: np.ndarray  # bool[rows]
    values: np.ndarray  # float32[rows, width], 0 where it is missing

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows, int64[n], -1 for those who have none: their (present bool[n], values float32[n, width])."""
        known = np.flatnonzero(rows >= 0)
        present, values = np.zeros(len(rows), bool), np.zeros((len(rows), self.width), np.float32)
        present[known], values[known] = self.present[rows[known]], self.values[rows[known]]
        return present, values


@dataclasses.dataclass(frozen=True)
class NodeAttributes(Mapping[str, OnesOfRows | NumbersOfRows]):
    """The attributes of the entities of one node type, by name."""

    folder: Path
    about: Mapping[str, Any]  # what the manifest says

    def __getitem__(self, name: str) -> OnesOfRows | NumbersOfRows:
        """An attribute. Raises UnknownName, CheckpointError."""
        names = list(self)
        if name not in names:
            raise UnknownName(f"there is no attribute {name!r}: there are {', '.join(names)}")
        return self._opened(names.index(name))

    def __iter__(self) -> Any:
        return iter([each["name"] for each in self.about["attributes"]])

    def __len__(self) -> int:
        return len(self.about["attributes"])

    @functools.cached_property
    def entities(self) -> Vocabulary:
        """Their names, in order. Raises CheckpointError."""
        if self.about["numbered"]:
            return Vocabulary.numbered(self.about["entities"])
        return Vocabulary.load(self.folder, "entities")

    @functools.cached_property
    def rows(self) -> np.ndarray:
        """int64[entities]: the row of each, -1 of those without attributes; mapped. Raises CheckpointError."""
        return self._array("rows", np.int64, (self.about["entities"],))

    def _opened(self, place: int) -> OnesOfRows | NumbersOfRows:
        about, rows = self.about["attributes"][place], self.about["rows"]
        width = int(about["width"])
        if about["form"] == "numbers":
            present = self._array(f"{place}.present", np.bool_, (rows,))
            return NumbersOfRows(width, present, self._array(f"{place}.values", np.float32, (rows, width)))
        starts = self._array(f"{place}.starts", np.int64, (rows + 1,))
        return OnesOfRows(width, starts, self._array(f"{place}.indices", np.int32, (about["ones"],)))

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
        path = self.folder / f"{name}.npy"
        array = load_npy(path, mmap=bool(np.prod(shape)))
        if array.dtype != dtype or array.shape != shape:
            raise CheckpointError(f"{path}: not the array that {MANIFEST} describes; run kgdist-preprocess again")
        return array


@dataclasses.dataclass(frozen=True)
class Attributes(Mapping[str, NodeAttributes]):
    """A folder of attributes by node type."""

    folder: Path
    manifest: Mapping[str, Any]

    def __getitem__(self, node_type: str) -> NodeAttributes:
        """Those of a node type. Raises UnknownName."""
        if node_type not in self.manifest["node_types"]:
            raise UnknownName(f"there is no node type {node_type!r}: there are {', '.join(self.manifest['node_types'])}")
        return NodeAttributes(self.folder / node_type, self.manifest["node_types"][node_type])

    def __iter__(self) -> Any:
        return iter(self.manifest["node_types"])

    def __len__(self) -> int:
        return len(self.manifest["node_types"])

    @property
    def digest(self) -> str:
        """Of all that the files hold, and which entity has it."""
        return sha256_of_json(self.manifest["digests"])

    def verify(self) -> None:
        """Read every file. Raises CheckpointError for one that is not as it was written."""
        for name, digest in self.manifest["digests"].items():
            try:
                right = sha256(self.folder / name) == digest
            except OSError as error:
                raise CheckpointError(f"{self.folder / name}: cannot be read ({error.strerror or error})") from error
            if not right:
                raise CheckpointError(f"{self.folder / name}: was changed since it was written; run kgdist-preprocess again")


def open_attributes(folder: PathLike) -> Attributes:
    """What kgdist-preprocess has written into `folder`; arrays are mapped when they are asked for.

    Raises CheckpointError for a folder that is not one of ours, or of another version.
    """
    path = Path(folder)
    manifest = read_json(path / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise CheckpointError(f"{path / MANIFEST}: not written by kgdist-preprocess, or by another version of it")
    return Attributes(path, manifest)
