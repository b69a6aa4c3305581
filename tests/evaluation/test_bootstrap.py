"""Intervals against what they promise: of many simulated evaluations 95 % hold the truth, of one run and of a difference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgdist.base.errors import CheckpointError
from kgdist.evaluation.bootstrap import by_triple, interval, intervals
from kgdist.evaluation.kept import FILE, keep, kept
from kgdist.evaluation.ranks import Ranks, Ties

RUNS = 1000
TRIPLES = 300
RANKS = np.array([1, 3, 40])


def simulated(seed: int) -> np.ndarray:
    """int64[2, RUNS, 2, TRIPLES]: ranks by two equally good models of heads and of tails. All four of a triple hang together."""
    rng = np.random.default_rng(seed)
    hard = rng.random((RUNS, 1, TRIPLES), np.float32)
    return RANKS[((hard + rng.random((2, RUNS, 2, TRIPLES), np.float32)) * 1.5).astype(np.int8)]


def covered(values: np.ndarray, truth: float) -> float:
    """The share of rows of float64[RUNS, n] whose interval holds the truth."""
    found = [interval(row, resamples=500) for row in values]
    return float(np.mean([low <= truth <= high for low, high in found]))


def test_95_percent_of_intervals_hold_the_truth_and_too_narrow_ones_would_be_found() -> None:
    first, second = simulated(1)
    truth = simulated(2)
    of_runs = np.stack([by_triple(run, "mrr") for run in first])
    assert 0.93 <= covered(of_runs, float((1 / truth).mean())) <= 0.97
    hits = first <= 3, second <= 3
    assert 0.93 <= covered(hits[0].mean(1) - hits[1].mean(1), 0.0) <= 0.97  # of a difference
    queries = hits[0].reshape(RUNS, -1).astype(np.float64)  # as if both queries of a triple were independent
    assert covered(queries, float((truth <= 3).mean())) < 0.92


def test_bins_change_nothing_that_one_could_see() -> None:
    rng = np.random.default_rng(0)
    values = rng.random(20_000) ** 3  # more values than bins
    found = interval(values)
    half = 1.96 * values.std() / len(values) ** 0.5  # what draws of all triples would give
    assert found.low == pytest.approx(values.mean() - half, abs=half / 20)
    assert found.high == pytest.approx(values.mean() + half, abs=half / 20)
    assert interval(values[::-1]) == pytest.approx(found) and interval(np.full(3, 0.5)) == (0.5, 0.5)
    with pytest.raises(ValueError, match="no values"):
        interval(np.zeros(0))


def ranked(count: int = 400) -> Ranks:
    """Ranks of so many triples, with ties."""
    rng = np.random.default_rng(5)
    found = Ranks.of(rng.integers(0, 9, (count, 3)).astype(np.int32), candidates=50)
    found.greater[:], found.equal[:] = rng.integers(0, 20, 2 * count), rng.integers(0, 4, 2 * count)
    return found


@pytest.mark.parametrize("ties", Ties)
def test_a_report_has_both_ends_around_its_metrics(ties: Ties) -> None:
    ranks = ranked()
    found = intervals(ranks, ties, (7,))
    assert list(found["low"]) == list(found["high"]) == ["mrr", "hits@1", "hits@3", "hits@7", "hits@10"]
    rank = ranks.rank(ties)
    values = {"mrr": 1 / rank} | {f"hits@{k}": rank <= k for k in (1, 3, 7, 10)}
    for name, each in values.items():
        assert 0 <= found["low"][name] <= each.mean() <= found["high"][name] <= 1
        both = (each[:400].astype(float) + each[400:]) / 2  # a triple is one thing that is drawn
        assert found["high"][name] - found["low"][name] == pytest.approx(3.92 * both.std() / 400**0.5, rel=0.1)


def test_ranks_are_kept_beside_the_metrics_that_they_are_of(tmp_path: Path) -> None:
    ranks = ranked()
    mrr = float((1 / ranks.rank()).mean())
    assert kept(tmp_path, mrr) is None
    keep(tmp_path, ranks)
    found = kept(tmp_path, mrr)
    assert found is not None and found.ranks.dtype == np.float32
    np.testing.assert_array_equal(found.ranks.ravel(), ranks.rank())
    np.testing.assert_array_equal(found.triples, np.stack([ranks.head, ranks.relation, ranks.tail], axis=1)[:400])
    assert kept(tmp_path, mrr + 0.001) is None  # another evaluation has written its metrics since
    whole = (tmp_path / FILE).read_bytes()
    for content in (whole[:-30], whole[: len(whole) // 2], b"", b"PK nothing"):
        (tmp_path / FILE).write_bytes(content)
        with pytest.raises(CheckpointError, match=r"test\.ranks\.npz: not readable"):
            kept(tmp_path, mrr)
    for triples, values in ((found.triples, -found.ranks), (found.triples[1:], found.ranks), (found.triples, found.ranks[0])):
        with (tmp_path / FILE).open("wb") as file:
            np.savez(file, triples=triples, ranks=values)
        with pytest.raises(CheckpointError, match="holds no ranks"):
            kept(tmp_path, mrr)
