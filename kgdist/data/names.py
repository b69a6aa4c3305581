"""Many byte strings and the way back from a string to its number, without one Python object for each.

The index of finished names is an array of sorted 64-bit hashes with the ids beside them: 12 bytes a name, made of plain arrays,
so that it can be memory-mapped. A hash only proposes candidates; equal bytes decide, so that collisions cost time and never
correctness. While a graph is read, names are numbered as they come (`Interner`). Not the public mapping: that is vocabulary.py.

pyarrow is imported in the functions that need it, for vocabulary.py's sake: a training that finds its graph cached does
without the library's 40 MiB.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import UsageError
from kgdist.kernels import hashing

MAX_IDS = 2**31 - 1  # ids are int32
BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse modulo 2^64
MANY = 1 << 17  # names from which on a compiled table finds them, which a small graph is done with before Numba is imported
_PIECE = 1 << 16  # bytes hashed at once
_MASK = 2**64 - 1
BYTES = np.random.Generator(np.random.PCG64(20)).integers(0, 2**64, 256, dtype=np.uint64)


class SortedHashes(NamedTuple):
    """Names by hash: `hashes` ascend, `ids[i]` is the number of the name with hash `hashes[i]`."""

    hashes: np.ndarray  # uint64[n]
    ids: np.ndarray  # int32[n]


def is_text(text: str) -> bool:
    """Whether UTF-8 can say it: not where Python has read bytes of something else, or half a surrogate."""
    try:
        return bool(text.encode() or True)
    except UnicodeEncodeError:
        return False


def as_binary(values: Any) -> Any:
    """Strings in any usual form (list, NumPy array, pyarrow array or chunked array) -> pa.LargeBinaryArray[n]. Raises
    TypeError.
    """
    import pyarrow as pa

    if isinstance(values, np.ndarray):
        values = values.tolist()
    if not isinstance(values, pa.Array | pa.ChunkedArray):
        try:
            values = pa.array(values, pa.large_string())
        except (pa.ArrowException, UnicodeEncodeError) as error:
            raise TypeError(f"names must be strings of valid Unicode ({error})") from error
    if isinstance(values, pa.ChunkedArray):
        values = values.combine_chunks() if values.num_chunks else pa.array([], values.type)
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    if values.null_count:
        raise TypeError("names must not hold nulls")
    if pa.types.is_large_string(values.type):
        return values.view(pa.large_binary())
    if pa.types.is_string(values.type):  # not cast: that imports pyarrow.compute, a tenth of a second
        _, offsets, data = values.buffers()
        wide = np.frombuffer(offsets or bytes(4), np.int32).astype(np.int64)  # no buffer: an empty array
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(values), [None, pa.py_buffer(wide), data], offset=values.offset
        )
    try:
        return values.cast(pa.large_binary())
    except pa.ArrowException as error:
        raise TypeError(f"names must be strings, not {values.type}") from error


def lengths(texts: Any) -> np.ndarray:
    """int64[n], the bytes of each of pa.StringArray[n] or pa.LargeStringArray[n]."""
    return np.diff(parts(as_binary(texts))[0])


def view(offsets: np.ndarray, data: np.ndarray) -> Any:
    """int64[n + 1], uint8[bytes] -> pa.LargeBinaryArray[n] over the same memory."""
    import pyarrow as pa

    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def parts(names: Any) -> tuple[np.ndarray, np.ndarray]:
    """pa.LargeBinaryArray[n] -> (offsets int64[n + 1] from 0, data uint8[bytes]), views where possible."""
    if not len(names):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = names.buffers()
    positions = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names) + 1]
    content = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return (positions if positions[0] == 0 else positions - positions[0]), content[positions[0] : positions[-1]]


@functools.lru_cache(1)
def _powers(size: int) -> tuple[np.ndarray, np.ndarray]:
    """uint64[size] of BASE^i and of BASE^-i, modulo 2^64."""
    powers, inverses = (np.full(size, base, np.uint64) for base in (BASE, pow(BASE, -1, 2**64)))
    powers[0] = inverses[0] = 1
    return np.cumprod(powers, dtype=np.uint64), np.cumprod(inverses, dtype=np.uint64)


def hash_names(names: Any) -> np.ndarray:
    """uint64[n]: sum of T[byte_i] * BASE^i modulo 2^64 over each name (T a fixed random table), then mixed; by prefix sums,
    a piece at a time.
    """
    offsets, data = parts(names)
    count = len(offsets) - 1
    hashes = np.empty(count, np.uint64)
    powers = inverses = np.ones(1, np.uint64)
    start = 0
    while start < count:
        stop = max(start + 1, int(np.searchsorted(offsets, offsets[start] + _PIECE, side="right")) - 1)
        piece = data[offsets[start] : offsets[stop]]
        if len(powers) <= len(piece):
            powers, inverses = _powers(max(_PIECE, len(piece)) + 1)
        sums = np.zeros(len(piece) + 1, np.uint64)
        np.cumsum(BYTES[piece] * powers[: len(piece)], out=sums[1:])
        ends = offsets[start : stop + 1] - offsets[start]
        hashes[start:stop] = (
            (sums[ends[1:]] - sums[ends[:-1]]) * inverses[ends[:-1]] + ends[1:].astype(np.uint64) - ends[:-1].astype(np.uint64)
        )
        start = stop
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (33, 0xC4CEB9FE1A85EC53)):  # the finaliser of MurmurHash3
        hashes ^= hashes >> np.uint64(shift)
        hashes *= np.uint64(factor)
    hashes ^= hashes >> np.uint64(33)
    return hashes


@functools.lru_cache(1)
def _table() -> list[int]:
    """BYTES as Python's numbers, which it multiplies faster than NumPy's one at a time."""
    found: list[int] = BYTES.tolist()
    return found


def hash_name(name: bytes) -> int:
    """`hash_names` of one, some microseconds each, where that takes fifty for any number of them."""
    table, total, power = _table(), 0, 1
    for byte in name:
        total += table[byte] * power
        power = power * BASE & _MASK
    found = total + len(name) & _MASK
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        found = (found ^ found >> 33) * factor & _MASK
    return found ^ found >> 33


def make_run(hashes: np.ndarray) -> SortedHashes:
    """The index of names numbered 0, 1, ..."""
    order = np.argsort(hashes, kind="stable")
    return SortedHashes(hashes[order], order.astype(np.int32))


def search(run: SortedHashes, hashes: np.ndarray, values: Any, names: Any) -> np.ndarray:
    """int64[n]: the id of each of `values` (whose hashes are `hashes`) in `run`, an index of `names`; -1 where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = np.full(len(hashes), -1, np.int64)
    order = np.argsort(hashes)  # asked in order, neighbours share cache lines
    position = np.empty(len(hashes), np.int64)
    position[order] = np.searchsorted(run.hashes, hashes[order])
    pending = np.arange(len(hashes))
    while pending.size:
        pending = pending[position[pending] < len(run.hashes)]
        pending = pending[run.hashes[position[pending]] == hashes[pending]]
        ids = run.ids[position[pending]]
        same = pc.equal(names.take(pa.array(ids)), values.take(pa.array(pending))).to_numpy(zero_copy_only=False).astype(bool)
        found[pending[same]] = ids[same]
        pending = pending[~same]  # another name with the same hash: try the next entry
        position[pending] += 1
    return found


