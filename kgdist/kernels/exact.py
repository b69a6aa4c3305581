# mypy: disable-error-code="no-untyped-def"
"""The order keys of `compare` in float64, pair by pair, compiled; a pair's result does not depend on the pairs around it."""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.jit import kernel


@kernel
def _dot(q, c, left, right, out):
    for i in range(len(out)):
        x, y, total = q[left[i]], c[right[i]], 0.0
        for k in range(q.shape[1]):
            total += np.float64(x[k]) * np.float64(y[k])
        out[i] = total


@kernel
def _l2(q, c, left, right, out):
    for i in range(len(out)):
        x, y, total = q[left[i]], c[right[i]], 0.0
        for k in range(q.shape[1]):
            difference = np.float64(x[k]) - np.float64(y[k])
            total += difference * difference
        out[i] = -total


@kernel
def _l1(q, c, left, right, out):
    for i in range(len(out)):
        x, y, total = q[left[i]], c[right[i]], 0.0
        for k in range(q.shape[1]):
            total += abs(np.float64(x[k]) - np.float64(y[k]))
        out[i] = -total


@kernel
def _modulus(q, c, left, right, out):
    half = q.shape[1] // 2
    for i in range(len(out)):
        x, y, total = q[left[i]], c[right[i]], 0.0
        for k in range(half):
            re = np.float64(x[k]) - np.float64(y[k])
            im = np.float64(x[half + k]) - np.float64(y[half + k])
            total += math.sqrt(re * re + im * im)
        out[i] = -total


_PAIRS = {"dot": _dot, "l2": _l2, "l1": _l1, "modulus": _modulus}


def pairs(name: str, q: torch.Tensor, c: torch.Tensor, left: np.ndarray, right: np.ndarray) -> torch.Tensor:
    """float[P,Q], float[N,Q] on the CPU, int64[B] rows of each -> float64[B]; `name` is a comparator's."""
    out = np.empty(len(left), np.float64)
    _PAIRS[name](q.detach().contiguous().numpy(), c.detach().contiguous().numpy(), left, right, out)
    return torch.from_numpy(out)
