"""Dictionary files (`entities.dict`, `relations.dict`, `entity2id.txt`, a run's `entities.tsv`) -> names in id order.

A line is `id<delimiter>name`, `name<delimiter>id` (both are met in the wild), or a name alone, whose id is then its line
number from 0. Which one holds for the file is found by looking at all of it: the column that holds exactly 0 .. n-1 is the
ids, the first column if both do. The name is everything beyond the delimiter next to the id, so it may hold the delimiter
itself. Ids may come in any order, but none may be missing or come twice.

pyarrow.compute takes a tenth of a second to import, so it is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kgdist.base.errors import DataError
from kgdist.data.names import MAX_IDS, as_binary, hash_names, lengths
from kgdist.data.read.columns import shown
from kgdist.data.read.header import names_entry
from kgdist.data.read.lines import Lines, blocks, check_file, each_line
from kgdist.data.read.text import read_columns, split_line

EXPECTED = "one name or `id<delimiter>name` a line"


def read_dictionary(
    path: Path, delimiter: str = "\t", *, counted: bool = False, header: bool | None = False, quoted: bool = False
) -> Any:
    """The names in id order, pa.LargeStringArray[n], or the count (int) alone.

    `header`: the first line is skipped; None: if it names two columns. `quoted`: fields may be. `counted`: the first line is the
    number of lines that follow, as in `entity2id.txt`; when none follow, that number is returned. Raises DataError with the line
    (both lines, for a repeat or a gap).
    """
    check_file(path, EXPECTED)
    if header is None:
        fields = _first_fields(next(blocks(path), None), delimiter, quoted)
        header = names_entry([field.decode("utf-8", "replace") for field in fields])
    if quoted:
        return _quoted(path, delimiter, header)
    names = None if counted else _in_order(path, delimiter, header)
    return _in_any_order(path, delimiter, counted, header) if names is None else names


def _first_fields(block: Lines | None, delimiter: str, quoted: bool) -> list[bytes]:
    """Of the first line; none where its quotation marks are wrong."""
    fields = [] if block is None else split_line(block.raw[: block.raw.index(b"\n")].removesuffix(b"\r"), delimiter, quoted)
    return [] if isinstance(fields, str) else fields


def _in_order(path: Path, delimiter: str, header: bool) -> Any:
    """The names of a file that has the ids 0, 1, ... in order beside them, as nearly all have; None for any other file, and for
    one with a mistake.

    Block by block, in a quarter of the time and memory that the general way takes, which holds all lines and their parts at once.
    """
    pieces: list[Any] = []
    count, order = 0, ("id", "name")
    for block in blocks(path, header=header):
        if not pieces:
            left, _, right = block.raw[: block.raw.index(b"\n")].rstrip(b"\r").partition(delimiter.encode())
            # Integers in front could be the ids, whatever comes behind: only all of the file tells.
            if left != b"0" and (right != b"0" or left.strip(b" ").isdigit()):
                return None
            order = ("id", "name") if left == b"0" else ("name", "id")
        columns = read_columns(block.raw, {column: pa.large_string() for column in order}, delimiter)
        if columns is None or not lengths(columns["name"]).all():
            return None
        if not columns["id"].equals(pa.array(np.arange(count, count + len(columns["id"]))).cast(pa.large_string())):
            return None
        pieces.append(columns["name"])
        count += len(columns["id"])
    if not pieces or count > MAX_IDS:
        return None
    names = pa.concat_arrays(pieces)
    hashes = np.sort(hash_names(as_binary(names)))
    return None if (hashes[1:] == hashes[:-1]).any() else names  # equal names have equal hashes


def _in_any_order(path: Path, delimiter: str, counted: bool, header: bool) -> Any:
    """The names of any file in id order."""
    import pyarrow.compute as pc

    lines = read_lines(path, header=header)
    first = 2 if header else 1
    if counted:
        text = lines[0].as_py()
        if not text.strip().isdecimal() or len(text) > 12 or not 0 < int(text) <= MAX_IDS:
            raise DataError(path, f"expected the number of entries (1 to {MAX_IDS:,}), found {shown(text)}", line=1)
        lines, first = lines.slice(1), first + 1
        if not len(lines):
            return int(text)
        if int(text) != len(lines):
            raise DataError(path, f"the first line claims {int(text):,} entries, but {len(lines):,} follow", line=1)
    if len(lines) > MAX_IDS:
        raise DataError(path, f"more than {MAX_IDS:,} entries; ids are 32-bit integers")
    alone = np.flatnonzero(pc.list_value_length(pc.split_pattern(lines, delimiter, max_splits=1)).to_numpy() == 1)
    if len(alone) == len(lines):
        numbers = integers(lines)
        names, ids = lines, numbers if numbers is not None and _is_range(numbers) else np.arange(len(lines))
    elif len(alone):
        found = shown(lines[int(alone[0])])
        message = f"expected `id<delimiter>name`, found {found}; is --delimiter right?"
        raise DataError(path, message, line=first + int(alone[0]))
    else:

        def halves(reverse: bool) -> tuple[Any, Any]:
            """What is before and behind the first delimiter, or the last one."""
            values = pc.split_pattern(lines, delimiter, max_splits=1, reverse=reverse).flatten()
            return values.take(pa.array(np.arange(0, len(values), 2))), values.take(pa.array(np.arange(1, len(values), 2)))

        names, ids = _columns(path, lines, halves, first)
    _check(path, lines, names, ids, first)
    return names.take(pa.array(np.argsort(ids)))


def _quoted(path: Path, delimiter: str, header: bool) -> Any:
    """The names of a file whose fields may be quoted, in id order."""
    pieces: list[dict[str, Any]] = []
    width = 1
    for block in blocks(path, header=header):
        if not pieces:
            width = max(1, len(_first_fields(block, delimiter, True)))
        types = {f"{number}": pa.large_string() for number in range(width)}
        columns = read_columns(block.raw, types, delimiter, quoted=True) if width < 3 else None
        if columns is None:
            for number, line, message in each_line(block):
                fields = split_line(line, delimiter, True)
                if message or isinstance(fields, str):
                    raise DataError(path, message or str(fields), line=number)
                if len(fields) != min(width, 2):
                    raise DataError(path, f"expected {EXPECTED}, found {shown(line)}; is --delimiter right?", line=number)
        assert columns is not None
        pieces.append(columns)
    if not pieces:
        raise DataError(path, f"is empty, expected {EXPECTED}")
    first = 2 if header else 1
    left, right = (pa.concat_arrays([piece[name] for piece in pieces]) for name in ("0", f"{width - 1}"))
    if width == 1:
        numbers = integers(left)
        names, ids = left, numbers if numbers is not None and _is_range(numbers) else np.arange(len(left))
    else:
        names, ids = _columns(path, left, lambda reverse: (left, right), first)
    _check(path, names, names, ids, first)
    return names.take(pa.array(np.argsort(ids)))


def _columns(path: Path, lines: Any, halves: Callable[[bool], tuple[Any, Any]], first: int) -> tuple[Any, np.ndarray]:
    """(names, ids) of lines of two columns, in file order; `halves(reverse)` are the columns, split at the first or last
    delimiter."""
    left, rest = halves(False)
    left_ids = integers(left)
    if left_ids is not None and _is_range(left_ids):
        return rest, left_ids
    body, right = halves(True)
    right_ids = integers(right)
    if right_ids is not None and (_is_range(right_ids) or left_ids is None):
        return body, right_ids
    if left_ids is not None:
        return rest, left_ids
    row = int(min(not_integers(left), not_integers(right), key=len)[0])
    message = f"expected `id<delimiter>name` with an integer id of 0 or more, found {shown(lines[row])}"
    raise DataError(path, message, line=first + row)


def read_lines(path: Path, expected: str = EXPECTED, *, header: bool = False) -> Any:
    """The file's lines as pa.LargeStringArray[n], n >= 1, none empty. Raises DataError with the line."""
    pieces = []
    for block in blocks(path, header=header):
        columns = read_columns(block.raw, {"line": pa.large_string()}, None)
        if columns is None or not lengths(columns["line"]).all():
            for number, _, message in each_line(block):
                if message:
                    raise DataError(path, message, line=number)
        assert columns is not None
        pieces.append(columns["line"])
    if not pieces:
        raise DataError(path, f"is empty, expected {expected}")
    return pa.concat_arrays(pieces)


