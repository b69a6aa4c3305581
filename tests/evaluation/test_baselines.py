"""Baselines against plain counting over all candidates, one query at a time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.data import leaks, statistics
from kgdist.data.known import KnownTriples
from kgdist.evaluation import baselines
from kgdist.evaluation.baselines import baseline_ranks, implied
from kgdist.evaluation.candidates import Pool
from kgdist.evaluation.ranks import SIDES, Ranks, Ties, result_lines

Rows = list[tuple[int, int, int]]


def plain(train: Rows, asked: Rows, facts: set[tuple[int, int, int]], implied: Rows, entities: int, pool: Pool) -> Rows:
    """(greater, equal, candidates) of every query, heads first."""
    found = []
    for side in SIDES:
        column = side.pick(0, 2)
        times = Counter((row[1], row[column]) for row in train)
        for number, (h, r, t) in enumerate(asked):
            batch = number // pool.batch
            own = np.array(asked[batch * pool.batch : (batch + 1) * pool.batch])[:, column]
            ids = range(entities) if pool.sampled < 0 else pool.ids(entities, batch, side, own).tolist()

            def score(entity: int, row: tuple[int, int, int] = (h, r, t), column: int = column) -> tuple[bool, int]:
                whole = tuple(entity if place == column else value for place, value in enumerate(row))
                return whole in implied, times[row[1], entity]  # noqa: B023

            rivals = [score(e) for e in ids if e != (h, r, t)[column] and side.pick(head=(e, r, t), tail=(h, r, e)) not in facts]
            true = score((h, r, t)[column])
            found.append((sum(s > true for s in rivals), sum(s == true for s in rivals), len(rivals) + 1))
    return found


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("sampled", [False, True])
def test_ranks_are_those_of_plain_counts(sampled: bool, data: st.DataObject) -> None:
    entities, relations = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 3))
    triple = st.tuples(st.integers(0, entities - 1), st.integers(0, relations - 1), st.integers(0, entities - 1))
    train, implied = data.draw(st.lists(triple, max_size=20)), data.draw(st.lists(triple, max_size=8))
    asked = data.draw(st.lists(triple, min_size=1, max_size=8))
    filtered, at_once = data.draw(st.booleans()), data.draw(st.sampled_from([3, 100]))
    in_batch = sampled and not filtered and data.draw(st.booleans())
    pool = Pool(data.draw(st.integers(1, entities)) if sampled else -1, in_batch, data.draw(st.integers(1, 4)), seed=3)
    rows, facts = np.array(asked, np.int32), set(train + asked if filtered else [])
    everything = [np.array(part, np.int32).reshape(-1, 3) for part in (train, asked)]
    known = KnownTriples.build(everything, entities, relations) if filtered else None
    expected = plain(train, asked, facts, implied, entities, pool)
    ranks = Ranks.of(rows, candidates=0)
    ranks.candidates[:] = [row[2] for row in expected]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "AT_ONCE", at_once)
        patch.setattr(statistics, "PIECE", 4)
        found = baseline_ranks(
            ranks,
            everything[0],
            num_entities=entities,
            num_relations=relations,
            known=known,
            pool=pool,
            implied=KnownTriples.build([np.array(implied, np.int32).reshape(-1, 3)], entities, relations),
        )
    assert list(zip(found.greater.tolist(), found.equal.tolist(), found.candidates.tolist(), strict=True)) == expected


def test_what_an_inverse_says_stands_before_what_is_frequent() -> None:
    pairs = [(0, 3), (1, 4), (2, 5), (6, 3), (7, 3)]
    said = [(h, 0, t) for h, t in pairs] + [(t, 1, h) for h, t in pairs]  # 1 is the inverse of 0
    train = np.array([*said, (8, 1, 0), (8, 2, 9)], np.int32)
    asked = np.array([(0, 0, 8), (8, 2, 9)], np.int32)  # the first has its inverse in train, and the tail 8 is no frequent one
    ranks = Ranks.of(asked, candidates=10)
    told = implied(train, num_entities=10, num_relations=3, asked=asked)
    assert told is not None
    plain, better = (
        baseline_ranks(ranks, train, num_entities=10, num_relations=3, known=None, implied=by) for by in (None, told)
    )
    tail = (ranks.side == SIDES.index(Side.TAIL)) & (ranks.relation == 0)
    assert plain.rank()[tail] > 3 and better.rank()[tail] <= 2  # 3 is the other answer of (0, 0, ?), by the inverse, too
    assert implied(train[-1:], num_entities=10, num_relations=3, asked=asked) is None


@pytest.mark.parametrize("seed", range(3))
def test_a_symmetric_relation_is_found_in_the_part_of_it_that_train_has(seed: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = np.unique(np.sort(rng.permutation(400).reshape(-1, 2), axis=1), axis=0)
    whole = np.array([row for h, t in pairs for row in ((h, 0, t), (t, 0, h))], np.int32)[rng.permutation(2 * len(pairs))]
    train, asked = whole[:280], whole[340:]
    assert implied(train, num_entities=400, num_relations=1, asked=asked) is None  # about .7 of the mirrors are there
    told = implied(train, num_entities=400, num_relations=1, asked=asked, part=0.7)
    assert told is not None
    held = {tuple(row) for row in train.tolist()}
    offsets, answers = told.answers(Side.TAIL, asked[:, 0], asked[:, 1])
    for row, (start, stop) in zip(asked.tolist(), itertools.pairwise(offsets), strict=True):
        assert answers[start:stop].tolist() == ([row[2]] if (row[2], 0, row[0]) in held else [])


def test_links_of_a_large_graph_are_found_in_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    one = np.unique(rng.integers(0, (200, 1, 200), (2000, 3)), axis=0).astype(np.int32)
    turned, other = one[:, ::-1] + np.array([0, 1, 0]), rng.integers(0, (200, 1, 200), (500, 3)) + np.array([0, 2, 0])
    train = np.concatenate([one, turned, other]).astype(np.int32)
    asked = np.array([[5, 0, 6]], np.int32)
    whole = implied(train, num_entities=200, num_relations=3, asked=one)
    seen = []

    def counted(splits: list[np.ndarray]) -> Iterator[leaks.Portion]:
        for part in leaks.portions(splits):
            seen.append(len(part.triples))
            yield part

    monkeypatch.setattr(leaks, "AT_ONCE", 500)
    monkeypatch.setattr(baselines, "portions", counted)
    part = implied(train, num_entities=200, num_relations=3, asked=one)
    assert whole is not None and part is not None and len(seen) == 1 and seen[0] < 1000
    for side in SIDES:
        anchors = side.other.pick(one[:, 0], one[:, 2])
        for found, expected in zip(part.answers(side, anchors, one[:, 1]), whole.answers(side, anchors, one[:, 1]), strict=True):
            np.testing.assert_array_equal(found, expected)
    assert implied(train[len(one) :], num_entities=200, num_relations=3, asked=asked) is None


def test_who_answers_most_stands_first() -> None:
    train = np.array([(0, 0, 1), (2, 0, 1), (3, 0, 4), (5, 1, 4)], np.int32)
    ranks = Ranks.of(np.array([(5, 0, 1), (5, 0, 4), (5, 0, 2)], np.int32), candidates=6)
    found = baseline_ranks(ranks, train, num_entities=6, num_relations=2, known=None)
    assert found.rank()[found.side == SIDES.index(Side.TAIL)].tolist() == [1, 2, 4.5]


@pytest.mark.parametrize(
    ("mine", "theirs", "said"), [(0.3, 0.4, True), (0.4, 0.4, True), (0.42, 0.4, False), (0.5, 0.4, False), (0.3, None, False)]
)
def test_a_model_that_is_no_use_is_called_so(mine: float, theirs: float | None, said: bool) -> None:
    figures = {"mrr": mine, "mr": 2.0, "hits@1": mine}
    found: dict[str, Any] = {
        "split": "test", "count": 2, "ties": "realistic", "all": {ties.value: figures for ties in Ties}, "sides": {},
        "candidates": {"mean": 8.0},
        "protocol": {"filter": [], "entities": 9, "sampled": 0, "in_batch": False, "batch": 8, "fraction": 1.0, "triples": 1},
    }  # fmt: skip
    if theirs is not None:
        found["baselines"] = {"frequent": {**figures, "mrr": theirs}}
    lines = [line for line in result_lines(found) if "no better than the most frequent answers (MRR 0.4000)" in line]
    assert len(lines) == said
    if theirs is not None:
        found["baselines"]["implied"] = {**figures, "mrr": 0.45}
        lines = [
            line for line in result_lines(found) if "no better than the inverse and duplicate relations (MRR 0.4500)" in line
        ]
        assert len(lines) == (0.4 < mine <= 0.45), "of two, the first"
