"""How far MRR and HITS@k may be off because the test triples are a sample: 95 % intervals by the bootstrap.

The percentile bootstrap (Efron and Tibshirani 1993, An Introduction to the Bootstrap, chapter 13): as many triples as there are
are drawn again and again from them, with replacement, and the interval is what the middle 95 % of the means span. What is drawn
is a triple with both of its queries, for these are not independent: a fact that a model knows is mostly known from both ends, and
queries that are drawn one by one give intervals that are too narrow. Two runs that ranked the same triples are compared triple by
triple, by the mean of their differences (Koehn 2004, Statistical Significance Tests for Machine Translation Evaluation), which
what is hard for both does not blur.

All of these are means over triples, so a draw needs to know how often each *value* was drawn, not each triple: values are put
into BINS bins, each of which stands for the mean of its own, and a draw is one of a multinomial distribution over bins. So the
mean is exact, the variance is too small by at most 1 part in 12 BINS^2 of the square of the range, and the cost is that of one
pass, whatever the number of triples. A mean and its standard error would do for MRR of many triples; they do not for HITS@k near
0 or 1, whose intervals would leave [0, 1].

An interval is about the choice of test triples alone. It says nothing of another seed of training, and of fewer than some 50
triples, or where (nearly) all are hits or none is, it is too narrow.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from kgdist.evaluation.ranks import HITS, Ranks, Ties

LEVEL = 0.95
RESAMPLES = 10_000
BINS = 256


class Interval(NamedTuple):
    """Its ends."""

    low: float
    high: float


def interval(values: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The interval of the mean of independent `values` float64[T], T >= 1; the same for the same values.

    Raises ValueError for no values.
    """
    if not len(values):
        raise ValueError("no values to draw from")
    low, high = float(values.min()), float(values.max())
    if low == high:
        return Interval(low, high)
    place = np.minimum(((values - low) * (BINS / (high - low))).astype(np.int64), BINS - 1)
    counts = np.bincount(place, minlength=BINS)
    there = counts > 0
    means = np.bincount(place, values, BINS)[there] / counts[there]
    drawn = np.random.default_rng(seed).multinomial(len(values), counts[there] / len(values), resamples)
    ends = np.quantile(drawn @ means / len(values), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(*ends.tolist())


def by_triple(rank: np.ndarray, metric: str) -> np.ndarray:
    """float64[T], whose mean is the metric "mrr" or "hits@k" of the ranks float[2, T] of heads and of tails."""
    values = 1 / rank.astype(np.float64) if metric == "mrr" else rank <= int(metric.removeprefix("hits@"))
    return np.asarray(values.mean(0, dtype=np.float64))


def intervals(ranks: Ranks, ties: Ties = Ties.REALISTIC, hits: Iterable[int] = HITS) -> dict[str, Any]:
    """{"level", "low": metric -> number, "high": likewise}, as a report has it, of the ranks of `evaluate`."""
    rank = ranks.rank(ties).reshape(2, -1)
    found = {name: interval(by_triple(rank, name)) for name in ("mrr", *(f"hits@{k}" for k in sorted({*HITS, *hits})))}
    ends = {end: {name: getattr(each, end) for name, each in found.items()} for end in Interval._fields}
    return {"level": LEVEL, **ends}
