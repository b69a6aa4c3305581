"""Questions that the model was asked, by name: what it answered, what is true, and where the truth stands.

Relations are chosen by their MRR, questions by their rank: one that was answered right, and one whose rank is the median of the
wrong ones, so that the examples are typical and neither the luckiest nor the worst.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kgdist.base.types import Side
from kgdist.evaluation.ranks import SIDES, Ranks
from kgdist.report.facts import Sample
from kgdist.report.folder import FEW, RelationMetrics

SHOWN = 4  # best relations, and as many worst ones
ANSWERS = 3  # of the model, for each question


@dataclass(frozen=True)
class Example:
    """One question. The answers are entities that no known triple gives, but the true one: the filtered candidates."""

    side: Side  # what was asked for
    given: str
    relation: str
    true: str
    rank: float
    candidates: int
    answers: tuple[tuple[str, bool], ...]  # name, whether it is the true one; best first


def best_and_worst(relations: Mapping[int, RelationMetrics], present: np.ndarray) -> tuple[list[int], list[int]]:
    """The best relations, best first, and the worst, worst first; never the same one twice.

    `present` are those with a sampled query. Relations with fewer than FEW queries are taken when there are no others.
    """
    there = sorted(set(present.tolist()) & relations.keys())
    many = [relation for relation in there if relations[relation].queries >= FEW]
    order = sorted(many if len(many) > 1 else there, key=lambda relation: (-relations[relation].mrr, relation))
    half = min(SHOWN, (len(order) + 1) // 2)
    return order[:half], order[half:][: -SHOWN - 1 : -1]


def examples(sample: Sample, relation: int) -> tuple[Example | None, Example | None]:
    """One right and one wrong answer of a relation that the sample has."""
    ranks = sample.ranks
    rows = np.flatnonzero(ranks.relation == relation)
    rank = ranks.rank()[rows]
    right, wrong = rows[rank == 1], rows[rank > 1]
    middle = np.argsort(rank[rank > 1], kind="stable")[(len(wrong) - 1) // 2 :][:1]
    first, typical = ([_example(sample, ranks, int(row)) for row in part] for part in (right[:1], wrong[middle]))
    return first[0] if first else None, typical[0] if typical else None


def _example(sample: Sample, ranks: Ranks, row: int) -> Example:
    side, names = SIDES[ranks.side[row]], sample.dataset.entities
    head, relation, tail = (int(column[row]) for column in (ranks.head, ranks.relation, ranks.tail))
    true, anchor = side.pick(head, tail), side.other.pick(head, tail)
    rank = float(ranks.rank()[row])
    answers = _answers(sample, side, anchor, relation, true, rank)
    return Example(
        side,
        names[anchor],
        sample.dataset.relations[relation],
        names[true],
        rank,
        int(ranks.candidates[row]),
        tuple((names[answer], answer == true) for answer in answers),
    )


def _answers(sample: Sample, side: Side, anchor: int, relation: int, true: int, rank: float) -> list[int]:
    """The ids of the ANSWERS likeliest entities, best first; of those that are known to be true only `true` takes part."""
    known = sample.evaluator.known(sample.split)
    found = sample.predictor.top(side, np.array([anchor]), np.array([relation]), ANSWERS + 1, known=known).ids[0].tolist()
    others = [entity for entity in found if entity not in (-1, true)]
    return [*others[: int(rank) - 1], true, *others[int(rank) - 1 :]][:ANSWERS] if rank < ANSWERS + 1 else others[:ANSWERS]
