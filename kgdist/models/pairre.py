"""PairRE: a relation scales the coordinates of heads by one vector and those of tails by another (Chao et al. 2021, PairRE:
Knowledge Graph Embeddings via Paired Relation Vectors, arXiv:2011.03798)."""

from __future__ import annotations

import torch
from torch.nn.functional import normalize

from kgdist.base.errors import OptionError
from kgdist.base.types import RelationRows, Side
from kgdist.models.base import Model, halves
from kgdist.options.config import Config


class PairRE(Model):
    """gamma - ||h/|h| r_H - t/|t| r_T||_1, products number by number; a relation row is r_H, then r_T.

    Entities have length 1 in the paper. As in the authors' code, rows are trained without that and divided by their length when
    they are scored, so only the direction of an entity's row counts.
    """

    name = "PairRE"
    compare = "l1"
    kernel = "scaled"
    distance = True
    vectors = ()
    columns = {  # noqa: RUF012
        "entity": "a vector of which the direction counts; it is scored as one of length 1",
        "relation": "{half} numbers that scale heads, then {half} that scale tails",
    }
    usual = (0.01, 0.3), (4, 24)
    recipe = {"double_rel": True, "lr": 0.15, "init_scale": 0.03}  # noqa: RUF012

    @classmethod
    def sizes(cls, config: Config) -> tuple[Config, list[str]]:
        """Entities of d numbers, and two vectors of d for each relation."""
        size = config.hidden_dim
        what = f"PairRE has entities of {size} numbers and relations of two vectors of {size}"
        if config.double_ent:
            raise OptionError("--double_ent", f"{what}; drop it, or double --hidden_dim")
        if config.double_rel:
            return config, []
        return config.replace(double_rel=True), [f"--double_rel added: {what}"]

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """The anchor as its end of the relation scales it."""
        return normalize(anchor, dim=-1) * side.other.pick(*halves(relation))

    def project(self, entities: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """Candidates as the missing end of the relation scales them."""
        return normalize(entities, dim=-1) * side.pick(*halves(relation.per_triple("relation")))
