# mypy: disable-error-code="no-untyped-def"
"""Rows by id: gather them, and update them by an optimiser, in one pass over each row. Adagrad with one state value per row is
DGL-KE's.

Compiled for float32 tables on the CPU, torch elsewhere. Several threads or processes may update one table at once without locks
(Hogwild); what one of them writes another may then overwrite, no more.

Rows are read at random, and none but the loop can foresee which: so it tells the processor some rows ahead. Into the second
cache, not the first: that took a third off gathering rows of 1.6 KB from a table of 2.4 GB.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.hashing import unique
from kgdist.kernels.jit import Instruction, compiled_for, disjoint, inlined

EPS = 1e-10  # DGL-KE
AHEAD = 8  # rows between the one in work and the one asked for
LINE = 16  # floats of a cache line
ALL, NONE = np.empty(0, np.int64), np.empty(0, np.float32)


@Instruction
def ahead(typing, table, ids, i, base):
    """void(number[:, :], int[:], int64, int64): ask for the row, less `base`, that is `AHEAD` places after the i-th of ids.

    An instruction and no function, into which Numba would hand the arrays with a count of their users: that took 0.1 us a row,
    which is what reading a row of 256 bytes takes.
    """
    import numba  # slow, and here already when this is called
    from llvmlite import ir
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):
        kinds = signature.args[:2]
        arrays = [context.make_array(kind)(context, builder, given) for kind, given in zip(kinds, arguments, strict=False)]
        (_, columns), (count,) = (cgutils.unpack_tuple(builder, array.shape) for array in arrays)
        index, byte, number = columns.type, ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], function)
        constants = [ir.Constant(number, value) for value in (0, 2, 1)]  # for reading, into the second cache, data
        place = builder.add(arguments[2], ir.Constant(index, AHEAD))
        with builder.if_then(builder.icmp_signed("<", place, count)):
            row = builder.load(cgutils.get_item_pointer(context, builder, kinds[1], arrays[1], [place]))
            row = row if row.type == index else builder.sext(row, index)
            step = ir.Constant(index, LINE)
            with cgutils.for_range_slice(builder, ir.Constant(index, 0), columns, step) as (column, _):
                pointer = cgutils.get_item_pointer(context, builder, kinds[0], arrays[0], [row, column])
                builder.call(prefetch, [builder.bitcast(pointer, byte), *constants])
        return context.get_dummy_value()

    return numba.void(table, ids, i, numba.int64), generate


@inlined
def _inside(ids, rows):
    """Whether all ids are of range(rows)."""
    inside = True
    for i in range(len(ids)):
        inside &= 0 <= ids[i] < rows
    return inside


@disjoint
def _adagrad(table, state, ids, places, grads, squares, lr, eps, mean):
    """Returns True, or does nothing and returns False where an id or a place is out of range."""
    if not (_inside(ids, len(table)) and _inside(places, len(grads))):
        return False
    for i in range(len(ids)):
        ahead(table, ids, i, 0)
        row, place = ids[i], places[i] if len(places) else i
        if len(squares):
            square = squares[place]
        else:
            square = np.float32(0)
            for k in range(grads.shape[1]):
                square += grads[place, k] * grads[place, k]
            square *= mean
        total = state[row] + square
        state[row] = total
        scale = lr / (math.sqrt(total) + eps)
        for k in range(grads.shape[1]):
            table[row, k] -= scale * grads[place, k]
    return True


@disjoint
def _adagrad_elements(table, sums, ids, grads, lr, eps):
    """As _adagrad, one state value per element."""
    if not _inside(ids, len(table)):
        return False
    for i in range(len(ids)):
        ahead(table, ids, i, 0)
        ahead(sums, ids, i, 0)
        row = ids[i]
        for k in range(grads.shape[1]):
            total = sums[row, k] + grads[i, k] * grads[i, k]
            sums[row, k] = total
            table[row, k] -= lr * grads[i, k] / (np.sqrt(total) + eps)
    return True


@disjoint
def _adam(table, means, squares, counts, ids, grads, lr, beta1, beta2, eps):
    """As _adagrad; the betas come in float64, in which their powers are taken, once a row."""
    if not _inside(ids, len(table)):
        return False
    one, rest1, rest2, kept2 = np.float32(1), np.float32(1 - beta1), np.float32(1 - beta2), np.float32(beta2)
    for i in range(len(ids)):
        ahead(table, ids, i, 0)
        ahead(means, ids, i, 0)
        ahead(squares, ids, i, 0)
        row = ids[i]
        count = counts[row] + one
        counts[row] = count
        step = np.float32(lr / (1.0 - beta1 ** np.float64(count)))
        scale = np.float32(1.0 / math.sqrt(1.0 - beta2 ** np.float64(count)))
        for k in range(grads.shape[1]):
            g = grads[i, k]
            mean = means[row, k] + rest1 * (g - means[row, k])
            square = kept2 * squares[row, k] + rest2 * g * g
            means[row, k] = mean
            squares[row, k] = square
            table[row, k] -= step * mean / (np.sqrt(square) * scale + eps)
    return True


@disjoint
def _sgd(table, ids, grads, lr):
    """As _adagrad."""
    if not _inside(ids, len(table)):
        return False
    for i in range(len(ids)):
        ahead(table, ids, i, 0)
        row = ids[i]
        for k in range(grads.shape[1]):
            table[row, k] -= lr * grads[i, k]
    return True


@disjoint
def _merge(places, grads, counts, out):
    """out[places[i]] += grads[i], and counts how often; both begin as zeros."""
    for i in range(len(places)):
        place = places[i]
        counts[place] += 1
        for k in range(grads.shape[1]):
            out[place, k] += grads[i, k]


@disjoint
def copy_rows(table, ids, out):
    """out[i] = table[ids[i]], all in bounds."""
    for i in range(len(ids)):
        ahead(table, ids, i, 0)
        row = ids[i]
        for k in range(out.shape[1]):
            out[i, k] = table[row, k]


@disjoint
def _gather(table, ids, out):
    """As _adagrad."""
    inside = _inside(ids, len(table))
    if inside:
        copy_rows(table, ids, out)
    return inside


def _check(rows: int, ids: torch.Tensor) -> None:
    """Raise IndexError for an id outside of range(rows): a negative one would count from the end. Compiled loops find it
    themselves, and leave saying so to this.

    A GPU checks by itself, and need not be waited for here.
    """
    if ids.device.type == "cpu" and ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise IndexError(f"row ids from {int(ids.min())} to {int(ids.max())} in a table of {rows} rows")


def adagrad_arrays(
    table: np.ndarray, state: np.ndarray, ids: np.ndarray, grads: np.ndarray, squares: np.ndarray | None, lr: float,
    places: np.ndarray = ALL,
) -> bool:  # fmt: skip
    """The compiled way of `adagrad_rows`, for float32 arrays, all contiguous. False, and nothing is done, where an id or a place
    is out of range."""
    given, mean = NONE if squares is None else squares, np.float32(1 / max(1, table.shape[1]))
    return bool(_adagrad(table, state, ids, places, grads, given, np.float32(lr), np.float32(EPS), mean))


def adagrad_elements(table: np.ndarray, sums: np.ndarray, ids: np.ndarray, grads: np.ndarray, lr: float, eps: float) -> bool:
    """sums[id] += g^2; table[id] -= lr g / (sqrt(sums[id]) + eps), in place, element by element: float32[n,D], float32[n,D],
    int64[U] unique, float32[U,D], all contiguous. False, and nothing is done, where an id is out of range."""
    return bool(_adagrad_elements(table, sums, ids, grads, np.float32(lr), np.float32(eps)))


def adam_rows(
    table: np.ndarray, means: np.ndarray, squares: np.ndarray, counts: np.ndarray, ids: np.ndarray, grads: np.ndarray, lr: float,
    beta1: float, beta2: float, eps: float,
) -> bool:  # fmt: skip
    """One step of Adam (Kingma and Ba 2015) on some rows, whose moments are float32[n,D] and whose numbers of updates float32[n];
    as `adagrad_elements`."""
    return bool(_adam(table, means, squares, counts, ids, grads, np.float32(lr), beta1, beta2, np.float32(eps)))


def sgd_rows(table: np.ndarray, ids: np.ndarray, grads: np.ndarray, lr: float) -> bool:
    """table[id] -= lr g; as `adagrad_elements`."""
    return bool(_sgd(table, ids, grads, np.float32(lr)))


def merge_rows(ids: np.ndarray, grads: np.ndarray, *, mean: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The different ids of int64[n] >= 0, in the order in which they first occur, and the sum (or mean) of the gradients
    float32[n,D] of each: int64[U], float32[U,D]; `grads` itself where no id comes again."""
    found, places = unique(np.ascontiguousarray(ids, np.int64))
    if len(found) == len(ids):
        return found, np.ascontiguousarray(grads, np.float32)
    out, counts = np.zeros((len(found), grads.shape[1]), np.float32), np.zeros(len(found), np.float32)
    _merge(places, np.ascontiguousarray(grads, np.float32), counts, out)
    if mean:
        out /= counts[:, None]
    return found, out


