# mypy: disable-error-code="no-untyped-def"
"""The loops of `route`, compiled. Arguments are taken as checked there."""

from __future__ import annotations

import numpy as np

from kgdist.kernels.jit import disjoint, inlined, kernel, strict
from kgdist.kernels.prefetch import ahead

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FREE = np.int64(-1)


@inlined
def _owner(starts, row):
    """The last s with starts[s] <= row, past empty ranges; 0 <= row < starts[-1]."""
    low, high = 0, len(starts) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if starts[middle] <= row:
            low = middle
        else:
            high = middle
    return low


@strict
def owners(starts, ids, out):
    """int64[S + 1], int64[n] -> int64[n]; returns the place of the first id that nobody owns, or -1."""
    for i in range(len(ids)):
        if ids[i] < starts[0] or ids[i] >= starts[-1]:
            return i
        out[i] = _owner(starts, ids[i])
    return -1


@strict
def shifted(ids, low, high, base, out):
    """int[n] -> int64[n] ids - base; returns the place of the first id outside of low..high, or -1."""
    for i in range(len(ids)):
        if ids[i] < low or ids[i] >= high:
            return i
        out[i] = ids[i] - base
    return -1


@disjoint
def look_up(table, ids, low, high, base, out):
    """As shifted, and where that is -1 out[i * D + k] = table[ids[i] - base, k]; float32[n, D], float32[.]."""
    rows = np.empty(len(ids), np.int64)
    wrong = shifted(ids, low, high, base, rows)
    if wrong < 0:
        width = table.shape[1]
        for i in range(len(rows)):
            ahead(table, rows, i)
            row = rows[i]
            for k in range(width):
                out[i * width + k] = table[row, k]
    return wrong


@strict
def _distinct(rows):
    """Whether no number of int64[n] >= 0 comes twice."""
    size, shift = 16, np.uint64(60)
    while size < 2 * len(rows):  # at most half full
        size, shift = 2 * size, shift - np.uint64(1)
    keys = np.full(size, _FREE)
    for i in range(len(rows)):
        slot = np.int64((np.uint64(rows[i]) * _GOLDEN) >> shift)
        while keys[slot] != _FREE:
            if keys[slot] == rows[i]:
                return False
            slot = (slot + 1) & (size - 1)
        keys[slot] = rows[i]
    return True


@strict
def route(ids, starts, low, high, shift, keys, numbers, found, owner, slots, offsets):
    """Number the different ids outside of low..high in the order of their owners.

    keys int64[2^x] of _FREE, numbers int64[2^x]; writes found[U] (ids by owner), slots[n] (place in found, or -1 for an id within
    low..high) and offsets[S + 1]. Returns U, or -1 - i when nobody owns the i-th id.
    """
    count, last = 0, len(keys) - 1
    wanted = np.empty(len(ids), np.int64)
    for i in range(len(ids)):
        row = ids[i]
        if low <= row < high:
            slots[i] = -1
            continue
        if row < starts[0] or row >= starts[-1]:
            return -1 - i
        slot = np.int64((np.uint64(row) * _GOLDEN) >> shift)
        while keys[slot] != _FREE and keys[slot] != row:
            slot = (slot + 1) & last
        if keys[slot] == _FREE:
            keys[slot] = row
            numbers[slot] = count
            wanted[count] = row
            owner[count] = _owner(starts, row)
            offsets[owner[count] + 1] += 1
            count += 1
        slots[i] = numbers[slot]
    for s in range(len(starts) - 1):
        offsets[s + 1] += offsets[s]
    place = offsets.copy()
    new = np.empty(count, np.int64)
    for u in range(count):
        new[u] = place[owner[u]]
        place[owner[u]] += 1
        found[new[u]] = wanted[u]
    for i in range(len(ids)):
        if slots[i] >= 0:
            slots[i] = new[slots[i]]
    return count


