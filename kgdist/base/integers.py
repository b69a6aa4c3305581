"""Whole numbers as callers give them, one of Python, NumPy or torch, or an array that is to be int64; and many, each once."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from kgdist.base.errors import OptionError, UsageError


def integer(name: str, value: Any, low: int | None = None, high: int | None = None) -> int:
    """The argument `name` as an int, of an int, one of NumPy's, or a tensor that is one number.

    Raises OptionError for what is none (true and false are none, nor is 2.0), and for one that is not in low..high.
    """
    try:
        found = None if str(getattr(value, "dtype", type(value).__name__)).endswith("bool") else operator.index(value)
    except TypeError:
        found = None
    if found is None or (low is not None and found < low) or (high is not None and found > high):
        bounds = [f"{sign} {bound}" for sign, bound in ((">=", low), ("<=", high)) if bound is not None]
        wanted = " ".join(["an integer", " and ".join(bounds)]).strip()
        raise OptionError(name, f"must be {wanted}, not {str(value)[:60] if isinstance(value, int) else repr(value)[:60]}")
    return found


def int64(values: np.ndarray, what: str) -> np.ndarray:
    """Integers of any width as int64, the same memory where it is that. Raises UsageError for those from 2^63 on."""
    if values.dtype == np.uint64 and values.size and int(values.max()) >= 1 << 63:
        raise UsageError(f"{what}: {int(values.max())} is too large: give whole numbers below 2^63")
    return values.astype(np.int64, copy=False)


def distinct(values: np.ndarray) -> np.ndarray:
    """Each of int[n] once, ascending; `values` are sorted in place. NumPy's own `unique` hashes since 2.3, which takes a hundred
    times as long where they are in order already."""
    values.sort()
    fresh = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return values[fresh]
