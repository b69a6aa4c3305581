"""What every reader of triples hands on: consecutive rows of one file as columns. Not the readers themselves (text,
parquet, ntriples).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import DataError

NOUNS = {"h": "head", "r": "relation", "t": "tail"}
DELIMITERS = {
    "\t": "tab-separated",
    ",": "comma-separated",
    "|": "pipe-separated",
    ";": "semicolon-separated",
    " ": "space-separated",
}


@dataclass(frozen=True)
class Spec:
    """How the rows of a file of triples are laid out."""

    order: str = "hrt"  # what the columns hold
    delimiter: str = "\t"
    header: bool | None = False  # the first line is skipped; None where it names columns (header.py)
    weights: bool | None = False  # a fourth column: True required, False refused, None where the first row has it
    limits: tuple[int, int] | None = (
        None  # numbers of entities and relations when the columns hold ids, None when they hold names
    )
    quoted: bool = False  # fields may stand in quotation marks, as in CSV

    def expected(self, width: int) -> str:
        """The words for a right row."""
        return f"{width} {DELIMITERS.get(self.delimiter, f'{self.delimiter!r}-separated')} fields"

    def limit(self, letter: str) -> int:
        """How many ids column `letter` may hold."""
        assert self.limits is not None
        return self.limits[letter == "r"]


class Rows(NamedTuple):
    """Some rows in file order; each column is a dictionary<string> array of names, or int64 ids that are within the limits."""

    heads: Any  # pa.Array[n]
    relations: Any  # pa.Array[n]
    tails: Any  # pa.Array[n]
    weights: np.ndarray | None  # float32[n], positive and finite
    line: int  # number of the first row's line
    lines: np.ndarray | None = None  # int64[n], where rows are not one line each

    def place(self, row: int) -> int:
        """The line number of one row."""
        return self.line + row if self.lines is None else int(self.lines[row])


def shown(value: object) -> str:
    """A value of the user's in quotes, on one line, cut to a readable length."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return repr(text if len(text) <= 80 else text[:77] + "...")


def out_of_range(letter: str, value: int, limit: int) -> str:
    """The message for an id that no entity or relation has."""
    noun = "relation" if letter == "r" else "entity"
    allowed = f"0 to {limit - 1}" if limit else "none"
    return f"{NOUNS[letter]} id {shown(value)[1:-1]} is out of range, allowed {noun} ids: {allowed}"


def wrong_weight(value: object) -> str:
    """The message for a fourth column that cannot weigh a triple."""
    return f"weight {shown(value)} is not a positive finite number"


def bad_name(values: Any) -> int | None:
    """Index of the first name that is empty or holds NUL, LF or CR (which no text file could carry), or None. `values`: a
    string array.
    """
    import pyarrow.compute as pc

    bad = pc.or_(pc.equal(pc.binary_length(values), 0), pc.match_substring_regex(values, r"[\x00\r\n]"))
    return int(pc.index(bad, True).as_py()) if pc.any(bad, min_count=0).as_py() else None


def check_numbers(path: Any, rows: Rows, spec: Spec) -> None:
    """Raise DataError for the first id out of range or weight that is not positive and finite in float32."""
    found: list[tuple[int, str]] = []
    if spec.limits is not None:
        for letter, column in zip("hrt", (rows.heads, rows.relations, rows.tails), strict=True):
            ids, limit = column.to_numpy(zero_copy_only=False), spec.limit(letter)
            if len(ids) and (ids.min() < 0 or ids.max() >= limit):
                row = int(np.flatnonzero((ids < 0) | (ids >= limit))[0])
                found.append((row, out_of_range(letter, int(ids[row]), limit)))
    if rows.weights is not None and not (np.isfinite(rows.weights).all() and (rows.weights > 0).all()):
        row = int(np.flatnonzero(~(np.isfinite(rows.weights) & (rows.weights > 0)))[0])
        found.append((row, wrong_weight(rows.weights[row])))
    if found:
        row, message = min(found)
        raise DataError(path, message, line=rows.place(row))
