"""The loop of `penalty`, compiled. Arguments are taken as checked there."""

from __future__ import annotations

import numpy as np
import torch

from kgdist.kernels.jit import disjoint


@disjoint
def _add(rows, grads, counts, coef, p, squares):  # type: ignore[no-untyped-def]
    total = 0.0
    mean = np.float32(1.0 / max(1, rows.shape[1]))
    for u in range(rows.shape[0]):
        uses = counts[u] if len(counts) else np.float32(1)
        scale = coef * np.float32(p) * uses
        norm = np.float32(0)
        square = np.float32(0)
        if scale == 0:
            for d in range(rows.shape[1]):
                square += grads[u, d] * grads[u, d]
        elif p == 3:  # the default, apart so that it stays two multiplications
            for d in range(rows.shape[1]):
                x = rows[u, d]
                slope = x * abs(x)
                norm += slope * x
                g = grads[u, d] + scale * slope
                grads[u, d] = g
                square += g * g
        else:
            for d in range(rows.shape[1]):
                x = rows[u, d]
                slope = np.sign(x)
                for _ in range(p - 1):
                    slope *= abs(x)
                norm += slope * x
                g = grads[u, d] + scale * slope
                grads[u, d] = g
                square += g * g
        squares[u] = square * mean
        total += np.float64(norm * uses)
    return total * coef


def add(rows: torch.Tensor, grads: torch.Tensor, counts: torch.Tensor | None, coef: float, p: int) -> tuple[torch.Tensor, float]:
    """float32[U, D], float32[U, D], float32[U] -> float32[U], value of the term."""
    squares = np.empty(len(rows), np.float32)
    uses = np.empty(0, np.float32) if counts is None else counts.contiguous().numpy()
    value = _add(rows.detach().numpy(), grads.detach().numpy(), uses, np.float32(coef), p, squares)
    return torch.from_numpy(squares), float(value)
