# mypy: disable-error-code="no-untyped-def"
"""The loops of `adagrad`, compiled. Arguments are taken as checked there."""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import disjoint, inlined
from kgdist.kernels.prefetch import ahead


@inlined
def _outside(ids, rows):
    """Where the first id lies that is none of range(rows), or -1."""
    for i in range(len(ids)):
        if ids[i] < 0 or ids[i] >= rows:
            return i
    return -1


@disjoint
def _adagrad(table, state, ids, places, grads, squares, lr, eps, mean):
    """Returns -1, or does nothing and returns where an id is outside: -2 - i for the i-th place."""
    wrong = _outside(ids, len(table))
    if wrong >= 0:
        return wrong
    wrong = _outside(places, len(grads))
    if wrong >= 0:
        return -2 - wrong
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
    return -1


@disjoint
def _gather(table, ids, out):
    """As _adagrad."""
    wrong = _outside(ids, len(table))
    if wrong >= 0:
        return wrong
    for i in range(len(ids)):
        ahead(table, ids, i)
        row = ids[i]
        for k in range(out.shape[1]):
            out[i, k] = table[row, k]
    return -1


def refuse(ids: torch.Tensor, rows: int) -> None:
    """Raise IndexError: one of the ids is none of range(rows)."""
    raise IndexError(f"row ids from {int(ids.min())} to {int(ids.max())} in a table of {rows} rows")


def adagrad(
    table: torch.Tensor,
    state: torch.Tensor,
    ids: torch.Tensor,
    grads: torch.Tensor,
    squares: torch.Tensor | None,
    lr: float,
    eps: float,
    places: torch.Tensor | None = None,
) -> None:
    """float32[n,D], float32[n], int64[U], float32[M,D], float32[M], int64[U]; table and state contiguous. Raises IndexError."""
    mean = np.float32(1 / max(1, table.shape[1]))
    gradients = grads.detach().contiguous().numpy()
    given = np.empty(0, np.float32) if squares is None else squares.contiguous().numpy()
    which = np.empty(0, np.int64) if places is None else places.contiguous().numpy()
    arrays = (table.detach().numpy(), state.detach().numpy(), ids.contiguous().numpy(), which, gradients, given)
    wrong = _adagrad(*arrays, np.float32(lr), np.float32(eps), mean)
    if wrong >= 0:
        refuse(ids, len(table))
    if wrong < -1 and places is not None:
        refuse(places, len(grads))


def gather(table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> None:
    """float32[n,D], int64[U], float32[U,D]; table and out contiguous. Raises IndexError."""
    if _gather(table.detach().numpy(), ids.contiguous().numpy(), out.numpy()) >= 0:
        refuse(ids, len(table))