def not_integers(texts: Any) -> np.ndarray:
    """Places of the texts that no id can be, int64[*]."""
    import pyarrow.compute as pc

    return np.flatnonzero(~pc.match_substring_regex(texts, "^ *[0-9]{1,18} *$").to_numpy(zero_copy_only=False).astype(bool))


def integers(texts: Any) -> np.ndarray | None:
    """Texts as int64[n]; None if one is no id (of at most 18 digits, blanks around it allowed)."""
    import pyarrow.compute as pc

    return None if len(not_integers(texts)) else np.asarray(pc.utf8_trim(texts, " ").cast(pa.int64()).to_numpy())


def _is_range(ids: np.ndarray) -> bool:
    return bool(ids.min() == 0 and ids.max() == len(ids) - 1 and np.bincount(ids).max() == 1)


def _check(path: Path, lines: Any, names: Any, ids: np.ndarray, first: int) -> None:
    """Raise DataError unless `ids` are 0 .. n-1 and `names` differ and are not empty."""
    empty = np.flatnonzero(lengths(names) == 0)
    if len(empty):
        raise DataError(path, "the name is empty", line=first + int(empty[0]))
    codes = names.dictionary_encode()
    if len(codes.dictionary) < len(codes) and (repeat := _first_repeat(codes.indices.to_numpy())):
        early, late = repeat
        if ids[early] == ids[late] or lines[early] == lines[late]:
            raise DataError(path, f"repeats line {first + early} ({shown(lines[late])}); remove one", line=first + late)
        message = f"name {shown(names[late])} has id {ids[late]}, but id {ids[early]} on line {first + early}"
        raise DataError(path, message, line=first + late)
    if _is_range(ids):
        return
    if repeat := _first_repeat(ids):
        early, late = repeat
        message = f"id {ids[late]} is {shown(names[late])}, but {shown(names[early])} on line {first + early}"
        raise DataError(path, message, line=first + late)
    order = np.argsort(ids)
    gap = int(np.flatnonzero(ids[order] != np.arange(len(ids)))[0])
    row = int(order[gap])
    before = f"follows id {gap - 1} (line {first + int(order[gap - 1])})" if gap else "is the lowest"
    message = f"id {ids[row]} {before}, so id {gap} is missing; ids must run from 0 to {len(ids) - 1}"
    raise DataError(path, message, line=first + row)


def _first_repeat(values: np.ndarray) -> tuple[int, int] | None:
    """Rows of the earliest repeated value: (where it was first, where it comes again)."""
    order = np.argsort(values, kind="stable")
    again = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    if not again.size:
        return None
    at = again[np.argmin(order[again + 1])]
    return int(order[at]), int(order[at + 1])
