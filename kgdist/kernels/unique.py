# mypy: disable-error-code="no-untyped-def"
"""The different ids of a step in the order in which they first occur, compiled: a hash table instead of NumPy's sort."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import inlined, strict

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, section 6.4
FREE = np.int64(-1)


@inlined
def table_for(count):
    """(keys int64[2^x] of FREE, 64 - x): a hash table that so many numbers fill to less than half."""
    size, shift = 16, np.uint64(60)
    while size <= 2 * count:
        size, shift = 2 * size, shift - np.uint64(1)
    return np.full(size, FREE), shift


@inlined
def slot_of(keys, shift, number):
    """Where a number >= 0 is, or else has its place."""
    slot = np.int64((np.uint64(number) * GOLDEN) >> shift)
    while keys[slot] != FREE and keys[slot] != number:
        slot = (slot + 1) & (len(keys) - 1)
    return slot


@strict
def _unique(ids, found, places):
    """Writes int64[n] both; returns how many are different."""
    count, (keys, shift) = 0, table_for(len(ids))
    numbers = np.empty(len(keys), np.int64)
    for i in range(len(ids)):
        slot = slot_of(keys, shift, ids[i])
        if keys[slot] == FREE:
            keys[slot] = ids[i]
            numbers[slot] = count
            found[count] = ids[i]
            count += 1
        places[i] = numbers[slot]
    return count


def unique(ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[n] >= 0 -> (int64[U] ids by first occurrence, int64[n] such that the first, indexed by it, gives back `ids`)."""
    found, places = np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    return found[: _unique(ids, found, places)], places
