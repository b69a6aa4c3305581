# mypy: disable-error-code="no-untyped-def"
"""Ids to the servers that own their rows, and rows back to the places that asked for them, compiled.

Bfloat16 on the wire is its 16 bits, the upper half of a float32 rounded to even; NumPy has no such type, and torch's own
conversion needs the rows gathered first.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from kgdist.kernels.hashing import FREE, slot_of, table_for
from kgdist.kernels.jit import disjoint, inlined, kernel, strict
from kgdist.kernels.rows import ahead, copy_rows

FINITE = np.finfo(np.float32).max
MAGNITUDE, ALL_BITS = 0x7FFFFFFF, 0xFFFFFFFF
FINE, OUTSIDE, TWICE, SQUARES, GRADIENTS = range(5)  # what can be said of an update


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
def _owners(starts, ids, out):
    """int64[S + 1], int64[n] -> int64[n]; returns the place of the first id that nobody owns, or -1."""
    for i in range(len(ids)):
        if ids[i] < starts[0] or ids[i] >= starts[-1]:
            return i
        out[i] = _owner(starts, ids[i])
    return -1


@strict
def _shifted(ids, low, high, base, out):
    """int[n] -> int64[n] ids - base; returns the place of the first id outside of low..high, or -1."""
    for i in range(len(ids)):
        if ids[i] < low or ids[i] >= high:
            return i
        out[i] = ids[i] - base
    return -1


@disjoint
def _take(words, ids, low, high, base, out):
    """As look_up, for rows of one word: labels, masks, counts; three times as fast as a loop over each row."""
    outside = False
    for i in range(len(ids)):
        outside |= (ids[i] < low) | (ids[i] >= high)
    if not outside:
        for i in range(len(ids)):
            out[i] = words[ids[i] - base]
    return not outside


@disjoint
def _look_up(table, ids, low, high, base, out):
    """As look_up. Ids are gone over once before the rows, and never written less `base`: for 10,000 rows of 256 bytes that took a
    tenth of the time."""
    outside = False
    for i in range(len(ids)):
        outside |= (ids[i] < low) | (ids[i] >= high)
    if not outside:
        for i in range(len(ids)):
            ahead(table, ids, i, base)
            row = ids[i] - base
            for k in range(out.shape[1]):
                out[i, k] = table[row, k]
    return not outside


@disjoint
def _put(table, ids, low, high, base, values):
    """As _shifted; where that is -1 the rows are overwritten, one after another."""
    rows = np.empty(len(ids), np.int64)
    wrong = _shifted(ids, low, high, base, rows)
    if wrong < 0:
        for i in range(len(rows)):
            row = rows[i]
            for k in range(table.shape[1]):
                table[row, k] = values[i, k]
    return wrong


@strict
def _distinct(rows):
    """Whether no number of int64[n] >= 0 appears twice."""
    keys, shift = table_for(len(rows))
    for i in range(len(rows)):
        slot = slot_of(keys, shift, rows[i])
        if keys[slot] != FREE:
            return False
        keys[slot] = rows[i]
    return True


@strict
def _route(ids, starts, low, high, found, slots, offsets):
    """Number the different ids outside of low..high in the order of their owners.

    Writes found[U] (ids by owner), slots[n] (place in found, or -1 for an id within low..high) and offsets[S + 1]. Returns U, or
    -1 - i when nobody owns the i-th id.
    """
    count, (keys, shift) = 0, table_for(len(ids))
    numbers, wanted, owner = np.empty(len(keys), np.int64), np.empty(len(ids), np.int64), np.empty(len(ids), np.int64)
    for i in range(len(ids)):
        row = ids[i]
        if low <= row < high:
            slots[i] = -1
            continue
        if row < starts[0] or row >= starts[-1]:
            return -1 - i
        slot = slot_of(keys, shift, row)
        if keys[slot] == FREE:
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
def _sort_places(slots, offsets, places, bounds):
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
def _scatter(source, rows, places, out):
    for i in range(len(rows)):
        ahead(source, rows, i, 0)
        row, place = rows[i], places[i]
        for k in range(out.shape[1]):
            out[place, k] = source[row, k]


@disjoint
def _scatter_bfloat(source, rows, places, out):
    """From the bits of bfloat16 to those of float32: uint16[m, D], uint32[n, D]."""
    for i in range(len(rows)):
        row, place = rows[i], places[i]
        for k in range(out.shape[1]):
            out[place, k] = np.uint32(source[row, k]) << np.uint32(16)


@disjoint
def _gather_bfloat(bits, rows, out):
    """From the bits of float32 to those of bfloat16, rounded to even; NaN stays NaN. Numba would add two uint32 in 64 bits, at
    half the speed: hence the casts."""
    u32 = np.uint32
    for i in range(len(rows)):
        ahead(bits, rows, i, 0)
        row = rows[i]
        for k in range(out.shape[1]):
            x = bits[row, k]
            top = u32(x >> u32(16))
            rounded = u32(u32(u32(x + u32(0x7FFF)) + u32(top & u32(1))) >> u32(16))
            nan = u32(x & u32(0x7FFFFFFF)) > u32(0x7F800000)
            out[i, k] = np.uint16(u32(top | u32(0x40))) if nan else np.uint16(rounded)


@disjoint
def _gather_parts(table, places, bounds, at, out):
    for g in range(len(at)):
        rows = places[bounds[g] : bounds[g + 1]]
        copy_rows(table, rows, out[at[g] : at[g] + len(rows) * table.shape[1]].reshape(len(rows), table.shape[1]))


@disjoint
def _gather_parts_bfloat(bits, places, bounds, at, out):
    for g in range(len(at)):
        rows = places[bounds[g] : bounds[g + 1]]
        _gather_bfloat(bits, rows, out[at[g] : at[g] + len(rows) * bits.shape[1]].reshape(len(rows), bits.shape[1]))


@kernel
def _within(values, mask, limit):
    """Whether the bits of float32[n] & mask are at most `limit`; 32 bits in an int, which is quicker to call with."""
    bits, top, some = values.view(np.uint32), np.uint32(0), np.uint32(mask)
    for i in range(len(bits)):
        top = max(top, np.uint32(bits[i] & some))
    return top <= limit


@strict
def _vet(ids, low, high, base, grads, squares, most_squares, most, rows):
    """The verdict of `vetted`, given the limits as the bits of float32. Writes rows int64[n]."""
    if _shifted(ids, low, high, base, rows) >= 0:
        return OUTSIDE
    if not _distinct(rows):
        return TWICE
    if not _within(squares, ALL_BITS, most_squares):
        return SQUARES
    return FINE if _within(grads, MAGNITUDE, most) else GRADIENTS


class Route(NamedTuple):
    """Where the rows of n ids are: in this memory (those within a given range) or with S servers.

    Attributes:
        ids: int64[U], the different ids that are elsewhere, by owner.
        offsets: int64[S + 1]; ids[offsets[s]:offsets[s + 1]] are those of server s.
        slots: int64[n], the place of each id asked for in `ids`, or -1 where it is here.
        places: int64[n], positions by group: group 0 is here, group 1 + s with server s, each in ascending order.
        bounds: int64[S + 2], of the groups in `places`.
    """

    ids: np.ndarray
    offsets: np.ndarray
    slots: np.ndarray
    places: np.ndarray
    bounds: np.ndarray

    def here(self) -> np.ndarray:
        """int64[.], positions of the ids whose rows are here."""
        return self.places[: self.bounds[1]]

    def of(self, server: int) -> np.ndarray:
        """int64[.], positions of those whose rows are with this server."""
        return self.places[self.bounds[server + 1] : self.bounds[server + 2]]


def _refuse(starts: np.ndarray, row: int) -> None:
    raise IndexError(f"row {row} in a table of rows {int(starts[0])} to {int(starts[-1]) - 1}")


def owners(starts: np.ndarray, ids: np.ndarray) -> np.ndarray:
    """int64[S + 1], int64[n] -> int64[n], the range that each id lies in. Raises IndexError for an id in none."""
    ids = np.ascontiguousarray(ids, np.int64)
    out = np.empty(len(ids), np.int64)
    if (wrong := _owners(starts, ids, out)) >= 0:
        _refuse(starts, int(ids[wrong]))
    return out


def shifted(ids: np.ndarray, low: int, high: int, base: int) -> np.ndarray | None:
    """int64[n], `ids` (int32 or int64) less `base`; None if one of them is not in low..high."""
    out = np.empty(len(ids), np.int64)
    return None if _shifted(ids, low, high, base, out) >= 0 else out


def look_up(table: np.ndarray, ids: np.ndarray, low: int, high: int, base: int, out: np.ndarray) -> bool:
    """Copy the rows ids - base of float32[n, D], one after another, to float32[k * D], or rounded to the uint16 of bfloat16 (or
    uint8[n, D] to uint8[k * D]); or nothing, and False, where one of the ids is not in low..high."""
    if table.shape[1] == 2 and table.dtype == out.dtype == np.float32:
        words, found = table.reshape(-1).view(np.uint64), out.view(np.uint64)
        if words.flags.aligned and found.flags.aligned:
            return bool(_take(words, ids, low, high, base, found))
    into = out.reshape(len(ids), table.shape[1])
    if into.dtype.itemsize != 2:
        return bool(_look_up(table, ids, low, high, base, into))
    rows = np.empty(len(ids), np.int64)
    if _shifted(ids, low, high, base, rows) >= 0:
        return False
    gather_bfloat(table, rows, into)
    return True


def put_rows(table: np.ndarray, ids: np.ndarray, low: int, high: int, base: int, values: np.ndarray) -> bool:
    """table[ids - base] = values, the last one where an id comes again: [n, D], int32 or int64[k], [k, D], of float32 or uint8;
    or nothing, and False, where one of the ids is not in low..high."""
    return bool(_put(table, ids, low, high, base, values) < 0)


def vetted(
    ids: np.ndarray, low: int, high: int, base: int, grads: np.ndarray, most: np.float32, squares: np.ndarray | None,
    most_squares: np.float32,
) -> tuple[int, np.ndarray]:  # fmt: skip
    """What is wrong with an update of the rows ids - base, and these as int64[n]: FINE; OUTSIDE, one of the ids is not in
    low..high; TWICE, one comes again; SQUARES, of float32[n] one is not `within` its limit, unsigned; GRADIENTS, of float32[.]
    one is not within `most`."""
    given, rows = np.empty(0, np.float32) if squares is None else squares, np.empty(len(ids), np.int64)
    limits = int(most_squares.view(np.uint32)), int(most.view(np.uint32))
    return int(_vet(ids, low, high, base, grads.reshape(-1), given, *limits, rows)), rows


def route(ids: np.ndarray, starts: np.ndarray, low: int = 0, high: int = 0) -> Route:
    """Sort int64[n] ids, which may repeat, by the ranges int64[S + 1] they lie in; rows low..high are here.

    Raises IndexError for an id in no range.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    size, servers = len(ids), len(starts) - 1
    slots, found, places = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    offsets, bounds = np.zeros(servers + 1, np.int64), np.zeros(servers + 2, np.int64)
    if (count := _route(ids, starts, low, high, found, slots, offsets)) < 0:
        _refuse(starts, int(ids[-1 - count]))
    _sort_places(slots, offsets, places, bounds)
    return Route(found[:count], offsets, slots, places, bounds)


