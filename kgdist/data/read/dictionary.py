"""Dictionary files (`entities.dict`, `relations.dict`, `entity2id.txt`, a run's `entities.tsv`) -> names in id order.

A line is `id<delimiter>name`, `name<delimiter>id` (both are met in the wild), or a name alone, whose id is then its line
number from 0. Which one holds for the file is found by looking at all of it: the column that holds exactly 0 .. n-1 is the
ids, the first column if both do. The name is everything beyond the delimiter next to the id, so it may hold the delimiter
itself. Ids may come in any order, but none may be missing or come twice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kgdist.data.names import MAX_IDS, as_binary, hash_names, lengths, parts
from kgdist.data.read.lines import blocks, check_file
from kgdist.data.read.text import read_columns


def read_dictionary(path: Path, delimiter: str = "\t", *, counted: bool = False, header: bool = False) -> Any:
    """The names in id order, pa.LargeStringArray[n], or the count (int) alone.

    `header`: the first line is skipped. `counted`: the first line is the number of lines that follow, as in
    `entity2id.txt`; when none follow, that number is returned. Raises DataError with the line (both lines, for a repeat or
    a gap).
    """
    check_file(path, "one name or `id<delimiter>name` a line")
    names = None if counted else _in_order(path, delimiter, header)
    if names is not None:
        return names
    from kgdist.data.read.dictionary_lines import read_any  # only here: pyarrow.compute takes a tenth of a second to import

    return read_any(path, delimiter, counted=counted, header=header)


def _in_order(path: Path, delimiter: str, header: bool) -> Any:
    """The names of a file that has the ids 0, 1, ... in order beside them, as nearly all have; None for any other file, and for
    one with a mistake.

    Block by block, in a quarter of the time and memory that the general way takes, which holds all lines and their parts at once.
    """
    pieces: list[Any] = []
    count, first = 0, "id"
    for block in blocks(path, header=header):
        if not pieces:
            left, _, right = block.raw[: block.raw.index(b"\n")].rstrip(b"\r").partition(delimiter.encode())
            # Integers in front could be the ids, whatever comes behind: only all of the file tells.
            if left != b"0" and (right != b"0" or left.strip(b" ").isdigit()):
                return None
            first = "id" if left == b"0" else "name"
        order = ("id", "name") if first == "id" else ("name", "id")
        columns = read_columns(block.raw, {column: pa.large_string() for column in order}, delimiter)
        if columns is None or not lengths(columns["name"]).all() or not _counts_up(as_binary(columns["id"]), count):
            return None
        pieces.append(columns["name"])
        count += len(columns["id"])
    if not pieces or count > MAX_IDS:
        return None
    names = pa.concat_arrays(pieces)
    hashes = np.sort(hash_names(as_binary(names)))
    return None if (hashes[1:] == hashes[:-1]).any() else names  # equal names have equal hashes


def _counts_up(texts: Any, first: int) -> bool:
    """Whether pa.LargeBinaryArray[n] holds the decimal digits of first, first + 1, ..."""
    offsets, data = parts(texts)
    place, count = 0, len(texts)
    while place < count:
        width = len(str(first + place))
        stop = min(count, 10**width - first)  # numbers of so many digits lie one after another
        if not np.array_equal(offsets[place : stop + 1] - offsets[place], np.arange(stop - place + 1) * width):
            return False
        digits = data[offsets[place] : offsets[stop]].reshape(-1, width).astype(np.int64) - ord("0")
        numbers = digits @ 10 ** np.arange(width)[::-1]
        if digits.min() < 0 or digits.max() > 9 or not np.array_equal(numbers, np.arange(first + place, first + stop)):
            return False
        place = stop
    return True
