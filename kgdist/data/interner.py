"""Names numbered in the order in which they first come, while a graph is read. The finished map is vocabulary.py's.

Few names are looked up in sorted arrays, in NumPy, which a small graph is done with before Numba would be imported. From `MANY`
on they are looked up in a compiled hash table: 8 bytes a place, at most three quarters taken, besides 16 bytes and the text of a
name. With KGDIST_KERNELS=torch the sorted arrays serve graphs of any size, at about half the speed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kgdist.base.errors import UsageError
from kgdist.data.names import BASE, BYTES, MAX_IDS, Run, hash_names, make_run, parts, search, view
from kgdist.kernels import jit, strings

MANY = 1 << 17


class Interner:
    """Gives names the ids 0, 1, ..."""

    def __init__(self, what: str = "names", limit: int = MAX_IDS) -> None:
        self._what, self._limit = what, limit
        self._count = 0
        self._offsets = np.zeros(1024, np.int64)
        self._data = np.zeros(1 << 14, np.uint8)
        self._hashes = np.zeros(1024, np.uint64)
        self._index: _Runs | _Table = _Runs()

    def __len__(self) -> int:
        return self._count

    def find(self, values: Any) -> np.ndarray:
        """int64[n]: ids of `values` (pa.LargeBinaryArray), -1 for those not seen before."""
        return self._index.find(self._offsets[: self._count + 1], self._data, values)

    def add(self, values: Any) -> np.ndarray:
        """int64[n]: the next ids, for `values` (pa.LargeBinaryArray, no repeats) that are new. Raises UsageError past int32."""
        offsets, data = parts(values)
        first, count = self._count, self._count + len(values)
        if count > self._limit:
            raise UsageError(f"more than {self._limit:,} distinct {self._what}; ids are 32-bit integers")
        used = int(self._offsets[first])
        self._data = _grown(self._data, used, used + len(data))
        self._offsets = _grown(self._offsets, first + 1, count + 1)
        self._hashes = _grown(self._hashes, first, count)
        self._data[used : used + len(data)] = data
        self._offsets[first + 1 : count + 1] = offsets[1:] + used
        self._hashes[first:count] = self._index.hash(values)
        self._count = count
        if count >= MANY and isinstance(self._index, _Runs) and jit.compiled():
            self._index = _Table()
        self._index.insert(self._hashes[:count], first)
        return np.arange(first, count)

    def intern(self, values: Any) -> np.ndarray:
        """int64[n]: ids of `values` (pa.LargeBinaryArray, no repeats), those not seen before numbered in order. Raises
        UsageError past int32.
        """
        import pyarrow as pa

        found = self.find(values)
        new = np.flatnonzero(found < 0)
        if new.size:
            found[new] = self.add(values.take(pa.array(new)))
        return found

    def finish(self) -> tuple[np.ndarray, np.ndarray, Run]:
        """(offsets int64[n + 1], data uint8[bytes], index) of all names. The index goes."""
        self._index = _Runs()
        run = make_run(self._hashes[: self._count])
        return self._offsets[: self._count + 1], self._data[: self._offsets[self._count]], run


class _Runs:
    """Sorted arrays that double in size, so there are few to search and each name is moved few times."""

    def __init__(self) -> None:
        self._runs: list[Run] = []

    def hash(self, values: Any) -> np.ndarray:
        return hash_names(values)

    def find(self, offsets: np.ndarray, data: np.ndarray, values: Any) -> np.ndarray:
        import pyarrow as pa

        names, hashes = view(offsets, data), hash_names(values)
        found = np.full(len(hashes), -1, np.int64)
        for run in self._runs:
            open_ = np.flatnonzero(found < 0)
            found[open_] = search(run, hashes[open_], values.take(pa.array(open_)), names)
        return found

    def insert(self, hashes: np.ndarray, first: int) -> None:
        """`hashes` uint64[n] of all names, of which those from `first` on are new."""
        self._runs.append(make_run(hashes[first:], first))
        while len(self._runs) > 1 and len(self._runs[-2].ids) < 2 * len(self._runs[-1].ids):
            last, before = self._runs.pop(), self._runs.pop()
            merged = np.concatenate([before.hashes, last.hashes])
            order = np.argsort(merged, kind="stable")
            self._runs.append(Run(merged[order], np.concatenate([before.ids, last.ids])[order]))


class _Table:
    """A hash table (`kernels.strings`), the same from outside."""

    def __init__(self) -> None:
        self._table = np.zeros(0, np.uint64)

    def hash(self, values: Any) -> np.ndarray:
        out = np.empty(len(values), np.uint64)
        strings.hashes(*parts(values), BYTES, np.uint64(BASE), out)
        return out

    def find(self, offsets: np.ndarray, data: np.ndarray, values: Any) -> np.ndarray:
        out = np.empty(len(values), np.int64)
        strings.find(self._table, offsets, data, *parts(values), self.hash(values), out)
        return out

    def insert(self, hashes: np.ndarray, first: int) -> None:
        """`hashes` uint64[n] of all names, of which those from `first` on are new."""
        if 4 * len(hashes) > 3 * len(self._table):
            size = 1 << (2 * len(hashes)).bit_length()
            self._table = np.zeros(0, np.uint64)  # the old one goes before the new one comes
            self._table, first = np.zeros(size, np.uint64), 0
        strings.insert(self._table, hashes[first:], first)


def _grown(array: np.ndarray, used: int, needed: int) -> np.ndarray:
    if needed <= len(array):
        return array
    larger = np.zeros(max(needed, 2 * len(array)), array.dtype)
    larger[:used] = array[:used]
    return larger
