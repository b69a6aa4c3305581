"""Numbers to figures of Plotly: what is drawn, without colours and without a page around it.

The page's script gives the colours, so that they follow the reader's light or dark; a trace's `meta` is the number of its own.
Names go in escaped, for Plotly reads a little HTML in its texts.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kgdist.base.errors import OptionError
from kgdist.report.run_facts import Row

if TYPE_CHECKING:
    from kgdist.report.facts import Picture

SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "star", "triangle-down", "circle")
DASHES = ("solid", "dash", "dot", "dashdot")
FEW = 400  # points that can be drawn larger
NAMED, HALF = 24, 11  # letters of a name beside an axis; of a longer one as many of its beginning and of its end
REST = "rest"  # the colour of what has none of its own
COLOURS = 7  # of the page; then they begin again, with other dashes
SPREAD = 20  # times the smallest value: from there on an axis is logarithmic
POWERS = {"dtick": 1, "tickformat": "~g"}  # ticks of a logarithmic axis: 0.1, 1, 10


def require(flag: str) -> None:
    """Raise OptionError, for `flag`, when what pages are made with is not installed."""
    try:
        import jinja2  # noqa: F401
        import plotly  # noqa: F401
    except ImportError as error:
        raise OptionError(flag, f"needs a package that is not there ({error}); pip install 'kgdist[viz]'") from error


class Key(NamedTuple):
    """A line of the legend, which the page writes."""

    name: str
    traces: Sequence[int]  # that it switches on and off
    colour: int | str  # its number, or REST


@dataclass(frozen=True)
class Chart:
    """A figure, what it is called and what it shows."""

    title: str
    caption: str
    figure: Mapping[str, Any]  # as Plotly reads it
    legend: Sequence[Key]
    height: int = 260


class Bar(NamedTuple):
    """A line of names with bars, which the page draws without Plotly."""

    name: str
    below: str
    part: float  # of 1
    shown: str


def curves(
    title: str, caption: str, lines: Sequence[tuple[str, Sequence[Row], str]], *, x: str, zero: bool = False
) -> Chart | None:
    """Lines over steps: (name, rows of metrics.jsonl, the key in them); None when no row has its key."""
    traces: list[dict[str, Any]] = []
    names: list[Key] = []
    for number, (name, rows, key) in enumerate(lines):
        points = [(row["step"], row[key]) for row in rows if key in row]
        if not points:
            continue
        steps, values = zip(*points, strict=True)
        traces.append(
            {
                "type": "scatter",
                "x": list(steps),
                "y": list(values),
                "name": escaped(name),
                "mode": "lines+markers" if len(points) < 30 else "lines",
                "line": {"width": 2, "dash": DASHES[number // COLOURS % len(DASHES)]},
                "hovertemplate": "%{y:.6~g}<extra>%{fullData.name}</extra>",
                "meta": number,
            }
        )
        names.append(Key(name, (len(traces) - 1,), number))
    if not traces:
        return None
    layout = {"xaxis": {"title": {"text": x}}, "yaxis": {"title": {"text": ""}, **_scale(traces, zero)}, "hovermode": "x unified"}
    return Chart(title, caption, figure(traces, layout), names)


def _scale(traces: Sequence[Mapping[str, Any]], zero: bool) -> dict[str, Any]:
    """From 0 where that is the honest axis; logarithmic where the values of a curve go through orders of magnitude."""
    if zero:
        return {"rangemode": "tozero"}
    values = [value for trace in traces for value in trace["y"]]
    return {"type": "log", **POWERS} if min(values) > 0 and max(values) > SPREAD * min(values) else {}


def category_chart(parts: Sequence[tuple[str, float | None, float | None]]) -> Chart:
    """MRR of each part (name, of heads, of tails) as pairs of bars, the first part on top."""
    traces = [
        {
            "type": "bar",
            "orientation": "h",
            "y": [escaped(name) for name, *_ in parts],
            "x": [part[side + 1] for part in parts],
            "name": name,
            "meta": side,
            "hovertemplate": "%{y}, %{fullData.name}: MRR %{x:.4f}<extra></extra>",
        }
        for side, name in enumerate(("heads", "tails"))
    ]
    layout = {
        "xaxis": {"title": {"text": "MRR"}, "rangemode": "tozero"},
        "yaxis": {"title": {"text": ""}, "autorange": "reversed"},
        "bargap": 0.35,
        "bargroupgap": 0.08,
    }
    legend = [Key("heads asked for", (0,), 0), Key("tails asked for", (1,), 1)]
    caption = "The end of the triple that was asked for, and how many partners a relation's heads and tails have."
    return Chart("By side and category", caption, figure(traces, layout), legend, 90 + 50 * len(parts))


def counts_chart(title: str, caption: str, labels: Sequence[str], counts: Sequence[int], ends: str | None) -> Chart:
    """How many entities each label has, as bars: side by side, with `ends` below them, or, without it, below one another."""
    names, places = [escaped(label) for label in labels], list(range(len(labels)))
    near = {"title": {"text": "entities"}, "rangemode": "tozero"}
    if ends is None:
        trace = {"orientation": "h", "y": places, "x": list(counts), "hovertemplate": "%{text}: %{x:,}<extra></extra>"}
        short = [escaped(label if len(label) <= NAMED else f"{label[:HALF]}…{label[-HALF:]}") for label in labels]
        ticks = {"tickvals": places, "ticktext": short, "title": {"text": ""}, "autorange": "reversed"}
        layout = {"xaxis": near, "yaxis": ticks, "bargap": 0.3}
    else:  # labels would not fit: a pointer shows them
        trace = {"x": places, "y": list(counts), "hovertemplate": "%{text}: %{y:,}<extra></extra>"}
        ticks = {"showticklabels": False, "title": {"text": escaped(ends)}}
        layout = {"xaxis": ticks, "yaxis": near, "bargap": 0.08}
    height = 70 + 24 * len(labels) if ends is None else 220
    traces = [{"type": "bar", "text": names, "textposition": "none", "meta": 0, **trace}]
    return Chart(title, caption, figure(traces, layout), (), height)


def degree_chart(bins: Sequence[Mapping[str, float]], queries: int) -> Chart:
    """Quartiles of the rank over the degree, both logarithmic."""
    middle = [(part["lowest"] * part["highest"]) ** 0.5 if part["highest"] else 0.5 for part in bins]
    labels = [
        f"{part['lowest']:.0f}" + (f" to {part['highest']:.0f}" if part["highest"] > part["lowest"] else "") for part in bins
    ]
    starts = [f"{part['lowest']:.0f}" if part["lowest"] < 1024 else f"{part['lowest'] / 1024:.0f}k" for part in bins]
    hover = [
        f"in {label} training triples<br>median rank {part['median']:,.1f}<br>quartiles {part['low']:,.1f} to {part['high']:,.1f}"
        f"<br>MRR {part['mrr']:.3f}<br>{part['queries']:,.0f} queries"
        for label, part in zip(labels, bins, strict=True)
    ]
    line = {"type": "scatter", "x": middle, "hoverinfo": "skip"}
    traces = [
        {**line, "y": [part["median"] for part in bins], "mode": "lines+markers", "name": "median", "hoverinfo": "text",
         "text": hover, "line": {"width": 2.5}, "meta": 0, "marker": {"size": 8}},
        {**line, "y": [part["low"] for part in bins], "mode": "lines", "line": {"width": 0}, "meta": 0},
        {**line, "y": [part["high"] for part in bins], "mode": "lines", "line": {"width": 0}, "fill": "tonexty", "meta": 0},
    ]  # fmt: skip
    ticks = {"tickvals": middle, "ticktext": starts, "tickangle": 0, "title": {"text": "training triples of the entity, from …"}}
    worst = math.log10(max((part["high"] for part in bins), default=1.0))
    ticks_of_ranks = {"dtick": 1 if worst > 1.5 else "D2", "tickformat": "~s"}
    ranks = {"type": "log", **ticks_of_ranks, "title": {"text": "rank"}, "range": [worst + 0.1, -0.1]}
    caption = (
        "The rank of the true entity (1 is best, on top) by the number of training triples that it is in: the median, and the "
        f"half of the queries around it. {queries:,} queries."
    )
    return Chart("Degree against rank", caption, figure(traces, {"xaxis": {"type": "log", **ticks}, "yaxis": ranks}), (), 420)


def picture_chart(picture: Picture) -> Chart:
    """Entities as points."""
    traces, names = [], []
    for number, group in enumerate(picture.groups):
        hover = [
            f"{escaped(name[:80])}<br>{degree:,} training triple{'s' * (degree != 1)}"
            for name, degree in zip(group.names, group.degrees.tolist(), strict=True)
        ]
        label = f"{group.end} {group.name}".strip()
        rest = not group.end
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": np.round(group.places[:, 0], 4),
                "y": np.round(group.places[:, 1], 4),
                "text": hover,
                "hoverinfo": "text",
                "name": escaped(label),
                "meta": REST if rest else number,
                "marker": {
                    "size": 4.5 if picture.points > FEW else 8,
                    "opacity": 0.4 if rest else 0.75,
                    "symbol": SYMBOLS[number % len(SYMBOLS)],
                },
            }
        )
        names.append(Key(label, (number,), REST if rest else number))
    bare = {"showticklabels": False, "showgrid": False, "title": {"text": ""}, "zeroline": False}
    layout = {"xaxis": bare, "yaxis": {**bare, "scaleanchor": "x"}, "hovermode": "closest", "meta": "map"}
    drawn = f"All {picture.points:,}" if picture.points == picture.entities else f"{picture.points:,} of {picture.entities:,}"
    caption = (
        f"{drawn} entities by the first two principal components, {picture.explained:.0%} of the variance, coloured by the "
        "relation that they are in most often. Drag to zoom, double-click to go back."
    )
    return Chart("Entities", caption, figure(traces, layout), names, 420)


def figure(traces: Sequence[Mapping[str, Any]], layout: Mapping[str, Any]) -> Mapping[str, Any]:
    """What Plotly has checked: a wrong property is an error here, not an empty chart there."""
    import plotly.graph_objects as go

    made = go.Figure(data=list(traces), layout={"template": "none", "showlegend": False, **layout})
    made.layout.template = None
    return dict(json.loads(made.to_json()))


def escaped(name: str) -> str:
    """A name in a text of Plotly's, which knows &lt; and &amp; but no quotes."""
    return html.escape(name, quote=False)
