"""The page of a data set: what kgdist-inspect finds, for people to look at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgdist.base.errors import counted
from kgdist.base.files import PathLike
from kgdist.report import charts, page
from kgdist.report.charts import Bar
from kgdist.report.inspection import findings
from kgdist.report.run_facts import machine, versions

LISTED = 12  # links that are seen at once
TABLED = 300  # links of the page


def write_inspection_report(path: PathLike, facts: Mapping[str, Any]) -> None:
    """Write the page of what `kgdist.report.inspection.inspect` has found.

    Raises OptionError when the extra `viz` is missing, KgdistError when the file cannot be written.
    """
    charts.require("--report")
    links = facts["links"]
    page.write(
        path,
        "inspection.html",
        drawn=True,
        notes=(),
        facts=facts,
        findings=list(findings(facts)),
        degrees=_degrees(facts["degree"]["counts"]),
        categories=_categories(facts),
        frequent=_frequent(facts),
        links=links[:LISTED],
        others=links[LISTED:TABLED],
        more=len(links[TABLED:]),
        machine=[*versions(), *machine()],
    )


def _degrees(counts: list[Mapping[str, int]]) -> charts.Chart:
    labels = [f"{each['lowest']:,}" + (f" to {each['highest']:,}" if each["highest"] > each["lowest"] else "") for each in counts]
    caption = "Entities by the number of training triples that they are in."
    return charts.counts_chart("Degrees", caption, labels, [each["entities"] for each in counts], None)


def _categories(facts: Mapping[str, Any]) -> list[Bar]:
    """The share of training triples of each category."""
    triples = sum(facts["category_triples"].values())
    made = []
    for name, count in facts["categories"].items():
        share = facts["category_triples"][name] / triples
        made.append(Bar(name, counted(count, "relation"), share, f"{share:.0%}"))
    return made


def _frequent(facts: Mapping[str, Any]) -> list[tuple[str, list[Bar]]]:
    """The relations of most training triples, in two halves with titles."""
    rows, triples = facts["frequent"], facts["splits"]["train"]["triples"]
    made = []
    for each in rows:
        below = f"{each['category']}, {each['triples']:,} triples"
        made.append(Bar(each["relation"], below, each["triples"] / rows[0]["triples"], f"{each['triples'] / triples:.1%}"))
    half = (len(made) + 1) // 2
    halves = [(f"1 to {half}", made[:half]), (f"{half + 1} to {len(made)}", made[half:])]
    return [part for part in halves if part[1]]
