"""SimplE: two vectors per entity, one for each role (Kazemi and Poole 2018, SimplE Embedding for Link Prediction in Knowledge
Graphs)."""

from __future__ import annotations

import torch

from kgdist.base.types import Side
from kgdist.models.base import Model, halves


class SimplE(Model):
    """(sum h_i r t_j + sum t_i r' h_j) / 2 with halves i (as head), j (as tail) and r, r' (the inverse relation).

    As in DGL-KE, training clamps scores to +-20; ranking does not, for a clamp can only make ties.
    """

    name = "SimplE"
    compare = "dot"
    kernel = "simple"
    score_limit = 20.0
    halves = "two halves"
    columns = {  # noqa: RUF012
        "entity": "{half} numbers as head, then {half} as tail",
        "relation": "{half} numbers of the relation, then {half} of its inverse",
    }
    usual = (0.05, 1.0), (50, 400)
    penalty = 0.5

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """The anchor's halves in each other's place, scaled by the relation that reads them."""
        (a_i, a_j), (r, r_inverse) = halves(anchor), halves(relation)
        if side is Side.TAIL:
            return 0.5 * torch.cat([r_inverse * a_j, r * a_i], dim=-1)
        return 0.5 * torch.cat([r * a_j, r_inverse * a_i], dim=-1)

    def relation_query(self, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """What the relation and its inverse are multiplied with."""
        (h_i, h_j), (t_i, t_j) = halves(heads), halves(tails)
        return 0.5 * torch.cat([h_i * t_j, t_i * h_j], dim=-1)
