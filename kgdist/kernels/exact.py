# mypy: disable-error-code="no-untyped-def"
"""The order keys of `compare` in float64, row by row, compiled; a row's result does not depend on the rows around it."""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import kernel


@kernel
def _dot(q, c, out):
    for i in range(q.shape[0]):
        total = 0.0
        for k in range(q.shape[1]):
            total += np.float64(q[i, k]) * np.float64(c[i, k])
        out[i] = total


@kernel
def _l2(q, c, out):
    for i in range(q.shape[0]):
        total = 0.0
        for k in range(q.shape[1]):
            difference = np.float64(q[i, k]) - np.float64(c[i, k])
            total += difference * difference
        out[i] = -total


@kernel
def _l1(q, c, out):
    for i in range(q.shape[0]):
        total = 0.0
        for k in range(q.shape[1]):
            total += abs(np.float64(q[i, k]) - np.float64(c[i, k]))
        out[i] = -total


@kernel
def _modulus(q, c, out):
    half = q.shape[1] // 2
    for i in range(q.shape[0]):
        total = 0.0
        for k in range(half):
            re = np.float64(q[i, k]) - np.float64(c[i, k])
            im = np.float64(q[i, half + k]) - np.float64(c[i, half + k])
            total += math.sqrt(re * re + im * im)
        out[i] = -total


_ROWS = {"dot": _dot, "l2": _l2, "l1": _l1, "modulus": _modulus}


def rows(name: str, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float32[B,Q], float32[B,Q] on the CPU -> float64[B]; `name` is a comparator's."""
    out = np.empty(len(q), np.float64)
    _ROWS[name](q.detach().contiguous().numpy(), c.detach().contiguous().numpy(), out)
    return torch.from_numpy(out)
