# mypy: disable-error-code="no-untyped-def"
"""The different ids of a step in the order in which they first occur, compiled: a hash table instead of NumPy's sort."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import strict

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, section 6.4
FREE = np.int64(-1)


@strict
def _number(ids, shift, keys, numbers, found, places):
    """keys int64[2^x] of FREE, numbers int64[2^x]; writes found and places, returns how many are different."""
    count, last = 0, len(keys) - 1
    for i in range(len(ids)):
        slot = np.int64((np.uint64(ids[i]) * GOLDEN) >> shift)
        while keys[slot] != FREE and keys[slot] != ids[i]:
            slot = (slot + 1) & last
        if keys[slot] == FREE:
            keys[slot] = ids[i]
            numbers[slot] = count
            found[count] = ids[i]
            count += 1
        places[i] = numbers[slot]
    return count


def bits_for(count: int) -> int:
    """Of a hash table for so many ids, so that it is at most half full."""
    return max(4, (2 * count).bit_length())


def unique(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[n] >= 0 -> (int64[U] ids by first occurrence, int64[n] such that the first, indexed by it, gives back `ids`)."""
    bits = bits_for(len(ids))
    keys = np.full(1 << bits, FREE)
    found, places = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    count = _number(ids, np.uint64(64 - bits), keys, np.empty(1 << bits, np.int64), found, places)
    return found[:count], places
