"""Ranks and what is read off them: MR, MRR, the median, HITS@k, AUC-ROC and AMRI under three tie policies, per side, relation
and relation category.

Pure functions over counts, which `kgdist.evaluation.counting` finds; and metrics as text: the lines that DGL-KE prints, and a
table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from kgdist.base.types import Side
from kgdist.data.statistics import CATEGORIES, UNSEEN

HITS = (1, 3, 10)  # that every report has
METRICS = ("mrr", "mr", "median", *(f"hits@{k}" for k in HITS), "auc-roc", "amri")
BASELINES = {"frequent": "most frequent answers", "implied": "inverse and duplicate relations"}  # see evaluation/baselines.py
SIDES = (Side.HEAD, Side.TAIL)  # the codes in `Ranks.side`


class Ties(enum.Enum):
    """The rank of a true entity that scores exactly as high as some other candidates (Berrendorf et al. 2020, section 2)."""

    REALISTIC = "realistic"  # the mean of the two others
    OPTIMISTIC = "optimistic"  # before all of them
    PESSIMISTIC = "pessimistic"  # behind all of them, as DGL-KE does


@dataclass(frozen=True)
class Ranks:
    """One row per query: a triple of which one side was removed and ranked among candidates.

    `candidates` counts those that took part: after filtering, with the true entity.
    """

    greater: np.ndarray  # int64[B], candidates that score strictly above the true entity
    equal: np.ndarray  # int64[B], candidates that tie with it, itself not counted
    candidates: np.ndarray  # int64[B], all that were compared, the true entity included: > greater + equal
    side: np.ndarray  # int8[B], which end was ranked: 0 head, 1 tail (the order of `SIDES`)
    head: np.ndarray  # int32[B]
    relation: np.ndarray  # int32[B]
    tail: np.ndarray  # int32[B]

    def __len__(self) -> int:
        return len(self.greater)

    def __getitem__(self, rows: slice | np.ndarray) -> Ranks:
        """The queries that a slice, a mask bool[B] or positions int[n] select."""
        return Ranks(**{name: array[rows] for name, array in self.columns()})

    def columns(self) -> Iterator[tuple[str, np.ndarray]]:
        """The fields by name."""
        return ((field.name, getattr(self, field.name)) for field in fields(self))

    @classmethod
    def of(cls, triples: np.ndarray, candidates: int) -> Ranks:
        """Those of both sides of int32[T, 3], the heads first, with so many candidates each and nobody above yet: B = 2 T."""
        heads, relations, tails = (np.tile(triples[:, column].astype(np.int32), 2) for column in range(3))
        count = len(heads)
        return cls(
            greater=np.zeros(count, np.int64),
            equal=np.zeros(count, np.int64),
            candidates=np.full(count, candidates, np.int64),
            side=np.repeat(np.arange(2, dtype=np.int8), len(triples)),
            head=heads,
            relation=relations,
            tail=tails,
        )

    @staticmethod
    def concatenate(parts: Sequence[Ranks]) -> Ranks:
        """The queries of all parts, in order. Raises ValueError for no parts."""
        if not parts:
            raise ValueError("no ranks to put together")
        return Ranks(**{field.name: np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Ranks)})

    def rank(self, ties: Ties = Ties.REALISTIC) -> np.ndarray:
        """The rank of each true entity, counted from 1, float64[B]; the realistic one can end in .5."""
        best = self.greater + 1.0
        if ties is Ties.OPTIMISTIC:
            return np.asarray(best)
        return np.asarray(best + (self.equal if ties is Ties.PESSIMISTIC else self.equal / 2))


def in_order(names: Iterable[str]) -> list[str]:
    """Those of `names` that are metrics, each once, as `METRICS` has them; hits@k of any k among its kind."""
    hits = (int(name[5:]) for name in names if name.startswith("hits@") and name[5:].isdecimal())
    found = [f"hits@{k}" for k in sorted(set(hits))]
    given = set(names)
    before, after = METRICS[:3], METRICS[-2:]
    return [*(name for name in before if name in given), *found, *(name for name in after if name in given)]


def metrics(ranks: Ranks, ties: Ties = Ties.REALISTIC, hits: Iterable[int] = HITS) -> dict[str, float | None]:
    """The `METRICS` of at least one query; raises ValueError for none.

    `hits@k` is the share of ranks <= k, for `HITS` and those in `hits`; `median` the rank that half of the queries do not exceed,
    the mean of the two in the middle where their number is even.

    `auc-roc` is the area under the ROC curve of each query, whose one positive meets its own n - 1 rivals, as a mean over the
    queries that have any: 1 - (rank - 1) / (n - 1), the share of rivals that score below the true entity, and by the realistic
    rank, which is that of Mann and Whitney, half of those that tie. 1 is perfect, .5 is random.

    `amri` is the adjusted mean rank index 1 - sum(rank - 1) / sum(expected rank - 1) of Berrendorf et al. 2020 (Ambiguity of
    Rank-Based Evaluation), a random order of a query's own n candidates being expected to rank at (n + 1) / 2: 1 is perfect, 0
    is random. It is 2 * `auc-roc` - 1 where all queries have equally many candidates; else those with more count for more.

    Both are None when no query had a rival.
    """
    if not len(ranks):
        raise ValueError("metrics of no ranks")
    rank, rivals = ranks.rank(ties), ranks.candidates - 1
    asked = rivals > 0
    values: dict[str, float | None] = {
        "mrr": float((1 / rank).mean()),
        "mr": float(rank.mean()),
        "median": float(np.median(rank)),
    }
    values.update({f"hits@{k}": float((rank <= k).mean()) for k in sorted({*HITS, *hits})})
    values["auc-roc"] = float((1 - (rank[asked] - 1) / rivals[asked]).mean()) if asked.any() else None
    values["amri"] = 1 - 2 * float((rank - 1).sum()) / float(rivals.sum()) if asked.any() else None
    return values


def summary(
    ranks: Ranks, categories: np.ndarray | None = None, ties: Ties = Ties.REALISTIC, hits: Iterable[int] = HITS
) -> dict[str, Any]:
    """Everything a report says about `ranks`, as plain values that JSON can hold.

    - "count" queries, "ties" (the policy of the parts that have only one), "candidates" {"min", "max", "mean"} per query,
    - "all": policy -> metrics,
    - "sides": "head" | "tail" (the end that was ranked) -> {"count", policy -> metrics},
    - "relations": relation id as text -> {"count", metrics},
    - "categories", with `categories` from `relation_categories`: "1-1" | "1-N" | "N-1" | "N-N" | "unseen" -> {"count", metrics,
      and "sides": side -> {"count", metrics}}.

    Parts without queries are left out. Raises ValueError for no ranks at all.
    """
    sides = {side.value: ranks[ranks.side == code] for code, side in enumerate(SIDES)}
    hits = tuple(hits)
    report: dict[str, Any] = {
        "count": len(ranks),
        "ties": ties.value,
        "all": _policies(ranks, hits),
        "candidates": {
            "min": int(ranks.candidates.min()),
            "max": int(ranks.candidates.max()),
            "mean": float(ranks.candidates.mean()),
        },
        "sides": {name: {"count": len(part), **_policies(part, hits)} for name, part in sides.items() if len(part)},
        "relations": {str(relation): _counted(part, ties, hits) for relation, part in _by_relation(ranks)},
    }
    if categories is not None:
        report["categories"] = {
            name: {**_counted(part, ties, hits), "sides": _one_policy_per_side(part, ties, hits)}
            for code, name in [*enumerate(CATEGORIES), (UNSEEN, "unseen")]
            if len(part := ranks[categories[ranks.relation] == code])
        }
    return report


def _policies(ranks: Ranks, hits: Iterable[int]) -> dict[str, dict[str, float | None]]:
    return {ties.value: metrics(ranks, ties, hits) for ties in Ties}


def _counted(ranks: Ranks, ties: Ties, hits: Iterable[int]) -> dict[str, Any]:
    return {"count": len(ranks), **metrics(ranks, ties, hits)}


def _one_policy_per_side(ranks: Ranks, ties: Ties, hits: Iterable[int]) -> dict[str, dict[str, Any]]:
    parts = ((side.value, ranks[ranks.side == code]) for code, side in enumerate(SIDES))
    return {name: _counted(part, ties, hits) for name, part in parts if len(part)}


def _by_relation(ranks: Ranks) -> Iterator[tuple[int, Ranks]]:
    """One sort, then slices: thousands of relations must not mean thousands of passes over all queries."""
    ordered = ranks[np.argsort(ranks.relation, kind="stable")]
    relations, starts = np.unique(ordered.relation, return_index=True)
    for relation, start, stop in zip(relations, starts, [*starts[1:], len(ordered)], strict=True):
        yield int(relation), ordered[int(start) : int(stop)]


def reference_lines(split: str, metrics: Mapping[str, float | None]) -> list[str]:
    """``Test average MRR : 0.671234`` and so on, as DGL-KE prints and scripts parse; then AUC-ROC, where it is defined."""
    means = [name for name in metrics if name not in ("median", "amri") and metrics[name] is not None]
    return [f"{split.capitalize()} average {name.upper()} : {metrics[name]:.6f}" for name in means]


def protocol_line(report: Mapping[str, Any]) -> str:
    """Under which rules the ranks of `report` came about, for the reader of a number."""
    protocol, seen = report["protocol"], report["candidates"]
    pool = f"all {protocol['entities']} entities"
    if protocol["sampled"]:
        pool = f"{protocol['sampled']} of {protocol['entities']} entities, drawn for every {protocol['batch']} triples"
        pool += ", and the entities of those triples" if protocol["in_batch"] else ""
    filtered = f"filtered by {', '.join(protocol['filter'])}" if protocol["filter"] else "raw (known triples not filtered)"
    part = "" if protocol["fraction"] == 1 else f", {protocol['triples']} triples drawn from the split"
    return f"{report['split']} ranks: {filtered}, among {pool} ({seen['mean']:.1f} on average){part}; ties: {report['ties']}"


def result_lines(report: Mapping[str, Any]) -> list[str]:
    """All that is printed of an evaluation: DGL-KE's lines, the protocol, the table, and a word on a model that is no use."""
    found = report["all"][report["ties"]]
    return [*reference_lines(report["split"], found), protocol_line(report), *report_table(report), *_no_better(report, found)]


