"""RESCAL: a relation is a full bilinear form (Nickel et al. 2011, A Three-Way Model for Collective Learning on
Multi-Relational Data)."""

from __future__ import annotations

import torch

from kgdist.base.types import RelationRows, Side
from kgdist.kernels.matrices import grouped_matmul
from kgdist.models.base import Model


class RESCAL(Model):
    """h^T M t, M stored row by row: relation rows have entity_dim * relation_dim floats.

    A missing tail meets h^T M and a missing head M t. (DGL-KE uses M t's form for both, which is wrong for tails.)
    """

    name = "RESCAL"
    compare = "dot"
    kernel = "bilinear"
    vectors = ()
    columns = {"relation": "a matrix of {relation} rows and {entity} columns, row by row"}  # noqa: RUF012
    usual = (0.01, 0.1), (8, 64)
    penalty = 2.5
    recipe = {"hidden_dim": 100, "init": "xavier", "init_scale": None, "regularizer": "dura", "lr": 0.03}  # noqa: RUF012

    def tables(self, num_entities: int, num_relations: int) -> dict[str, tuple[int, int]]:
        """A relation row is a whole matrix."""
        return {"entity": (num_entities, self.entity_dim), "relation": (num_relations, self.relation_dim * self.entity_dim)}

    def queries(self, anchors: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """One GEMM per relation of the batch."""
        matrices = relation.rows["relation"].view(-1, self.relation_dim, self.entity_dim)
        return grouped_matmul(anchors, matrices, relation.index, transpose=side is Side.HEAD)

    def relation_query(self, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """h t^T, row by row."""
        return (heads.unsqueeze(2) * tails.unsqueeze(1)).flatten(1)
