"""How far the metric of each run may be off, and whether it differs from the best of them.

Whatever was ranked alike can be held together triple by triple, where the runs have kept their ranks (kgdist.evaluation.kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.log import log
from kgdist.evaluation.bootstrap import LEVEL, Interval, by_triple, interval
from kgdist.evaluation.kept import Kept, kept
from kgdist.evaluation.ranks import Ties
from kgdist.report.run_facts import RunFacts


@dataclass(frozen=True)
class Standing:
    """Of one run, as far as it is known."""

    best: bool = False  # the one that others are held against
    own: Interval | None = None  # of its metric
    difference: float | None = None  # its metric less that of the best
    span: Interval | None = None  # of the difference

    @property
    def differs(self) -> bool | None:
        """Whether its metric is another than that of the best; None where that is not known, and of the best."""
        return None if self.span is None else not self.span.low <= 0 <= self.span.high

    @property
    def words(self) -> str:
        """The same to a reader."""
        return {None: "", True: "differs", False: "does not differ"}[self.differs]

    def as_json(self, metric: str) -> dict[str, Any]:
        """As plain values."""
        spans = {name: None if found is None else list(found) for name, found in (("interval", self.own), ("span", self.span))}
        return {
            "metric": metric, "level": LEVEL, "best": self.best, **spans, "difference": self.difference, "differs": self.differs,
        }  # fmt: skip


class Standings(NamedTuple):
    """Of several runs."""

    found: list[Standing]  # empty where nothing is known
    lacking: list[RunFacts]  # that cannot be held against others for want of ranks of their own
    apart: list[RunFacts]  # that ranked other triples than the best one


def standings(folders: Sequence[RunFacts], values: Sequence[float | None], metric: str) -> Standings:
    """Of each run, whose metric "mrr" or "hits@k" is in `values`.

    Runs are held against the best of those that have ranks, and only where both ranked the same triples.
    """
    tested = [place for place, value in enumerate(values) if value is not None]
    ranks = {place: own for place in tested if (own := _ranks(folders[place])) is not None}
    means = {place: by_triple(own.ranks, metric) for place, own in ranks.items()}
    best = max(ranks, key=lambda place: values[place] or 0.0, default=-1)
    found, apart = [Standing()] * len(folders), []
    for place in tested:
        around = interval(means[place]) if place in means else _written(folders[place], metric)
        found[place] = Standing(place == best, around)
        if place in ranks and place != best and np.array_equal(ranks[place].triples, ranks[best].triples):
            difference = means[place] - means[best]
            found[place] = Standing(False, around, float(difference.mean()), interval(difference))
        elif place in ranks and not _alike(ranks[place].triples, ranks[best].triples):
            apart.append(folders[place])
    lacking = [folders[place] for place in tested if place not in ranks] if len(tested) > 1 else []
    return Standings(found if any(each.own for each in found) else [], lacking, apart)


def _alike(some: np.ndarray, others: np.ndarray) -> bool:
    """Whether they are the same triples, int32[T,3] each, in whatever order."""
    return some.shape == others.shape and np.array_equal(some[np.lexsort(some.T)], others[np.lexsort(others.T)])


def columns_of(found: Sequence[Standing], names: Sequence[str], metric: str) -> dict[str, list[str]]:
    """What is said of runs with these names: column -> a cell of each run."""
    level = f"{100 * LEVEL:g} %"

    def ends(span: Interval | None, sign: str) -> str:
        return "" if span is None else f"{span.low:{sign}.4f} to {span.high:{sign}.4f}"

    columns = {f"{metric.upper()}, {level}": [ends(each.own, "") for each in found]}
    if not any(each.span for each in found):
        return columns
    best = next(name for name, each in zip(names, found, strict=True) if each.best)
    return columns | {
        f"less {best}": ["" if each.difference is None else f"{each.difference:+.4f}" for each in found],
        f"less it, {level}": [ends(each.span, "+") for each in found],
        "verdict": [each.words for each in found],
    }


def _written(folder: RunFacts, metric: str) -> Interval | None:
    """The interval of realistic ranks that test.json has, if so."""
    try:
        found = (folder.test or {})["intervals"]
        if (folder.test or {})["ties"] != Ties.REALISTIC.value or found["level"] != LEVEL:
            return None
        return Interval(float(found["low"][metric]), float(found["high"][metric]))
    except (KeyError, TypeError, ValueError):
        return None


def _ranks(folder: RunFacts) -> Kept | None:
    metrics = folder.metrics()
    try:
        return kept(folder.path, metrics["mrr"]) if metrics is not None else None
    except CheckpointError as error:
        log.warning("%s", error)
        return None
