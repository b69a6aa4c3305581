"""Relation prediction: ranks of the true relation of (head, ?, tail) among all relations, exactly, as those of entities.

All relations meet one query, where the score function has one (`Model.relation_query`), and are counted as candidates are
(`kgdist.evaluation.counting`); else each relation makes the score of the triple, in float64. Filtered: the other relations that
are known between the two do not count.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from kgdist.base.log import bar
from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.candidates import Sample, Skip, pull_rows
from kgdist.evaluation.counting import count_rivals
from kgdist.evaluation.ranks import Ranks
from kgdist.evaluation.scorer import MATRIX_BYTES, Scorer
from kgdist.evaluation.threads import Deal, block_per_thread
from kgdist.kvstore.tables import Tables
from kgdist.models.base import Model

SCORED = 1 << 20  # triples scored by a thread at a time
PAIRS = 4096  # of entities, at most


def relation_ranks(
    model: Model, tables: Tables, triples: np.ndarray, *, num_relations: int, known: KnownTriples | None, threads: int = 1
) -> Ranks:
    """Ranks of the relations of `triples` int[T,3], in their order, T of them; `side` means nothing there.

    `known` must be of whole splits, or of these heads and tails (`KnownTriples.among`): without it ranks are raw. Raises
    KgdistError when a row is not finite.
    """
    count = len(triples)
    ranks = Ranks.of(triples, candidates=num_relations)[:count]
    deal = Deal()
    scorer = Scorer(model, tables, deal.check)
    if model.asks_relations:
        step = max(1, min(PAIRS, MATRIX_BYTES // (8 * tables.shape("relation")[1])))
    else:
        step = max(1, min(PAIRS, SCORED // max(1, num_relations)))

    def work(start: int) -> int:
        part = slice(start, start + step)
        heads, relations, tails = (triples[part, column].astype(np.int64) for column in range(3))
        skip = _no_rivals(known, heads, relations, tails)
        way = _by_query if model.asks_relations else _one_by_one
        ranks.greater[part], ranks.equal[part] = way(scorer, heads, relations, tails, num_relations, skip, deal.check)
        ranks.candidates[part] = num_relations - skip.counts + 1
        return len(heads)

    with bar(total=count, desc="relations", unit="query") as progress, block_per_thread():
        deal.run(iter(range(0, count, step)), work, threads, "ranking", progress.update)
    return ranks


def _no_rivals(known: KnownTriples | None, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> Skip:
    """The true relation of each pair, and the others that are known of it."""
    rows, ids = np.arange(len(heads)), relations
    if known is not None:
        offsets, more = known.relations(heads, tails)
        rows, ids = np.concatenate([rows, np.repeat(rows, np.diff(offsets))]), np.concatenate([ids, more])
    pairs = np.unique(np.stack([rows, ids], axis=1), axis=0)
    return Skip(np.searchsorted(pairs[:, 0], np.arange(len(heads) + 1)), pairs[:, 1])


@torch.no_grad()
def _by_query(
    scorer: Scorer, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, count: int, skip: Skip, check: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    model = scorer.model
    true, listed, out = (model.asked(ids, Side.TAIL)[0] for ids in (relations, np.arange(count), skip.positions))
    rows = Sample(scorer.tables, listed, "relation")
    return count_rivals(
        model.comparator,
        scorer.relation_queries(heads, tails).float(),
        pull_rows(scorer.tables, "relation", true),
        rows,
        rows.locate(Skip(skip.offsets, out)),
        check=check,
    )


def _one_by_one(
    scorer: Scorer, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, count: int, skip: Skip, check: Callable[[], None]
) -> tuple[np.ndarray, np.ndarray]:
    keys = np.empty((len(heads), count))
    for relation in range(count):
        check()
        keys[:, relation] = scorer.keys(heads, np.full(len(heads), relation), tails)
    true = np.take_along_axis(keys, relations[:, None], axis=1)
    rivals = np.ones(keys.shape, bool)
    rivals[skip.rows, skip.positions] = False
    return ((keys > true) & rivals).sum(1), ((keys == true) & rivals).sum(1)
