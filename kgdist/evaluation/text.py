"""Metrics as text: the result lines that DGL-KE prints, and a table of the rest.

Pure. What it shows is `kgdist.evaluation.ranks.summary`, with the protocol that `kgdist.evaluation.evaluator` adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kgdist.evaluation.ranks import METRICS, Ties

PRINTED = METRICS[:5]  # by DGL-KE, in its order


def reference_lines(split: str, metrics: Mapping[str, float | None]) -> list[str]:
    """``Test average MRR : 0.671234`` and so on, as DGL-KE prints and scripts parse."""
    return [f"{split.capitalize()} average {name.upper()} : {metrics[name]:.6f}" for name in PRINTED]


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


def report_table(report: Mapping[str, Any]) -> list[str]:
    """One row per tie policy, side and relation category; numbers are right-aligned under their names."""
    rows = [("", "queries", *(name.upper() for name in METRICS)), *_rows(report)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    ties = report["ties"]
    for policy in Ties:
        yield _row(policy.value, report["count"], report["all"][policy.value])
    for side, part in report["sides"].items():
        yield _row(f"{side}s ({ties})", part["count"], part[ties])
    for category, part in report.get("categories", {}).items():
        yield _row(f"{category} ({ties})", part["count"], part)
        for side, half in part["sides"].items():
            yield _row(f"  {side}s", half["count"], half)


def _row(name: str, count: int, metrics: Mapping[str, float | None]) -> tuple[str, ...]:
    return (name, str(count), *(_cell(metric, metrics[metric]) for metric in METRICS))


def _cell(metric: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if metric == "mr" else f"{value:.4f}"
