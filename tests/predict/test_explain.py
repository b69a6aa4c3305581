"""What a score means: Platt's curve against its definition, corrupted triples, what is saved, ranks as kgdist-eval has them."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.data.known import KnownTriples
from kgdist.predict.engine import Answers
from kgdist.predict.explain import (
    FILE,
    Calibration,
    calibrate,
    calibration_of,
    corrupted,
    log_sigmoid,
    platt,
    ranks,
    sigmoid,
)
from tests.predict.test_engine import ENTITIES, RELATIONS, World, world_of


def graph(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    numbers = rng.choice(ENTITIES * RELATIONS * ENTITIES, count, replace=False)
    return np.stack([numbers // RELATIONS // ENTITIES, numbers // ENTITIES % RELATIONS, numbers % ENTITIES], axis=1)


def cross_entropy(a: float, b: float, scores: np.ndarray, true: np.ndarray) -> float:
    """What Platt minimises, written out."""
    positives, negatives = int(true.sum()), int((~true).sum())
    total = 0.0
    for s, t in zip(scores.tolist(), true.tolist(), strict=True):
        target = (positives + 1) / (positives + 2) if t else 1 / (negatives + 2)
        x = a * s + b
        total += max(x, 0) - target * x + math.log1p(math.exp(-abs(x)))
    return total


@given(st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 60), st.floats(-300, 300), st.floats(1e-3, 300))
@settings(max_examples=60)
def test_no_curve_nearby_fits_better(seed: int, positives: int, negatives: int, middle: float, spread: float) -> None:
    rng = np.random.default_rng(seed)
    true = np.arange(positives + negatives) < positives
    scores = middle + spread * (rng.standard_normal(len(true)) + rng.uniform(-3, 3) * true)
    a, b = platt(scores, true)
    best = cross_entropy(a, b, scores, true)
    for da, db in ((1e-3, 0), (-1e-3, 0), (0, 1e-3), (0, -1e-3), (1e-3, 1e-3), (-1e-3, 1e-3)):
        # around the middle of the scores, in their own unit
        slope = a + da / spread
        assert cross_entropy(slope, b + db - (slope - a) * middle, scores, true) >= best - 1e-9


def test_the_curve_says_how_often_it_is_right() -> None:
    rng = np.random.default_rng(1)
    scores = rng.uniform(-4, 4, 40_000)
    true = rng.random(len(scores)) < 1 / (1 + np.exp(-(1.5 * scores - 0.5)))
    a, b = platt(scores, true)
    assert a == pytest.approx(1.5, rel=0.05) and b == pytest.approx(-0.5, abs=0.05)
    p = sigmoid(a * scores + b)
    for low in np.arange(0, 1, 0.1):
        inside = (p >= low) & (p < low + 0.1)
        assert true[inside].mean() == pytest.approx(p[inside].mean(), abs=0.03)


def test_scores_that_are_all_equal_give_the_share_of_true_ones() -> None:
    a, b = platt(np.full(8, -7.0), np.arange(8) < 6)
    assert 0.6 < sigmoid(np.array(a * -7.0 + b)) < 0.8


@given(st.floats(-800, 800))
def test_the_curve_does_not_overflow(x: float) -> None:
    assert sigmoid(np.array(x)) == pytest.approx(math.exp(min(x, 0)) / (1 + math.exp(-abs(x))), rel=1e-12)
    assert log_sigmoid(np.array(x)) == pytest.approx(x if x < -40 else -math.log1p(math.exp(-x)), rel=1e-12)


@given(st.integers(0, 2**32), st.integers(1, 900))
@settings(max_examples=30)
def test_corrupted_triples_differ_in_one_end_and_are_not_known(seed: int, count: int) -> None:
    triples = graph(count, seed)
    listed = set(map(tuple, triples.tolist()))
    asked = triples[: max(1, count // 2)]
    made = corrupted(asked, ENTITIES, KnownTriples.build([triples], ENTITIES, RELATIONS, asked=asked), seed)
    assert len(made) <= len(asked) and not listed & set(map(tuple, made.tolist()))
    if count < 200:  # next to nothing is known, so for each there is one
        assert len(made) == len(asked)
        differ = made != asked
        assert (differ[::2] == [True, False, False]).all() and (differ[1::2] == [False, False, True]).all()


def test_where_everything_is_known_there_is_nothing_to_fit_to() -> None:
    world, triples = world_of("DistMult"), graph(ENTITIES * RELATIONS * ENTITIES)
    known = KnownTriples.build([triples], ENTITIES, RELATIONS)
    assert len(corrupted(triples, ENTITIES, known)) == 0
    with pytest.raises(KgdistError, match="0 corrupted ones are too few"):
        calibrate(world.ask(), triples, known)


def test_true_triples_that_score_high_get_a_rising_curve() -> None:
    world = world_of("RotatE")
    best = np.array(sorted(world.score, key=lambda each: -world.score[each])[:200])
    found = calibrate(world.ask(), best, KnownTriples.build([best], ENTITIES, RELATIONS))
    assert found.slope > 0 and found.log_loss < 0.5 and found.brier < 0.2 and found.positives == 200
    p = found.probability(np.array([world.score[tuple(best[0])], world.score[tuple(best[-1])], min(world.score.values())]))
    assert 1 > p[0] > p[1] > p[2] > 0 and p[2] < 0.1


def test_scores_that_mislead_say_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kgdist.base.log.log.propagate", True)
    world = world_of("RotatE")
    worst = np.array(sorted(world.score, key=lambda each: world.score[each])[:200])
    found = calibration_of(tmp_path, [], worst, world.ask(), KnownTriples.build([worst], ENTITIES, RELATIONS))
    assert found.slope == 0 and found.probability(np.array([-9.0, 9.0])) == pytest.approx(0.5, abs=0.05)
    assert found.log_loss == pytest.approx(math.log(2), abs=0.01) and "say nothing of new triples" in caplog.text


def test_it_is_fitted_once_and_again_for_other_embeddings(tmp_path: Path) -> None:
    world, valid = World("TransE_l2"), graph(50)
    known = KnownTriples.build([valid], ENTITIES, RELATIONS)
    for name in ("a.npy", "b.npy"):
        (tmp_path / name).write_bytes(b"rows")

    def again() -> Calibration:
        return calibration_of(tmp_path, ["a.npy", "b.npy"], valid, world.ask(), known)

    first = again()
    assert Calibration(**json.loads((tmp_path / FILE).read_text())["calibration"]) == first
    world.rows["entity"] *= 2.0
    assert again() == first  # read, not fitted
    os.utime(tmp_path / "b.npy", ns=(1, 1))
    assert again() != first
    second = again()
    for damage in ("", "[]", "{}", '{"made_of": 1}', (tmp_path / FILE).read_text().replace("slope", "slip")):
        (tmp_path / FILE).write_text(damage)
        assert again() == second
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()  # cannot be written
    assert again() == second


@pytest.mark.parametrize("name", ["TransR", "ComplEx"])
def test_ranks_leave_out_what_else_is_known(name: str) -> None:
    world, triples = world_of(name), graph(400)
    listed = set(map(tuple, triples.tolist()))
    asked = [(1, 2, 3), (4, 0, 4), (1, 2, 3), tuple(triples[7].tolist())]
    columns = np.array(asked).T
    answers = Answers(np.zeros(4, np.int64), *columns, world.ask().score(*columns))
    heads, tails = ranks(world.ask(threads=2), answers, [triples[:300], triples[300:]])
    for place, (h, r, t) in enumerate(asked):
        rivals = [[(e, r, t) for e in range(ENTITIES)], [(h, r, e) for e in range(ENTITIES)]]
        for found, side in zip((heads, tails), rivals, strict=True):
            above = [each for each in side if each not in listed and world.score[each] > world.score[h, r, t] + 1e-9]
            assert found[place] == 1 + len(above)
