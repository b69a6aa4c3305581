"""Facts about a run that its data and embeddings tell: ranks of a sample, degrees, domains.

All of it is bounded, whatever the graph: queries are a sample when there are many, and no array grows with the number of
entities but one number for each. What was sampled is told, so that a page can say it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.machine import usable_cores
from kgdist.base.progress import bar
from kgdist.base.types import Side
from kgdist.data.dataset import Dataset
from kgdist.evaluation.evaluator import Evaluator
from kgdist.evaluation.ranks import SIDES, Ranks
from kgdist.options.config import Config
from kgdist.predict.engine import Predictor
from kgdist.runs import rundir
from kgdist.runs.opened import Opened, open_with_data

TRIPLES = 2000  # of the test split that are ranked for the page, at most
WORK = 1e12  # numbers that their queries meet, at most: under a minute on one core
ROWS = 1 << 20  # training triples looked at together


@dataclass(frozen=True)
class Sample:
    """A run with its data, of which a part is ranked for the page."""

    dataset: Dataset
    opened: Opened
    evaluator: Evaluator  # of a sample of the split
    split: str  # "test", or "valid" where there is no test

    @cached_property
    def ranks(self) -> Ranks:
        """Of the sample; the first to ask waits for the ranking. Raises KgdistError when nothing can be ranked."""
        return self.evaluator.rank(self.opened.model, self.opened.tables, self.split)

    @cached_property
    def report(self) -> dict[str, Any]:
        """The metrics of these ranks, as kgdist-eval saves them."""
        return self.evaluator.report(self.ranks, self.split)

    @cached_property
    def predictor(self) -> Predictor:
        """Asks for the likeliest entities."""
        return Predictor.of(self.opened, self.evaluator.threads)


def open_sample(path: Path, config: Config) -> Sample:
    """Open data and embeddings under the options `config` of the run in `path`. Raises KgdistError for what is missing.

    Embeddings are memory-mapped on the CPU, also those that a GPU trained.
    """
    opened, dataset = open_with_data(rundir.open_run(path), config)
    split = "valid" if not dataset.test and dataset.valid else "test"
    triples = len(dataset.splits.get(split, ()))
    candidates = len(dataset.entities) if config.neg_sample_size_eval < 0 else config.neg_sample_size_eval
    wanted = min(TRIPLES, max(1.0, WORK / (2 * candidates * config.entity_dim)))
    fraction = min(config.eval_percent, (wanted + 0.5) / max(triples, 1), 1.0)
    sampled = config.replace(eval_percent=fraction, num_proc=usable_cores(), num_thread=1)
    return Sample(dataset, opened, Evaluator(dataset, sampled), split)


def true_entities(ranks: Ranks) -> np.ndarray:
    """int32[B]: whom each query asks for."""
    return np.where(ranks.side == SIDES.index(Side.HEAD), ranks.head, ranks.tail)


def degrees(dataset: Dataset, entities: np.ndarray) -> np.ndarray:
    """How many training triples each of `entities` int[n] is in, int64[n]."""
    found, place = _places(dataset, entities)
    counts = np.zeros(len(found), np.int64)
    for part in _pieces(dataset, "degrees"):
        for column in (0, 2):
            counts += np.bincount(place[part[:, column]] + 1, minlength=len(found) + 1)[1:]
    return np.asarray(counts[place[entities]])


def domains(dataset: Dataset, entities: np.ndarray) -> np.ndarray:
    """The relation that each of `entities` int[n] is in most often, and at which end: int64[n], 2 * relation + (0 head, 1 tail).

    -1 for one without a training triple; of equal ones the smallest.
    """
    found, place = _places(dataset, entities)
    width = 2 * len(dataset.relations)
    keys, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for part in _pieces(dataset, "domains"):
        at = place[part[:, (0, 2)]].astype(np.int64)  # int64[rows, 2]
        new = (at * width + 2 * part[:, 1:2] + np.arange(2))[at >= 0]
        more, times = np.unique(new, return_counts=True)
        keys, index = np.unique(np.concatenate([keys, more]), return_inverse=True)
        counts = np.bincount(index, np.concatenate([counts, times]), len(keys)).astype(np.int64)
    best = np.full(len(found), -1, np.int64)
    order = np.lexsort((-keys, counts))  # the last one written wins
    best[keys[order] // width] = keys[order] % width
    return np.asarray(best[place[entities]])


def degree_bins(ranks: Ranks, degree: np.ndarray) -> list[dict[str, float]]:
    """Ranks by the degree of the entity that was asked for: for each power of two its queries, rank quartiles and MRR.

    `degree` int64[B], in training triples. Bins without a query are left out.
    """
    rank = ranks.rank()
    bins = np.where(degree > 0, np.floor(np.log2(np.maximum(degree, 1))), -1).astype(np.int64)
    found = []
    for number in np.unique(bins).tolist():
        here = rank[bins == number]
        low, median, high = np.quantile(here, (0.25, 0.5, 0.75)).tolist()
        lowest, highest = (2.0**number, 2.0 ** (number + 1) - 1) if number >= 0 else (0.0, 0.0)
        part = {"lowest": lowest, "highest": highest, "queries": float(len(here)), "mrr": float((1 / here).mean())}
        found.append({**part, "low": low, "median": median, "high": high})
    return found


def _places(dataset: Dataset, entities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The different ones of `entities`, and where each entity of the graph stands among them, int32[E], -1 for nowhere."""
    found = np.unique(entities)
    place = np.full(len(dataset.entities), -1, np.int32)
    place[found] = np.arange(len(found), dtype=np.int32)
    return found, place


def _pieces(dataset: Dataset, desc: str) -> Iterator[np.ndarray]:
    array = dataset.train.array
    for start in bar(range(0, len(array), ROWS), desc=desc, unit="block"):
        yield array[start : start + ROWS]