def adagrad_rows(
    table: torch.Tensor, state: torch.Tensor, ids: torch.Tensor, grads: torch.Tensor, lr: float,
    *, squares: torch.Tensor | None = None, places: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """state[id] += mean(g^2), or `squares` where given; table[id] -= lr g / (sqrt(state[id]) + EPS), in place.

    float[n,D], float[n], int64[U] unique, float[M,D], float[M]; M = U, or the gradients of the ids are those at int64[U]
    `places`. Raises IndexError for an id or a place out of range, ValueError for shapes that disagree.
    """
    if (
        table.ndim != 2
        or state.shape != table.shape[:1]
        or grads.shape[1:] != table.shape[1:]
        or len(ids if places is None else places) != len(ids)
        or (places is None and len(grads) != len(ids))
        or (squares is not None and squares.shape != grads.shape[:1])
    ):
        raise ValueError(f"table {tuple(table.shape)}, state {tuple(state.shape)}, ids {len(ids)} and gradients "
                         f"{tuple(grads.shape)} do not fit together")  # fmt: skip
    if compiled_for(table, state, grads) and table.is_contiguous() and state.is_contiguous():
        given = None if squares is None else squares.contiguous().numpy()
        which = ALL if places is None else places.contiguous().numpy()
        arrays = table.detach().numpy(), state.detach().numpy(), ids.contiguous().numpy(), grads.detach().contiguous().numpy()
        if adagrad_arrays(*arrays, given, lr, which):
            return
    _check(len(table), ids)
    if places is not None:
        _check(len(grads), places)
        grads, squares = grads[places], squares[places] if squares is not None else None
    if squares is None:
        squares = grads.square().mean(1) if grads.shape[1] else state.new_zeros(len(ids))
    state.index_add_(0, ids, squares)
    table.index_add_(0, ids, grads / (state[ids].sqrt() + EPS).unsqueeze(1), alpha=-lr)


def add_rows(table: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> None:
    """table[id] += row, one after another, where an id may come again: float[n,D], int64[B], float[B,D]. For thousands of rows
    torch's index_add_ takes a hundred times as long. Raises IndexError for an id out of range."""
    arrays = compiled_for(table, rows) and table.is_contiguous() and rows.is_contiguous()
    if arrays and _sgd(table.detach().numpy(), ids.contiguous().numpy(), rows.numpy(), np.float32(-1)):
        return
    _check(len(table), ids)
    table.index_add_(0, ids, rows)


def gather_rows(table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """float[n,D], int64[U] -> float[U,D], a copy, into `out` if given. Raises IndexError for an id out of range."""
    if out is None:
        out = table.new_empty(len(ids), table.shape[1])
    arrays = compiled_for(table, out) and table.is_contiguous() and out.is_contiguous()
    if arrays and _gather(table.detach().numpy(), ids.contiguous().numpy(), out.numpy()):
        return out
    _check(len(table), ids)
    return torch.index_select(table, 0, ids, out=out)
