"""RotatE: a relation is a rotation in the complex plane (Sun et al. 2019, RotatE: Knowledge Graph Embedding by Relational
Rotation)."""

from __future__ import annotations

import math

import torch

from kgdist.base.types import Side
from kgdist.models.base import Model, halves


class RotatE(Model):
    """gamma - sum_k |h_k e^(i theta_k) - t_k|, theta = pi r / init_range; rows hold real parts, then imaginary parts.

    The relation is stored as a phase in units of `init_range / pi`, as DGL-KE and the authors' code do; reading a saved relation
    therefore needs the gamma and hidden_dim it was trained with.
    """

    name = "RotatE"
    compare = "modulus"
    kernel = "rotate"
    distance = True

    @property
    def phase_scale(self) -> float:
        """pi / init_range."""
        return math.pi / self.init_range

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """The anchor turned by theta for a missing tail, by -theta for a missing head."""
        phase = relation * self.phase_scale
        (re, im), cos, sin = halves(anchor), torch.cos(phase), torch.sin(phase)
        if side is Side.TAIL:
            return torch.cat([re * cos - im * sin, re * sin + im * cos], dim=-1)
        return torch.cat([re * cos + im * sin, im * cos - re * sin], dim=-1)
