"""Triple classification against scikit-learn on the same scores, thresholds against trying all of them, and what is drawn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.data.known import KnownTriples
from kgdist.predict.classification import areas, drawn, threshold

LABELLED = st.lists(st.tuples(st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.5]), st.booleans()), min_size=1, max_size=20)


@settings(max_examples=60)
@given(rows=LABELLED)
def test_a_threshold_is_right_as_often_as_any(rows: list[tuple[float, bool]]) -> None:
    scores, true = np.array([score for score, _ in rows]), np.array([label for _, label in rows])
    tried = [((scores >= t) == true).sum() for t in (*scores, np.inf)]
    assert ((scores >= threshold(scores, true)) == true).sum() == max(tried)


@settings(max_examples=60)
@given(rows=LABELLED)
def test_areas_are_those_of_scikit_learn(rows: list[tuple[float, bool]]) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    scores, true = np.array([score for score, _ in rows]), np.array([label for _, label in rows])
    found = areas(scores, true)
    if true.all() or not true.any():
        assert found == {"auc-roc": None, "auc-pr": None}
        return
    assert found["auc-roc"] == pytest.approx(sklearn.roc_auc_score(true, scores), abs=1e-12)
    assert found["auc-pr"] == pytest.approx(sklearn.average_precision_score(true, scores), abs=1e-12)


def test_negatives_are_of_the_relation_and_not_known() -> None:
    rng = np.random.default_rng(0)
    triples = np.unique(rng.integers(0, (12, 3, 12), (150, 3)), axis=0).astype(np.int32)
    triples[:, 2] += 12 * triples[:, 1]  # every relation has tails of its own
    triples = rng.permutation(triples)
    train, asked = triples[:60], triples[60:]
    known = KnownTriples.build([triples], 60, 4, asked=np.concatenate([asked, [[0, 3, 0]]]))
    found = drawn(asked, train, known, seed=1)
    assert len(found) > 40 and not {*map(tuple, found.tolist())} & {*map(tuple, triples.tolist())}
    for column in (0, 2):
        pairs = {(row[1], row[column]) for row in train.tolist()} | {(row[1], row[column]) for row in asked.tolist()}
        assert {(row[1], row[column]) for row in found.tolist()} <= pairs
    np.testing.assert_array_equal(found, drawn(asked, train, known, seed=1))
    assert len(drawn(np.array([[0, 3, 0]], np.int32), train, known, seed=1)) == 1  # train lacks the relation: any entity will do
    for ends in ((4, 3), (3, 4)):  # one of twelve is no fact, and draws would miss it; the others have none
        dense = np.stack(np.meshgrid(range(ends[0]), [0], range(10, 10 + ends[1])), -1).reshape(-1, 3).astype(np.int32)
        facts = KnownTriples.build([dense[1:]], 14, 1)
        made = drawn(dense[1:], dense, facts, seed=1)
        assert (made == dense[0]).all() and len(made) == ends[0] + ends[1] - 2  # of all that share an end with it
    everything = np.stack(np.meshgrid(range(3), [0], range(3)), -1).reshape(-1, 3).astype(np.int32)
    assert not len(drawn(everything, everything, KnownTriples.build([everything], 3, 1), seed=1))
