"""Every score function written out plainly, one triple at a time, from its paper. The oracle of the law tests."""

from __future__ import annotations

import math

import torch

from kgdist.kernels import euclid, modulus
from kgdist.options.built_in import BUILT_IN

DIM, GAMMA = 6, 4.0
NAMES = tuple(BUILT_IN)


def sizes(name: str) -> dict[str, int]:
    """Constructor arguments of a small model."""
    entity = 2 * DIM if name == "RotatE" else DIM
    relation = {"TransR": DIM - 2, "PairRE": 2 * DIM}.get(name, DIM)
    return {"hidden_dim": DIM, "entity_dim": entity, "relation_dim": relation}


def score(name: str, h: torch.Tensor, r: torch.Tensor, t: torch.Tensor, projection: torch.Tensor | None = None) -> torch.Tensor:
    """Score of one triple from its rows; projection is TransR's matrix, row by row."""
    if name in ("TransE", "TransE_l2"):
        return GAMMA - (h + r - t).norm(p=2)
    if name == "TransE_l1":
        return GAMMA - (h + r - t).norm(p=1)
    if name == "TransR":
        assert projection is not None
        matrix = projection.view(len(h), len(r))
        return GAMMA - (h @ matrix + r - t @ matrix).norm(p=1)
    if name == "RESCAL":
        return h @ r.view(len(h), len(h)) @ t
    if name == "DistMult":
        return (h * r * t).sum()
    half = len(h) // 2
    if name == "ComplEx":
        hc, rc, tc = (torch.complex(x[:half], x[half:]) for x in (h, r, t))
        return (hc * rc * tc.conj()).sum().real
    if name == "RotatE":
        hc, tc = (torch.complex(x[:half], x[half:]) for x in (h, t))
        phase = r * math.pi / ((GAMMA + 2.0) / DIM)
        return GAMMA - (hc * torch.complex(phase.cos(), phase.sin()) - tc).abs().sum()
    if name == "PairRE":
        unit_h, unit_t = (end / torch.sqrt(torch.dot(end, end)) for end in (h, t))
        return GAMMA - torch.stack([(unit_h[k] * r[k] - unit_t[k] * r[len(h) + k]).abs() for k in range(len(h))]).sum()
    assert name == "SimplE", f"{name}: its plain formula is missing here"
    return 0.5 * ((h[:half] * r[:half] * t[half:]).sum() + (t[:half] * r[half:] * h[half:]).sum())


def crossed(name: str, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float64[C,P,Q], float64[C,N,Q] -> float64[C,P,N]. Roots of next to nothing are made parabolas, as documented."""
    difference = q[:, :, None] - c[:, None]
    if name == "dot":
        return (q[:, :, None] * c[:, None]).sum(-1)
    if name == "l1":
        return -difference.abs().sum(-1)
    if name == "l2":
        return -root(difference.square().sum(-1), euclid.NOTHING)
    re, im = difference.chunk(2, -1)
    return -root(re.square() + im.square(), modulus.TINY).sum(-1)


def root(square: torch.Tensor, least: float) -> torch.Tensor:
    return torch.where(square > least, square.clamp_min(least).sqrt(), square / (2 * least**0.5))
