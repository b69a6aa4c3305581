"""Parquet files -> rows of triples. Columns are found by the names head, relation, tail (and weight) if all three are
there, else by position.

By position the first three columns follow the order of the format and the fourth is the weight; further columns are
ignored. Places in errors are row numbers from 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError, OptionError
from kgdist.data.read.columns import NOUNS, Rows, Spec, bad_name, check_numbers, shown
from kgdist.data.read.lines import reason

ROWS = 1 << 16  # rows decoded at once


def read_parquet(path: Path, spec: Spec) -> Iterator[Rows]:
    """Yield the triples of a Parquet file. Raises DataError (damaged file, wrong column type, null, bad id, name or weight)."""
    from pyarrow import parquet  # only here: it loads a large library

    if path.suffix.lower() not in (".parquet", ".pq"):
        raise DataError(path, "a compressed Parquet file cannot be read; decompress it (Parquet compresses by itself)")
    if spec.header:
        raise OptionError("--header", f"{path} is a Parquet file, which has no header line")
    if spec.quoted:
        raise OptionError("--quoted", f"{path} is a Parquet file, which needs no quotation marks; drop it")
    try:
        with parquet.ParquetFile(path) as file:
            columns = _columns(path, file.schema_arrow, spec)
            row = 1
            # Columns may repeat a name, so the batches are read whole when positions count.
            names = None if len(set(file.schema_arrow.names)) < len(file.schema_arrow.names) else list(columns.values())
            for batch in file.iter_batches(batch_size=ROWS, columns=names, use_threads=False):
                yield _rows(path, batch, columns, spec, row)
                row += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, f"not a readable Parquet file ({reason(error)})") from error


def _columns(path: Path, schema: Any, spec: Spec) -> dict[str, str]:
    """Letter -> column name."""
    wanted = ("head", "relation", "tail")
    if all(schema.names.count(name) == 1 for name in wanted):
        found = dict(zip("hrt", wanted, strict=True))
        weight = "weight" if "weight" in schema.names else None
    else:
        if len(schema.names) < 3:
            raise DataError(path, f"expected at least 3 columns (or ones named head, relation, tail), found {len(schema.names)}")
        if len(set(schema.names[:4])) < len(schema.names[:4]):
            raise DataError(path, "two of the first four columns have the same name; rename them head, relation, tail")
        found = dict(zip(spec.order, schema.names, strict=False))
        weight = schema.names[3] if len(schema.names) > 3 else None
    if spec.weights and weight is None:
        raise DataError(path, "expected a fourth column, or one named weight, for --has_edge_importance")
    if weight is not None and spec.weights is not False:
        found["w"] = weight
    return found


def _rows(path: Path, batch: Any, columns: dict[str, str], spec: Spec, first: int) -> Rows:
    values = {
        letter: _column(path, batch.column(batch.schema.names.index(name)), name, letter, spec, first)
        for letter, name in columns.items()
    }
    weights = values["w"].to_numpy(zero_copy_only=False).astype(np.float32) if "w" in values else None
    rows = Rows(values["h"], values["r"], values["t"], weights, first)
    check_numbers(path, rows, spec)
    return rows


def _column(path: Path, column: Any, name: str, letter: str, spec: Spec, first: int) -> Any:
    """A column as float64 (weights), int64 (ids) or dictionary<string> (names)."""
    if column.null_count:
        raise DataError(
            path,
            f"column {shown(name)} is null",
            line=first + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0]),
        )
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    integer = pa.types.is_integer(kind)
    if letter == "w":
        if not integer and not pa.types.is_floating(kind):
            raise DataError(path, f"column {shown(name)} holds {column.type}, expected numbers (weights)")
        return column.cast(pa.float64(), safe=False)
    if spec.limits is not None:
        if not integer:
            raise DataError(path, f"column {shown(name)} holds {column.type}, expected integers ({NOUNS[letter]} ids)")
        return column.cast(kind).cast(
            pa.int64(), safe=not pa.types.is_uint64(kind)
        )  # a uint64 beyond int64 turns negative: out of range either way
    if not integer and not pa.types.is_string(kind) and not pa.types.is_large_string(kind) and not pa.types.is_string_view(kind):
        raise DataError(path, f"column {shown(name)} holds {column.type}, expected strings ({NOUNS[letter]} names)")
    encoded = column.cast(kind).cast(pa.string()).dictionary_encode()
    code = bad_name(encoded.dictionary)
    if code is not None:
        row = int(np.flatnonzero(encoded.indices.to_numpy() == code)[0])
        raise DataError(
            path, f"{NOUNS[letter]} {shown(encoded.dictionary[code])} is empty or holds NUL or a line end", line=first + row
        )
    return encoded
