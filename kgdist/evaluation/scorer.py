"""Scorer: queries of a model, entities as a relation sees them, and pairs of the two, from the float32 rows of the tables.

Queries that are ranked are float32, as in training; all that decides between near ones is computed in float64, row by row, so
that equal rows have equal scores. Not the search for the best: predict/engine.py; not counting: counting.py.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kgdist.base.errors import EvaluationError
from kgdist.base.types import RelationRows, Side
from kgdist.evaluation.candidates import Project, all_finite, pull_rows
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model

MATRIX_BYTES = 1 << 26  # of relation rows held at a time
BLOCK = 1024  # rows projected at a time


class Scorer:
    """The scores of one model. `check` is called often while queries are made, and may raise to end that."""

    def __init__(self, model: Model, tables: Tables, check: Callable[[], None] = lambda: None) -> None:
        self.model, self.tables, self.check = model, tables, check
        self.relation_tables = [name for name in model.tables(1, 1) if name != "entity"]

    def scores(self, keys: np.ndarray) -> np.ndarray:
        """float64[...]: the model's scores, distances with gamma, that order keys stand for."""
        return self.model.comparator.score_of(keys) + self.model.offset

    @torch.no_grad()
    def queries(self, side: Side, anchors: np.ndarray, relations: np.ndarray, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        """dtype[P,Q], made of few relations at a time: a relation may be a whole matrix. `relations` are sorted.

        Raises EvaluationError for one that float32 cannot hold.
        """
        asked, (relations, rule) = relations, self.model.asked(relations, side)
        widest = max(self.tables.shape(name)[1] for name in self.relation_tables)
        fresh = np.cumsum(np.diff(relations, prepend=-1) != 0) - 1
        cuts = np.flatnonzero(np.diff(fresh // max(1, MATRIX_BYTES // (dtype.itemsize * widest)))) + 1
        made = []
        for part in np.split(np.arange(len(anchors)), cuts):
            self.check()
            unique, index = np.unique(relations[part], return_inverse=True)
            rows = pull_rows(self.tables, "entity", anchors[part]).to(dtype)
            made.append(self.model.queries(rows, self._relation(unique, index, dtype), rule))
        queries = torch.cat(made)
        _require_small(queries, lambda at: f"{side.other.value} {anchors[at]} and relation {asked[at]}")
        return queries

    @torch.no_grad()
    def relation_queries(self, heads: np.ndarray, tails: np.ndarray) -> torch.Tensor:
        """float64[P,R], which relations' rows are held against (`Model.relation_query`). Raises as `queries`."""
        ends = (pull_rows(self.tables, "entity", each).double() for each in (heads, tails))
        queries = self.model.relation_query(*ends)
        _require_small(queries, lambda at: f"head {heads[at]} and tail {tails[at]}")
        return queries

    def _relation(self, ids: np.ndarray, index: np.ndarray, dtype: torch.dtype = torch.float64) -> RelationRows:
        rows = {name: pull_rows(self.tables, name, ids).to(dtype) for name in self.relation_tables}
        return RelationRows(rows, torch.from_numpy(index.astype(np.int64)).to(next(iter(rows.values())).device))

    def projection(self, relation: np.ndarray, side: Side) -> Project:
        """Candidates for `side` as `relation` int64[1] of a projecting model sees them, in float64, rounded once."""
        row, rule = self.model.asked(relation, side)
        given = self._relation(row, np.zeros(1, np.int64))

        def project(entities: torch.Tensor) -> torch.Tensor:
            parts = torch.split(entities, BLOCK)
            return torch.cat([self.model.project(part.double(), given, rule).float() for part in parts])

        return project

    def compare(
        self, queries: torch.Tensor, rows: np.ndarray, entities: np.ndarray, side: Side, relation: np.ndarray | None
    ) -> np.ndarray:
        """float64[X]: order keys of float64[P,Q] queries `rows` int64[X] and `entities` int64[X], pair by pair, in float64.

        `relation` int64[1]: the one that projects them, as candidates for `side`; equal rows one by one, so that they stay equal.
        """
        unique, place = np.unique(entities, return_inverse=True)
        seen, place = pull_rows(self.tables, "entity", unique), place.reshape(-1).astype(np.int64)
        if relation is not None and len(unique):
            row, rule = self.model.asked(relation, side)
            given = self._relation(row, np.zeros(1, np.int64))
            seen = torch.cat([self.model.project(each, given, rule) for each in torch.split(seen.double(), 1)])
        return self.model.comparator.exact_pairs(queries, seen, rows, place).cpu().numpy()

    @torch.no_grad()
    def keys(self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, side: Side = Side.TAIL) -> np.ndarray:
        """float64[B]: order keys of triples, int64[B] each, as answers for `side`."""
        keys, order = np.empty(len(heads)), np.argsort(relations, kind="stable")
        relations = relations[order]
        anchors, answers = (ends[order] for ends in side.pick((tails, heads), (heads, tails)))
        queries = self.queries(side, anchors, relations)
        if not self.model.projects:
            keys[order] = self.compare(queries, np.arange(len(order)), answers, side, None)
            return keys
        for part in np.split(np.arange(len(order)), np.flatnonzero(np.diff(relations)) + 1):
            keys[order[part]] = self.compare(queries, part, answers[part], side, relations[part[:1]])
        return keys


def _require_small(queries: torch.Tensor, given: Callable[[int], str]) -> None:
    """Raise EvaluationError for a query of float64[P,Q] that float32 cannot hold; `given` says what it was made of."""
    if not all_finite(held := queries.float()):
        what = given(int(torch.nonzero(~torch.isfinite(held).all(1))[0, 0]))
        raise EvaluationError(f"the embeddings of {what} are too large for float32; train again with a smaller --lr")
