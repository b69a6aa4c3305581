# mypy: disable-error-code="no-untyped-def"
"""Queries of vector relations from rows of entities and relations, forward and backward, compiled.

The rules of the models (`kgdist.models`), by name; what they mean is told there. "translate" and "diagonal" work number by
number; "complex", "rotate" and "simple" on the two halves of a row, and here every half that is written is an array of its own
(`l1` tells why).
"""

from __future__ import annotations

import math

import numpy as np

from kgdist.base.types import Side
from kgdist.kernels.jit import disjoint

KINDS = {"translate": 0, "diagonal": 1, "complex": 2, "rotate": 3, "simple": 4}
PLAIN = 2  # kinds below work number by number
TRANSLATE, COMPLEX, ROTATE = 0, 2, 3
_HALF, _ONE = np.float32(0.5), np.float32(1)
_QUARTER, _PER_QUARTER = math.pi / 2, 2 / math.pi
_S0, _S1, _S2 = np.float32(-1.9515295891e-4), np.float32(8.3321608736e-3), np.float32(-1.6666654611e-1)
_C0, _C1, _C2 = np.float32(2.443315711809948e-5), np.float32(-1.388731625493765e-3), np.float32(4.166664568298827e-2)


@disjoint
def _plain_forward(kind, sign, entities, anchors, relations, index, out):
    for b in range(len(anchors)):
        a, r, q = entities[anchors[b]], relations[index[b]], out[b]
        if kind == TRANSLATE:
            for k in range(len(q)):
                q[k] = a[k] + sign * r[k]
        else:
            for k in range(len(q)):
                q[k] = a[k] * r[k]


@disjoint
def _plain_backward(kind, sign, entities, anchors, relations, index, grad, grad_entities, grad_uses):
    for b in range(len(anchors)):
        a, r, g = entities[anchors[b]], relations[index[b]], grad[b]
        ga, gr = grad_entities[anchors[b]], grad_uses[b]
        if kind == TRANSLATE:
            for k in range(len(g)):
                ga[k] += g[k]
                gr[k] = sign * g[k]
        else:
            for k in range(len(g)):
                ga[k] += g[k] * r[k]
                gr[k] = g[k] * a[k]


@disjoint
def _turn(scale, relations, out):
    """Phases float32[V,K] -> their cosines and sines, float32[V,2K], by the polynomials of Cephes' sinf and cosf (Moshier 1989).

    The C library's would keep the loop from being a vector. Phases are brought to within pi / 4 of a quarter turn in float64.
    """
    half = relations.shape[1]
    for v in range(len(relations)):
        phases, cosines, sines = relations[v], out[v, :half], out[v, half:]
        for k in range(half):
            x = np.float64(phases[k] * scale)
            quarters = np.floor(x * _PER_QUARTER + 0.5)
            r = np.float32(x - quarters * _QUARTER)
            z = r * r
            sine = ((_S0 * z + _S1) * z + _S2) * z * r + r
            cosine = ((_C0 * z + _C1) * z + _C2) * z * z - _HALF * z + _ONE
            quarters -= 4.0 * np.floor(0.25 * quarters)  # 0, 1, 2 or 3
            odd = quarters == 1.0 or quarters == 3.0
            a, b = sine if odd else cosine, cosine if odd else sine
            cosines[k] = -a if quarters == 1.0 or quarters == 2.0 else a
            sines[k] = -b if quarters >= 2.0 else b


@disjoint
def _halves_forward(kind, sign, entities, anchors, relations, index, first, second, out1, out2):
    """`first` and `second` are the columns at which the relation's halves begin; out1 and out2 are flat."""
    half = entities.shape[1] // 2
    for b in range(len(anchors)):
        a, r, at = entities[anchors[b]], relations[index[b]], 2 * half * b
        a1, a2, r1, r2 = a[:half], a[half:], r[first : first + half], r[second : second + half]
        q1, q2 = out1[at : at + half], out2[at : at + half]
        if kind in (COMPLEX, ROTATE):
            for k in range(half):
                q1[k] = a1[k] * r1[k] - sign * a2[k] * r2[k]
                q2[k] = sign * a1[k] * r2[k] + a2[k] * r1[k]
        else:
            for k in range(half):
                q1[k] = _HALF * r2[k] * a2[k]
                q2[k] = _HALF * r1[k] * a1[k]


