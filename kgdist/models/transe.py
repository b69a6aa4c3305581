"""TransE: a relation is a translation, h + r ~ t (Bordes et al. 2013, Translating Embeddings for Modeling Multi-relational
Data)."""

from __future__ import annotations

import torch

from kgdist.base.types import Side
from kgdist.models.base import Model


class TransE_l2(Model):
    """gamma - ||h + r - t||_2."""

    name = "TransE_l2"
    compare = "l2"
    kernel = "translate"
    distance = True
    usual = (0.02, 0.5), (4, 24)

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """h + r for a missing tail, t - r for a missing head."""
        return anchor + relation if side is Side.TAIL else anchor - relation

    def relation_query(self, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """t - h, which the relation is to be near to."""
        return tails - heads


class TransE_l1(TransE_l2):
    """gamma - ||h + r - t||_1."""

    name = "TransE_l1"
    compare = "l1"
    usual = (0.003, 0.1), (4, 24)
