# mypy: disable-error-code="no-untyped-def"
"""The loops of `adagrad`, compiled. Arguments are taken as checked there."""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import disjoint, inlined
from kgdist.kernels.prefetch import ahead

ALL, NONE = np.empty(0, np.int64), np.empty(0, np.float32)


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
def _gather(table, ids, out):
    """As _adagrad."""
    if not _inside(ids, len(table)):
        return False
    for i in range(len(ids)):
        ahead(table, ids, i)
        row = ids[i]
        for k in range(out.shape[1]):
            out[i, k] = table[row, k]
    return True


def adagrad(
    table: torch.Tensor,
    state: torch.Tensor,
    ids: torch.Tensor,
    grads: torch.Tensor,
    squares: torch.Tensor | None,
    lr: float,
    eps: float,
    places: torch.Tensor | None = None,
) -> bool:
    """float32[n,D], float32[n], int64[U], float32[M,D], float32[M], int64[U]; table and state contiguous. False, and nothing is
    done, where an id or a place is out of range."""
    given = None if squares is None else squares.contiguous().numpy()
    which = ALL if places is None else places.contiguous().numpy()
    arrays = table.detach().numpy(), state.detach().numpy(), ids.contiguous().numpy(), grads.detach().contiguous().numpy()
    return adagrad_arrays(*arrays, given, lr, eps, which)


def adagrad_arrays(
    table: np.ndarray,
    state: np.ndarray,
    ids: np.ndarray,
    grads: np.ndarray,
    squares: np.ndarray | None,
    lr: float,
    eps: float,
    places: np.ndarray = ALL,
) -> bool:
    """The same of arrays, all contiguous."""
    given = NONE if squares is None else squares
    mean = np.float32(1 / max(1, table.shape[1]))
    return bool(_adagrad(table, state, ids, places, grads, given, np.float32(lr), np.float32(eps), mean))


def gather(table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor) -> bool:
    """float32[n,D], int64[U], float32[U,D]; table and out contiguous. False as `adagrad`."""
    return bool(_gather(table.detach().numpy(), ids.contiguous().numpy(), out.numpy()))
