"""Rows by id: gather them, and update them by Adagrad with one state value per row (DGL-KE), in one pass over each row.

Fused loops on float32 CPU tables, torch elsewhere. Several threads or processes may update one table at once without locks
(Hogwild); what one of them writes another may then overwrite, no more.
"""

from __future__ import annotations

import torch

from kgdist.kernels import choice

EPS = 1e-10  # DGL-KE


def _check(rows: int, ids: torch.Tensor) -> None:
    """Raise IndexError for an id outside of range(rows): a negative one would count from the end. Compiled loops find it
    themselves, and leave saying so to this.

    A GPU checks by itself, and need not be waited for here.
    """
    if ids.device.type == "cpu" and ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= rows):
        raise IndexError(f"row ids from {int(ids.min())} to {int(ids.max())} in a table of {rows} rows")


def adagrad_rows(
    table: torch.Tensor,
    state: torch.Tensor,
    ids: torch.Tensor,
    grads: torch.Tensor,
    lr: float,
    eps: float = EPS,
    *,
    squares: torch.Tensor | None = None,
    places: torch.Tensor | None = None,
) -> None:
    """state[id] += mean(g^2), or `squares` where given; table[id] -= lr g / (sqrt(state[id]) + eps), in place.

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
    if choice.numba_for(table, state, grads) and table.is_contiguous() and state.is_contiguous():
        from kgdist.kernels import rows

        if rows.adagrad(table, state, ids, grads, squares, lr, eps, places):
            return
    _check(len(table), ids)
    if places is not None:
        _check(len(grads), places)
        grads, squares = grads[places], squares[places] if squares is not None else None
    if squares is None:
        squares = grads.square().mean(1) if grads.shape[1] else state.new_zeros(len(ids))
    state.index_add_(0, ids, squares)
    table.index_add_(0, ids, grads / (state[ids].sqrt() + eps).unsqueeze(1), alpha=-lr)


def gather_rows(table: torch.Tensor, ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """float[n,D], int64[U] -> float[U,D], a copy, into `out` if given. Raises IndexError for an id out of range."""
    if out is None:
        out = table.new_empty(len(ids), table.shape[1])
    if choice.numba_for(table, out) and table.is_contiguous() and out.is_contiguous():
        from kgdist.kernels import rows

        if rows.gather(table, ids, out):
            return out
    _check(len(table), ids)
    return torch.index_select(table, 0, ids, out=out)
