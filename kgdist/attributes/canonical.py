"""Columns as files have them -> columns as their kind wants them, or the file and line of the first value that cannot be one.

    numeric, date    pa.DoubleArray: the number; days since 1970-01-01
    categorical      pa.StringArray
    multi            pa.ListArray of strings
    text             pa.StringArray
    vector           pa.ListArray of float, all of one length

What is missing is null: an empty field, null, NaN (counted, but for that of a .jsonl), a list without words. Infinity is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any, NamedTuple

import numpy as np

from kgdist.attributes.declaration import Attribute, DateKind, MultiKind, VectorKind
from kgdist.attributes.entity_files import Piece, parted
from kgdist.base.errors import DataError
from kgdist.base.files import PathLike
from kgdist.data.read.columns import shown

_ISO = re.compile(r"-?[0-9]{1,6}(-[0-9]{2}(-[0-9]{2}([T ][0-9]{2}(:[0-9]{2}(:[0-9]{2})?)?Z?)?)?)?")
DAY = 86400  # seconds


class Values(NamedTuple):
    """A column to be read, and where its rows stand."""

    path: PathLike
    name: str
    array: Any  # pa.Array[n]
    lines: np.ndarray  # int64[n]

    def wrong(self, row: int, problem: str) -> DataError:
        """The error of one row."""
        return DataError(self.path, f"column {shown(self.name)}: {problem}", line=int(self.lines[row]))

    def strange(self, expected: str) -> DataError:
        """The error of a Parquet column of a type that no value of this kind has."""
        return self.wrong(0, f"holds {self.array.type}, expected {expected}")


class Canonical:
    """The columns of one attribute.

    Attributes:
        nan: bool[n], which rows of the piece that was read last are NaN, and so are missing.
        width: numbers of each vector, once one was read.
    """

    def __init__(self, attribute: Attribute) -> None:
        self.attribute = attribute
        self.nan, self.width = np.zeros(0, np.bool_), 0
        readers: dict[str, Callable[[Values], Any]] = {
            "numeric": self._numbers,
            "date": self._days,
            "categorical": lambda values: self._texts(values, "words"),
            "multi": self._words,
            "text": lambda values: self._texts(values, "texts"),
            "vector": self._vectors,
        }
        self._read = readers[attribute.kind]

    def read(self, path: PathLike, piece: Piece, first: int) -> Any:
        """This attribute's column of a piece that begins with the row `first`. Raises DataError (file:line)."""
        array = piece.columns[self.attribute.name]
        self.nan = np.zeros(len(piece.lines), np.bool_)
        return self._read(Values(path, self.attribute.name, _decoded(array), piece.lines))

    def _numbers(self, values: Values) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        array = values.array
        if pa.types.is_string(array.type):
            numbers = _parsed(values)
        elif pa.types.is_integer(array.type) or pa.types.is_floating(array.type) or pa.types.is_decimal(array.type):
            numbers = array.cast(pa.float64(), safe=False)
        elif pa.types.is_null(array.type):
            return array.cast(pa.float64())
        else:
            raise values.strange("numbers")
        return self._finite(values, numbers, pc.is_nan(numbers))

    def _finite(self, values: Values, numbers: Any, nan: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        infinite = pc.fill_null(pc.is_inf(numbers), False).to_numpy(zero_copy_only=False)
        if infinite.any():
            raise values.wrong(int(np.flatnonzero(infinite)[0]), "infinity cannot be put into an interval")
        nan = self._counted(nan)
        return pc.if_else(nan, pa.scalar(None, pa.float64()), numbers) if self.nan.any() else numbers

    def _counted(self, nan: Any) -> Any:
        """A mask of rows that are NaN, kept; without nulls."""
        import pyarrow.compute as pc

        nan = pc.fill_null(nan, False)
        self.nan = np.asarray(nan.to_numpy(zero_copy_only=False), bool)
        return nan

    def _days(self, values: Values) -> Any:
        import pyarrow as pa

        array = values.array
        if pa.types.is_date(array.type) or pa.types.is_timestamp(array.type):
            seconds = array.cast(pa.timestamp("s"), safe=False).cast(pa.int64())
            return pa.array(seconds.to_numpy(zero_copy_only=False) / DAY, mask=_missing(array), type=pa.float64())
        if pa.types.is_integer(array.type):  # years
            array = array.cast(pa.string())
        if pa.types.is_null(array.type):
            return array.cast(pa.float64())
        if not pa.types.is_string(array.type):
            raise values.strange("dates")
        assert isinstance(self.attribute.settings, DateKind)
        seconds = _seconds(values._replace(array=array), self.attribute.settings.format)
        return pa.array(seconds / DAY, mask=_missing(array), type=pa.float64())

    def _texts(self, values: Values, expected: str) -> Any:
        """A column as pa.StringArray, empty ones and NaN null. Numbers and truth values are the words that write them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        array, kind = values.array, values.array.type
        plain = _is_text(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind)
        if not plain and not pa.types.is_null(kind) and not pa.types.is_date(kind):
            raise values.strange(expected)
        if pa.types.is_floating(kind):  # which integers with gaps become in a data frame
            array = pc.if_else(self._counted(pc.is_nan(array)), pa.scalar(None, kind), array)
        texts = array.cast(pa.string())
        return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)

    def _words(self, values: Values) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        assert isinstance(self.attribute.settings, MultiKind)
        array = values.array
        if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
            kind = array.type.value_type
            if not _is_text(kind) and not pa.types.is_integer(kind) and not pa.types.is_null(kind):
                raise values.strange("lists of words")
            lists = array.cast(pa.list_(pa.string()))
        else:
            texts = self._texts(values, "words, or lists of them")
            lists = pc.split_pattern(texts, self.attribute.settings.separator).cast(pa.list_(pa.string()))
        return _without_blanks(lists)

    def _vectors(self, values: Values) -> Any:
        import pyarrow as pa

        assert isinstance(self.attribute.settings, VectorKind)
        array, kind = values.array, values.array.type
        if pa.types.is_string(kind) or pa.types.is_null(kind):
            separator = self.attribute.settings.separator
            texts = [text and parted(text, separator) for text in array.cast(pa.string()).to_pylist()]
            array = pa.array(texts, pa.list_(pa.string()))
        elif pa.types.is_fixed_size_list(kind):
            array = array.cast(pa.list_(kind.value_type))
        elif not pa.types.is_list(kind) and not pa.types.is_large_list(kind):
            raise values.strange("lists of numbers")
        array = array.cast(pa.list_(array.type.value_type))
        items, flat = array.type.value_type, array.flatten()
        there = np.flatnonzero(~_missing(array))
        sizes = np.diff(np.append(array.offsets.to_numpy(), 0)[: len(array) + 1])[there]
        rows = np.repeat(there, sizes)
        inside = Values(values.path, values.name, flat, values.lines[rows])
        if pa.types.is_string(items):
            flat = _parsed(inside)
        elif not pa.types.is_integer(items) and not pa.types.is_floating(items):
            raise values.strange("lists of numbers")
        numbers = flat.cast(pa.float32(), safe=False).to_numpy(zero_copy_only=False)
        if len(numbers) and not np.isfinite(numbers).all():
            bad = int(np.flatnonzero(~np.isfinite(numbers))[0])
            raise inside.wrong(bad, "a number of a vector is missing, infinite, or none")
        if not self.width and len(sizes):
            self.width = int(sizes[0])
        if not self.width and len(sizes):
            raise values.wrong(int(there[0]), "a vector has at least one number")
        if len(sizes) and (sizes != self.width).any():
            bad = int(np.flatnonzero(sizes != self.width)[0])
            raise values.wrong(int(there[bad]), f"a vector of {sizes[bad]} numbers, but the first has {self.width}")
        offsets = np.zeros(len(array) + 1, np.int32)
        offsets[there + 1] = sizes
        made = pa.ListArray.from_arrays(pa.array(np.cumsum(offsets, dtype=np.int32)), pa.array(numbers, pa.float32()))
        return _masked(made, _missing(array))


def _decoded(array: Any) -> Any:
    """Without dictionaries, and text as pa.StringArray."""
    import pyarrow as pa

    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    return array.cast(pa.string()) if _is_text(array.type) else array


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _missing(array: Any) -> np.ndarray:
    return np.asarray(array.is_null().to_numpy(zero_copy_only=False), bool)


def _masked(lists: Any, missing: np.ndarray) -> Any:
    """The same lists, null where `missing`, which have no items."""
    import pyarrow as pa

    present = np.packbits(~missing, bitorder="little")
    buffers = [pa.py_buffer(present), lists.buffers()[1]]
    return pa.Array.from_buffers(lists.type, len(lists), buffers, children=[lists.values])


def _parsed(values: Values) -> Any:
    """Texts as numbers, with the line of the first that is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(values.array)
    texts = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
    try:
        return texts.cast(pa.float64())
    except pa.ArrowInvalid as error:
        for row, text in enumerate(texts):
            try:
                text.cast(pa.float64())
            except pa.ArrowInvalid:
                raise values.wrong(row, f"{shown(text.as_py())} is not a number") from error
        raise


def _seconds(values: Values, form: str | None) -> np.ndarray:
    """float64[n], seconds since 1970-01-01; anything where there is none."""
    texts = values.array
    found = np.zeros(len(texts), np.float64)
    known: dict[str, float] = {}  # dates repeat
    for row, text in enumerate(texts.to_pylist()):
        if text is None:
            continue
        if text not in known:
            try:
                known[text] = _iso(text.strip()) if form is None else _of_format(text, form)
            except (ValueError, re.error) as error:
                if isinstance(error, re.error) or "directive" in str(error) or "stray %" in str(error):
                    raise values.wrong(row, f"{shown(form)} is not a format of dates ({error})") from None
                problem = (
                    "not a date, such as 1970, 1970-01 or 1970-01-31"
                    if form is None
                    else f"not a date of the format {shown(form)}"
                )
                raise values.wrong(row, f"{shown(text)} is {problem}") from None
        found[row] = known[text]
    return found


def _iso(text: str) -> float:
    """Seconds since 1970-01-01. Raises ValueError."""
    if not _ISO.fullmatch(text):
        raise ValueError(text)
    return float(np.datetime64(_padded(text.removesuffix("Z")), "s").astype(np.int64))


def _of_format(text: str, form: str) -> float:
    """The same, of a text of another format, in UTC unless it says otherwise. Raises ValueError."""
    when = datetime.strptime(text, form)
    return (when if when.tzinfo else when.replace(tzinfo=timezone.utc)).timestamp()


def _padded(text: str) -> str:
    """A year in four digits, as NumPy wants it."""
    sign = "-" if text.startswith("-") else ""
    year, dash, rest = text.removeprefix("-").partition("-")
    return sign + year.zfill(4) + dash + rest


def _without_blanks(lists: Any) -> Any:
    """Lists of words without empty ones and nulls; null where none is left."""
    import pyarrow as pa
    import pyarrow.compute as pc

    missing = _missing(lists)
    offsets = np.asarray(lists.offsets.to_numpy(), np.int64)
    flat = lists.values
    keep = pc.fill_null(pc.greater(pc.binary_length(flat), 0), False)
    kept = np.asarray(keep.to_numpy(zero_copy_only=False), np.int64)
    ends = np.concatenate([[0], np.cumsum(kept)])
    starts = ends[offsets]
    words = flat.filter(keep).slice(int(starts[0]), int(starts[-1] - starts[0]))
    made = pa.ListArray.from_arrays(pa.array((starts - starts[0]).astype(np.int32)), words)
    return _masked(made, missing | (np.diff(starts) == 0))
