"""Ids to the servers that own their rows, and rows back to the places that asked for them. Compiled, with a twin in NumPy.

Bfloat16 on the wire is its 16 bits, the upper half of a float32 rounded to even; NumPy has no such type, and torch's own
conversion needs the rows gathered first.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import torch

from kgdist.kernels import choice

FINITE = np.finfo(np.float32).max
MAGNITUDE, ALL_BITS = 0x7FFFFFFF, 0xFFFFFFFF


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
    if choice.numba():
        from kgdist.kernels import route_loops

        out = np.empty(len(ids), np.int64)
        if (wrong := route_loops.owners(starts, ids, out)) >= 0:
            _refuse(starts, int(ids[wrong]))
        return out
    outside = np.flatnonzero((ids < starts[0]) | (ids >= starts[-1]))
    if outside.size:
        _refuse(starts, int(ids[outside[0]]))
    return np.searchsorted(starts, ids, side="right") - 1


def shifted(ids: np.ndarray, low: int, high: int, base: int) -> np.ndarray | None:
    """int64[n], `ids` (int32 or int64) less `base`; None if one of them is not in low..high."""
    if choice.numba():
        from kgdist.kernels import route_loops

        out = np.empty(len(ids), np.int64)
        return None if route_loops.shifted(ids, low, high, base, out) >= 0 else out
    inside = not len(ids) or (low <= int(ids.min()) and int(ids.max()) < high)
    return ids.astype(np.int64) - base if inside else None


@functools.cache
def _loops() -> Any:
    """For the calls that a server makes for every message, of which an import would be a tenth."""
    from kgdist.kernels import route_loops

    return route_loops


def look_up(table: np.ndarray, ids: np.ndarray, low: int, high: int, base: int, out: np.ndarray) -> bool:
    """Copy the rows ids - base of float32[n, D], one after another, to float32[k * D], or rounded to the uint16 of bfloat16; or
    nothing, and False, where one of the ids is not in low..high."""
    if out.dtype != np.uint16 and choice.numba():
        return bool(_loops().look_up(table, ids, low, high, base, out) < 0)
    rows = shifted(ids, low, high, base)
    if rows is not None:
        shaped = out.reshape(len(ids), table.shape[1])
        if out.dtype == np.uint16:
            gather_bfloat(table, rows, shaped)
        else:
            np.take(table, rows, axis=0, out=shaped)
    return rows is not None


FINE, OUTSIDE, TWICE, SQUARES, GRADIENTS = range(5)


def vetted(
    ids: np.ndarray, low: int, high: int, base: int, grads: np.ndarray, most: np.float32, squares: np.ndarray | None,
    most_squares: np.float32,
) -> tuple[int, np.ndarray]:  # fmt: skip
    """What is wrong with an update of the rows ids - base, and these as int64[n]: FINE; OUTSIDE, one of the ids is not in
    low..high; TWICE, one comes again; SQUARES, of float32[n] one is not `within` its limit, unsigned; GRADIENTS, of float32[.]
    one is not within `most`."""
    given = np.empty(0, np.float32) if squares is None else squares
    if choice.numba():
        rows, limits = np.empty(len(ids), np.int64), (int(most_squares.view(np.uint32)), int(most.view(np.uint32)))
        return int(_loops().vet(ids, low, high, base, grads.reshape(-1), given, *limits, rows)), rows
    found = shifted(ids, low, high, base)
    if found is None:
        return OUTSIDE, ids
    if len(np.unique(found)) != len(found):
        return TWICE, found
    if not within(given, most_squares, signed=False):
        return SQUARES, found
    return FINE if within(grads, most) else GRADIENTS, found


def route(ids: np.ndarray, starts: np.ndarray, low: int = 0, high: int = 0) -> Route:
    """Sort int64[n] ids, which may repeat, by the ranges int64[S + 1] they lie in; rows low..high are here.

    Raises IndexError for an id in no range.
    """
    ids = np.ascontiguousarray(ids, np.int64)
    servers = len(starts) - 1
    slots, offsets = np.empty(len(ids), np.int64), np.zeros(servers + 1, np.int64)
    if choice.numba():
        from kgdist.kernels import route_loops

        bits = max(4, (2 * len(ids)).bit_length())  # at most half full
        keys, found = np.full(1 << bits, np.int64(-1)), np.empty(len(ids), np.int64)
        scratch = np.empty(1 << bits, np.int64), found, np.empty(len(ids), np.int64)
        count = route_loops.route(ids, starts, low, high, np.uint64(64 - bits), keys, *scratch, slots, offsets)
        if count < 0:
            _refuse(starts, int(ids[-1 - count]))
        places, bounds = np.empty(len(ids), np.int64), np.zeros(servers + 2, np.int64)
        route_loops.sort_places(slots, offsets, places, bounds)
        return Route(found[:count], offsets, slots, places, bounds)
    elsewhere = (ids < low) | (ids >= high)
    found, inverse = np.unique(ids[elsewhere], return_inverse=True)
    np.cumsum(np.bincount(owners(starts, found), minlength=servers), out=offsets[1:])
    slots[:] = -1
    slots[elsewhere] = inverse.reshape(-1)
    group = np.where(slots < 0, 0, np.searchsorted(offsets, slots, side="right"))
    bounds = np.concatenate([[0], np.cumsum(np.bincount(group, minlength=servers + 1))])
    return Route(found, offsets, slots, np.argsort(group, kind="stable"), bounds)


def scatter_rows(source: np.ndarray, rows: np.ndarray, places: np.ndarray, out: np.ndarray) -> None:
    """out[places[i]] = source[rows[i]]; float32[m, D] or the uint16 of bfloat16, int64[k], int64[k], float32[n, D], the places
    different and all in bounds."""
    if choice.numba():
        from kgdist.kernels import route_loops

        if source.dtype == np.uint16:
            route_loops.scatter_bfloat(source, rows, places, out.view(np.uint32))
        else:
            route_loops.scatter(source, rows, places, out)
    else:
        out[places] = widen(source[rows]) if source.dtype == np.uint16 else source[rows]


def gather_bfloat(table: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """float32[m, D], int64[k] in bounds, uint16[k, D]: rows rounded to bfloat16."""
    if choice.numba():
        from kgdist.kernels import route_loops

        route_loops.gather_bfloat(table, table.view(np.uint32), rows, out)
    else:
        picked = torch.from_numpy(table)[torch.from_numpy(rows)].bfloat16()
        out[:] = picked.view(torch.int16).numpy().view(np.uint16)


def gather_parts(table: np.ndarray, places: np.ndarray, bounds: np.ndarray, at: np.ndarray, out: np.ndarray) -> None:
    """The rows of each group, one after another from out[at[g]] on: rows places[bounds[g]:bounds[g + 1]] of float32[n, D], into
    float32[.] or as uint16[.] of bfloat16; int64[k] in bounds, int64[G + 1], int64[G]."""
    if choice.numba():
        from kgdist.kernels import route_loops

        if out.dtype == np.uint16:
            route_loops.gather_parts_bfloat(table, table.view(np.uint32), places, bounds, at, out)
        else:
            route_loops.gather_parts(table, places, bounds, at, out)
        return
    for first, start, stop in zip(at.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        part = out[first : first + (stop - start) * table.shape[1]].reshape(stop - start, table.shape[1])
        if out.dtype == np.uint16:
            gather_bfloat(table, places[start:stop], part)
        else:
            part[:] = table[places[start:stop]]


def widen(bits: np.ndarray) -> np.ndarray:
    """uint16[k, D] of bfloat16 -> float32[k, D]."""
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()


def within(values: np.ndarray, most: np.float32, *, signed: bool = True) -> bool:
    """Whether no magnitude is over `most`, finite, and no number NaN; with `signed` False no number below zero, either. float32,
    contiguous.

    The bits of float32 without the sign are in the order of the magnitudes, NaN above infinity; with it, every negative number is
    above them all. So one pass over integers sees everything.
    """
    mask, limit = MAGNITUDE if signed else ALL_BITS, int(most.view(np.uint32))
    if choice.numba():
        from kgdist.kernels import route_loops

        return bool(route_loops.within(values.reshape(-1), mask, limit))
    return bool(np.max(values.reshape(-1).view(np.uint32) & np.uint32(mask), initial=0) <= limit)
