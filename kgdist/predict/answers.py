"""Answers as named columns -> FILE.tsv, FILE.csv, FILE.json, FILE.parquet, or an aligned table on the terminal.

Answers come in blocks and are written as they come, so memory holds one block, however many there are. A file is whole or absent.

TSV is DGL-KE's result.tsv: a line of titles, then one line an answer. Whole numbers and floats are written with the fewest digits
that say which number of their type they are, so float32 scores come back bit by bit, and a tab inside a name as `\\t`. CSV has
commas instead, and quotes where a name needs them (RFC 4180), so names come back as they are. JSON is a list of objects, one a
line; what JSON cannot say (infinities, NaN) is null there. Parquet has one column a title.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kgdist.base.files import atomic_write
from kgdist.base.log import say
from kgdist.base.text_table import TextTable
from kgdist.data.labels import Labels, Naming

TERMINAL = "-"
ROWS = 1 << 16  # rows turned into text at once, and in one row group of Parquet


@dataclass(frozen=True)
class Column:
    """A title, and the names of the ids in the column if they are to be written as names."""

    title: str
    names: Naming | None = None


Block = Sequence[np.ndarray]  # one array for each column, all of one length: int64 ids, or numbers as they are to be written


def labelled(
    columns: Sequence[Column], labels: Mapping[str, Labels | None], blocks: Iterable[Block]
) -> tuple[list[Column], Iterable[Block]]:
    """Columns and blocks with one more column, `<title>_label`, for each title whose ids have `labels`: what files hold."""
    there = [(place, found) for place, column in enumerate(columns) if (found := labels.get(column.title))]
    more = [Column(f"{columns[place].title}_label", found) for place, found in there]
    return [*columns, *more], ([*block, *(block[place] for place, _ in there)] for block in blocks)


class _Writer(Protocol):
    def write(self, block: Block) -> None: ...


def write_answers(output: str, columns: Sequence[Column], blocks: Iterable[Block]) -> int:
    """Write all blocks to the file `output`, in the format that its suffix says (TSV if none), or as a table for "-".

    Returns the number of answers. Raises KgdistError when the file cannot be written; what was there before is then untouched,
    as it is when `blocks` raises.
    """
    count = 0
    with _writer(output, columns) as writer:
        for block in blocks:
            for start in range(0, len(block[0]), ROWS):
                piece = [np.asarray(values)[start : start + ROWS] for values in block]
                writer.write(piece)
                count += len(piece[0])
    if output == TERMINAL and not count:
        say("no answers")
    return count


@contextlib.contextmanager
def _writer(output: str, columns: Sequence[Column]) -> Iterator[_Writer]:
    if output == TERMINAL:
        yield _Table(columns)
        return
    kinds: dict[str, type[_Tsv | _Csv | _Json | _Parquet]] = {
        ".csv": _Csv, ".json": _Json, ".parquet": _Parquet, ".pq": _Parquet,
    }  # fmt: skip
    with atomic_write(output) as file:
        writer = kinds.get(Path(output).suffix.lower(), _Tsv)(file, columns)
        yield writer
        writer.close()  # not after an error: the file then goes away


def cells(column: Column, values: np.ndarray) -> Sequence[Any]:
    """The column's values as names, or as Python numbers: a float32 as what it prints as, not as the double that it is."""
    if column.names is not None:
        return column.names.names(values)
    return list(map(float, values.astype(str))) if values.dtype == np.float32 else values.tolist()


def _texts(column: Column, values: np.ndarray) -> list[str]:
    if column.names is None:
        return values.astype(str).tolist()  # type: ignore[no-any-return]
    return [(name or "").replace("\t", "\\t") for name in column.names.names(values)]


class _Tsv:
    def __init__(self, file: Any, columns: Sequence[Column]) -> None:
        self.file, self.columns = file, columns
        file.write(("\t".join(column.title for column in columns) + "\n").encode())

    def write(self, block: Block) -> None:
        texts = [_texts(column, values) for column, values in zip(self.columns, block, strict=True)]
        self.file.write("".join(["\t".join(line) + "\n" for line in zip(*texts, strict=True)]).encode())

    def close(self) -> None:
        """Nothing is held back."""


class _Csv:
    def __init__(self, file: Any, columns: Sequence[Column]) -> None:
        self.file, self.columns = file, columns
        self._lines([[column.title for column in columns]])

    def _lines(self, rows: Iterable[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self.file.write(text.getvalue().encode())

    def write(self, block: Block) -> None:
        texts = [
            values.astype(str).tolist() if column.names is None else column.names.names(values)
            for column, values in zip(self.columns, block, strict=True)
        ]
        self._lines(zip(*texts, strict=True))

    def close(self) -> None:
        """Nothing is held back."""


class _Json:
    def __init__(self, file: Any, columns: Sequence[Column]) -> None:
        self.file, self.columns, self.before = file, columns, "[\n"

    def write(self, block: Block) -> None:
        titles = [column.title for column in self.columns]
        values = [cells(column, values) for column, values in zip(self.columns, block, strict=True)]
        for place, column in enumerate(block):
            if column.dtype.kind == "f" and not np.isfinite(column).all():
                values[place] = [value if math.isfinite(value) else None for value in values[place]]
        lines = [json.dumps(dict(zip(titles, line, strict=True)), ensure_ascii=False) for line in zip(*values, strict=True)]
        if lines:
            self.file.write((self.before + ",\n".join(lines)).encode())
            self.before = ",\n"

    def close(self) -> None:
        self.file.write(b"[]\n" if self.before == "[\n" else b"\n]\n")


class _Parquet:
    def __init__(self, file: Any, columns: Sequence[Column]) -> None:
        self.file, self.columns = file, columns
        self.writer: Any = None
        self.waiting: list[Any] = []
        self.rows = 0

    def write(self, block: Block) -> None:
        import pyarrow as pa

        arrays = [
            pa.array(
                values if column.names is None else column.names.names(values), None if column.names is None else pa.string()
            )
            for column, values in zip(self.columns, block, strict=True)
        ]
        self.waiting.append(pa.table(arrays, names=[column.title for column in self.columns]))
        self.rows += len(arrays[0])
        if self.rows >= ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa
        from pyarrow import parquet  # only here: it loads a large library

        if self.waiting:
            table = pa.concat_tables(self.waiting)
            if self.writer is None:
                self.writer = parquet.ParquetWriter(self.file, table.schema)
            self.writer.write_table(table)
            self.waiting, self.rows = [], 0

    def close(self) -> None:
        if self.writer is None and not self.waiting:  # no answers at all: the columns without rows
            self.write([np.zeros(0, np.int64) for _ in self.columns])
        self._flush()
        self.writer.close()


class _Table:
    def __init__(self, columns: Sequence[Column]) -> None:
        self.columns = columns
        self.table = TextTable([column.title for column in columns], sys.stdout)

    def write(self, block: Block) -> None:
        for line in self.table.lines([cells(column, values) for column, values in zip(self.columns, block, strict=True)]):
            say(line)
