"""The best relations between two entities: all of them meet one query, where the score function has one (`Model.relation_query`),
or every triple is scored. Either way the answers are those of comparing the triples' own scores in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.candidates import Sample, Skip
from kgdist.evaluation.scorer import MATRIX_BYTES, Scorer
from kgdist.kernels.top import NOBODY
from kgdist.predict.sweep import sweep

SCORED = 1 << 18  # triples scored at a time
RELATIONS = 2048  # of a block


def pairs_at_once(scorer: Scorer, relations: int) -> int:
    """How many pairs of entities one call of `best_relations` may have, for so many relations: their queries may be matrices."""
    if not scorer.model.asks_relations:
        return max(1, SCORED // max(1, relations))
    return max(1, MATRIX_BYTES // (8 * scorer.tables.shape("relation")[1]))


@torch.no_grad()
def best_relations(
    scorer: Scorer,
    heads: np.ndarray,
    tails: np.ndarray,
    among: np.ndarray,
    k: int,
    known: KnownTriples | None,
    check: Callable[[], None],
) -> tuple[np.ndarray, np.ndarray]:
    """(ids int64[B,k], order keys float64[B,k]) of the k best of `among` int64[R], ascending, for each head and tail, int64[B].

    Equal ones by id; -1 and minus infinity where there are no more. `known`: without these triples. `check` is called once per
    block, and may raise to end the work. Raises EvaluationError.
    """
    skip = Skip(np.zeros(len(heads) + 1, np.int64), NOBODY)
    if known is not None:
        skip = Skip(*known.relations(heads, tails))
    way = _by_query if scorer.model.asks_relations else _one_by_one
    return way(scorer, heads, tails, among, k, skip, check)


def _by_query(
    scorer: Scorer, heads: np.ndarray, tails: np.ndarray, among: np.ndarray, k: int, skip: Skip, check: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    model = scorer.model
    rows = Sample(scorer.tables, model.asked(among, Side.TAIL)[0], "relation")
    skip = rows.locate(Skip(skip.offsets, model.asked(skip.positions.astype(np.int64), Side.TAIL)[0]))

    def exact(pairs: np.ndarray, found: np.ndarray) -> np.ndarray:
        return scorer.keys(heads[pairs], found // model.per_relation, tails[pairs])

    def bar() -> np.ndarray:
        return np.full(len(heads), -np.inf)

    size = max(1, min(RELATIONS, MATRIX_BYTES // (4 * scorer.tables.shape("relation")[1])))
    queries, blocks = scorer.relation_queries(heads, tails), (len(heads), size)
    ids, keys = sweep(model.comparator, queries, rows, k, skip, bar, exact, None, blocks=blocks, check=check)
    return np.where(ids < 0, -1, ids // model.per_relation), keys


def _one_by_one(
    scorer: Scorer, heads: np.ndarray, tails: np.ndarray, among: np.ndarray, k: int, skip: Skip, check: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    keys = np.empty((len(heads), len(among)))
    for column, relation in enumerate(among.tolist()):
        check()
        keys[:, column] = scorer.keys(heads, np.full(len(heads), relation), tails)
    places = np.searchsorted(among, skip.positions)
    listed = np.flatnonzero(among[np.minimum(places, len(among) - 1)] == skip.positions)
    keys[skip.rows[listed], places[listed]] = -np.inf
    order = np.argsort(-keys, axis=1, kind="stable")[:, :k]
    found = np.take_along_axis(keys, order, axis=1)
    return np.where(found > -np.inf, among[order], -1), found
