"""Inverse relations: whatever is asked of a model that has them is the same asked by hand, of one that has twice the relations
and knows nothing of inverses. (h, r, ?) is (h, 2r, ?), and (?, r, t) is (t, 2r + 1, ?)."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.evaluator import evaluate
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import make_model
from kgdist.predict.engine import Answers, Predictor
from kgdist.predict.explain import calibrate, corrupted, platt, ranks
from tests import formulas
from tests.predict.test_engine import Weighted

ENTITIES, RELATIONS = 19, 3
NAMES = [*formulas.NAMES, "Weighted"]


def by_hand(triples: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The triples (h, 2r, t), and (t, 2r + 1, h), of int[T, 3]."""
    h, r, t = triples.T
    return np.stack([h, 2 * r, t], axis=1), np.stack([t, 2 * r + 1, h], axis=1)


class Twins:
    """One model's rows, read with inverses and without, and some triples that are known."""

    def __init__(self, name: str) -> None:
        sizes = formulas.sizes("DistMult" if name == "Weighted" else name)

        def made() -> Weighted:
            return Weighted(**sizes, gamma=formulas.GAMMA) if name == "Weighted" else make_model(name, **sizes, gamma=4.0)  # type: ignore[return-value]

        self.own, self.plain = made(), made()
        self.own.use_inverses()
        random, rng = torch.Generator().manual_seed(3), np.random.default_rng(4)
        shapes = self.own.shapes(ENTITIES, RELATIONS)
        assert shapes == self.plain.tables(ENTITIES, 2 * RELATIONS)
        self.tables = MemoryTables({t: torch.empty(s).uniform_(-1, 1, generator=random) for t, s in shapes.items()}, {}, "sgd")
        numbers = rng.choice(ENTITIES * RELATIONS * ENTITIES, 150, replace=False)
        columns = numbers // RELATIONS // ENTITIES, numbers // ENTITIES % RELATIONS, numbers % ENTITIES
        self.facts = np.stack(columns, axis=1).astype(np.int32)
        self.known = KnownTriples.build([self.facts], ENTITIES, RELATIONS)
        self.known_by_hand = KnownTriples.build(list(by_hand(self.facts)), ENTITIES, 2 * RELATIONS)

    def ask(self) -> Predictor:
        return Predictor(self.own, self.tables, ENTITIES, RELATIONS, query_block=7, candidate_block=5)

    def ask_by_hand(self) -> Predictor:
        return Predictor(self.plain, self.tables, ENTITIES, 2 * RELATIONS)


TWINS: dict[str, Twins] = {}


@pytest.fixture(params=NAMES)
def twins(request: pytest.FixtureRequest) -> Twins:
    if request.param not in TWINS:
        TWINS[request.param] = Twins(request.param)
    return TWINS[request.param]


@pytest.mark.parametrize("filtered", [True, False])
def test_ranks_are_those_asked_by_hand(twins: Twins, filtered: bool) -> None:
    triples, count = twins.facts[:40], 40
    known, other = (twins.known, twins.known_by_hand) if filtered else (None, None)
    found = evaluate(twins.own, twins.tables, triples, num_entities=ENTITIES, known=known, query_block=9, candidate_block=6)
    tails, heads = by_hand(triples)
    for side, asked in ((Side.TAIL, tails), (Side.HEAD, heads)):
        alone = evaluate(twins.plain, twins.tables, asked, num_entities=ENTITIES, known=other)
        here, there = found.rank()[side.pick(slice(count), slice(count, None))], alone.rank()[count:]  # of a tail by hand
        assert here.tolist() == there.tolist()


def test_the_best_entities_are_those_asked_by_hand(twins: Twins) -> None:
    rng = np.random.default_rng(0)
    anchors, relations = rng.integers(0, ENTITIES, 30), rng.integers(0, RELATIONS, 30)
    for among, filtered in product((None, np.array([1, 5, 7, 18])), (True, False)):
        known, other = (twins.known, twins.known_by_hand) if filtered else (None, None)
        for side in Side:
            found = twins.ask().top(side, anchors, relations, 4, among=among, known=known)
            rows = 2 * relations + (side is Side.HEAD)
            hand = twins.ask_by_hand().top(Side.TAIL, anchors, rows, 4, among=among, known=other)
            assert (found.ids == hand.ids).all() and (found.scores == hand.scores).all()


