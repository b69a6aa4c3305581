"""Facts about a run that its data and embeddings tell: ranks of a sample, degrees, domains, examples, a picture.

All of it is bounded, whatever the graph: queries are a sample when there are many, and no array grows with the number of
entities but one number for each. What was sampled is told, so that a page can say it.

Examples are questions with what the model answered and where the truth stands: relations are chosen by their MRR, questions by
their rank, one that was answered right and the median of the wrong ones, so that they are typical and neither the luckiest nor
the worst. The picture has entities as points in the plane, by the first two principal components, coloured by their domain: a
picture, not a measurement.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.log import bar
from kgdist.base.machine import usable_cores
from kgdist.base.types import Side
from kgdist.data.dataset import Dataset
from kgdist.data.labels import Beside
from kgdist.evaluation.evaluator import Evaluator
from kgdist.evaluation.ranks import SIDES, Ranks
from kgdist.options.config import Config
from kgdist.predict.engine import Predictor
from kgdist.report.run_facts import FEW, RelationMetrics
from kgdist.runs import rundir
from kgdist.runs.opened import Opened, open_with_data

TRIPLES = 2000  # of the test split that are ranked for the page, at most
WORK = 1e12  # numbers that their queries meet, at most: under a minute on one core
ROWS = 1 << 20  # training triples looked at together


@dataclass(frozen=True)
class RankedSample:
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
    def shown(self) -> tuple[Beside, Beside]:
        """What the page calls entities and relations: their names, with labels beside them where the run has some."""
        names = self.dataset.entities, self.dataset.relations
        entities, relations = map(Beside, names, rundir.labels_of(self.opened.run.path, *names))
        return entities, relations

    @cached_property
    def predictor(self) -> Predictor:
        """Asks for the likeliest entities."""
        return Predictor.of(self.opened, self.evaluator.threads)


def open_sample(path: Path, config: Config) -> RankedSample:
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
    return RankedSample(dataset, opened, Evaluator(dataset, sampled), split)


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


def examples(sample: RankedSample, relation: int) -> tuple[Example | None, Example | None]:
    """One right and one wrong answer of a relation that the sample has."""
    ranks = sample.ranks
    rows = np.flatnonzero(ranks.relation == relation)
    rank = ranks.rank()[rows]
    right, wrong = rows[rank == 1], rows[rank > 1]
    middle = np.argsort(rank[rank > 1], kind="stable")[(len(wrong) - 1) // 2 :][:1]
    first, typical = ([_example(sample, ranks, int(row)) for row in part] for part in (right[:1], wrong[middle]))
    return first[0] if first else None, typical[0] if typical else None


def _example(sample: RankedSample, ranks: Ranks, row: int) -> Example:
    side, (names, relations) = SIDES[ranks.side[row]], sample.shown
    head, relation, tail = (int(column[row]) for column in (ranks.head, ranks.relation, ranks.tail))
    true, anchor = side.pick(head, tail), side.other.pick(head, tail)
    rank = float(ranks.rank()[row])
    answers = _answers(sample, side, anchor, relation, true, rank)
    return Example(
        side,
        names[anchor],
        relations[relation],
        names[true],
        rank,
        int(ranks.candidates[row]),
        tuple((names[answer], answer == true) for answer in answers),
    )


def _answers(sample: RankedSample, side: Side, anchor: int, relation: int, true: int, rank: float) -> list[int]:
    """The ids of the ANSWERS likeliest entities, best first; of those that are known to be true only `true` takes part."""
    known = sample.evaluator.known(sample.split)
    found = sample.predictor.top(side, np.array([anchor]), np.array([relation]), ANSWERS + 1, known=known).ids[0].tolist()
    others = [entity for entity in found if entity not in (-1, true)]
    return [*others[: int(rank) - 1], true, *others[int(rank) - 1 :]][:ANSWERS] if rank < ANSWERS + 1 else others[:ANSWERS]


POINTS = 2500  # drawn, at most
DRAWN = 20000  # entities whose domain is looked up, at most
COLOURS = 7  # domains with a colour of their own; the rest is "other"


@dataclass(frozen=True)
class PointGroup:
    """The points of one colour."""

    name: str  # of the relation, or what the rest is called
    end: str  # "head of" | "tail of" | ""
    total: int  # entities of the looked-up ones, drawn or not
    places: np.ndarray  # float32[n, 2]
    names: list[str]
    degrees: np.ndarray  # int64[n]


@dataclass(frozen=True)
class Picture:
    """All of them, the largest group first."""

    explained: float  # the share of the variance that the two axes have
    entities: int  # in the graph
    groups: list[PointGroup]

    @property
    def points(self) -> int:
        """How many are drawn."""
        return sum(len(group.names) for group in self.groups)


def picture(sample: RankedSample, seed: int = 0) -> Picture:
    """Draw a sample of the entities; the same one for the same graph and seed."""
    data, rng = sample.dataset, np.random.default_rng(seed)
    count = len(data.entities)
    candidates = np.sort(rng.choice(count, min(count, DRAWN), replace=False, shuffle=False))
    kind = domains(data, candidates)
    kinds, sizes = np.unique(kind, return_counts=True)
    coloured = [int(found) for found in kinds[np.lexsort((kinds, -sizes))] if found >= 0][:COLOURS]
    members = [candidates[kind == found] for found in coloured]
    rest = candidates[~np.isin(kind, coloured)]
    members += [rest] if len(rest) else []
    chosen = [np.sort(rng.choice(part, size, replace=False)) for part, size in zip(members, _shares(members), strict=True)]
    ids = np.concatenate(chosen)
    rows = sample.opened.tables.pull("entity", torch.from_numpy(ids.astype(np.int64))).numpy()
    places, explained = project(rows)
    often = degrees(data, ids)
    groups, start = [], 0
    for number, (part, all_of_it) in enumerate(zip(chosen, members, strict=True)):
        here = slice(start, start := start + len(part))
        name, end = _name(sample, coloured[number]) if number < len(coloured) else ("other", "")
        groups.append(PointGroup(name, end, len(all_of_it), places[here], sample.shown[0].names(part), often[here]))
    return Picture(explained, count, groups)


def _name(sample: RankedSample, domain: int) -> tuple[str, str]:
    return sample.shown[1][domain // 2], ("head of", "tail of")[domain % 2]


def _shares(members: list[np.ndarray]) -> list[int]:
    """How many points each group gets: all when they fit, else by the square root of its size, so that small groups are seen."""
    sizes = np.array([len(part) for part in members])
    if sizes.sum() <= POINTS:
        return [int(size) for size in sizes]
    weights = np.sqrt(sizes)
    return [int(share) for share in np.minimum(sizes, np.ceil(POINTS * weights / weights.sum()))]


def project(rows: np.ndarray) -> tuple[np.ndarray, float]:
    """The first two principal components of float32[n, D] -> float32[n, 2], and the share of the variance that they show."""
    centred = rows - rows.mean(0)
    # The two largest eigenvectors of the D x D scatter matrix: the same as an SVD, and cheaper while D is less than n.
    values, vectors = np.linalg.eigh(centred.T.astype(np.float64) @ centred)
    axes = vectors[:, ::-1][:, :2]
    axes = axes * np.sign(axes[np.abs(axes).argmax(0), np.arange(axes.shape[1])])  # else a sign is a matter of luck
    places = np.zeros((len(rows), 2), np.float32)
    places[:, : axes.shape[1]] = centred @ axes
    return places, float(values[-2:].sum() / max(values.sum(), 1e-30))
