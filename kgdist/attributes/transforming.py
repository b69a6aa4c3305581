"""Entities -> features chunk by chunk, and who does it: this process, or others by way of an `Executor`.

A scan leaves two things in files: a table of canonical values in chunks (`ChunkWriter`, an Arrow file), and what was fitted. A
`Transform` is a function of the number of a chunk that knows where both are, so it can be sent to any process that sees the
files, and what it gives depends on neither the process nor the other chunks.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kgdist.attributes.declaration import Attribute
from kgdist.attributes.features import Feature, Ones, feature_of
from kgdist.attributes.fitting import Fit
from kgdist.base.files import load_npy, read_json, write_json, write_npy

Parts = dict[str, np.ndarray]  # what a chunk has become, see `Transform`
FITTED, COMPONENTS = "fitted.json", "components"


class Executor(Protocol):
    """Who calls a function. Those who follow are to have no say in what comes out.

    Attributes:
        workers: how many are at work at a time.
    """

    workers: int

    def map(self, function: Transform, chunks: Iterable[int]) -> Iterator[Parts]:
        """function(chunk) of each, in their order. No more than a few are made ahead of the one that is waited for."""


class InThisProcess:
    """An executor that has nobody else do it."""

    workers = 1

    def map(self, function: Transform, chunks: Iterable[int]) -> Iterator[Parts]:
        """See Executor."""
        return map(function, chunks)


class ChunkWriter:
    """An Arrow file of canonical columns, named 0, 1, ..., in chunks of `size` rows."""

    def __init__(self, path: Path, attributes: Sequence[Attribute], size: int) -> None:
        import pyarrow as pa

        kinds = {
            "numeric": pa.float64(),
            "date": pa.float64(),
            "categorical": pa.string(),
            "multi": pa.list_(pa.string()),
            "text": pa.string(),
            "vector": pa.list_(pa.float32()),
        }
        self._schema = pa.schema([(f"{place}", kinds[each.kind]) for place, each in enumerate(attributes)])
        self._size, self.chunks, self._held = size, 0, 0
        self._pending: list[Any] = []
        self._sink = pa.OSFile(str(path), "wb")
        self._writer = pa.ipc.new_file(self._sink, self._schema)

    def add(self, columns: Sequence[Any], count: int) -> None:
        """Append `count` rows: of each attribute its canonical pa.Array."""
        import pyarrow as pa

        batch = pa.record_batch(list(columns), schema=self._schema)
        start = 0
        while start < count:
            piece = batch.slice(start, min(count - start, self._size - self._held))
            self._pending.append(piece)
            self._held += piece.num_rows
            start += piece.num_rows
            if self._held == self._size:
                self._flush()

    def close(self) -> None:
        """Write the rest."""
        if self._held:
            self._flush()
        self._writer.close()
        self._sink.close()

    def _flush(self) -> None:
        import pyarrow as pa

        columns = [pa.concat_arrays([batch.column(place) for batch in self._pending]) for place in range(len(self._schema))]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._pending, self._held = [], 0
        self.chunks += 1


def write_fitted(folder: Path, attributes: Sequence[Attribute], fits: Sequence[Fit]) -> None:
    """Write what was fitted: fitted.json, and arrays beside it."""
    saved = []
    for place, (attribute, (state, width)) in enumerate(zip(attributes, fits, strict=True)):
        plain = {name: value for name, value in state.items() if name != COMPONENTS}
        if COMPONENTS in state:
            write_npy(folder / f"{place}.{COMPONENTS}.npy", state[COMPONENTS])
        saved.append({"name": attribute.name, "kind": attribute.kind, "width": width, "state": plain})
    write_json(folder / FITTED, saved)


def read_fitted(folder: Path) -> list[dict[str, Any]]:
    """What `write_fitted` has written, arrays in their states. Raises CheckpointError."""
    found: list[dict[str, Any]] = read_json(folder / FITTED)
    for place, saved in enumerate(found):
        if saved["kind"] == "text" and "encoder" not in saved["state"]:
            saved["state"][COMPONENTS] = load_npy(folder / f"{place}.{COMPONENTS}.npy")
    return found


def features_of(fitted: Sequence[Mapping[str, Any]], device: str = "cpu") -> list[Feature]:
    """The transforms that were fitted, of what `read_fitted` gives; models of texts compute on `device`."""
    return [feature_of(saved["kind"], saved["state"], saved["width"], device) for saved in fitted]


def transformed(features: Sequence[Feature], batch: Any) -> Parts:
    """A chunk, a pa.RecordBatch of canonical columns: of attribute 0, 1, ... the arrays of Ones (`0.counts`, `0.indices`,
    `0.unseen`) or Floats (`0.present`, `0.rows`), and the `seconds` that this took: float64[1]."""
    began = time.perf_counter()
    parts: Parts = {}
    for place, feature in enumerate(features):
        found = feature.transform(batch.column(place))
        if isinstance(found, Ones):
            parts |= {f"{place}.counts": found.counts, f"{place}.indices": found.indices}
            parts[f"{place}.unseen"] = np.array([found.unseen])
        else:
            parts |= {f"{place}.present": found.present, f"{place}.rows": found.rows}
    parts["seconds"] = np.array([time.perf_counter() - began])
    return parts


def load_libraries() -> None:
    """Import what a transform takes: two seconds, once for all processes that are forked afterwards."""
    import pyarrow.compute  # noqa: F401
    import sklearn.decomposition
    import sklearn.feature_extraction.text
    import sklearn.preprocessing  # noqa: F401


@dataclasses.dataclass(frozen=True)
class Transform:
    """`transformed` as a function of the number of a chunk of the table in the file `table`, by what was fitted in `folder`."""

    table: str
    folder: str
    device: str = "cpu"  # where models of texts compute

    def __call__(self, chunk: int) -> Parts:
        batch = self.batch(chunk)
        return transformed(self._features, batch)

    def batch(self, chunk: int) -> Any:
        """The chunk as it was scanned: pa.RecordBatch."""
        return self._reader.get_batch(chunk)

    def fitted(self) -> list[dict[str, Any]]:
        """See `read_fitted`."""
        return read_fitted(Path(self.folder))

    @functools.cached_property
    def _features(self) -> list[Feature]:
        return features_of(self.fitted(), self.device)

    @functools.cached_property
    def _reader(self) -> Any:
        import pyarrow as pa

        return pa.ipc.open_file(pa.OSFile(self.table))  # read, not mapped: pages would count as this process's memory
