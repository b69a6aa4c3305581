"""report.html of a run: what its files tell, what its embeddings tell, and how they came about.

The page is made of what is there. A run without metrics, curves or data gets a page without that part, which says what was
missing. Its words are in templates/report.html.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.files import PathLike, read_json
from kgdist.base.log import bar, log, say
from kgdist.base.types import Side
from kgdist.evaluation.ranks import BASELINES, METRICS, Ties, in_order, interval_rows, protocol_line
from kgdist.options.config import Config
from kgdist.options.presets import find
from kgdist.report import charts, page
from kgdist.report.charts import Bar, Chart, require
from kgdist.report.facts import RankedSample, best_and_worst, degree_bins, degrees, examples, open_sample, picture, true_entities
from kgdist.report.run_facts import FEW, RelationMetrics, RunFacts, command, machine, numbers, options, read, relations, versions

FILE = "report.html"
LISTED = 12  # relations of a list
TABLED = 300  # relations of the whole table
Row = tuple[str, int | None, Mapping[str, float]]  # of a table of metrics: name, queries, metrics


def write_report(path: PathLike, config: Config | None = None) -> Path:
    """Make the report of the run in the folder `path` and return the file. `config`: its options, if not those of config.json.

    Takes a minute at most, and less memory than an evaluation, whatever the graph: see kgdist.report.facts. Raises OptionError
    when the extra `viz` is missing, CheckpointError for a folder that is no run, KgdistError when the file cannot be written.
    """
    require("--report")
    folder = read(path)
    config = config or folder.config
    report, notes = folder.test, list(folder.notes)
    sample, asked, graph = None, None, list[Chart]()
    with bar(total=3, desc="report", unit="part") as progress:
        try:
            sample = open_sample(folder.path, config)
            report = report or sample.report
            asked = _asked(sample, report)
        except KgdistError as error:
            notes.append(f"Nothing could be ranked, so there are no examples here: {error}")
        progress.update()
        if sample is not None and asked is not None:
            degree = degrees(sample.dataset, true_entities(sample.ranks))
            graph.append(charts.degree_chart(degree_bins(sample.ranks, degree), len(sample.ranks)))
            graph.append(charts.picture_chart(picture(sample, config.seed)))
        progress.update()
        published, source = _published(config)
        curves = _curves(folder, config)
        metrics = _metrics(report, published, source) if report is not None else None
        drawn = bool(graph) or any(curves.values()) or (metrics is not None and metrics["chart"] is not None)
        page.write(
            folder.path / FILE,
            "report.html",
            drawn=drawn,
            config=config,
            folder=folder,
            data=sample and sample.dataset,
            notes=notes,
            curves=curves,
            published=published,
            metrics=metrics,
            relations=_relations(_labelled(relations(report), sample)),
            asked=asked,
            graph=graph,
            made=_made(folder),
        )
        progress.update()
    return folder.path / FILE


def report_or_warn(path: PathLike, config: Config) -> None:
    """Write it and say so; whatever goes wrong is a warning, for the run is finished and saved."""
    try:
        say(f"report: {write_report(path, config)}")
    except Exception as error:
        log.warning(
            "no report: %s; the run is saved, try again with: kgdist-eval %s --report", error or type(error).__name__, path
        )
        log.debug("why", exc_info=True)


def _published(config: Config) -> tuple[dict[str, float], str]:
    """The metrics that were published for this model and data set, and where."""
    try:
        row = find(config.model_name, config.dataset)
    except OptionError:
        return {}, ""
    named = zip(("mr", "mrr", "hits@1", "hits@3", "hits@10"), row.published or (), strict=False)
    return {name: value for name, value in named if value is not None}, row.source


def _curves(folder: RunFacts, config: Config) -> dict[str, Chart | None]:
    """Charts of the course; None where nothing of it is known."""
    train, valid = folder.curves.get("train", []), folder.curves.get("valid", [])
    several = config.num_proc > 1
    step, together = ("step of each process", "all processes together") if several else ("step", "while it trains")
    losses = [("loss", train, "loss"), ("of positives", train, "pos_loss"), ("of negatives", train, "neg_loss")]
    metrics = [("MRR", valid, "mrr"), ("HITS@1", valid, "hits@1"), ("HITS@10", valid, "hits@10")]
    speed = [("triples/s", train, "triples_per_second")]
    caption = f"Triples per second, each once in an epoch, {together}."
    return {
        "loss": charts.curves("Loss", f"{config.loss_genre}, mean since the previous point.", losses, x=step),
        "validation": charts.curves("Validation", "Of the valid split; higher is better.", metrics, x=step),
        "throughput": charts.curves("Throughput", caption, speed, x=step, zero=True),
    }


def _metrics(report: Mapping[str, Any], published: Mapping[str, float], source: str) -> dict[str, Any]:
    """Metrics of all queries and of every part, the parts as a chart, and the rules by which the ranks came about."""
    ties = str(report.get("ties", Ties.REALISTIC.value))
    parts = _category_parts(report, ties)
    try:
        protocol = protocol_line(report)
    except (KeyError, TypeError, ValueError):
        protocol = None
    return {
        "all": numbers(report["all"][ties]),
        "columns": in_order([*METRICS, *report["all"][ties]]),
        "rows": _rows(report, ties, published, source),
        "chart": charts.category_chart(parts) if parts else None,
        "classified": _classified(report.get("classification")),
        "protocol": protocol,
    }


def _rows(report: Mapping[str, Any], ties: str, published: Mapping[str, float], source: str) -> list[Row]:
    """Ties, sides and categories, under the row that was published."""
    every, count = report["all"], report.get("count")
    rows = [_row("all", count, every[ties]), *(_row(name, None, part) for name, part in _intervals(report, every[ties]))]
    others = [policy.value for policy in Ties if every[policy.value] != every[ties]]
    rows += [_row(f"all, ties {policy}", count, every[policy]) for policy in others]
    rows += [(f"published: {source}", None, published)] if published else []
    rows += [_row(f"baseline: {BASELINES[name]}", count, part) for name, part in _parts(report, "baselines") if name in BASELINES]
    rows += [_row(f"{side}s", part.get("count"), part.get(ties)) for side, part in _parts(report, "sides")]
    if isinstance(asked := report.get("missing_relations"), Mapping):
        rows.append(_row("relations, (head, ?, tail)", asked.get("count"), asked))
    for category, part in _parts(report, "categories"):
        rows.append(_row(category, part.get("count"), part))
        rows += [_row(f"{category} {side}s", half.get("count"), half) for side, half in _parts(part, "sides")]
    return rows


def _classified(found: object) -> Mapping[str, Any] | None:
    """What `kgdist-eval --classify` found, where it is whole."""
    wanted = {"count": int, "true": int, "accuracy": float, "negatives": str}
    if not isinstance(found, Mapping) or not all(isinstance(found.get(name), kind) for name, kind in wanted.items()):
        return None
    areas = {name: found.get(name) for name in ("auc-roc", "auc-pr")}  # none where all are true, or none is
    return {name: found[name] for name in wanted} | {
        name: area if isinstance(area, float) else None for name, area in areas.items()
    }


def _intervals(report: Mapping[str, Any], metrics: Any) -> Sequence[tuple[str, Mapping[str, Any]]]:
    """The ends of the intervals, where the report has them."""
    try:
        return list(interval_rows(report, metrics))
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _row(name: str, count: object, part: Any) -> Row:
    return name, count if isinstance(count, int) else None, numbers(part)


def _category_parts(report: Mapping[str, Any], ties: str) -> list[tuple[str, float | None, float | None]]:
    """(name, MRR of heads, MRR of tails) of all queries and of each category, as far as the report has them."""
    every = [("all", [(side, part.get(ties)) for side, part in _parts(report, "sides")])]
    every += [(name, _parts(part, "sides")) for name, part in _parts(report, "categories")]
    found = []
    for name, parts in every:
        of = {side: numbers(part).get("mrr") for side, part in parts}
        found.append((name, of.get(Side.HEAD.value), of.get(Side.TAIL.value)))
    return [part for part in found if part[1:] != (None, None)]


def _parts(report: Mapping[str, Any], key: str) -> list[tuple[str, Any]]:
    """The named parts of a report, those that are parts."""
    found = report.get(key)
    return [(name, part) for name, part in found.items() if isinstance(part, dict)] if isinstance(found, dict) else []


def _relations(found: Mapping[int, RelationMetrics]) -> dict[str, Any] | None:
    """The best and the worst relations, or all of them in two halves, and the most frequent ones for the table."""
    if not found:
        return None
    many = [part for part in found.values() if part.queries >= FEW] or list(found.values())
    many.sort(key=lambda part: -part.mrr)
    often = sorted(found.values(), key=lambda part: -part.queries)
    whole = len(many) <= 2 * LISTED
    half = (len(many) + 1) // 2 if len(many) > LISTED else len(many)  # a few fit one list
    return {
        "all": whole,  # whether the two lists together have all
        "count": len(many),
        "best": list(map(_bar, many[:half] if whole else many[:LISTED])),
        "worst": list(map(_bar, many[half:] if whole else many[: -LISTED - 1 : -1])),
        "few": FEW,
        "rare": len(found) - len(many),
        "rows": often[:TABLED],
        "more": len(often[TABLED:]),
    }


def _labelled(found: Mapping[int, RelationMetrics], sample: RankedSample | None) -> Mapping[int, RelationMetrics]:
    """Relations with their labels beside their names, which test.json does not have."""
    labels = {} if sample is None else dict(zip(found, sample.shown[1].labels.names(list(found)), strict=True))
    return {
        number: each if (label := labels.get(number)) is None else each._replace(name=f"{each.name} ({label})")
        for number, each in found.items()
    }


def _bar(found: RelationMetrics) -> Bar:
    return Bar(found.name, f"{found.queries:,} queries", found.mrr, f"{found.mrr:.3f}")


def _asked(sample: RankedSample, report: Mapping[str, Any]) -> dict[str, Any]:
    """Questions and answers of the best and the worst relations."""
    found = _labelled(relations(report) or relations(sample.report), sample)
    best, worst = best_and_worst(found, np.unique(sample.ranks.relation))

    def answered(chosen: Sequence[int]) -> list[tuple[Any, ...]]:
        return [(found[relation], *examples(sample, relation)) for relation in chosen]

    return {
        "best": answered(best),
        "worst": answered(worst),
        "ranked": len(sample.ranks) // 2,
        "triples": len(sample.dataset.splits[sample.split]),
        "split": sample.split,
    }


def _made(folder: RunFacts) -> dict[str, Any]:
    """The command, the options, versions and machine."""
    changed, same = options(folder.config)
    saved = read_json(folder.path / "config.json").get("kgdist_version")
    trained = [("trained by kgdist", saved)] if isinstance(saved, str) else []
    if (began := folder.began) is not None:
        trained.append(("began", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began))))
    if (seconds := folder.seconds) is not None:
        trained.append(("training took", str(timedelta(seconds=round(seconds)))))
    if folder.digest:
        trained.append(("data, SHA-256", folder.digest[:16]))
    return {
        "command": command(folder.config),
        "changed": changed,
        "same": same,
        "trained": trained,
        "machine": [*versions(), *machine()],
    }
