"""TransR: entities are projected into a relation's own space and translated there (Lin et al. 2015, Learning Entity and Relation
Embeddings for Knowledge Graph Completion)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kgdist.base.types import RelationRows, Side
from kgdist.kernels.matrices import grouped_matmul, grouped_project
from kgdist.models.base import Model
from kgdist.options.config import Config


class TransR(Model):
    """gamma - ||h M + r - t M||_1, M a matrix of entity_dim x relation_dim per relation. (DGL-KE negates r for missing tails.)"""

    name = "TransR"
    compare = "l1"
    kernel = "projected"
    distance = True
    sideless = True
    columns = {"projection": "a matrix of {entity} rows and {relation} columns, row by row"}  # noqa: RUF012
    initial = {"projection": ("uniform", 1.0)}  # noqa: RUF012  as in DGL-KE
    usual = (0.005, 0.2), (4, 24)
    recipe = {"init_scale": 0.03}  # noqa: RUF012

    @classmethod
    def sizes(cls, config: Config) -> tuple[Config, list[str]]:
        """Any two."""
        return config, []

    def tables(self, num_entities: int, num_relations: int) -> dict[str, tuple[int, int]]:
        """Adds the projections."""
        return {
            "entity": (num_entities, self.entity_dim),
            "relation": (num_relations, self.relation_dim),
            "projection": (num_relations, self.entity_dim * self.relation_dim),
        }

    def _matrices(self, relation: RelationRows) -> torch.Tensor:
        return relation.rows["projection"].view(-1, self.entity_dim, self.relation_dim)

    def queries(self, anchors: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """h M + r for a missing tail, t M - r for a missing head."""
        projected, r = self.project(anchors, relation, side.other), relation.per_triple("relation")
        return projected + r if side is Side.TAIL else projected - r

    def project(self, entities: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """e M: float[B, D] -> float[B, R]."""
        if len(relation.index) == 1:
            return entities @ self._matrices(relation)[int(relation.index[0])]
        return grouped_matmul(entities, self._matrices(relation), relation.index)

    def views(
        self, candidates: torch.Tensor, relation: RelationRows, pairs: list[tuple[int, int]], side: Side
    ) -> Sequence[torch.Tensor]:
        """Products that read each matrix where it lies, and add up its gradient there."""
        which = relation.index.tolist()
        return grouped_project(candidates, self._matrices(relation), [(c, which[triple]) for c, triple in pairs]).unbind(0)
