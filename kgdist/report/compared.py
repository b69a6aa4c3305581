"""Several runs on one page: the tables of kgdist.report.compare, and their curves in one picture each."""

from __future__ import annotations

import time

from kgdist.base.files import PathLike
from kgdist.report import charts
from kgdist.report.compare import RESULTS, Comparison, cell
from kgdist.report.markup import Child, Markup, el, short, table
from kgdist.report.page import Page, colour, section

TITLES = {"mrr": "MRR", "mr": "MR", "hits@1": "HITS@1", "hits@3": "HITS@3", "hits@10": "HITS@10", "amri": "AMRI"}
HIDDEN = tuple(RESULTS.index(name) + 1 for name in ("hits@3", "amri", "valid mrr", "triples/s", "seconds"))


def write_page(found: Comparison, path: PathLike) -> None:
    """Write the file. Raises OptionError when Plotly is missing, KgdistError when it cannot be written."""
    charts.require("--output")
    sets = sorted({folder.config.dataset for folder in found.folders})
    page = Page(f"{len(found.names)} runs on {', '.join(sets)}")
    page.add(el("header", el("h1", page.title)))
    body: list[Child] = [el("p", note, class_="note") for note in found.notes]
    body.append(section("Results", el("div", _results(found), class_="card scroll"), anchor="results"))
    if found.options:
        head = ["run", *found.options]
        rows = [[_name(found, place), *(short(values[place]) for values in found.options.values())] for place in _places(found)]
        options: Child = el("div", table(head, rows, class_="words"), class_="card scroll")
    else:
        options = el("p", "All options are the same.", class_="caption")
    body.append(section("Options that differ", options, anchor="options"))
    curves = [page.chart(chart) for chart in _curves(found)]
    if curves:
        body.append(section("Curves", el("div", curves, class_="grid three"), anchor="curves"))
    page.add(el("main", body))
    page.add(
        el(
            "footer",
            el("p", f"Made by kgdist on {time.strftime('%Y-%m-%d %H:%M')}. This file is whole in itself: it loads nothing."),
        )
    )
    page.write(path)


def _places(found: Comparison) -> range:
    return range(len(found.names))


def _name(found: Comparison, place: int) -> Markup:
    """The name of a run with the colour of its curves."""
    return el("span", short(found.names[place], 60), class_="dot", style=f"--colour: {colour(place)}")


def _results(found: Comparison) -> Markup:
    def marked(column: str, value: float | None) -> Child:
        text = cell(column, value)
        return el("span", text, class_="best") if value is not None and value == found.best.get(column) else text

    rows = [
        [_name(found, place), *(marked(column, values[place]) for column, values in found.results.items())]
        for place in _places(found)
    ]
    return table(["run", *(TITLES.get(name, name) for name in RESULTS)], rows, hidden=HIDDEN)


def _curves(found: Comparison) -> list[charts.Chart]:
    several = any(folder.config.num_proc > 1 for folder in found.folders)
    made = []
    for title, caption, kind, key, zero in (
        ("Loss", "Of a step, mean since the point before.", "train", "loss", False),
        ("Validation MRR", "Of the valid split; higher is better.", "valid", "mrr", False),
        ("Throughput", "Positive triples per second.", "train", "triples_per_second", True),
    ):
        lines = [(name, folder.curves.get(kind, []), key) for name, folder in zip(found.names, found.folders, strict=True)]
        made.append(charts.curves(title, caption, lines, x="step of each process" if several else "step", zero=zero))
    return [chart for chart in made if chart is not None]
