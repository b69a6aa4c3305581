"""Triples that a program holds in memory -> the files of a data set, which are then read as any others.

The triples may be rows (a list, an array) or a table (pandas, polars, pyarrow, a dict of columns). Text is taken for names and
integers for ids 0 .. n-1, which entities and relations keep. Written as Parquet into a folder that is named by its content, so
the same triples are written once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import PathLike, whole_folders
from kgdist.data.names import as_binary, parts
from kgdist.data.vocabulary import Vocabulary

COLUMNS = ("head", "relation", "tail")
ROLES = {"entities.dict": ("head", "tail"), "relations.dict": ("relation",)}
SPARSE = 100  # times as many ids as triples, at most: tables of that size would be allocated


def write_triples(root: PathLike, name: str, splits: Mapping[str, Any]) -> tuple[str, bool]:
    """Write the folder `<name>-<hash>` below `root`, unless it is there.

    Returns its name, by which `load_dataset` reads it, and whether the train triples have weights.

    `splits`: "train", "valid", "test" -> triples in one of the forms above, or None. A fourth column (in a table one called
    weight) is the triple's weight. Raises UsageError for what is no triples, KgdistError when nothing can be written.
    """
    tables = {split: as_table(triples, split) for split, triples in splits.items() if triples is not None}
    dictionaries = _dictionaries(tables)
    folder = Path(root) / f"{name}-{_digest(tables)[:8]}"
    try:
        if not (folder / "train.parquet").exists():
            with contextlib.suppress(FileExistsError), whole_folders([folder], sync=False) as (made,):
                _write(made, tables, dictionaries)
        if not (folder / "train.parquet").exists():
            raise KgdistError(f"{folder}: is in the way; remove it")
    except OSError as error:
        raise KgdistError(f"{root}: the triples cannot be written ({error.strerror or error}); name another data_path") from error
    return folder.name, "weight" in tables["train"].column_names


def _digest(tables: Mapping[str, Any]) -> str:
    """sha256 (hex) of the triples, split by split and column by column."""
    digest = hashlib.sha256()
    for split, table in tables.items():
        for name in table.column_names:
            column = table[name].combine_chunks()
            digest.update(f"{split} {name} {column.type} {len(column)}\n".encode())
            for array in parts(as_binary(column)) if pa.types.is_large_string(column.type) else [column.to_numpy()]:
                digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def as_table(triples: Any, split: str) -> Any:
    """Triples as a pyarrow table with the columns head, relation, tail of int64 or large_string, and weight (float64) if any.

    Raises UsageError naming the split and what is wrong.
    """
    columns = _columns(triples, split)
    try:
        table = pa.table({name: _column(values, name, split) for name, values in columns.items()})
    except pa.ArrowException as error:
        raise UsageError(f"the columns of the {split} triples are not of one length") from error
    if not len(table):
        raise UsageError(f"the {split} split has no triples")
    return table


def _columns(triples: Any, split: str) -> dict[str, Any]:
    """The columns by name, as they come."""
    if hasattr(triples, "__arrow_c_stream__"):
        triples = pa.table(triples)
    if hasattr(triples, "to_dict") and hasattr(triples, "columns") and not isinstance(triples, pa.Table):  # an older pandas
        triples = {str(name): triples[name].to_numpy() for name in triples.columns}
    if isinstance(triples, pa.Table):
        triples = dict(zip(triples.column_names, triples.columns, strict=True))
    if isinstance(triples, Mapping):
        names = list(triples)
        if len(names) < 3:
            raise UsageError(f"the {split} triples have the columns {', '.join(map(str, names))}; expected head, relation, tail")
        first = COLUMNS if all(name in triples for name in COLUMNS) else names[:3]
        found = {name: triples[own] for name, own in zip(COLUMNS, first, strict=True)}
        return found | ({"weight": triples["weight"]} if "weight" in triples else {})
    if not isinstance(triples, Iterable) or isinstance(triples, str | bytes):
        raise UsageError(f"the {split} triples must be rows or a table, not {triples!r:.60}")
    rows = triples if isinstance(triples, np.ndarray) else list(triples)
    if isinstance(rows, list):
        widths = {len(row) if isinstance(row, tuple | list | np.ndarray) else 0 for row in rows}
        if not widths <= {3} and not widths <= {4}:
            raise UsageError(f"the {split} triples must be rows of (head, relation, tail), all with or all without a weight")
        rows = list(zip(*rows, strict=True)) or [()] * 3
    else:
        if rows.ndim != 2 or rows.shape[1] not in (3, 4):
            raise UsageError(f"the {split} triples have the shape {list(rows.shape)}, expected [T, 3] or, with weights, [T, 4]")
        rows = list(rows.T)
    return dict(zip((*COLUMNS, "weight"), rows, strict=False))


def _column(values: Any, name: str, split: str) -> Any:
    try:
        column = values if isinstance(values, pa.Array | pa.ChunkedArray) else pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, OverflowError) as error:
        message = f"the {name}s of the {split} triples must be all text or all integers ({str(error).splitlines()[0][:100]})"
        raise UsageError(message) from error
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise UsageError(f"the {name} of row {row} of the {split} triples is missing")
    kind = column.type
    if name == "weight" and (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        return column.cast(pa.float64())
    if pa.types.is_integer(kind) and name != "weight":
        return column.cast(pa.int64(), safe=False)
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)) and name != "weight":
        return column.cast(pa.large_string())
    if not len(column):
        return column.cast(pa.large_string() if name != "weight" else pa.float64())
    wanted = "numbers" if name == "weight" else "text (names) or integers (ids)"
    raise UsageError(f"the {name}s of the {split} triples are {kind}, expected {wanted}")


def _dictionaries(tables: Mapping[str, Any]) -> dict[str, Vocabulary]:
    """The names by id where some are ids; none where all are names, which then get ids in the order in which they come."""
    numbered = {}
    for file, columns in ROLES.items():
        kinds = {pa.types.is_integer(table.schema.field(name).type) for table in tables.values() for name in columns}
        if len(kinds) > 1:
            what = "relations" if len(columns) == 1 else "heads and tails"
            raise UsageError(f"some {what} are text and some are integers; give all of them as names, or all as ids")
        numbered[file] = kinds == {True}
    if not any(numbered.values()):
        return {}
    triples = sum(len(table) for table in tables.values())
    return {
        file: _ids(found, triples) if numbered[file] else _names(found)
        for file, columns in ROLES.items()
        for found in [[table[name] for table in tables.values() for name in columns]]
    }


def _ids(columns: list[Any], triples: int) -> Vocabulary:
    bounds = [pc.min_max(column).as_py() for column in columns]
    low, high = min(each["min"] for each in bounds), max(each["max"] for each in bounds)
    if low < 0 or high >= SPARSE * max(triples, SPARSE):
        found = f"ids from {low} to {high} in {triples} triples"
        raise UsageError(f"{found}; ids count from 0 without large gaps: give text, which is taken for names")
    return Vocabulary.numbered(high + 1)


def _names(columns: list[Any]) -> Vocabulary:
    return Vocabulary(*parts(as_binary(pc.unique(pa.chunked_array([chunk for column in columns for chunk in column.chunks])))))


def _write(folder: Path, tables: Mapping[str, Any], dictionaries: Mapping[str, Vocabulary]) -> None:
    from pyarrow import parquet  # only here: it loads a large library

    for split, table in tables.items():
        kinds = [pa.float64() if name == "weight" else pa.large_string() for name in table.column_names]
        parquet.write_table(table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True)))), folder / f"{split}.parquet")
    for file, names in dictionaries.items():
        names.write_tsv(folder / file)
