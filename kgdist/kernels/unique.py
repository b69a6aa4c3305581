# mypy: disable-error-code="no-untyped-def"
"""The different ids of a step in the order in which they first occur, compiled: a hash table instead of NumPy's sort."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import strict

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, section 6.4
_FREE = np.int64(-1)


@strict
def _number(ids, shift, keys, numbers, found, places):
    """keys int64[2^x] of _FREE, numbers int64[2^x]; writes found and places, returns how many are different."""
    count, last = 0, len(keys) - 1
    for i in range(len(ids)):
        slot = np.int64((np.uint64(ids[i]) * _GOLDEN) >> shift)
        while keys[slot] != _FREE and keys[slot] != ids[i]:
            slot = (slot + 1) & last
        if keys[slot] == _FREE:
            keys[slot] = ids[i]
            numbers[slot] = count
            found[count] = ids[i]
            count += 1
        places[i] = numbers[slot]
    return count


def unique(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[n] >= 0 -> (int64[U] ids by first occurrence, int64[n] such that the first, indexed by it, gives back `ids`)."""
    bits = max(4, (2 * len(ids)).bit_length())  # at most half full
    keys = np.full(1 << bits, _FREE)
    found, places = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = _number(ids, np.uint64(64 - bits), keys, np.empty(1 << bits, np.int64), found, places)
    return found[:count], places
