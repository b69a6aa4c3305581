# mypy: disable-error-code="no-untyped-def"
"""Each query with a candidate of its own: the comparators of `compare` row by row, compiled.

With the positive both ways, in float32; with those that are too close to call once more, in float64.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from kgdist.kernels.euclid import NOTHING
from kgdist.kernels.jit import disjoint, kernel
from kgdist.kernels.modulus import TINY

KINDS = {"dot": 0, "l2": 1, "l1": 2, "modulus": 3}
DOT, L2, L1 = 0, 1, 2
_NOTHING, _TINY = np.float32(NOTHING), np.float32(TINY)
_ONE, _ZERO = np.float32(1), np.float32(0)


@kernel
def _exact(kind, q, c, left, right, out):
    half = q.shape[1] // 2
    for i in range(len(out)):
        x, y, total = q[left[i]], c[right[i]], 0.0
        if kind == DOT:
            for k in range(len(x)):
                total += np.float64(x[k]) * np.float64(y[k])
        elif kind == L2:
            for k in range(len(x)):
                difference = np.float64(x[k]) - np.float64(y[k])
                total += difference * difference
        elif kind == L1:
            for k in range(len(x)):
                total += abs(np.float64(x[k]) - np.float64(y[k]))
        else:
            for k in range(half):
                re, im = np.float64(x[k]) - np.float64(y[k]), np.float64(x[half + k]) - np.float64(y[half + k])
                total += math.sqrt(re * re + im * im)
        out[i] = total if kind == DOT else -total


def exact(name: str, q: torch.Tensor, c: torch.Tensor, left: np.ndarray, right: np.ndarray) -> torch.Tensor:
    """The order keys of the comparator `name`: float[P,Q], float[N,Q] on the CPU, int64[B] rows of each -> float64[B].

    A pair's key does not depend on the pairs around it.
    """
    out = np.empty(len(left), np.float64)
    _exact(KINDS[name], q.detach().contiguous().numpy(), c.detach().contiguous().numpy(), left, right, out)
    return torch.from_numpy(out)


@disjoint
def _forward(kind, queries, entities, places, out):
    for b in range(len(places)):
        q, c = queries[b], entities[places[b]]
        total = _ZERO
        if kind == DOT:
            for k in range(len(q)):
                total += q[k] * c[k]
            out[b] = total
        elif kind == L2:
            for k in range(len(q)):
                total += (q[k] - c[k]) * (q[k] - c[k])
            out[b] = -math.sqrt(max(total, _NOTHING))
        elif kind == L1:
            for k in range(len(q)):
                total += abs(q[k] - c[k])
            out[b] = -total
        else:
            half = len(q) // 2
            for k in range(half):
                r, j = q[k] - c[k], q[half + k] - c[half + k]
                square = r * r + j * j
                total += square * (_ONE / math.sqrt(max(square, _TINY)))
            out[b] = -total


@disjoint
def _backward(kind, queries, entities, places, scores, grad, grad_queries, grad_entities):
    for b in range(len(places)):
        q, c, gq, gc, g = queries[b], entities[places[b]], grad_queries[b], grad_entities[places[b]], grad[b]
        if kind == DOT:
            for k in range(len(q)):
                gq[k] += g * c[k]
                gc[k] += g * q[k]
        elif kind == L2:
            push = g / scores[b]  # the score is minus the distance
            for k in range(len(q)):
                step = push * (q[k] - c[k])
                gq[k] += step
                gc[k] -= step
        else:
            for k in range(len(q)):
                difference = q[k] - c[k]
                step = g if difference > _ZERO else (-g if difference < _ZERO else _ZERO)
                gq[k] -= step
                gc[k] += step


@disjoint
def _modulus_backward(queries, entities, places, grad, gq1, gq2, gc1, gc2):
    """The halves of the gradients are flat arrays apart, as in `modulus`."""
    half = queries.shape[1] // 2
    for b in range(len(places)):
        q, c, g, at, to = queries[b], entities[places[b]], grad[b], 2 * half * b, 2 * half * places[b]
        q1, q2, c1, c2 = q[:half], q[half:], c[:half], c[half:]
        u1, u2, v1, v2 = gq1[at : at + half], gq2[at : at + half], gc1[to : to + half], gc2[to : to + half]
        for k in range(half):
            r, j = q1[k] - c1[k], q2[k] - c2[k]
            slope = g * (_ONE / math.sqrt(max(r * r + j * j, _TINY)))
            u1[k] -= slope * r
            u2[k] -= slope * j
            v1[k] += slope * r
            v2[k] += slope * j


class Pairs:
    """Each query with the entity that is its own.

    Args:
        name: of a comparator.
        queries: float32[B,Q].
        entities: float32[U,Q].
        places: int64[B], rows of these.
    """

    def __init__(self, name: str, queries: np.ndarray, entities: np.ndarray, places: np.ndarray) -> None:
        self.kind, self.given = KINDS[name], (queries, entities, places)

    def forward(self, out: np.ndarray) -> None:
        """Fills float32[B]."""
        _forward(self.kind, *self.given, out)

    def backward(self, scores: np.ndarray, grad: np.ndarray, grad_queries: np.ndarray, grad_entities: np.ndarray) -> None:
        """`scores` float32[B] of the forward pass and their gradient; adds to float32[B,Q] and float32[U,Q]."""
        if self.kind == KINDS["modulus"]:
            flat_q, flat_c, half = grad_queries.reshape(-1), grad_entities.reshape(-1), grad_queries.shape[1] // 2
            _modulus_backward(*self.given, grad, flat_q, flat_q[half:], flat_c, flat_c[half:])
        else:
            _backward(self.kind, *self.given, scores, grad, grad_queries, grad_entities)
