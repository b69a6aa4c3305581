"""DistMult: a relation is a diagonal bilinear form (Yang et al. 2015, Embedding Entities and Relations for Learning and
Inference)."""

from __future__ import annotations

import torch

from kgdist.base.types import Side
from kgdist.models.base import Model


class DistMult(Model):
    """sum_k h_k r_k t_k."""

    name = "DistMult"
    compare = "dot"
    kernel = "diagonal"
    usual = (0.03, 0.3), (10, 200)

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """The anchor scaled by the relation; the same for both sides."""
        return anchor * relation

    def relation_query(self, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """h t, number by number."""
        return heads * tails
