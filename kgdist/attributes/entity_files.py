"""Files of entities -> pieces of some thousand rows, columns by name: tab-separated (.tsv, .txt), .csv, .jsonl and .parquet.

The first line of a .tsv or .csv names the columns. Between tabs a field is what stands there, without quotes; a .csv is as RFC
4180 says. An empty field, and a null, is a missing value. Text is handed on as text, and what a Parquet file knows to be a number
or a list as that: what an attribute makes of it is `canonical`. .gz, .xz, .zst and .bz2 are decompressed. Memory is a piece's.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import DataError
from kgdist.data.read.columns import shown
from kgdist.data.read.lines import COMPRESSED, Lines, blocks, check_file, each_line, open_bytes, plain, reason, suffix

ROWS = 1 << 13  # of a piece, where the reader has the choice
KINDS_OF_FILES = {".tsv": "tsv", ".txt": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
KINDS_OF_FILES[".pq"] = "parquet"


class Piece(NamedTuple):
    """Some rows in the order of the file."""

    columns: dict[str, Any]  # name -> pa.Array[n]: text, or what a Parquet file has
    lines: np.ndarray  # int64[n], the line of each row; in Parquet files its number, from 1


def kind_of(path: Path) -> str:
    """tsv, csv, jsonl or parquet. Raises DataError for a file that cannot be read or has another ending."""
    check_file(path, "entities")
    kind = KINDS_OF_FILES.get(suffix(path))
    if kind is None:
        raise DataError(path, f"what is it? Names of entity files end in {', '.join(KINDS_OF_FILES)}, compressed or not")
    if kind == "parquet" and path.suffix.lower() in COMPRESSED:
        raise DataError(path, "a compressed Parquet file cannot be read; decompress it (Parquet compresses by itself)")
    return kind


def columns_of(path: Path) -> list[str] | None:
    """The names of the columns, none of an empty file; None of a .jsonl, whose objects have each their own. Raises DataError."""
    kind = kind_of(path)
    if kind == "jsonl":
        return None
    if kind == "parquet":
        with _parquet(path) as file:
            return list(file.schema_arrow.names)
    if kind == "csv":
        with open_bytes(path) as raw:
            return next(_records(path, raw), (0, []))[1]
    return next((_header(path, block) for block in blocks(path)), [])


def read_entities(path: Path, columns: Mapping[str, str | None]) -> Iterator[Piece]:
    """These columns, which are there, piece by piece. Raises DataError (file:line).

    A column of lists has what parts a text into one, which matters to a .jsonl, where each object may do as it likes.
    """
    kind = kind_of(path)
    if kind == "jsonl":
        return _read_jsonl(path, columns)
    readers = {"tsv": _read_tsv, "csv": _read_csv, "parquet": _read_parquet}
    return readers[kind](path, list(columns))


# ---------------------------------------------------------------------------------------------------------------- tab-separated
def _header(path: Path, block: Lines) -> list[str]:
    number, line, wrong = next(each_line(block))
    if wrong:
        raise DataError(path, wrong, line=number)
    return line.decode().split("\t")


def _read_tsv(path: Path, names: list[str]) -> Iterator[Piece]:
    import pyarrow as pa
    from pyarrow import csv as arrow

    header: list[str] = []
    for block in blocks(path):
        if not header:
            header = _header(path, block)
            end = block.raw.index(b"\n") + 1
            block = Lines(block.raw[end:], 2, block.offset + end)
            if not block.raw:
                continue
        text = plain(block.raw)
        if text is None or text.startswith(b"\n") or b"\n\n" in text:
            raise _wrong_line(path, block, len(header))
        try:
            table = arrow.read_csv(
                pa.py_buffer(text),
                arrow.ReadOptions(
                    use_threads=False, column_names=[f"{place}" for place in range(len(header))], block_size=1 << 24
                ),
                arrow.ParseOptions(delimiter="\t", quote_char=False, escape_char=False, newlines_in_values=False),
                arrow.ConvertOptions(
                    column_types={f"{place}": pa.string() for place in range(len(header))},
                    include_columns=[f"{header.index(name)}" for name in names],
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowException as error:
            raise _wrong_line(path, block, len(header), error) from error
        arrays = [_whole(column) for column in table.columns]
        yield Piece(dict(zip(names, arrays, strict=True)), np.arange(block.line, block.line + table.num_rows))


def _whole(column: Any) -> Any:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _wrong_line(path: Path, block: Lines, width: int, error: Exception | None = None) -> DataError:
    """What is wrong with the first line that is."""
    for number, line, wrong in each_line(block):
        fields = line.count(b"\t") + 1
        if wrong or fields != width:
            return DataError(path, wrong or f"expected {width} tab-separated fields, as in line 1, found {fields}", line=number)
    return DataError(path, f"cannot be read ({reason(error) if error else 'no reason is known'})", line=block.line)


# ---------------------------------------------------------------------------------------------------------------- .csv
def _records(path: Path, raw: Any) -> Iterator[tuple[int, list[str]]]:
    """Line and fields of each record; a record may take several lines."""
    reader = csv.reader(io.TextIOWrapper(raw, encoding="utf-8-sig", newline=""), strict=True)
    line = 1
    try:
        for fields in reader:
            if fields:
                yield line, fields
            line = reader.line_num + 1
    except csv.Error as error:
        raise DataError(path, f"not CSV ({error})", line=line) from error
    except UnicodeDecodeError as error:
        raise DataError(path, "invalid UTF-8; convert the file to UTF-8", line=line) from error


def _read_csv(path: Path, names: list[str]) -> Iterator[Piece]:
    import pyarrow as pa

    with open_bytes(path) as raw:
        records = _records(path, raw)
        header = next(records, (0, list[str]()))[1]
        places = [header.index(name) for name in names]
        while found := list(itertools.islice(records, ROWS)):
            for line, fields in found:
                if len(fields) != len(header):
                    raise DataError(path, f"expected {len(header)} fields, as in line 1, found {len(fields)}", line=line)
                if any("\0" in field for field in fields):
                    raise DataError(path, "holds a NUL character; text files must not hold any", line=line)
            columns = {
                name: pa.array([fields[place] or None for _, fields in found], pa.string())
                for name, place in zip(names, places, strict=True)
            }
            yield Piece(columns, np.array([line for line, _ in found], np.int64))


# ---------------------------------------------------------------------------------------------------------------- .jsonl
def _read_jsonl(path: Path, columns: Mapping[str, str | None]) -> Iterator[Piece]:
    rows: list[tuple[int, dict[str, Any]]] = []
    for block in blocks(path):
        for number, line, wrong in each_line(block):
            if wrong:
                raise DataError(path, wrong, line=number)
            rows.append((number, _object(path, number, line)))
            if len(rows) == ROWS:
                yield _of_objects(path, columns, rows)
                rows = []
    if rows:
        yield _of_objects(path, columns, rows)


def object_keys(path: Path, rows: int) -> list[str]:
    """The keys of the first objects of a .jsonl, in the order in which they come."""
    keys: dict[str, None] = {}
    lines = ((number, line) for block in blocks(path) for number, line, wrong in each_line(block) if not wrong)
    for number, line in itertools.islice(lines, rows):
        keys |= dict.fromkeys(_object(path, number, line))
    return list(keys)


def _object(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(path, f"not JSON ({error})"[:200], line=number) from error
    if not isinstance(found, dict):
        raise DataError(path, f'expected an object, such as {{"entity": "e1"}}, found {shown(line)}', line=number)
    return found


def _of_objects(path: Path, columns: Mapping[str, str | None], rows: list[tuple[int, dict[str, Any]]]) -> Piece:
    import pyarrow as pa

    found = {}
    for name, separator in columns.items():
        if separator is None:
            found[name] = pa.array([_scalar(path, number, name, row.get(name)) for number, row in rows], pa.string())
        else:
            lists = [_list(path, number, name, row.get(name), separator) for number, row in rows]
            found[name] = pa.array(lists, pa.list_(pa.string()))
    return Piece(found, np.array([number for number, _ in rows], np.int64))


def _list(path: Path, number: int, name: str, value: Any, separator: str) -> list[str | None] | None:
    if isinstance(value, list):
        return [_scalar(path, number, name, item) for item in value]
    text = _scalar(path, number, name, value)
    return None if text is None else parted(text, separator)


def parted(text: str, separator: str) -> list[str | None]:
    """The words of a text; a blank parts them however many there are of it."""
    return [*text.split()] if separator == " " else [*text.split(separator)]


def _scalar(path: Path, number: int, name: str, value: Any) -> str | None:
    """A value as text."""
    if value is None or value == "" or value != value:  # NaN, which JSON has not, is written all the same
        return None
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        raise DataError(path, f"column {shown(name)} holds {kind}, expected text or a number", line=number)
    text = value if isinstance(value, str) else json.dumps(value)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(path, f"column {shown(name)} holds half of a surrogate pair, which is not text", line=number) from error
    return text


# ---------------------------------------------------------------------------------------------------------------- Parquet
def _parquet(path: Path) -> Any:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(path, f"not a readable Parquet file ({reason(error)})") from error


def _read_parquet(path: Path, names: list[str]) -> Iterator[Piece]:
    import pyarrow as pa

    row = 1
    with _parquet(path) as file:
        try:
            for batch in file.iter_batches(batch_size=ROWS, columns=names, use_threads=False):
                yield Piece({name: batch.column(name) for name in names}, np.arange(row, row + batch.num_rows))
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(path, f"not a readable Parquet file ({reason(error)})") from error
