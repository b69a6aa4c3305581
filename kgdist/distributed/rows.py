"""What stands between the brackets of `tensor[...]`, as row numbers; and what is written, as rows of one dtype."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.integers import int64
from kgdist.kvstore.catalogue import DTYPES

NAMES = {dtype: name for name, (_, dtype) in DTYPES.items()}  # of the dtypes that a table can have

Rows = range | np.ndarray  # a range of step 1, or int64[n]


def plain_ids(key: Any) -> np.ndarray | None:
    """`key` as int64[n] where it is that already, an array or a tensor, and nothing needs to be made of it but to look whether
    the rows are there; None for all else, which `row_ids` knows."""
    ids = key.numpy() if type(key) is torch.Tensor and key.is_cpu else key
    return ids if type(ids) is np.ndarray and ids.dtype == np.int64 and ids.ndim == 1 and ids.flags.c_contiguous else None


def row_ids(key: Any, count: int, what: str) -> Rows:
    """The rows of `count` that `key` chooses, as NumPy would: an int (one row), a slice, a list, array or tensor of ints, or a
    mask of all rows.

    A negative number counts from the end. Raises UsageError, in which `what` names the tensor, for all else and for rows that
    are not there.
    """
    if isinstance(key, slice):
        return _sliced(key, count, what)
    if isinstance(key, tuple) or key is None or key is Ellipsis:
        raise UsageError(f"{what}: rows alone can be chosen, by an int, a slice, a list, an array or a mask")
    ids = _array(key, what)
    if ids.dtype == np.bool_:
        if ids.shape != (count,):
            raise UsageError(f"{what}: a mask of shape {ids.shape}, but there are {count} rows")
        return np.flatnonzero(ids)
    if ids.ndim > 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise UsageError(f"{what}: rows are chosen by whole numbers in one dimension, not by {ids.dtype}{list(ids.shape)}")
    ids = np.ascontiguousarray(int64(ids.reshape(-1), what))
    if not ids.size or int(ids.view(np.uint64).max()) < count:  # negative ones are the largest there
        return ids
    least, most = int(ids.min()), int(ids.max())
    if least < -count or most >= count:
        raise UsageError(f"{what}: row {most if most >= count else least} is not there, there are {count} rows")
    return np.where(ids < 0, ids + count, ids)


def _sliced(key: slice, count: int, what: str) -> Rows:
    try:
        chosen = range(*key.indices(count))
    except (TypeError, ValueError) as error:
        raise UsageError(f"{what}: {key} is not a slice of rows ({error})") from error
    return chosen if chosen.step == 1 else np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)


def _array(key: Any, what: str) -> np.ndarray:
    if isinstance(key, torch.Tensor):
        return key.detach().cpu().numpy()
    if isinstance(key, bool):
        return np.asarray(key)  # no row's number
    try:
        return np.asarray(key if isinstance(key, np.ndarray | list | range) else operator.index(key))
    except (TypeError, ValueError, OverflowError) as error:
        message = f"{what}: rows are chosen by an int, a slice, a list, an array or a mask, not by a {type(key).__name__}"
        raise UsageError(message) from error


def rows_of(value: Any, count: int, row_shape: tuple[int, ...], dtype: torch.dtype, what: str) -> torch.Tensor:
    """`value` (a number, a list, an array or a tensor) as dtype[count, *row_shape] on the CPU, broadcast as NumPy does.

    Raises UsageError for what does not fit.
    """
    try:
        given = torch.as_tensor(np.asarray(value) if isinstance(value, np.generic) else value).detach().cpu()
        if given.is_complex():
            raise ValueError("complex numbers have no place there")
        found = given.to(dtype)
        if given.dtype != dtype:
            _check_kept(given, found)
        return found.expand(count, *row_shape).contiguous()
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        given_as = f"{type(value).__name__} of shape {tuple(getattr(value, 'shape', ()))}"
        reason = str(error).splitlines()[0]
        message = f"{what}: {given_as} cannot be written into rows of shape {(count, *row_shape)} ({reason})"
        raise UsageError(message) from error


def _check_kept(given: torch.Tensor, found: torch.Tensor) -> None:
    """Raises ValueError for a number that integers of `found`'s dtype do not hold."""
    if found.dtype == torch.bool or found.dtype.is_floating_point:
        return
    wide = given if given.dtype.is_floating_point else given.long()
    kept = found.to(wide.dtype) == wide
    if given.dtype == torch.uint64:
        kept &= wide >= 0
    if wide.dtype.is_floating_point:
        kept &= wide.abs() < 2.0**63  # what is out of reach becomes any number, which may be rounded back
    if not bool(kept.all()):
        raise ValueError(f"{wide[~kept].flatten()[0].item()} does not fit into {NAMES[found.dtype]}")