def _no_better(report: Mapping[str, Any], found: Mapping[str, float | None]) -> list[str]:
    mine = found["mrr"]
    why = {"frequent": "which need no model; what to try: docs/choosing.md", "implied": "by which train is read backwards"}
    for name, more in why.items():
        theirs = report.get("baselines", {}).get(name, {}).get("mrr")
        if mine is not None and theirs is not None and mine <= theirs:
            return [f"no better than the {BASELINES[name]} (MRR {theirs:.4f}), {more}"]
    return []


def report_table(report: Mapping[str, Any]) -> list[str]:
    """One row per tie policy (one for all of them where no tie changes anything), baseline, side and relation category; numbers
    are right-aligned under their names."""
    rows = [("", "queries", *(name.upper() for name in report["all"][report["ties"]])), *_rows(report)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    ties = report["ties"]
    policies = {policy.value: report["all"][policy.value] for policy in Ties}
    tied = any(found != policies[ties] for found in policies.values())
    for policy, found in policies.items() if tied else [("all", policies[ties])]:
        yield _row(policy, report["count"], found)
        if policy in ("all", ties) and "intervals" in report:
            yield from (_row(name, None, part) for name, part in interval_rows(report, found))
    for name, part in report.get("baselines", {}).items():
        yield _row(f"baseline: {BASELINES[name]}", report["count"], part)
    for side, part in report["sides"].items():
        yield _row(f"{side}s ({ties})", part["count"], part[ties])
    if "missing_relations" in report:
        yield _row(f"relations ({ties})", report["missing_relations"]["count"], report["missing_relations"])
    for category, part in report.get("categories", {}).items():
        yield _row(f"{category} ({ties})", part["count"], part)
        for side, half in part["sides"].items():
            yield _row(f"  {side}s", half["count"], half)


def interval_rows(
    report: Mapping[str, Any], metrics: Mapping[str, float | None]
) -> Iterator[tuple[str, dict[str, float | None]]]:
    """The ends of the report's intervals, each under its name, in the columns of `metrics`."""
    found = report["intervals"]
    for end, word in (("low", "from"), ("high", "to")):
        yield f"  {100 * found['level']:g} %: {word}", {name: found[end].get(name) for name in metrics}


def _row(name: str, count: int | None, metrics: Mapping[str, float | None]) -> tuple[str, ...]:
    queries = "" if count is None else str(count)
    return (name, queries, *(_cell(metric, value) for metric, value in metrics.items() if metric not in ("count", "sides")))


def _cell(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if metric == "median" else f"{value:.2f}" if metric == "mr" else f"{value:.4f}"
