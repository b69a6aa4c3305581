"""What keeps rows small: the penalty of each part of a batch, the same for both steps.

`lp` is DGL-KE's: coef sum |x|^p over the rows that a step looks up, all uses of an entity by positives being one, and each draw
another. The others are means over the positives of sums over their factors, each as often as it is used, and say nothing of
negatives: N3 (Lacroix et al. 2018, arXiv:1806.07297, as in their code, https://github.com/facebookresearch/kbc), F2, and DURA
(Zhang et al. 2020, arXiv:2011.05816): squares of head and tail, and of the queries for both.
"""

from __future__ import annotations

from kgdist.kernels.gradients import Penalty
from kgdist.models.base import Model
from kgdist.options.config import Config


class Regularizer:
    """The penalties that `--regularizer` asks for.

    Attributes:
        by_use: whether a row counts as often as positives use it.
    """

    def __init__(self, config: Config, model: Model) -> None:
        self.kind, self.model = config.regularizer, model
        self.coef = config.regularization_coef
        own = config.relation_regularization_coef
        self.relation_coef = self.coef if own is None else own
        self.p = {"lp": config.regularization_norm, "n3": 3}.get(self.kind, 2)
        self.by_use = self.kind != "lp"

    def _penalty(self, coef: float, table: str, positives: int) -> Penalty:
        moduli = self.kind == "n3" and table in self.model.moduli
        return Penalty(coef / positives if self.by_use else coef, self.p, moduli)

    def entities(self, positives: int) -> Penalty:
        """Of the heads and tails of so many positives."""
        return self._penalty(self.coef, "entity", positives)

    def draws(self) -> Penalty:
        """Of the negatives that were drawn."""
        return Penalty(0.0 if self.by_use else self.coef, self.p)

    def relations(self, positives: int) -> Penalty:
        """Of the relations, as often as they are used."""
        none = self.kind == "dura" or (self.by_use and self.model.angles)
        return self._penalty(0.0 if none else self.relation_coef, "relation", positives)

    def queries(self, positives: int) -> float:
        """The coefficient of the squares of both queries of each positive."""
        return self.relation_coef / positives if self.kind == "dura" else 0.0
