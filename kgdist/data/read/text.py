"""Delimited text -> rows of triples, block by block, with pyarrow's CSV parser stripped of everything that is CSV.

There is no escaping, no comment and no trimming: a line is split at every delimiter (any string), names are
kept byte-exact, blanks around them included, and only the line end is removed. (DGL-KE strips the whole line and so loses
blanks of the outer names.) Blanks around an integer id are allowed. Quotation marks are letters like others, unless fields may be
quoted: then they are as RFC 4180 has it, but for line ends, which no name may hold.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv

from kgdist.base.errors import DataError
from kgdist.data.names import lengths
from kgdist.data.read.columns import NOUNS, Rows, Spec, check_numbers, out_of_range, shown, wrong_weight
from kgdist.data.read.header import names_columns
from kgdist.data.read.lines import BOM, Lines, blocks, each_line, plain

NAME = pa.dictionary(pa.int32(), pa.string())
INTEGER = re.compile(rb"[ \t]*-?[0-9]+[ \t]*")
NUMBER = re.compile(rb"[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*")


def read_text(path: Path, spec: Spec) -> Iterator[Rows]:
    """Yield the triples of a text file. Raises DataError with the line for the first row that is wrong."""
    width = 0
    for block in blocks(path, header=bool(spec.header)):
        width = width or _width(block, spec)
        yield _rows(path, block, spec, width)


def _width(block: Lines, spec: Spec) -> int:
    if spec.weights is None:
        return 4 if len(_first_fields(block, spec)) == 4 else 3
    return 4 if spec.weights else 3


def begins_with_names(path: Path, spec: Spec) -> bool:
    """Whether the first line is the names of the columns: where ids are expected, words. Raises DataError (unreadable)."""
    block = next(blocks(path), None)
    fields = [] if block is None else _first_fields(block, spec)
    if not 3 <= len(fields) <= 4:
        return False
    if spec.limits is not None:
        return not any(INTEGER.fullmatch(field) for field in fields)
    return names_columns({letter: field.decode("utf-8", "replace") for letter, field in zip(spec.order, fields, strict=False)})


def _first_fields(block: Lines, spec: Spec) -> list[bytes]:
    """Of the first line; none where its quotes are wrong."""
    first = block.raw[: block.raw.index(b"\n")].removesuffix(b"\r")
    fields = split_line(first, spec.delimiter, spec.quoted)
    return [] if isinstance(fields, str) else fields


def _rows(path: Path, block: Lines, spec: Spec, width: int) -> Rows:
    letters = [*spec.order, *("w" if width == 4 else "")]
    types = {letter: pa.float64() if letter == "w" else NAME if spec.limits is None else pa.int64() for letter in letters}
    table = read_columns(block.raw, types, spec.delimiter, quoted=spec.quoted)
    if table is None or any(_has_empty(table[letter]) for letter in letters):
        raise _wrong_row(path, block, spec, width)
    with np.errstate(over="ignore"):
        weights = table["w"].to_numpy().astype(np.float32) if width == 4 else None
    rows = Rows(table["h"], table["r"], table["t"], weights, block.line)
    try:
        check_numbers(path, rows, spec)
    except DataError as error:
        raise _wrong_row(path, block, spec, width) from error
    return rows


def _has_empty(column: Any) -> bool:
    return pa.types.is_dictionary(column.type) and not lengths(column.dictionary).all()


def read_columns(raw: bytes, types: dict[str, Any], delimiter: str | None, *, quoted: bool = False) -> dict[str, Any] | None:
    """Split whole lines into typed columns, one pa.Array[lines] for each item of `types`; None if any line does not fit.

    Without a delimiter the one column holds the lines. `quoted`: fields may be, if the delimiter is one ASCII character.
    """
    text = plain(raw)
    if text is None:
        return None
    if any(pa.types.is_integer(kind) for kind in types.values()) and (b"x" in text or b"X" in text):
        return None  # pyarrow would read 0x10 as 16
    quoted = quoted and delimiter is not None and b'"' in text
    if quoted and not _quotes_fit(text, str(delimiter)):
        return None
    if delimiter is None or len(delimiter) > 1 or not delimiter.isascii():
        # The parser wants one ASCII character: any that does not occur will do.
        free = next((code for code in (1, *range(2, 10), *range(11, 128)) if code != 13 and bytes([code]) not in text), None)
        if free is None:
            return _halves(text, types, delimiter)
        text, delimiter = text.replace(delimiter.encode(), bytes([free])) if delimiter else text, chr(free)
    if text.startswith(BOM):
        text = BOM + text  # the parser drops one at the start of every block; a file's own is gone already
    try:
        table = csv.read_csv(
            pa.py_buffer(text),
            csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(types)),
            csv.ParseOptions(
                delimiter=delimiter,
                quote_char='"' if quoted else False,
                double_quote=quoted,
                escape_char=False,
                newlines_in_values=False,
                ignore_empty_lines=False,
            ),
            csv.ConvertOptions(column_types=types, null_values=[], strings_can_be_null=False),
        )
    except pa.ArrowInvalid:
        return None
    return {name: column.combine_chunks() for name, column in zip(table.column_names, table.columns, strict=True)}


def _halves(text: bytes, types: dict[str, Any], delimiter: str | None) -> dict[str, Any] | None:
    """A block that uses every ASCII character is read as two smaller ones (None for a single such line)."""
    middle = text.find(b"\n", len(text) // 2) + 1
    if middle in (0, len(text)):
        middle = text.find(b"\n") + 1
    if middle == len(text):
        return None
    halves = [read_columns(half, types, delimiter) for half in (text[:middle], text[middle:])]
    if halves[0] is None or halves[1] is None:
        return None
    first, second = halves[0], halves[1]
    return {name: pa.chunked_array([first[name], second[name]]).unify_dictionaries().combine_chunks() for name in types}


# ---- quotation marks


def split_line(line: bytes, delimiter: str, quoted: bool) -> list[bytes] | str:
    """The fields of a line without its end, or what is wrong with its quotation marks (RFC 4180, section 2, 5 to 7)."""
    parted = delimiter.encode()
    if not quoted or b'"' not in line:
        return line.split(parted)
    fields: list[bytes] = []
    at = 0
    while True:
        number = len(fields) + 1
        if line.startswith(b'"', at):
            end = line.find(b'"', at + 1)
            while line.startswith(b'"', end + 1) and end >= 0:
                end = line.find(b'"', end + 2)
            if end < 0:
                return f"the quotation mark that opens field {number} is never closed on its line; inside a field it is doubled"
            fields.append(line[at + 1 : end].replace(b'""', b'"'))
            at = end + 1
            if at < len(line) and not line.startswith(parted, at):
                return f"field {number} goes on after its closing quotation mark; inside a quoted field it is doubled"
        else:
            end = line.find(parted, at)
            end = len(line) if end < 0 else end
            if b'"' in line[at:end]:
                return f'field {number} holds a quotation mark, but is not quoted: with --quoted it is written "...""..."'
            fields.append(line[at:end])
            at = end
        if at >= len(line):
            return fields
        at += len(parted)


def _quotes_fit(text: bytes, delimiter: str) -> bool:
    """Whether `split_line` finds nothing wrong with any line. Every other quotation mark opens, and stands where a field begins;
    those between close, and stand where it ends; a doubled one closes and opens again."""
    data = np.frombuffer(text, np.uint8)
    marks = np.flatnonzero(data == ord('"'))
    if len(marks) % 2:
        return False
    ends = np.array([ord(delimiter), ord("\n"), ord('"')], np.uint8)
    opening, closing = marks[::2], marks[1::2]
    inner = opening[opening > 0]
    if not (np.isin(data[inner - 1], ends).all() and np.isin(data[closing + 1], ends).all()):
        return False
    feeds = np.flatnonzero(data == ord("\n"))
    return not (np.searchsorted(marks, feeds) % 2).any()


# ---- what is wrong with a block that did not fit


def _wrong_row(path: Path, block: Lines, spec: Spec, width: int) -> DataError:
    """The error for the first wrong line of `block`, which has `width` columns."""
    for number, line, wrong in each_line(block):
        if message := wrong or _wrong_fields(line, spec, width):
            return DataError(path, message, line=number)
    message = f"from here on, a line cannot be split into {spec.expected(width)}; try another --delimiter"
    return DataError(path, message, line=block.line)


def _wrong_fields(line: bytes, spec: Spec, width: int) -> str | None:
    fields = split_line(line, spec.delimiter, spec.quoted)
    if isinstance(fields, str):
        return fields
    if len(fields) != width:
        message = f"expected {spec.expected(width)}, found {len(fields)}"
        if width == 3 and len(fields) == 4:
            if not spec.quoted and b'"' in line:
                return f"{message}; give --quoted if quotation marks hold fields together"
            return f"{message}; give --has_edge_importance if the fourth is a weight"
        if len(fields) == 1:
            return f"{message}; is --delimiter right?"
        return message
    for letter, field in zip(spec.order, fields, strict=False):
        if not field:
            return f"the {NOUNS[letter]} is empty"
        if spec.limits is None:
            continue
        if not INTEGER.fullmatch(field):
            return f"{NOUNS[letter]} id {shown(field)} is not an integer, allowed ids: 0 to {spec.limit(letter) - 1}"
        if not 0 <= (value := _integer(field)) < spec.limit(letter):
            return out_of_range(letter, value, spec.limit(letter))
    if width == 4 and not _weighs(fields[3]):
        return wrong_weight(fields[3])
    return None


def _integer(field: bytes) -> int:
    """The number that the digits are, or its first thirty digits: Python refuses to convert thousands."""
    text = field.strip()
    value = int(text.lstrip(b"-").lstrip(b"0")[:30] or b"0")
    return -value if text.startswith(b"-") else value


def _weighs(field: bytes) -> bool:
    with np.errstate(over="ignore"):
        return NUMBER.fullmatch(field) is not None and bool(0 < np.float32(float(field)) < np.inf)
