"""TransR: entities are projected into a relation's own space and translated there (Lin et al. 2015, Learning Entity and Relation
Embeddings for Knowledge Graph Completion). The one model whose candidates depend on the relation."""

from __future__ import annotations

import torch

from kgdist.base.types import RelationRows, Side
from kgdist.kernels.matrices import grouped_matmul, grouped_project, groups
from kgdist.models.base import Model
from kgdist.options.config import Config


class TransR(Model):
    """gamma - ||h M + r - t M||_1, M a matrix of entity_dim x relation_dim per relation. (DGL-KE negates r for missing tails.)"""

    name = "TransR"
    compare = "l1"
    kernel = "projected"
    distance = True
    projects = True
    columns = {"projection": "a matrix of {entity} rows and {relation} columns, row by row"}  # noqa: RUF012
    initial = {"projection": ("uniform", 1.0)}  # noqa: RUF012  as in DGL-KE
    usual = (0.005, 0.2), (4, 24)

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
        projected = grouped_matmul(anchors, self._matrices(relation), relation.index)
        r = relation.per_triple("relation")
        return projected + r if side is Side.TAIL else projected - r

    def project(self, entities: torch.Tensor, relation: RelationRows) -> torch.Tensor:
        """e M of the one relation given: float[N, D] -> float[N, R]."""
        return entities @ self._matrices(relation)[int(relation.index[0])]

    def pair(self, queries: torch.Tensor, entities: torch.Tensor, relation: RelationRows) -> torch.Tensor:
        """Projects the candidates first."""
        return super().pair(queries, grouped_matmul(entities, self._matrices(relation), relation.index), relation)

    def cross(self, queries: torch.Tensor, candidates: torch.Tensor, relation: RelationRows, chunk: int) -> torch.Tensor:
        """One projection of a chunk's candidates per relation in it; batches sorted by relation keep these few."""
        pairs, orders = [], []
        for c in range(len(candidates)):
            order, runs = groups(relation.index[c * chunk : (c + 1) * chunk])
            pairs += [(c, value) for value, _, _ in runs]
            orders += [order[first:last] + c * chunk for _, first, last in runs]
        seen = grouped_project(candidates, self._matrices(relation), pairs).unbind(0)
        rows = torch.cat(orders)
        asked = torch.split(queries.index_select(0, rows), [len(order) for order in orders])
        scores = [self.comparator.cross(q[None], c[None])[0] for q, c in zip(asked, seen, strict=True)]
        return torch.cat(scores).index_select(0, torch.argsort(rows)) + self.offset
