"""The one pass over a file of entities: names to numbers, columns to canonical chunks, values to fitters.

Memory does not grow with the file but by the index of its names (some 30 bytes an entity), or by 8 bytes for each entity of the
dictionary.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late  # before Python 3.11 another one than Python's own
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.attributes.canonical import Canonical
from kgdist.attributes.declaration import Declaration
from kgdist.attributes.entity_files import Piece, columns_of, read_entities
from kgdist.attributes.fitting import Fit, fitter_of
from kgdist.attributes.growing import Growing
from kgdist.attributes.transforming import ChunkWriter
from kgdist.attributes.vector_file import VectorFile, vectors_of
from kgdist.base.errors import DataError, OptionError
from kgdist.base.files import write_npy
from kgdist.base.log import bar
from kgdist.data.names import as_binary, hash_names, make_run, parts
from kgdist.data.read.columns import bad_name, shown
from kgdist.data.read.lines import blocks, check_file, each_line
from kgdist.data.vocabulary import Vocabulary

ENTITIES = "entities"  # the stem of the files of names
PATIENCE = 600.0  # seconds for a piece of a file


@dataclasses.dataclass
class Scanned:
    """What a pass has found."""

    rows: int = 0  # entities that have attributes
    unknown: int = 0  # names that the dictionary lacks
    first_unknown: str = ""
    fitted_on: int = 0  # entities
    nans: dict[str, int] = dataclasses.field(default_factory=dict)  # of these entities, by attribute
    chunks: int = 0
    fits: list[Fit] = dataclasses.field(default_factory=list)


def read_ids(path: Path) -> Vocabulary:
    """The names in a file of a name a line, each once. Raises DataError."""
    import pyarrow as pa

    check_file(path, "a name a line")
    names: dict[str, None] = {}
    for block in blocks(path):
        for number, line, wrong in each_line(block):
            if wrong:
                raise DataError(path, wrong, line=number)
            names[line.decode()] = None
    return Vocabulary.from_names(pa.array(list(names), pa.large_string()))


class Numbers:
    """Names to the rows of the file, 0, 1, ...: written to `folder` as the vocabulary of a file that has its own."""

    def __init__(self, path: Path, key: str, folder: Path) -> None:
        self.path, self.key, self.folder = path, key, folder
        self.count = 0
        self._end = 0
        self._hashes: list[np.ndarray] = []
        self._names = Growing(folder / f"{ENTITIES}.names.npy", np.uint8)
        self._offsets = Growing(folder / f"{ENTITIES}.offsets.npy", np.int64)
        self._offsets.add(np.zeros(1, np.int64))

    def add(self, names: Any, lines: np.ndarray) -> np.ndarray:
        """All of them: int64[n], their numbers."""
        binary = as_binary(names)
        offsets, data = parts(binary)
        self._names.add(data)
        self._offsets.add(offsets[1:] + self._end)
        self._end += int(offsets[-1])
        self._hashes.append(hash_names(binary))
        self.count += len(binary)
        return np.arange(self.count - len(binary), self.count)

    def finish(self) -> None:
        """Write the index. Raises DataError for a name that appears twice."""
        self._names.close()
        self._offsets.close()
        run = make_run(np.concatenate(self._hashes))
        self._hashes = []
        write_npy(self.folder / f"{ENTITIES}.hashes.npy", run.hashes)
        write_npy(self.folder / f"{ENTITIES}.ids.npy", run.ids)
        same = np.flatnonzero(run.hashes[1:] == run.hashes[:-1])
        if len(same):  # equal hashes of different names are rare, and fine
            names = Vocabulary.load(self.folder, ENTITIES)
            seen: set[str] = set()
            for number in np.sort(np.unique(run.ids[np.concatenate([same, same + 1])])).tolist():
                if names[number] in seen:
                    raise DataError(self.path, f"entity {shown(names[number])} appears twice", line=self._line(number))
                seen.add(names[number])

    def _line(self, number: int) -> int:
        """Where an entity stands: read again, since lines are not kept for all."""
        for piece in read_entities(self.path, {self.key: None}):
            if number < len(piece.lines):
                return int(piece.lines[number])
            number -= len(piece.lines)
        raise DataError(self.path, "was changed while it was read; start again when it is complete")


class Places:
    """Names to the rows of what is kept, by a dictionary whose entities these are."""

    def __init__(self, path: Path, vocabulary: Vocabulary) -> None:
        self.path, self.vocabulary, self.count = path, vocabulary, 0
        self.rows = np.full(len(vocabulary), -1, np.int64)

    def add(self, names: Any, lines: np.ndarray) -> np.ndarray:
        """The rows of those that are known, -1 for others: int64[n]. Raises DataError for a name that appears twice."""
        ids = self.vocabulary.find(names)
        known = np.flatnonzero(ids >= 0)
        found = np.full(len(ids), -1, np.int64)
        found[known] = np.arange(self.count, self.count + len(known))
        again = self.rows[ids[known]] >= 0
        again[np.setdiff1d(np.arange(len(known)), np.unique(ids[known], return_index=True)[1])] = True
        if again.any():
            row = int(known[np.flatnonzero(again)[0]])
            raise DataError(self.path, f"entity {shown(names[row].as_py())} appears twice", line=int(lines[row]))
        self.rows[ids[known]] = found[known]
        self.count += len(known)
        return found

    def finish(self) -> None:
        """Nothing is left to do."""


def scan(
    path: Path,
    declaration: Declaration,
    numbers: Numbers | Places,
    writer: ChunkWriter,
    fit_on: Vocabulary | None,
    base: Path,
    *,
    ahead: bool = False,
) -> Scanned:
    """Read a file to its end. `base`: where relative .npy files of vectors lie. `ahead`: a thread reads the piece after the one
    that is fitted, which is half of the work. Raises DataError (file:line)."""
    there = columns_of(path)
    if there is not None:
        if there == []:
            raise DataError(path, "is empty, expected the names of its columns in the first line")
        declaration.check_columns(path, there)
    found = Scanned()
    attributes = declaration.attributes
    readers = [vectors_of(declaration, each, base) or Canonical(each) for each in attributes]
    fitters = [fitter_of(each, lambda problem, each=each: declaration.wrong(each, problem), base) for each in attributes]  # type: ignore[misc]
    seen = 0
    read = _read(path, declaration, readers)
    with (
        bar(desc=f"reading {path.name}", unit=" entities") as progress,
        contextlib.closing(_ahead(path, read) if ahead else read) as pieces,
    ):
        for names, lines, all_values, nans in pieces:
            rows = numbers.add(names, lines)
            kept = rows >= 0
            if not kept.all():
                found.first_unknown = found.first_unknown or names[int(np.flatnonzero(~kept)[0])].as_py()
                found.unknown += int((~kept).sum())
            chosen = kept if fit_on is None else kept & (fit_on.find(names) >= 0)
            columns = []
            for values, fitter in zip(all_values, fitters, strict=True):
                fitter.add(values if chosen.all() else values.filter(_mask(chosen)), rows[chosen])
                columns.append(values if kept.all() else values.filter(_mask(kept)))
            for name, nan in nans.items():
                if count := int(nan[kept].sum()):  # who is left out is counted there
                    found.nans[name] = found.nans.get(name, 0) + count
            writer.add(columns, int(kept.sum()))
            seen += len(names)
            found.rows += int(kept.sum())
            found.fitted_on += int(chosen.sum())
            progress.update(len(names))
    _check(path, found, seen, fit_on)
    for reader in readers:
        if isinstance(reader, VectorFile):
            reader.check(seen)
    numbers.finish()
    writer.close()
    found.chunks = writer.chunks
    found.fits = [fitter.finish() for fitter in fitters]
    return found


class _Read(NamedTuple):
    """A piece of a file, n entities."""

    names: Any  # pa.StringArray[n]
    lines: np.ndarray  # int64[n]
    columns: list[Any]  # of each attribute its canonical pa.Array[n]
    nans: dict[str, np.ndarray]  # of each that can be NaN, bool[n]: whose is


def _read(path: Path, declaration: Declaration, readers: Sequence[VectorFile | Canonical]) -> Generator[_Read, None, None]:
    """The pieces of a file, in their order. Raises DataError (file:line)."""
    seen = 0
    for piece in read_entities(path, declaration.columns):
        names = names_of(path, declaration.key, piece)
        columns = [reader.read(path, piece, seen) for reader in readers]
        nans = {reader.attribute.name: reader.nan for reader in readers if isinstance(reader, Canonical)}
        yield _Read(names, piece.lines, columns, nans)
        seen += len(names)


def _ahead(path: Path, pieces: Generator[_Read, None, None]) -> Generator[_Read, None, None]:
    """The same, each made in a thread while the one before is in use. Raises DataError when none comes for `PATIENCE`."""
    with contextlib.closing(pieces), ThreadPoolExecutor(1, "kgdist-read") as reading:
        coming = reading.submit(next, pieces, None)
        while True:
            try:
                piece = coming.result(PATIENCE)
            except Late:
                raise DataError(path, f"nothing has come from it for {PATIENCE:.0f} s; is its disk or server there?") from None
            if piece is None:
                return
            coming = reading.submit(next, pieces, None)
            yield piece


def _check(path: Path, found: Scanned, seen: int, fit_on: Vocabulary | None) -> None:
    if not seen:
        raise DataError(path, "has no entities")
    if not found.rows:
        raise DataError(
            path, f"none of its {seen:,} entities is in the dictionary, such as {shown(found.first_unknown)}; is --dataset right?"
        )
    if fit_on is not None and not found.fitted_on:
        raise OptionError("--fit_on", f"none of its {len(fit_on):,} names is an entity of {path}")


def _mask(chosen: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.array(chosen)


def names_of(path: Path, key: str, piece: Piece) -> Any:
    """The names of a piece: pa.StringArray[n]. Raises DataError for one that cannot be."""
    import pyarrow as pa

    names = piece.columns[key]
    if pa.types.is_dictionary(names.type):
        names = names.dictionary_decode()
    if names.null_count:
        row = int(np.flatnonzero(names.is_null().to_numpy(zero_copy_only=False))[0])
        raise DataError(path, f"column {shown(key)}, which names the entity, is empty", line=int(piece.lines[row]))
    if not (pa.types.is_string(names.type) or pa.types.is_large_string(names.type) or pa.types.is_integer(names.type)):
        raise DataError(path, f"column {shown(key)} holds {names.type}, expected names", line=int(piece.lines[0]))
    names = names.cast(pa.string())
    if (bad := bad_name(names)) is not None:
        problem = f"name {shown(names[bad].as_py())} is empty or holds NUL or a line end"
        raise DataError(path, problem, line=int(piece.lines[bad]))
    return names
