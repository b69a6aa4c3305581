"""Lines of texts and integers, and dictionary files of any kind; `dictionary` reads the usual ones without this file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import DataError
from kgdist.data.names import MAX_IDS
from kgdist.data.read.explain import wrong_bytes
from kgdist.data.read.lines import blocks
from kgdist.data.read.rows import shown
from kgdist.data.read.text import read_columns


def read_any(path: Path, delimiter: str, *, counted: bool, header: bool) -> Any:
    """As `dictionary.read_dictionary`, for whatever is in the file."""
    lines = read_lines(path, header=header)
    first = 2 if header else 1
    if counted:
        claimed = _count(path, lines[0].as_py())
        lines, first = lines.slice(1), first + 1
        if not len(lines):
            return claimed
        if claimed != len(lines):
            raise DataError(path, f"the first line claims {claimed:,} entries, but {len(lines):,} follow", line=1)
    if len(lines) > MAX_IDS:
        raise DataError(path, f"more than {MAX_IDS:,} entries; ids are 32-bit integers")
    fields = pc.split_pattern(lines, delimiter, max_splits=1)
    lengths = pc.list_value_length(fields).to_numpy()
    if (lengths == 1).all():
        ids = integers(lines)
        order = np.argsort(ids) if ids is not None and _is_range(ids) else np.arange(len(lines))
        names, numbers = lines, np.argsort(order)
    else:
        if (lengths == 1).any():
            row = int(np.flatnonzero(lengths == 1)[0])
            raise DataError(
                path, f"expected `id<delimiter>name`, found {shown(lines[row])}; is --delimiter right?", line=first + row
            )
        names, numbers = _columns(path, lines, fields, delimiter, first)
    _check(path, lines, names, numbers, first)
    return names.take(pa.array(np.argsort(numbers)))


def read_lines(path: Path, expected: str = "one name or `id<delimiter>name` a line", *, header: bool = False) -> Any:
    """The file's lines as pa.LargeStringArray[n], n >= 1, none empty. Raises DataError with the line."""
    pieces = []
    for block in blocks(path, header=header):
        columns = read_columns(block.raw, {"line": pa.large_string()}, None)
        if columns is None or pc.min(pc.binary_length(columns["line"])).as_py() == 0:
            offset = block.offset
            for number, line in enumerate(block.raw.split(b"\n")[:-1], block.line):
                if message := wrong_bytes(line.removesuffix(b"\r"), offset):
                    raise DataError(path, message, line=number)
                offset += len(line) + 1
        assert columns is not None
        pieces.append(columns["line"])
    if not pieces:
        raise DataError(path, f"is empty, expected {expected}")
    return pa.concat_arrays(pieces)


def _count(path: Path, text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 12 or not 0 < int(text) <= MAX_IDS:
        raise DataError(path, f"expected the number of entries (1 to {MAX_IDS:,}), found {shown(text)}", line=1)
    return int(text)


def _columns(path: Path, lines: Any, fields: Any, delimiter: str, first: int) -> tuple[Any, np.ndarray]:
    """(names, ids) in file order."""
    values = fields.flatten()
    left, rest = values.take(pa.array(np.arange(0, len(values), 2))), values.take(pa.array(np.arange(1, len(values), 2)))
    left_ids = integers(left)
    if left_ids is not None and _is_range(left_ids):
        return rest, left_ids
    values = pc.split_pattern(lines, delimiter, max_splits=1, reverse=True).flatten()
    body, right = values.take(pa.array(np.arange(0, len(values), 2))), values.take(pa.array(np.arange(1, len(values), 2)))
    right_ids = integers(right)
    if right_ids is not None and (_is_range(right_ids) or left_ids is None):
        return body, right_ids
    if left_ids is not None:
        return rest, left_ids
    bad_left, bad_right = not_integers(left), not_integers(right)
    row = int((bad_left if len(bad_left) <= len(bad_right) else bad_right)[0])
    raise DataError(
        path, f"expected `id<delimiter>name` with an integer id of 0 or more, found {shown(lines[row])}", line=first + row
    )


def not_integers(texts: Any) -> np.ndarray:
    """Places of the texts that no id can be, int64[*]."""
    return np.flatnonzero(~pc.match_substring_regex(texts, "^ *[0-9]{1,18} *$").to_numpy(zero_copy_only=False).astype(bool))


def integers(texts: Any) -> np.ndarray | None:
    """Texts as int64[n]; None if one is no id (of at most 18 digits, blanks around it allowed)."""
    if len(not_integers(texts)):
        return None
    return np.asarray(pc.utf8_trim(texts, " ").cast(pa.int64()).to_numpy())


def _is_range(ids: np.ndarray) -> bool:
    return bool(ids.min() == 0 and ids.max() == len(ids) - 1 and np.bincount(ids).max() == 1)


def _check(path: Path, lines: Any, names: Any, ids: np.ndarray, first: int) -> None:
    """Raise DataError unless `ids` are 0 .. n-1 and `names` differ and are not empty."""
    if pc.min(pc.binary_length(names)).as_py() == 0:
        row = int(pc.index(pc.binary_length(names), 0).as_py())
        raise DataError(path, "the name is empty", line=first + row)
    codes = names.dictionary_encode()
    repeat = None if len(codes.dictionary) == len(codes) else _first_repeat(codes.indices.to_numpy())
    if repeat is not None:
        early, late = repeat
        if ids[early] == ids[late] or lines[int(early)] == lines[int(late)]:
            raise DataError(path, f"repeats line {first + early} ({shown(lines[late])}); remove one", line=first + late)
        raise DataError(
            path, f"name {shown(names[late])} has id {ids[late]}, but id {ids[early]} on line {first + early}", line=first + late
        )
    if _is_range(ids):
        return
    repeat = _first_repeat(ids)
    if repeat is not None:
        early, late = repeat
        message = f"id {ids[late]} is {shown(names[late])}, but {shown(names[early])} on line {first + early}"
        raise DataError(path, message, line=first + late)
    order = np.argsort(ids)
    gap = int(np.flatnonzero(ids[order] != np.arange(len(ids)))[0])
    row = int(order[gap])
    before = f"follows id {gap - 1} (line {first + int(order[gap - 1])})" if gap else "is the lowest"
    raise DataError(
        path, f"id {ids[row]} {before}, so id {gap} is missing; ids must run from 0 to {len(ids) - 1}", line=first + row
    )


def _first_repeat(values: np.ndarray) -> tuple[int, int] | None:
    """Rows of the earliest repeated value: (where it was first, where it comes again)."""
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    if not again.size:
        return None
    at = again[np.argmin(order[again + 1])]
    return int(order[at]), int(order[at + 1])
