"""Vectors of entities that other tools have made (of texts, of another graph) -> blocks of rows, by the ids of the entities.

What `kgdist-export` writes and common tools give: an `.npy` array with a file of names, Parquet with a column of names and one of
lists, or text as of word2vec (`word number number ...`, with or without a first line of counts). Memory is a block's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import CheckpointError, DataError, OptionError
from kgdist.base.files import load_npy
from kgdist.data.read.columns import shown
from kgdist.data.read.lines import blocks, check_file, each_line, reason, suffix
from kgdist.data.vocabulary import Vocabulary

FLAG = "--init_vectors"
EXPECTED = "vectors of entities"
_NUMBERS = 1 << 20  # of a block
_BLANK = re.compile(r"\s")
_COUNTS = re.compile(rb"[0-9]+ [0-9]+ *")


class Block(NamedTuple):
    """Some vectors; every entity comes once in a pass."""

    ids: np.ndarray  # int64[n]
    rows: np.ndarray  # float32[n, width], finite


class EntityVectors:
    """The vectors in a file (and, of an `.npy`, the names in another), for the entities of one graph.

    Attributes:
        unknown: in the last pass, how many vectors were of names that the graph does not have.
        first: the first of these, for a message.
        repeated: in the last pass, how many vectors were of an entity that had one already, which counts.
    """

    def __init__(self, files: Sequence[str], entities: Vocabulary) -> None:
        if len(files) > 2:
            raise OptionError(FLAG, f"takes a file of vectors and, of an .npy, one of names, not {len(files)} files")
        self.path, self.entities = Path(files[0]), entities
        self.names = Path(files[1]) if len(files) > 1 else None
        self.unknown, self.first, self.repeated = 0, "", 0
        self._seen = np.zeros(0, bool)
        check_file(self.path, EXPECTED)
        if self.names is not None:
            if suffix(self.path) != ".npy":
                raise OptionError(FLAG, f"{self.path} has names of its own; a file of names goes with an .npy")
            check_file(self.names, "names of the vectors")

    def read(self) -> Iterator[Block]:
        """One pass. Raises DataError (file:line, or file and row) for what is no vector, of another width, or not finite, and
        where no vector is of an entity of this graph."""
        self.unknown, self.first, self.repeated, self._seen = 0, "", 0, np.zeros(len(self.entities), bool)
        kind = suffix(self.path)
        yield from self._npy() if kind == ".npy" else self._parquet() if kind in (".parquet", ".pq") else self._text()
        if not self._seen.any():
            first = f"; the first is of {self.first}" if self.first else ""
            raise DataError(self.path, f"has no vector of any entity of this graph{first}")

    def check(self) -> None:
        """A pass for nothing but what it raises."""
        for _ in self.read():
            pass

    def _known(self, names: Any) -> tuple[np.ndarray, np.ndarray]:
        """Names -> the places int64[n] of those that are entities and come for the first time, and their ids int64[n]."""
        ids = self.entities.find(names).astype(np.int64)
        for place in np.flatnonzero(ids < 0).tolist():
            ids[place] = self._words.get(str(names[place]), -1)
        strange = np.flatnonzero(ids < 0)
        if len(strange):
            self.first = self.first or shown(names[int(strange[0])])
            self.unknown += len(strange)
        places = there = np.flatnonzero(ids >= 0)
        places = places[~self._seen[ids[places]]]
        places = places[np.sort(np.unique(ids[places], return_index=True)[1])]
        self.repeated += len(there) - len(places)
        self._seen[ids[places]] = True
        return places, ids[places]

    @cached_property
    def _words(self) -> dict[str, int]:
        """Names with white space as word2vec has them, with `_` in its place, where that is one entity's alone."""
        found: dict[str, int] = {}
        for number, name in enumerate(self.entities):
            if _BLANK.search(name):
                word = _BLANK.sub("_", name)
                found[word] = -1 if word in found else number
        return found

    # ---- .npy
    def _npy(self) -> Iterator[Block]:
        try:
            array = load_npy(self.path, mmap=True)
        except CheckpointError as error:
            raise DataError(self.path, "is not a readable .npy array") from error
        if array.ndim != 2 or array.dtype.kind not in "fiu" or not array.size:
            raise DataError(self.path, f"holds {array.dtype}{list(array.shape)}, expected rows of numbers")
        path = self.names or self.path.with_name("entities.tsv")
        if not path.exists():
            raise OptionError(FLAG, f"whose are the rows of {self.path}? Give their names, too: {FLAG} {self.path} NAMES")
        names = Vocabulary.read_tsv(path)
        if len(names) != len(array):
            raise DataError(path, f"has {len(names):,} names, but {self.path} has {len(array):,} rows")
        step = max(1, _NUMBERS // array.shape[1])
        for start in range(0, len(array), step):
            stop = min(start + step, len(array))
            places, ids = self._known(names.names(np.arange(start, stop)))
            yield self._finite(ids, array[start + places], start + places, "row")

    def _finite(self, ids: np.ndarray, values: np.ndarray, where: np.ndarray, unit: str) -> Block:
        """Values of any kind as a block. `where` int64[n]: their lines, from 1, or rows, from 0."""
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(values, np.float32)
        if len(bad := np.flatnonzero(~np.isfinite(rows).all(axis=1))):
            message, place = "holds a number that is not finite (as float32)", int(where[bad[0]])
            whose = shown(self.entities[int(ids[bad[0]])])
            if unit == "line":
                raise DataError(self.path, f"the vector of {whose} {message}", line=place)
            raise DataError(self.path, f"row {place}, the vector of {whose}, {message}")
        return Block(ids, rows)

    # ---- Parquet
    def _parquet(self) -> Iterator[Block]:
        import pyarrow as pa
        from pyarrow import parquet

        try:
            with parquet.ParquetFile(self.path) as file:
                schema = file.schema_arrow
                name = _column(schema, "name", lambda kind: pa.types.is_string(kind) or pa.types.is_large_string(kind))
                vector = _column(schema, "embedding", _is_list)
                if name is None or vector is None:
                    message = f"expected a column of names and one of lists of numbers, found {', '.join(schema.names)}"
                    raise DataError(self.path, message)
                start = width = 0
                for batch in file.iter_batches(batch_size=4096, columns=[name, vector], use_threads=False):
                    places, ids = self._known(batch.column(name).fill_null(""))
                    chosen = batch.column(vector).take(pa.array(places)).to_pylist()
                    for place, row in zip(places.tolist(), chosen, strict=True):
                        width = width or len(row or ())
                        if row and len(row) != width:
                            message = f"row {start + place}: expected {width} numbers, as in the rows before, found {len(row)}"
                            raise DataError(self.path, message)
                        if not row or any(number is None for number in row):
                            raise DataError(self.path, f"row {start + place}: has no vector, or one with a null in it")
                    if len(ids):
                        yield self._finite(ids, np.array(chosen, np.float32), start + places, "row")
                    start += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise DataError(self.path, f"not a readable Parquet file ({reason(error)})") from error

    # ---- text
    def _text(self) -> Iterator[Block]:
        width, read = 0, 0
        promised: int | None = None
        for block in blocks(self.path):
            names, numbers, lines = [], [], []
            for number, line, wrong in each_line(block):
                if wrong:
                    raise DataError(self.path, wrong, line=number)
                if number == 1 and _COUNTS.fullmatch(line):
                    promised, width = (int(each) for each in line.split())
                    continue
                word, _, rest = line.rstrip(b" ").partition(b" ")
                found = rest.count(b" ") + 1 if rest else 0
                width = width or found
                if not word or not found or found != width:
                    message = f"expected a word and {width or 'some'} numbers with a blank between, found {found} numbers"
                    raise DataError(self.path, message, line=number)
                names.append(word.decode())
                numbers.append(rest)
                lines.append(number)
            read += len(names)
            places, ids = self._known(names)
            step = max(1, _NUMBERS // max(width, 1))
            for start in range(0, len(places), step):
                chosen = places[start : start + step]
                rows = [self._floats(numbers[place], lines[place]) for place in chosen.tolist()]
                yield self._finite(ids[start : start + step], np.stack(rows), np.array(lines)[chosen], "line")
        if promised not in (None, read):
            raise DataError(self.path, f"its first line promises {promised:,} vectors, and it has {read:,}; is it whole?")

    def _floats(self, text: bytes, line: int) -> np.ndarray:
        try:
            return np.array(text.split(b" "), np.float64)
        except ValueError as error:
            raise DataError(self.path, f"not every field after the word is a number: {shown(text)}", line=line) from error


def _is_list(kind: Any) -> bool:
    """Whether a column of that type holds lists of numbers."""
    import pyarrow as pa

    lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    return bool(lists and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))


def _column(schema: Any, usual: str, fits: Any) -> str | None:
    """The column of that name if it fits, else the first that does."""
    names = [field.name for field in schema if fits(field.type)]
    return usual if usual in names else names[0] if names else None