@strict
def sort_places(slots, offsets, places, bounds):
    """int64[n] -> places int64[n], the positions by group, in order within: first those of slot -1, then those of each server;
    bounds int64[S + 2]."""
    owner = np.empty(offsets[-1], np.int64)
    for s in range(len(offsets) - 1):
        owner[offsets[s] : offsets[s + 1]] = s
    for i in range(len(slots)):
        bounds[1 + (0 if slots[i] < 0 else 1 + owner[slots[i]])] += 1
    for g in range(len(bounds) - 1):
        bounds[g + 1] += bounds[g]
    place = bounds.copy()
    for i in range(len(slots)):
        g = 0 if slots[i] < 0 else 1 + owner[slots[i]]
        places[place[g]] = i
        place[g] += 1


@disjoint
def scatter(source, rows, places, out):
    """out[places[i]] = source[rows[i]]; float32[m, D], int64[k], int64[k], float32[n, D]."""
    for i in range(len(rows)):
        ahead(source, rows, i)
        row, place = rows[i], places[i]
        for k in range(out.shape[1]):
            out[place, k] = source[row, k]


@disjoint
def scatter_bfloat(source, rows, places, out):
    """The same from the bits of bfloat16 to those of float32: uint16[m, D], uint32[n, D]."""
    for i in range(len(rows)):
        row, place = rows[i], places[i]
        for k in range(out.shape[1]):
            out[place, k] = np.uint32(source[row, k]) << np.uint32(16)


@disjoint
def gather_bfloat(table, bits, rows, out):
    """out[i] = table[rows[i]] rounded to bfloat16, to even; float32[m, D], the same as uint32, int64[k], uint16[k, D]. NaN stays
    NaN. Numba would add two uint32 in 64 bits, at half the speed: hence the casts."""
    u32 = np.uint32
    for i in range(len(rows)):
        ahead(table, rows, i)
        row = rows[i]
        for k in range(out.shape[1]):
            x = bits[row, k]
            top = u32(x >> u32(16))
            rounded = u32(u32(u32(x + u32(0x7FFF)) + u32(top & u32(1))) >> u32(16))
            nan = u32(x & u32(0x7FFFFFFF)) > u32(0x7F800000)
            out[i, k] = np.uint16(u32(top | u32(0x40))) if nan else np.uint16(rounded)


@disjoint
def gather_parts(table, places, bounds, at, out):
    """For each group g: rows places[bounds[g]:bounds[g + 1]] of float32[n, D], one after another from out[at[g]] on."""
    for g in range(len(at)):
        first = at[g]
        for i in range(bounds[g], bounds[g + 1]):
            ahead(table, places, i)
            row = places[i]
            for k in range(table.shape[1]):
                out[first + k] = table[row, k]
            first += table.shape[1]


@disjoint
def gather_parts_bfloat(table, bits, places, bounds, at, out):
    """The same rounded to bfloat16, see gather_bfloat; uint16[.]."""
    for g in range(len(at)):
        rows = places[bounds[g] : bounds[g + 1]]
        part = out[at[g] : at[g] + len(rows) * table.shape[1]]
        gather_bfloat(table, bits, rows, part.reshape(len(rows), table.shape[1]))


@kernel
def within(values, mask, limit):
    """Whether the bits of float32[n] & mask are at most `limit`; 32 bits in an int, which is quicker to call with."""
    bits, top, some = values.view(np.uint32), np.uint32(0), np.uint32(mask)
    for i in range(len(bits)):
        top = max(top, np.uint32(bits[i] & some))
    return top <= limit


@strict
def vet(ids, low, high, base, grads, squares, most_squares, most, rows):
    """See `vetted`; the limits as the bits of float32. Writes rows int64[n]."""
    if shifted(ids, low, high, base, rows) >= 0:
        return 1
    if not _distinct(rows):
        return 2
    if not within(squares, 0xFFFFFFFF, most_squares):
        return 3
    return 0 if within(grads, 0x7FFFFFFF, most) else 4
