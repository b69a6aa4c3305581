# mypy: disable-error-code="no-untyped-def"
"""Hash tables, compiled: the different ids of a step, and names numbered as they come.

Ids are numbers >= 0, found by multiplicative hashing. Names, for `data.names.Interner`, are `data[offsets[i] : offsets[i + 1]]`
with hashes of 64 bits; arguments are taken as checked there. Their table has a power of two of places, uint64: the high half of a
hash above, the id + 1 below, 0 for a free place; who finds its own taken looks at the next. The high half only proposes, equal
bytes decide. The table of `numbered` is alike, with the low half of an id above.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from kgdist.kernels.jit import inlined, strict

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # Knuth's multiplicative hashing, section 6.4
FREE = np.int64(-1)
TOGETHER = 512  # names looked up at once; what they touch stays in the second cache
HALF, ID = np.uint64(32), np.uint64(0xFFFFFFFF)


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
    """The different ids in the order in which they first occur: writes int64[n] both, returns how many there are."""
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


@strict
def _number(table, shift, ids, found, count, places):
    """Goes on numbering: found int64[.] holds the `count` ids so far, and places int64[n] is written; returns the new count."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(ids)):
        top = (np.uint64(ids[i]) & ID) << HALF
        slot = (np.uint64(ids[i]) * GOLDEN) >> shift
        while True:
            held = table[slot]
            if held == np.uint64(0):
                found[count] = ids[i]
                places[i] = count
                count += 1
                table[slot] = top | np.uint64(count)
                break
            if (held ^ top) >> HALF == np.uint64(0) and found[np.int64(held & ID) - 1] == ids[i]:
                places[i] = np.int64(held & ID) - 1
                break
            slot = (slot + np.uint64(1)) & mask
    return count


_kept = threading.local()  # the table of each thread: made anew, the memory of a large one takes longer to come than to fill


def numbered(groups: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """The different ids of groups int64[n] >= 0, less than 2^32 of them, by first occurrence, and for each group int64[n], the
    places of its ids among them: `unique` of ids that come from several places, again and again.
    """
    room = sum(map(len, groups))
    bits = max(4, (2 * room).bit_length())
    if not hasattr(_kept, "table") or len(_kept.table) < 1 << bits:
        _kept.table = np.empty(1 << bits, np.uint64)
    table = _kept.table[: 1 << bits]
    table.fill(0)
    found, count, places = np.empty(room, np.int64), 0, []
    for ids in groups:
        places.append(np.empty(len(ids), np.int64))
        count = _number(table, np.uint64(64 - bits), ids, found, count, places[-1])
    return found[:count] if 2 * count >= room else found[:count].copy(), places


@strict
def hashes(offsets, data, letters, base, out):
    """uint64[n]: the sum that `data.names.hash_names` takes, and its finaliser."""
    for i in range(len(out)):
        total, power = np.uint64(0), np.uint64(1)
        for k in range(offsets[i], offsets[i + 1]):
            total += letters[data[k]] * power
            power *= base
        total += np.uint64(offsets[i + 1] - offsets[i])
        total = (total ^ (total >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
        total = (total ^ (total >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
        out[i] = total ^ (total >> np.uint64(33))


@inlined
def _equal(offsets, data, i, others, content, j):
    # Unsigned indices are not tried for counting from the end, and no way out lets several bytes be compared at once.
    start, begin, length = np.uint64(offsets[i]), np.uint64(others[j]), np.uint64(offsets[i + 1] - offsets[i])
    if np.uint64(others[j + 1]) - begin != length:
        return False
    differ = np.uint64(0)
    for k in range(length):
        differ |= np.uint64(data[start + k] ^ content[begin + k])
    return differ == np.uint64(0)


@inlined
def _proposed(table, place, top):
    """The first place from `place` on that is free or holds a hash with the high half `top`."""
    mask = np.uint64(len(table) - 1)
    while table[place] != np.uint64(0) and table[place] >> HALF != top:
        place = (place + np.uint64(1)) & mask
    return place


@strict
def find(table, names, content, offsets, data, hashed, out):
    """int64[n]: ids of strings (offsets, data, hashed) among those of the table (names, content); -1 where there is none.

    What a look-up needs lies in three far places, each told by the one before. So some hundreds go through each place together:
    then the memory is asked for many lines at once, which makes it several times faster than one after the other.
    """
    mask = np.uint64(len(table) - 1)
    places, starts, touched = np.empty(TOGETHER, np.uint64), np.empty(TOGETHER, np.int64), np.uint64(0)
    for begin in range(0, len(out), TOGETHER):
        count = min(TOGETHER, len(out) - begin)
        for i in range(count):
            touched |= table[hashed[begin + i] & mask]
        for i in range(count):
            places[i] = _proposed(table, hashed[begin + i] & mask, hashed[begin + i] >> HALF)
        for i in range(count):
            starts[i] = names[max(np.int64(table[places[i]] & ID) - 1, 0)]
        for i in range(count):
            touched |= np.uint64(content[starts[i]])
        for i in range(count):
            place, found = places[i], np.int64(-1)
            while table[place] != np.uint64(0):
                known = np.int64(table[place] & ID) - 1
                if _equal(offsets, data, begin + i, names, content, known):
                    found = known
                    break
                place = _proposed(table, (place + np.uint64(1)) & mask, hashed[begin + i] >> HALF)
            out[begin + i] = found
    return touched  # of no use, but without it the first looks would be left out


@strict
def insert(table, hashed, first):
    """Put strings with ids first, first + 1, ..., none of them there yet, into a table that has room."""
    mask = np.uint64(len(table) - 1)
    for i in range(len(hashed)):
        place = hashed[i] & mask
        while table[place] != np.uint64(0):
            place = (place + np.uint64(1)) & mask
        table[place] = (hashed[i] >> HALF) << HALF | np.uint64(first + i + 1)
