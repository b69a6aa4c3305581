"""The parts of a report that are words and tables: metrics, relations, examples, how the run was made. Pure: facts to HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kgdist.base.types import Side
from kgdist.evaluation.ranks import METRICS, Ties
from kgdist.options.presets import Preset
from kgdist.report import about
from kgdist.report.examples import Example
from kgdist.report.folder import FEW, Folder, RelationMetrics, numbers
from kgdist.report.markup import Child, Markup, el, fold, short, table

NAMES = {"mrr": "MRR", "mr": "MR", "hits@1": "HITS@1", "hits@3": "HITS@3", "hits@10": "HITS@10", "amri": "AMRI"}
MEANINGS = {
    "mrr": "mean of 1 / rank",
    "mr": "mean rank",
    "hits@1": "ranked first",
    "hits@3": "among the first 3",
    "hits@10": "among the first 10",
    "amri": "1 perfect, 0 random",
}
METRICS_SHOWN = ("mrr", "hits@1", "hits@3", "hits@10", "mr", "amri")
LISTED = 12  # relations of a list
TABLED = 300  # relations of the whole table
_HIDDEN = (4, 7)  # columns of the tables of metrics that narrow screens do without: HITS@3 and AMRI


def cell(metric: str, value: float | None) -> str:
    """A metric as a reader wants it."""
    if value is None:
        return "–"
    return f"{value:,.1f}" if metric == "mr" else f"{value:.3f}"


def tiles(values: Mapping[str, float], row: Preset | None) -> Markup:
    """The metrics in large, with the published ones below."""
    published = published_values(row)
    return el(
        "div",
        [
            el(
                "div",
                el("span", NAMES[name]),
                el("b", cell(name, values.get(name))),
                el("span", f"published {published[name]:g}" if name in published else MEANINGS[name]),
                class_="tile",
            )
            for name in METRICS
        ],
        class_="tiles",
    )


def published_values(row: Preset | None) -> dict[str, float]:
    """The metrics that were published for a model on a data set."""
    if row is None or row.published is None:
        return {}
    named = zip(("mr", "mrr", "hits@1", "hits@3", "hits@10"), row.published, strict=True)
    return {name: value for name, value in named if value is not None}


def metrics_table(report: Mapping[str, Any], row: Preset | None) -> Markup:
    """Ties, sides and categories, under the row that was published."""
    ties = str(report.get("ties", Ties.REALISTIC.value))
    rows: list[Sequence[Child]] = []
    for policy in Ties:
        if policy.value == ties or report["all"][policy.value] != report["all"].get(ties):
            rows.append(
                _row(
                    "all" if policy.value == ties else f"all, ties {policy.value}",
                    report.get("count"),
                    report["all"][policy.value],
                )
            )
    published = published_values(row)
    if published and row is not None:
        rows.append(_row(f"published: {row.source}", None, published))
    for side, part in _parts(report, "sides"):
        rows.append(_row(f"{side}s", part.get("count"), part.get(ties)))
    for category, part in _parts(report, "categories"):
        rows.append(_row(category, part.get("count"), part))
        rows += [_row(f"{category} {side}s", half.get("count"), half) for side, half in _parts(part, "sides")]
    return table(["", "queries", *(NAMES[name] for name in METRICS_SHOWN)], rows, hidden=_HIDDEN)


def category_parts(report: Mapping[str, Any]) -> list[tuple[str, float | None, float | None]]:
    """(name, MRR of heads, MRR of tails) of all queries and of each category, as far as the report has them."""
    ties = str(report.get("ties", Ties.REALISTIC.value))

    def pair(parts: Sequence[tuple[str, Any]]) -> tuple[float | None, float | None]:
        of = {side: numbers(part).get("mrr") for side, part in parts}
        return of.get(Side.HEAD.value), of.get(Side.TAIL.value)

    every = [(side, part.get(ties)) for side, part in _parts(report, "sides")]
    found = [("all", *pair(every))]
    found += [(name, *pair(_parts(part, "sides"))) for name, part in _parts(report, "categories")]
    return [part for part in found if part[1:] != (None, None)]


def _row(name: str, count: object, part: Any) -> Sequence[Child]:
    values = numbers(part)
    queries = f"{count:,}" if isinstance(count, int) else ""
    return [name, queries, *(cell(metric, values.get(metric)) for metric in METRICS_SHOWN)]


def _parts(report: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """The named parts of a report, those that are parts."""
    found = report.get(key)
    return [(name, part) for name, part in found.items() if isinstance(part, dict)] if isinstance(found, dict) else []


def relations(found: Mapping[int, RelationMetrics]) -> Markup:
    """The best and the worst relations as bars, and all of them in a table."""
    many = [part for part in found.values() if part.queries >= FEW] or list(found.values())
    many.sort(key=lambda part: -part.mrr)
    if len(many) <= 2 * LISTED:
        half = (len(many) + 1) // 2
        lists = [(f"{len(many)} relations, best first", many[:half]), ("", many[half:])]
    else:
        lists = [("The best", many[:LISTED]), ("The worst", many[: -LISTED - 1 : -1])]
    cards = [
        el("div", el("h3", title or Markup("&nbsp;")), el("ul", [_bar(row) for row in part], class_="bars"), class_="card")
        for title, part in lists
        if part
    ]
    often = sorted(found.values(), key=lambda part: -part.queries)
    rows = [[short(part.name), *_row("", part.queries, part.metrics)[1:]] for part in often[:TABLED]]
    more = el("p", f"{len(often) - TABLED:,} more are in test.json.", class_="caption") if len(often) > TABLED else None
    head = ["relation", "queries", *(NAMES[name] for name in METRICS_SHOWN)]
    title = f"All relations in numbers ({len(rows)})" if more is None else f"The {TABLED} most frequent relations in numbers"
    few = len(found) - len(many)
    caption = f"MRR of each relation; {few} with fewer than {FEW} queries are left out." if few else "MRR of each relation."
    whole = fold(title, table(head, rows, hidden=_HIDDEN), more)
    return el("div", el("p", caption, class_="caption"), el("div", cards, class_="grid two"), whole)


def _bar(row: RelationMetrics) -> Markup:
    part = el("i", style=f"--part: {100 * min(max(row.mrr, 0), 1):.1f}%")
    return el("li", el("div", short(row.name), el("small", f"{row.queries:,} queries")), part, el("b", f"{row.mrr:.3f}"))


def example_cards(title: str, found: Sequence[tuple[RelationMetrics, Example | None, Example | None]]) -> Markup | None:
    """Relations with a right and a wrong answer each."""
    cards = [
        el(
            "article",
            el("div", el("h3", short(row.name)), el("span", f"MRR {row.mrr:.3f}"), class_="top"),
            _example(right, "right"),
            _example(wrong, "wrong"),
            class_="card",
        )
        for row, right, wrong in found
    ]
    return el("div", el("h3", title, style="margin-top: 16px"), el("div", cards, class_="grid four")) if cards else None


def _example(example: Example | None, kind: str) -> Markup | None:
    if example is None:
        return None
    given, asked = short(example.given), el("span", "?", class_="asked")
    ends = [given, asked] if example.side is Side.TAIL else [asked, given]
    question = [ends[0], el("span", " · ", short(example.relation), " · ", class_="soft"), ends[1]]
    answers = [el("li", short(name), " ✓" if true else None, class_="true" if true else None) for name, true in example.answers]
    truth = [] if kind == "right" else [el("div", "true: ", el("span", short(example.true), class_="true"))]
    rank = f"{example.rank:,.1f}".removesuffix(".0")
    place = el("div", f"rank {rank} of {example.candidates:,}", class_="soft")
    verdict = el("div", "right" if kind == "right" else "wrong", class_="verdict")
    return el("div", verdict, el("div", question), el("ol", answers), truth, place, class_=f"example {kind}")


def how(folder: Folder, version: str | None) -> Markup:
    """The command, the options, versions and machine."""
    changed, same = about.options(folder.config)
    rows = [[name, short(value), short(default)] for name, value, default in changed]
    facts = [*([("trained by kgdist", version)] if version else []), *about.versions(), *about.machine()]
    return el(
        "div",
        el("p", "The command that trains it again:"),
        el("pre", [[el("span", words), " "] for words in about.command(folder.config)]),
        el(
            "div",
            el(
                "div",
                el("h3", "Options that differ from the defaults"),
                table(["", "here", "default"], rows, class_="words"),
                class_="card",
            ),
            el("div", el("h3", "Where this page was made"), table(["", ""], facts, class_="words"), class_="card"),
            class_="grid two",
        ),
        fold(f"The other {len(same)} options, all at their defaults", table(["", "default"], same, class_="words")),
    )
