"""PairRE under another name, as a user writes a score function whose candidates depend on the relation: one file."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

import kgdist


@kgdist.register
class Paired(kgdist.Model):
    """gamma - |h/|h| r_H - t/|t| r_T|_1; a relation row is r_H, then r_T."""

    name = "Paired"
    compare = "l1"
    distance = True
    vectors = ()

    @classmethod
    def sizes(cls, config):
        return config.replace(double_ent=False, double_rel=True), []

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: kgdist.Side) -> torch.Tensor:
        of_heads, of_tails = relation.chunk(2, dim=-1)
        return normalize(anchor, dim=-1) * (of_heads if side is kgdist.Side.TAIL else of_tails)

    def project(self, entities, relation, side):
        of_heads, of_tails = relation.per_triple("relation").chunk(2, dim=-1)
        return normalize(entities, dim=-1) * (of_heads if side is kgdist.Side.HEAD else of_tails)