def test_a_triple_s_own_score_is_that_of_its_tail(twins: Twins) -> None:
    h, r, t = twins.facts.T
    own, as_head = twins.ask().score(h, r, t), twins.ask().score(h, r, t, Side.HEAD)
    assert (own == twins.ask_by_hand().score(h, 2 * r, t)).all()
    assert (as_head == twins.ask_by_hand().score(t, 2 * r + 1, h)).all()
    best = twins.ask().best_of(h, r, t, 20)
    order = np.lexsort((t, r, h, -own))[:20]
    assert (best.heads == h[order]).all() and (best.scores == own[order]).all()
    found = twins.ask().top_relations(h, t, RELATIONS, known=twins.known)
    for row, (head, tail) in enumerate(zip(h.tolist(), t.tolist(), strict=True)):
        scores = {n: float(twins.ask_by_hand().score([head], [2 * n], [tail])[0]) for n in range(RELATIONS)}
        new = [n for n in scores if not twins.known.holds(np.array([head]), np.array([n]), np.array([tail]))[0]]
        expected = sorted(new, key=lambda n: (-scores[n], n))
        assert found.ids[row].tolist() == expected + [-1] * (RELATIONS - len(new))
        assert np.allclose(found.scores[row, : len(new)], [scores[n] for n in expected], rtol=1e-12)
        if row == 12:
            break


@pytest.mark.parametrize("each", ["all", "head", "relation", "tail"])
def test_sets_are_answered_for_the_end_that_is_asked_for(twins: Twins, each: str) -> None:
    """Heads are missing where they are not given, or where the best of each tail are wanted; else tails are. How long the lists
    are has no effect."""
    lists = {"head": np.array([3, 11, 4]), "relation": np.array([2, 0]), "tail": np.array([18, 5, 1, 8, 9, 10, 2])}
    for given in ("hrt", "hr", "rt", "h", "t", "r", ""):
        asked = [ids if name[0] in given else None for name, ids in lists.items()]
        side = Side.HEAD if each == "tail" or (each != "head" and "h" not in given and "t" in given) else Side.TAIL
        sets = [np.arange(n) if ids is None else ids for ids, n in zip(asked, (ENTITIES, RELATIONS, ENTITIES), strict=True)]
        found = list(twins.ask().best(*asked, 6, each=each))
        made = Answers(*(np.concatenate([block[place] for block in found]) for place in range(5)))
        triples = np.array(list(product(*(np.unique(ids) for ids in sets))))
        scores = twins.ask().score(*triples.T, side)
        groups = [None] if each == "all" else sets[("head", "relation", "tail").index(each)].tolist()
        expected = []
        for group in groups:
            rows = np.arange(len(triples))
            if group is not None:
                rows = np.flatnonzero(triples[:, ("head", "relation", "tail").index(each)] == group)
            expected += np.sort(scores[rows])[::-1][:6].tolist()
        assert np.allclose(made.scores, expected, rtol=1e-12, atol=1e-12)
        assert np.allclose(twins.ask().score(made.heads, made.relations, made.tails, side), made.scores, rtol=1e-12)


def test_answers_are_explained_by_both_ways_of_asking(twins: Twins) -> None:
    answers = twins.ask().best_of(*twins.facts[:30].T, 12)
    triples = np.stack([answers.heads, answers.relations, answers.tails], axis=1)
    heads, tails = ranks(twins.ask(), answers, [twins.facts])
    both = evaluate(twins.own, twins.tables, triples, num_entities=ENTITIES, known=twins.known).rank().astype(np.int64)
    assert heads.tolist() == both[:12].tolist() and tails.tolist() == both[12:].tolist()


def test_probabilities_are_of_both_scores_of_a_triple(twins: Twins) -> None:
    found = calibrate(twins.ask(), twins.facts, twins.known)
    wrong = corrupted(twins.facts, ENTITIES, twins.known)
    asked = [each for triples in (twins.facts.astype(np.int64), wrong) for each in by_hand(triples)]
    scores = np.concatenate([twins.ask_by_hand().score(*each.T) for each in asked])
    slope, _ = platt(scores, np.arange(len(scores)) < 2 * len(twins.facts))
    assert found.slope == pytest.approx(max(slope, 0.0), rel=1e-6, abs=1e-9)
    assert (found.positives, found.negatives) == (len(twins.facts), len(wrong))