def scatter_rows(source: np.ndarray, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """out[places[i]] = source[rows[i]]; float32[m, D] or the uint16 of bfloat16, int64[k], int64[k], float32[n, D], the places
    different and all in bounds."""
    if source.dtype == np.uint16:
        _scatter_bfloat(source, rows, places, out.view(np.uint32))
    else:
        _scatter(source, rows, places, out)


def gather_bfloat(table: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """float32[m, D], int64[k] in bounds, uint16[k, D]: rows rounded to bfloat16."""
    _gather_bfloat(table.view(np.uint32), rows, out)


def gather_parts(table: np.ndarray, places: np.ndarray, bounds: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """The rows of each group, one after another from out[at[g]] on: rows places[bounds[g]:bounds[g + 1]] of float32[n, D], into
    float32[.] or as uint16[.] of bfloat16; int64[k] in bounds, int64[G + 1], int64[G]."""
    if out.dtype == np.uint16:
        _gather_parts_bfloat(table.view(np.uint32), places, bounds, at, out)
    else:
        _gather_parts(table, places, bounds, at, out)


def widen(bits: np.ndarray) -> np.ndarray:
    """uint16[k, D] of bfloat16 -> float32[k, D]."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()


def within(values: np.ndarray, most: np.float32, *, signed: bool = True) -> bool:
    """Whether no magnitude is over `most`, finite, and no number NaN; with `signed` False no number below zero, either. float32,
    contiguous.

    The bits of float32 without the sign are in the order of the magnitudes, NaN above infinity; with it, every negative number is
    above them all. So one pass over integers sees everything.
    """
    return bool(_within(values.reshape(-1), MAGNITUDE if signed else ALL_BITS, int(most.view(np.uint32))))
