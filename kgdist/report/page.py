"""One self-contained HTML file: a page's style, script and charts, and the library that draws them, all inside.

It knows no run. The library is packed (a page is 2 MB and not 5), and browsers unpack it.
"""

from __future__ import annotations

import base64
import functools
import gzip
from pathlib import Path

from kgdist.base.files import PathLike, atomic_write
from kgdist.report.charts import COLOURS, Chart
from kgdist.report.markup import Child, Markup, el, short, text

TEMPLATES = Path(__file__).parent / "templates"


class Page:
    """Collects what stands in the page; `write` makes the file."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.body: list[Markup] = []
        self.figures: list[str] = []

    def add(self, *parts: Markup | None) -> None:
        """The next parts of the page."""
        self.body += [part for part in parts if part is not None]

    def chart(self, chart: Chart) -> Markup:
        """A card with the chart, its caption and its legend."""
        figure = f"figure{len(self.figures)}"
        self.figures.append(chart.figure)
        buttons = [
            el(
                "li",
                el(
                    "button",
                    short(key.name, 48),
                    type="button",
                    aria_pressed="true",
                    data_figure=figure,
                    data_traces=" ".join(map(str, key.traces)),
                    style=f"--colour: {colour(key.colour)}",
                ),
            )
            for key in chart.legend
        ]
        return el(
            "section",
            el("h3", chart.title),
            el("p", chart.caption, class_="caption"),
            el(
                "div",
                el("div", "Drawing …", class_="empty"),
                class_="chart",
                data_figure=figure,
                data_height=str(chart.height),
                style=f"height: {chart.height}px",
                role="img",
                aria_label=f"{chart.title}: {chart.caption}",
            ),
            el("ul", buttons, class_="legend") if len(buttons) > 1 else None,
            class_="card",
        )

    def write(self, path: PathLike) -> None:
        """Write the file, whole or not at all. Raises KgdistError when it cannot be written."""
        with atomic_write(path) as file:
            for piece in self._pieces():
                file.write(piece.encode("utf-8", "replace"))

    def _pieces(self) -> list[str]:
        head = el(
            "head",
            el("meta", charset="utf-8"),
            el("meta", name="viewport", content="width=device-width, initial-scale=1"),
            # Nothing may be fetched, whatever a name in the graph might ask for.
            el("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; img-src data: blob:; " + _INLINE),
            el("title", self.title),
            el("style", Markup((TEMPLATES / "page.css").read_text(encoding="utf-8"))),
        )
        figures = [_data(f"figure{number}", json) for number, json in enumerate(self.figures)]
        library = [el("script", Markup(_library()), type="text/plain", id="library")] if self.figures else []
        script = el("script", Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")))
        quiet = el("noscript", el("p", "The charts need JavaScript; the tables do not.", class_="note"))
        body = el("body", quiet, self.body, figures, library, script)
        return ["<!doctype html>\n", el("html", head, body, lang="en"), "\n"]


_INLINE = "style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


def _data(name: str, json: str) -> Markup:
    """JSON inside of a page: with no < in it, nothing in it can end the element or begin another."""
    return el("script", Markup(json.replace("<", "\\u003c")), type="application/json", id=name)


@functools.cache
def _library() -> str:
    from plotly.offline import get_plotlyjs

    return base64.b64encode(gzip.compress(get_plotlyjs().encode(), 9, mtime=0)).decode()


def colour(number: int | str) -> str:
    """A colour of the page, for a style."""
    return f"var(--c{number % COLOURS})" if isinstance(number, int) else f"var(--{number})"


def section(title: str, *parts: Child, anchor: str) -> Markup:
    """A part of the page under a heading."""
    return el("section", el("h2", title), Markup(text(parts)), id=anchor)