@disjoint
def _halves_backward(
    kind, sign, entities, anchors, relations, index, first, second, grad, ga1, ga2, gr1, gr2, scale, width
):  # fmt: skip
    """Adds to ga1 and ga2, flat gradients of the entities; writes gr1 and gr2, those of each use, `width` floats apart.

    A rotation has one phase for both halves: gr1 is its gradient, and gr2 is not touched.
    """
    half = entities.shape[1] // 2
    for b in range(len(anchors)):
        a, r, g, to, at = entities[anchors[b]], relations[index[b]], grad[b], 2 * half * anchors[b], width * b
        a1, a2, r1, r2 = a[:half], a[half:], r[first : first + half], r[second : second + half]
        g1, g2 = g[:half], g[half:]
        h1, h2 = ga1[to : to + half], ga2[to : to + half]
        s1, s2 = gr1[at : at + half], gr2[at : at + half]
        if kind == COMPLEX:
            for k in range(half):
                h1[k] += g1[k] * r1[k] + sign * g2[k] * r2[k]
                h2[k] += g2[k] * r1[k] - sign * g1[k] * r2[k]
                s1[k] = g1[k] * a1[k] + g2[k] * a2[k]
                s2[k] = sign * (g2[k] * a1[k] - g1[k] * a2[k])
        elif kind == ROTATE:
            for k in range(half):
                h1[k] += g1[k] * r1[k] + sign * g2[k] * r2[k]
                h2[k] += g2[k] * r1[k] - sign * g1[k] * r2[k]
                cosine = g1[k] * a1[k] + g2[k] * a2[k]
                sine = sign * (g2[k] * a1[k] - g1[k] * a2[k])
                s1[k] = scale * (sine * r1[k] - cosine * r2[k])
        else:
            for k in range(half):
                h1[k] += _HALF * g2[k] * r1[k]
                h2[k] += _HALF * g1[k] * r2[k]
                s1[k] = _HALF * g2[k] * a1[k]
                s2[k] = _HALF * g1[k] * a2[k]


class VectorQuery:
    """The query of one step: `forward` first, then `backward` with the same rows.

    Args:
        kind: a key of `KINDS`.
        side: the missing end.
        scale: radians of a phase of 1; for "rotate" only.
    """

    def __init__(
        self, kind: str, side: Side, entities: np.ndarray, anchors: np.ndarray, relations: np.ndarray, index: np.ndarray,
        *, scale: float = 1.0,
    ) -> None:  # fmt: skip
        """float32[U,D], int64[B] rows of it, float32[V,R], int64[B] rows of it."""
        self.kind, self.scale, self.width = KINDS[kind], np.float32(scale), relations.shape[1]
        self.sign = np.float32(side.pick(-1.0, 1.0))
        if self.kind == ROTATE:
            turned = np.empty((len(relations), 2 * relations.shape[1]), np.float32)
            _turn(self.scale, relations, turned)
            relations = turned
        self.given = entities, anchors, relations, index
        half = entities.shape[1] // 2
        # A missing head meets SimplE's two relation vectors in each other's place.
        self.columns = (half, 0) if kind == "simple" and side is Side.HEAD else (0, half)

    def forward(self, out: np.ndarray) -> None:
        """Fills float32[B,Q]."""
        if self.kind < PLAIN:
            _plain_forward(self.kind, self.sign, *self.given, out)
            return
        flat = out.reshape(-1)
        _halves_forward(self.kind, self.sign, *self.given, *self.columns, flat, flat[out.shape[1] // 2 :])

    def backward(self, grad: np.ndarray, grad_entities: np.ndarray, grad_uses: np.ndarray) -> None:
        """float32[B,Q]; adds to float32[U,D], writes float32[B,R], the gradient of each use of a relation."""
        if self.kind < PLAIN:
            _plain_backward(self.kind, self.sign, *self.given, grad, grad_entities, grad_uses)
            return
        entities, uses, (first, second) = grad_entities.reshape(-1), grad_uses.reshape(-1), self.columns
        parts = (uses, uses[:0]) if self.kind == ROTATE else (uses[first:], uses[second:])
        halves = entities, entities[grad.shape[1] // 2 :]
        _halves_backward(self.kind, self.sign, *self.given, first, second, grad, *halves, *parts, self.scale, self.width)