class Interner:
    """Gives names the ids 0, 1, ... in the order in which they first come, while a graph is read.

    Few names are found in a dict. From `MANY` on they are found in a compiled hash table (`kgdist.kernels.hashing`): 8 bytes a
    place, at most three quarters taken, besides 16 bytes and the text of a name.
    """

    def __init__(self, what: str = "names") -> None:
        self._what, self._count = what, 0
        self._few: dict[bytes, int] | None = {}
        self._offsets, self._data = np.zeros(1024, np.int64), np.zeros(1 << 14, np.uint8)
        self._hashes, self._table = np.zeros(0, np.uint64), np.zeros(0, np.uint64)  # of many

    def __len__(self) -> int:
        return self._count

    def find(self, values: Any) -> np.ndarray:
        """int64[n]: ids of `values` (pa.LargeBinaryArray), -1 for those not seen before."""
        if self._few is not None:
            return np.array([self._few.get(name, -1) for name in values.to_pylist()], np.int64)
        found = np.empty(len(values), np.int64)
        hashing.find(self._table, self._offsets[: self._count + 1], self._data, *parts(values), compiled_hash(values), found)
        return found

    def add(self, values: Any) -> np.ndarray:
        """int64[n]: the next ids, for `values` (pa.LargeBinaryArray, no repeats) that are new. Raises UsageError past int32."""
        offsets, data = parts(values)
        first, count = self._count, self._count + len(values)
        if count > MAX_IDS:
            raise UsageError(f"more than {MAX_IDS:,} distinct {self._what}; ids are 32-bit integers")
        used = int(self._offsets[first])
        self._data = _grown(self._data, used, used + len(data))
        self._offsets = _grown(self._offsets, first + 1, count + 1)
        self._data[used : used + len(data)] = data
        self._offsets[first + 1 : count + 1] = offsets[1:] + used
        self._count = count
        if self._few is not None and count < MANY:
            self._few.update(zip(values.to_pylist(), range(first, count), strict=True))
        elif self._few is not None:
            self._few = None
            self._insert(view(self._offsets[: count + 1], self._data), 0)
        else:
            self._insert(values, first)
        return np.arange(first, count)

    def _insert(self, values: Any, first: int) -> None:
        """Put the names from `first` on, which are `values`, into the table."""
        self._hashes = _grown(self._hashes, first, self._count)
        self._hashes[first : self._count] = compiled_hash(values)
        if 4 * self._count >= 3 * len(self._table):
            size = 1 << (2 * self._count).bit_length()
            self._table = np.zeros(0, np.uint64)  # the old one goes before the new one comes
            self._table, first = np.zeros(size, np.uint64), 0
        hashing.insert(self._table, self._hashes[first : self._count], first)

    def finish(self) -> tuple[np.ndarray, np.ndarray, SortedHashes]:
        """(offsets int64[n + 1], data uint8[bytes], index) of all names. What finds them goes."""
        self._table = np.zeros(0, np.uint64)
        offsets, data = self._offsets[: self._count + 1], self._data[: self._offsets[self._count]]
        return offsets, data, make_run(self._hashes[: self._count] if self._few is None else hash_names(view(offsets, data)))


def compiled_hash(names: Any) -> np.ndarray:
    """As `hash_names`, several times as fast once Numba is there."""
    out = np.empty(len(names), np.uint64)
    hashing.hashes(*parts(names), BYTES, np.uint64(BASE), out)
    return out


def _grown(array: np.ndarray, used: int, needed: int) -> np.ndarray:
    if needed <= len(array):
        return array
    larger = np.zeros(max(needed, 2 * len(array)), array.dtype)
    larger[:used] = array[:used]
    return larger
