"""What a model is: a query rule times a comparator.

A model turns the given end of a triple and its relation into a query vector, and a comparator holds that query against candidates
for the missing end. Training negatives, ranking and prediction are this one comparison, so the score of the true entity among
candidates is the positive's score by construction. Nothing here knows where rows live, how negatives are drawn or what a loss is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from kgdist.base.errors import OptionError
from kgdist.base.types import RelationRows, Side
from kgdist.kernels.comparators import COMPARATORS, Comparator
from kgdist.kernels.matrices import groups
from kgdist.options.config import Config


class Model:
    """Base of all score functions; higher scores are better.

    A score function states its `compare`, the name of a comparator, and its `query`. Those with one matrix per relation override
    `queries` as well, and those whose candidates depend on the relation `project`.

    Args:
        hidden_dim: d of the command line; with `entity_dim` and `relation_dim` it sets the widths of the tables.
        gamma: margin; added to distances only. DGL-KE also derives the initial range from it, `(gamma + 2) / hidden_dim`.
    """

    name: ClassVar[str]
    compare: ClassVar[str]  # key of COMPARATORS
    distance: ClassVar[bool] = False  # scores are gamma - distance
    projects: ClassVar[bool] = False  # candidates depend on the relation: there is a `project`
    sideless: bool = False  # and are projected alike at both ends of a triple
    score_limit: ClassVar[float | None] = None  # training clamps scores to +-limit
    vectors: ClassVar[tuple[str, ...]] = ("relation",)  # tables read a row per triple; what projects is read once per relation
    halves: ClassVar[str | None] = None  # what the halves of an entity's row are, where it has such: its width is even then
    moduli: ClassVar[tuple[str, ...]] = ()  # tables whose rows are complex numbers: real parts, then imaginary parts
    angles: ClassVar[bool] = False  # relations are angles, of no size that could be regularised
    columns: ClassVar[dict[str, str]] = {}  # table -> what a row is if no vector, with {half}, {entity}, {relation}, {scale}
    initial: ClassVar[dict[str, tuple[str, float]]] = {}  # table -> how it begins whatever --init says: kind, spread
    depends_on: ClassVar[tuple[str, ...]] = ()  # options that saved rows cannot be read without, besides their sizes
    usual: ClassVar[tuple[tuple[float, float], tuple[float, float]]] = (0.003, 0.3), (4, 64)  # what a search tries: lr, gamma
    penalty: ClassVar[float] = 1.0  # how much of the usual coefficient its rows take (models/recipes.py)
    recipe: ClassVar[dict[str, Any]] = {}  # options that it wants in place of those of models like it (models/recipes.py)
    kernel: ClassVar[str | None] = None  # compiled loops that do the same (kgdist.training.fused_relations), if any

    def __init_subclass__(cls) -> None:
        """A class with a rule of its own has no kernel unless it says so."""
        if vars(cls).keys() & {"query", "queries", "pair", "cross", "project"} and "kernel" not in vars(cls):
            cls.kernel = None
        cls.projects = cls.project is not Model.project

    def __init__(self, *, hidden_dim: int, entity_dim: int, relation_dim: int, gamma: float) -> None:
        self.hidden_dim = hidden_dim
        self.entity_dim = entity_dim
        self.relation_dim = relation_dim
        self.init_range = (gamma + 2.0) / hidden_dim
        self.comparator: Comparator = COMPARATORS[self.compare]
        self.offset = gamma if self.distance else 0.0
        self.reciprocal = False

    @classmethod
    def sizes(cls, config: Config) -> tuple[Config, list[str]]:
        """The options with the --double_ent and --double_rel that the model needs, and notes on what was changed: by default
        entities and relations of one size (DGL-KE's shapes). Raises OptionError for what cannot be."""
        notes = []
        if config.double_ent != config.double_rel:
            missing = "double_rel" if config.double_ent else "double_ent"
            config = config.replace(double_ent=True, double_rel=True)
            same = f"entities and relations of one size, {config.entity_dim}"
            notes.append(f"--{missing} added: {config.model_name} needs {same}")
        if cls.halves is not None and config.entity_dim % 2:
            what = f"{config.model_name} has {cls.halves}: take an even number, not {config.hidden_dim}"
            raise OptionError("--hidden_dim", f"{what}, or add --double_ent --double_rel")
        return config, notes

    def use_inverses(self) -> None:
        """Let a relation and its inverse have rows of their own (Lacroix et al. 2018): a missing head is from now on the missing
        tail of the inverse. Relation r has row 2r, its inverse row 2r + 1, so that a range of relations is one of rows."""
        self.reciprocal = True
        self.sideless = False  # the two sides of a relation are projected by two rows

    def asked(self, relations: np.ndarray, side: Side) -> tuple[np.ndarray, Side]:
        """The rows by which relations int[B] are asked for their missing `side`, and the side that the model is then asked for.

        Whoever makes queries of ids begins here; everything else knows relations, and both of their ends.
        """
        if not self.reciprocal:
            return relations, side
        return 2 * relations + side.pick(1, 0), Side.TAIL

    @property
    def per_relation(self) -> int:
        """How many rows a relation has, one after another."""
        return 2 if self.reciprocal else 1

    def rows_of(self, table: str, ids: np.ndarray) -> np.ndarray:
        """The rows of `table` that entities, or relations, int[n] have: int[n], or int[n * per_relation], one after another."""
        if table == "entity" or not self.reciprocal:
            return ids
        return (2 * ids[:, None] + np.arange(2, dtype=ids.dtype)).reshape(-1)

    def shapes(self, num_entities: int, num_relations: int) -> dict[str, tuple[int, int]]:
        """Name -> (rows, width) of every table that is trained for so many entities and relations."""
        return self.tables(num_entities, num_relations * self.per_relation)

    @property
    def phase_scale(self) -> float:
        """Radians of a relation value of 1, where relations are phases."""
        return 1.0

    def tables(self, num_entities: int, num_relations: int) -> dict[str, tuple[int, int]]:
        """Name -> (rows, width) of every table, for so many rows of entities and of relations."""
        return {"entity": (num_entities, self.entity_dim), "relation": (num_relations, self.relation_dim)}

    def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
        """The vector that a candidate for the missing `side` is compared with; float[B, D], float[B, R] -> float[B, Q]."""
        raise NotImplementedError

    def queries(self, anchors: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """`query` for rows that share relations: float[B, D] -> float[B, Q]."""
        return self.query(anchors, relation.per_triple("relation"), side)

    def project(self, entities: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """Candidates for `side` as relations see them: float[B, D] -> float[B, Q]. The identity for most models.

        Each by the relation of its own triple, or all by one: the index of `relation` is as long as `entities`, or one long.
        """
        return entities

    def views(
        self, candidates: torch.Tensor, relation: RelationRows, pairs: list[tuple[int, int]], side: Side
    ) -> Sequence[torch.Tensor]:
        """float[N, Q] for each (chunk, triple) of `pairs`: the chunk of float[C, N, D] as the triple's relation sees it."""
        chunks, relations = candidates.unbind(0), relation.apart([triple for _, triple in pairs])
        return [self.project(chunks[chunk], one, side) for (chunk, _), one in zip(pairs, relations, strict=True)]

    def relation_query(self, heads: torch.Tensor, tails: torch.Tensor) -> torch.Tensor:
        """What the comparator holds relations' rows against, so that its score is the triple's: float[B, D], float[B, D] ->
        float[B, R]. Models that have no such form raise NotImplementedError (`asks_relations`)."""
        raise NotImplementedError

    @property
    def asks_relations(self) -> bool:
        """Whether there is a `relation_query`."""
        return type(self).relation_query is not Model.relation_query

    def pair(self, queries: torch.Tensor, entities: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        """Score of one candidate per query: float[B, Q], float[B, D] -> float[B]."""
        return self.comparator.pair(queries, self.project(entities, relation, side)) + self.offset

    def cross(
        self, queries: torch.Tensor, candidates: torch.Tensor, relation: RelationRows, chunk: int, side: Side
    ) -> torch.Tensor:
        """Scores of every candidate of a query's chunk: float[B, Q], float[C, N, D] -> float[B, N]; B <= C * chunk."""
        if self.projects:
            return self._cross_projected(queries, candidates, relation, chunk, side)
        chunks, size = len(candidates), len(queries)
        padding = chunks * chunk - size
        if padding:
            queries = torch.cat([queries, queries.new_zeros(padding, queries.shape[1])])
        scores = self.comparator.cross(queries.view(chunks, chunk, -1), candidates)
        return scores.reshape(chunks * chunk, -1)[:size] + self.offset

    def _cross_projected(
        self, queries: torch.Tensor, candidates: torch.Tensor, relation: RelationRows, chunk: int, side: Side
    ) -> torch.Tensor:
        """One projection of a chunk's candidates per relation in it; batches sorted by relation keep these few."""
        pairs, orders = [], []
        for c in range(len(candidates)):
            order, runs = groups(relation.index[c * chunk : (c + 1) * chunk])
            orders += [order[first:last] + c * chunk for _, first, last in runs]
            pairs += [(c, int(order[first]) + c * chunk) for _, first, _ in runs]
        rows = torch.cat(orders)
        asked = torch.split(queries.index_select(0, rows), [len(order) for order in orders])
        seen = self.views(candidates, relation, pairs, side)
        scores = [self.comparator.cross(q[None], c[None])[0] for q, c in zip(asked, seen, strict=True)]
        return torch.cat(scores).index_select(0, torch.argsort(rows)) + self.offset

    def score(self, heads: torch.Tensor, relation: RelationRows, tails: torch.Tensor) -> torch.Tensor:
        """Score of whole triples: float[B, D], relations, float[B, D] -> float[B]."""
        return self.pair(self.queries(heads, relation, Side.TAIL), tails, relation, Side.TAIL)


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """First and second half of the last axis: real and imaginary parts, or the two roles of SimplE."""
    middle = x.shape[-1] // 2
    return x[..., :middle], x[..., middle:]
