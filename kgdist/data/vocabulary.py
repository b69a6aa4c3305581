"""The two-way map between names and ids 0 .. n-1, of entities or of relations.

Names are byte-exact Unicode: nothing is trimmed, folded or normalised, so the two spellings of an accented letter are two
names. A name is not empty and holds no NUL, line feed or carriage return, so that every name can stand in a text file; tabs
are fine. Held as two arrays (UTF-8 bytes and offsets) plus a sorted hash index, all of which can be memory-mapped: 86
million names need no Python objects. Not a parser: dictionary.py reads the files.

Only looking names up takes pyarrow: a training that finds its graph cached does without the library's 40 MiB.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import heapq
import itertools
import operator
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, atomic_write, load_npy, write_npy
from kgdist.data.names import SortedHashes, as_binary, hash_name, hash_names, make_run, parts, search, view
from kgdist.data.read.columns import bad_name, shown

_PIECE = 1 << 16  # names written or hashed at once
FEW = 16  # names that are found one by one, in 5 µs each; more, all at once, take .1 ms or longer
_NUMBER = re.compile("(0|[1-9][0-9]{0,17})")
LOOK = 1 << 18  # names that are looked through for ones like an unknown name: a second at most, however many there are
NEAR = 64  # of them, those that share most pairs of letters are compared in full
HELD = 3  # letters of an unknown name that say something where a name holds them


class Vocabulary:
    """Names by id and ids by name; immutable."""

    def __init__(self, offsets: np.ndarray, data: np.ndarray, run: SortedHashes | None = None) -> None:
        """`offsets` int64[n + 1] into `data` uint8[bytes]; the caller vouches for distinct, valid names. See `from_names`."""
        self._offsets, self._data = offsets, data
        if run is not None:
            self._run = run

    @classmethod
    def from_names(cls, names: Any) -> Vocabulary:
        """The vocabulary that gives the i-th of `names` (list, NumPy or pyarrow array of str) the id i.

        Raises ValueError for a repeated name, an empty one, or one with NUL, LF or CR.
        """
        import pyarrow as pa

        array = as_binary(names if hasattr(names, "__len__") else list(names))
        text = array.cast(pa.large_string())
        row = bad_name(text)
        if row is not None:
            raise ValueError(f"name {row} ({text[row].as_py()!r}) is empty or holds NUL, a line feed or a carriage return")
        if len(array.unique()) != len(array):
            codes = array.dictionary_encode().indices.to_numpy()
            row = int(np.setdiff1d(np.arange(len(codes)), np.unique(codes, return_index=True)[1])[0])
            raise ValueError(f"name {text[row].as_py()!r} appears twice")
        return cls(*parts(array))

    @staticmethod
    def numbered(count: int) -> Vocabulary:
        """The vocabulary of `count` things without names: id i is called str(i). Takes no memory."""
        return _Numbered(count)

    @property
    def count(self) -> int | None:
        """The n of `numbered(n)`, None for a vocabulary that stores its names."""
        return None

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: SupportsIndex) -> str:
        """The name of an id. Raises IndexError outside 0 .. n-1 (no counting from the end)."""
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise IndexError(f"id {number} is out of range, allowed: 0 to {len(self) - 1}")
        return self._name(number)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and int(self.find([name])[0]) >= 0

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _PIECE):
            yield from self._lines(start, start + _PIECE).decode().split("\n")[:-1]

    def id(self, name: str) -> int:
        """The id of a name. Raises KeyError."""
        return int(self.encode([name])[0])

    def find(self, names: Any) -> np.ndarray:
        """Names (list, NumPy or pyarrow array) -> int32[n], -1 for those not here. Raises TypeError for what is no text."""
        if isinstance(names, list) and len(names) <= FEW and all(isinstance(name, str) for name in names):
            return np.array([self._find_one(name) for name in names], np.int32)
        values = as_binary(names)
        return self._find(values).astype(np.int32)

    def encode(self, names: Any) -> np.ndarray:
        """Names (list, NumPy or pyarrow array) -> int32[n]. Raises KeyError with the first name that is not here."""
        values = as_binary(names)
        ids = self._find(values)
        if len(ids) and ids.min() < 0:
            raise KeyError(values[int(np.flatnonzero(ids < 0)[0])].as_py().decode("utf-8", "replace"))
        return ids.astype(np.int32)

    def names(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """The names of some ids. Raises IndexError outside 0 .. n-1."""
        wanted = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64).reshape(-1)
        if len(wanted) and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise IndexError(
                f"id {int(wanted[(wanted < 0) | (wanted >= len(self))][0])} is out of range, allowed: 0 to {len(self) - 1}"
            )
        if len(wanted) > FEW:
            found: list[str] = self.take(wanted).to_pylist()
            return found
        return [self._name(number) for number in wanted.tolist()]

    def near(self, name: str, most: int = 3) -> list[str]:
        """Names that the unknown `name` may have been meant to be, of the first LOOK: those that hold it, which may be the end of
        an IRI, the shortest first, then those that are spelled alike."""
        wanted = name[:100].strip().lower()
        pairs = {wanted[place : place + 2] for place in range(max(1, len(wanted) - 1))}

        def shared(other: str) -> float:
            text = other.lower()
            return 2 * sum(pair in text for pair in pairs) / (len(pairs) + len(text))

        near = heapq.nlargest(NEAR, itertools.islice(self, LOOK), key=shared)
        rated = [(difflib.SequenceMatcher(None, wanted, other[:200].lower()).ratio(), other) for other in near]
        alike = [other for ratio, other in sorted(rated, key=lambda each: -each[0]) if ratio >= 0.5]
        holding = self.complete(wanted, most) if len(wanted) >= HELD else []
        return list(dict.fromkeys([*holding, *alike]))[:most]

    def complete(self, text: str, most: int = 10) -> list[str]:
        """Names that begin with `text`, the shortest first, and then those that hold it, whatever the case of letters; of the
        first LOOK."""
        import pyarrow.compute as pc

        begin: list[str] = []
        inside: list[str] = []
        stop = min(len(self), LOOK)
        for start in range(0, stop, _PIECE):
            part = self.take(np.arange(start, min(start + _PIECE, stop)))
            begin += part.filter(pc.starts_with(part, text, ignore_case=True)).to_pylist()
            if len(begin) < most:
                held = part.filter(pc.match_substring(part, text, ignore_case=True)).to_pylist()
                inside = heapq.nsmallest(most, itertools.chain(inside, held[: 100 * most]), key=len)
            begin = heapq.nsmallest(most, begin, key=len)
        return list(dict.fromkeys([*begin, *heapq.nsmallest(2 * most, inside, key=len)]))[:most]

    def hint(self, name: str) -> str:
        """What to say of an unknown `name` last: "; did you mean ...?", or nothing."""
        near = self.near(name)
        return f"; did you mean {' or '.join(map(shown, near))}?" if near else ""

    def take(self, ids: np.ndarray) -> Any:
        """The names of many ids at once: int[n], each 0 .. len - 1 -> pa.LargeStringArray[n]."""
        import pyarrow as pa

        return self._array.take(pa.array(ids)).cast(pa.large_string())

    @functools.cached_property
    def digest(self) -> str:
        """sha256 (hex) of the names in id order, each followed by a line feed."""
        digest = hashlib.sha256()
        for start in range(0, len(self), _PIECE):
            digest.update(self._lines(start, start + _PIECE))
        return digest.hexdigest()

    def padded(self) -> int:
        """How many names begin or end with a blank, which is easy to do and hard to see."""
        count = 0
        for start in range(0, len(self), _PIECE):
            places = self._offsets[start : start + _PIECE + 1]
            count += int(((self._data[places[:-1]] == 32) | (self._data[places[1:] - 1] == 32)).sum())
        return count

    def write_tsv(self, path: PathLike) -> None:
        """Write lines `id<TAB>name`, atomically."""
        with atomic_write(path) as file:
            for start in range(0, len(self), _PIECE):
                names = self._lines(start, start + _PIECE).split(b"\n")[:-1]
                file.write(b"".join([b"%d\t%b\n" % line for line in enumerate(names, start)]))

    @classmethod
    def read_tsv(cls, path: PathLike, delimiter: str = "\t") -> Vocabulary:
        """Read lines `id<delimiter>name` (or what else dictionary.py allows). Raises DataError with the line."""
        from kgdist.data.read.dictionary import read_dictionary

        return cls(*parts(as_binary(read_dictionary(Path(path), delimiter))))

    def save(self, folder: Path, stem: str) -> None:
        """Write `<stem>.names.npy`, `.offsets.npy`, `.hashes.npy` and `.ids.npy` into a folder being built; `load` maps them."""
        for part, array in zip(("names", "offsets", "hashes", "ids"), (self._data, self._offsets, *self._run), strict=True):
            write_npy(folder / f"{stem}.{part}.npy", array)

    @classmethod
    def load(cls, folder: Path, stem: str) -> Vocabulary:
        """Map what `save` wrote. Raises CheckpointError if a file is missing or does not fit the others."""
        data, offsets, hashes, ids = (
            load_npy(folder / f"{stem}.{part}.npy", mmap=True) for part in ("names", "offsets", "hashes", "ids")
        )
        kinds = [(array.dtype.name, array.ndim) for array in (data, offsets, hashes, ids)]
        right = kinds == [("uint8", 1), ("int64", 1), ("uint64", 1), ("int32", 1)]
        if not right or len(offsets) != len(hashes) + 1 or len(hashes) != len(ids) or offsets[0] != 0 or offsets[-1] != len(data):
            raise CheckpointError(f"{folder / stem}: the arrays of the vocabulary do not fit together")
        return cls(offsets, data, SortedHashes(hashes, ids))

    @functools.cached_property
    def _run(self) -> SortedHashes:
        return make_run(hash_names(self._array))

    @functools.cached_property
    def _array(self) -> Any:
        return view(self._offsets, self._data)

    def _name(self, number: int) -> str:
        return self._data[self._offsets[number] : self._offsets[number + 1]].tobytes().decode("utf-8")

    def _find(self, values: Any) -> np.ndarray:
        return search(self._run, hash_names(values), values, self._array)

    def _find_one(self, name: str) -> int:
        """The same of one name, without pyarrow."""
        try:
            text = name.encode()
        except UnicodeEncodeError as error:
            raise TypeError(f"names must be strings of valid Unicode ({error})") from error
        hashes, ids = self._run
        code = hash_name(text)
        place = int(np.searchsorted(hashes, np.uint64(code)))
        while place < len(hashes) and hashes[place] == code:
            number = int(ids[place])
            if self._data[self._offsets[number] : self._offsets[number + 1]].tobytes() == text:
                return number
            place += 1
        return -1

    def _lines(self, start: int, stop: int) -> bytes:
        """The names of some ids, each followed by a line feed (which no name holds)."""
        ends = self._offsets[start : stop + 1]
        feeds = ends[1:] - ends[0] + np.arange(len(ends) - 1)
        text = np.full(ends[-1] - ends[0] + len(feeds), ord("\n"), np.uint8)
        is_text = np.ones(len(text), bool)
        is_text[feeds] = False
        text[is_text] = self._data[ends[0] : ends[-1]]
        return text.tobytes()


def with_inverses(relations: Vocabulary) -> Vocabulary:
    """The names of `Model.rows_of` relations that have an inverse each: every name, and after it the same with `_inverse`.

    Where that is a relation's own name, all of them get one more `_` before it, and so on: no name stands for two rows.
    """
    names, suffix = list(relations), "_inverse"
    while (relations.find([name + suffix for name in names]) >= 0).any():
        suffix = "_" + suffix
    return Vocabulary.from_names([each for name in names for each in (name, name + suffix)])


class _Numbered(Vocabulary):
    """Names that are the decimal digits of the ids."""

    def __init__(self, count: int) -> None:
        if count < 0:
            raise ValueError(f"a vocabulary of {count} names")
        self._count = count

    @property
    def count(self) -> int:
        return self._count

    def __len__(self) -> int:
        return self._count

    def padded(self) -> int:
        return 0

    def save(self, folder: Path, stem: str) -> None:
        """Nothing to write."""

    def take(self, ids: np.ndarray) -> Any:
        import pyarrow as pa

        return pa.array(ids).cast(pa.large_string())

    def _name(self, number: int) -> str:
        return str(number)

    def _find_one(self, name: str) -> int:
        number = int(name) if _NUMBER.fullmatch(name) else -1
        return number if number < self._count else -1

    def _find(self, values: Any) -> np.ndarray:
        import pyarrow as pa
        import pyarrow.compute as pc

        plain = pc.match_substring_regex(values, f"^{_NUMBER.pattern}$")
        ids = pc.if_else(plain, values, b"-1").cast(pa.large_string()).cast(pa.int64()).to_numpy()
        return np.where(ids < self._count, ids, -1)

    def _lines(self, start: int, stop: int) -> bytes:
        return b"".join([b"%d\n" % number for number in range(start, min(stop, self._count))])
