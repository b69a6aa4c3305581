"""Files of plain numbers, as DGL's chunked graphs are made of: csv without a header, `.npy`, Parquet; read in pieces.

Errors name the file, and what the library that reads it says of the place.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, DataError
from kgdist.base.files import load_npy
from kgdist.data.read.lines import reason

FORMATS = ("csv", "numpy", "parquet")
ROWS = 1 << 18  # rows that are handed on together, about
BLOCK = 1 << 24  # bytes of a csv file that are parsed together


def read_pairs(path: Path, kind: str, delimiter: str) -> Iterator[np.ndarray]:
    """int64[., 2], two columns of ids. Raises DataError for a file that cannot be read, or that holds anything else."""
    for piece in read_numbers(path, kind, delimiter):
        if piece.ndim != 2 or piece.shape[1] != 2 or piece.dtype.kind not in "iu":
            raise DataError(path, f"expected two columns of integers, found {piece.dtype} of shape {list(piece.shape[1:])} a row")
        yield piece.astype(np.int64)


def read_numbers(path: Path, kind: str, delimiter: str) -> Iterator[np.ndarray]:
    """Rows of numbers [., ...]: of one column as [.]. Raises DataError as `read_pairs`."""
    if kind == "numpy":
        array = mapped(path)
        for start in range(0, len(array), ROWS):
            yield array[start : start + ROWS]
        return
    import pyarrow as pa

    try:
        for batch in _csv(path, delimiter) if kind == "csv" else _parquet(path):
            if batch.num_rows:
                yield _table(path, batch)
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, f"not a readable {kind} file of numbers ({reason(error)})") from error


def mapped(path: Path) -> np.ndarray:
    """The array of a `.npy` file, mapped. Raises DataError."""
    try:
        array = load_npy(path, mmap=True)
    except CheckpointError as error:
        raise DataError(path, str(error).removeprefix(f"{path}: ")) from error
    if array.ndim == 0 or array.dtype.kind not in "biuf":
        raise DataError(path, f"expected rows of numbers, found {array.dtype} of shape {list(array.shape)}")
    return array


def _csv(path: Path, delimiter: str) -> Iterator[Any]:
    from pyarrow import csv

    if path.stat().st_size == 0:
        return iter(())
    reading = csv.ReadOptions(use_threads=False, block_size=BLOCK, autogenerate_column_names=True)
    return iter(csv.open_csv(path, read_options=reading, parse_options=csv.ParseOptions(delimiter=delimiter)))


def _parquet(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(batch_size=ROWS, use_threads=False)


def _table(path: Path, batch: Any) -> np.ndarray:
    """The columns side by side, or one alone. Raises DataError for what are no numbers."""
    found = [_column(path, batch.schema.names[number], column) for number, column in enumerate(batch.columns)]
    return found[0] if len(found) == 1 else np.column_stack(found)


def _column(path: Path, name: str, column: Any) -> np.ndarray:
    import pyarrow as pa

    if column.null_count:
        raise DataError(path, f"column {name!r} has empty fields, expected numbers")
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_fixed_size_list(column.type):
        inner = column.flatten()
        width = len(inner) // max(1, len(column))
        if not pa.types.is_fixed_size_list(column.type) and (np.diff(column.offsets.to_numpy()) != width).any():
            raise DataError(path, f"column {name!r} has lists of different lengths")
        return _column(path, name, inner).reshape(len(column), width)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise DataError(path, f"column {name!r} holds {column.type}, expected numbers")
    array: np.ndarray = column.to_numpy(zero_copy_only=False)
    return array
