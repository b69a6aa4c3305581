# mypy: disable-error-code="no-untyped-def"
"""Rows by id: gather them, and update them by Adagrad with one state value per row (DGL-KE), in one pass over each row.

Compiled for float32 tables on the CPU, torch elsewhere. Several threads or processes may update one table at once without locks
(Hogwild); what one of them writes another may then overwrite, no more.

Rows are read at random, and none but the loop can foresee which: so it tells the processor some rows ahead. Into the second
cache, not the first: that took a third off gathering rows of 1.6 KB from a table of 2.4 GB.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import Instruction, compiled_for, disjoint, inlined

EPS = 1e-10  # DGL-KE
AHEAD = 4  # rows between the one in work and the one asked for
LINE = 16  # floats of a cache line
ALL, NONE = np.empty(0, np.int64), np.empty(0, np.float32)


@Instruction
def _touch(typing, table, row, column):
    """void(number[:, :], int64, int64): ask for the cache line of one element."""
    import numba  # slow, and here already when this is called
    from llvmlite import ir
    from numba.core import cgutils

    def generate(context, builder, signature, arguments):
        kind = signature.args[0]
        array = context.make_array(kind)(context, builder, arguments[0])
        place = cgutils.get_item_pointer(context, builder, kind, array, list(arguments[1:]))
        pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], function)
        constants = [ir.Constant(number, value) for value in (0, 2, 1)]  # for reading, into the second cache, data
        builder.call(prefetch, [builder.bitcast(place, pointer), *constants])
        return context.get_dummy_value()

    return numba.void(table, row, column), generate


@inlined
def ahead(table, ids, i):
    """Ask for the row that is `AHEAD` places after the i-th of ids."""
    if i + AHEAD < len(ids):
        row = ids[i + AHEAD]
        for k in range(0, table.shape[1], LINE):
            _touch(table, row, k)


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
        ahead(table, ids, i)
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
def copy_rows(table, ids, out):
    """out[i] = table[ids[i]], all in bounds."""
    for i in range(len(ids)):
        ahead(table, ids, i)
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


def gather_rows(table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """float[n,D], int64[U] -> float[U,D], a copy, into `out` if given. Raises IndexError for an id out of range."""
    if out is None:
        out = table.new_empty(len(ids), table.shape[1])
    arrays = compiled_for(table, out) and table.is_contiguous() and out.is_contiguous()
    if arrays and _gather(table.detach().numpy(), ids.contiguous().numpy(), out.numpy()):
        return out
    _check(len(table), ids)
    return torch.index_select(table, 0, ids, out=out)
