"""Finds, slowly and exactly, what is wrong with a block of lines that the fast parser refused, and words it. Reads no file,
repairs nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from kgdist.base.errors import DataError
from kgdist.data.read.lines import MAX_LINE, Block
from kgdist.data.read.rows import NOUNS, Spec, out_of_range, shown, wrong_weight

INTEGER = re.compile(rb"[ \t]*-?[0-9]+[ \t]*")
NUMBER = re.compile(rb"[ \t]*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?[ \t]*")


def wrong_row(path: Path, block: Block, spec: Spec, width: int) -> DataError:
    """The error for the first wrong line of `block`, a block of triples with `width` columns."""
    offset = block.offset
    for number, line in enumerate(block.raw.split(b"\n")[:-1], block.line):
        message = wrong_bytes(line.removesuffix(b"\r"), offset) or _wrong_fields(line.removesuffix(b"\r"), spec, width)
        if message:
            return DataError(path, message, line=number)
        offset += len(line) + 1
    message = f"from here on, a line cannot be split into {spec.expected(width)}; try another --delimiter"
    return DataError(path, message, line=block.line)


def wrong_bytes(line: bytes, offset: int) -> str | None:
    """What is wrong with a line whatever it should hold; `offset` is that of its first byte in the file."""
    if len(line) > MAX_LINE:
        return f"line is longer than {MAX_LINE:,} bytes"
    if b"\0" in line:
        return f"NUL byte at offset {offset + line.index(0)}; text files must not hold any (is this a binary or UTF-16 file?)"
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return f"invalid UTF-8 at byte offset {offset + error.start}; convert the file to UTF-8"
    if b"\r" in line:
        return f"carriage return inside a line (byte offset {offset + line.index(13)}); lines must end in LF or CRLF"
    return None if line else "blank line"


def _wrong_fields(line: bytes, spec: Spec, width: int) -> str | None:
    fields = line.split(spec.delimiter.encode())
    if len(fields) != width:
        message = f"expected {spec.expected(width)}, found {len(fields)}"
        if width == 3 and len(fields) == 4:
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
        # Python refuses to convert thousands of digits; such a number is out of any range.
        if len(field) > 30 or not 0 <= int(field) < spec.limit(letter):
            return _range(letter, field, spec)
    if width == 4 and not _weighs(fields[3]):
        return wrong_weight(fields[3])
    return None


def _range(letter: str, field: bytes, spec: Spec) -> str | None:
    digits = field.strip().lstrip(b"-").lstrip(b"0")
    value = int(digits[:30] or b"0")
    if field.strip().startswith(b"-"):
        value = -value
    return None if 0 <= value < spec.limit(letter) else out_of_range(letter, value, spec.limit(letter))


def _weighs(field: bytes) -> bool:
    with np.errstate(over="ignore"):
        return NUMBER.fullmatch(field) is not None and bool(0 < np.float32(float(field)) < np.inf)
