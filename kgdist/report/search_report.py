"""report.html of a search: how it went, which options decided, and the command that trains with the best.

Everything is read from what the search keeps, so the page of an old one is the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from kgdist.options.config import Config
from kgdist.options.configfile import read_yaml
from kgdist.report import charts, page
from kgdist.report.charts import COLOURS, REST, Bar, Chart, Key
from kgdist.report.run_facts import command, machine, shown, versions
from kgdist.tuning.rounds import Done
from kgdist.tuning.space import Choices, Space
from kgdist.tuning.study import Row, best_of, importance
from kgdist.tuning.trials import SearchFolder

FILE = "report.html"
DRAWN = 200  # trials whose curves are drawn, the best ones
LISTED = 10  # trials that are seen at once
TABLED = 500  # trials of the page
FAILED = 3  # errors that are told


def write_search_report(folder: SearchFolder, base: Config, space: Space, found: Sequence[Done], *, whole: bool) -> Path:
    """Write the page of the rounds `found`, of which the last one is the search itself if the search is `whole`.

    Raises OptionError when the extra `viz` is missing, KgdistError when the file cannot be written.
    """
    charts.require("--report")
    best = best_of(found[-1].rows) if whole else None
    rows = [row for each in found for row in each.rows]
    failed = [row for row in rows if row.state == "failed"]
    notes = [f"Trial {row.number} failed: {row.error}" for row in failed[:FAILED]]
    notes += [f"{len(failed) - FAILED} more failed."] if len(failed) > FAILED else []
    parts = [_part(each, space, f"Round {number}" if len(found) > 1 else "Trials") for number, each in enumerate(found, 1)]
    path = folder.root / FILE
    page.write(
        path,
        "search.html",
        drawn=any(part["charts"] for part in parts),
        notes=notes,
        base=base,
        best=best,
        run=None if best is None else folder.run(best.number),
        config=folder.best,
        command=[] if best is None else [*command(Config(**read_yaml(folder.best, "train"))), "--test"],
        counts={state: sum(row.state == state for row in rows) for state in ("finished", "stopped", "failed", "unfinished")},
        trials=len(rows),
        space=[(name, _values(space[name])) for name in space],
        parts=parts,
        machine=[*versions(), *machine()],
    )
    return path


def _values(each: Any) -> str:
    if isinstance(each, Choices):
        return ", ".join(map(shown, each.values))
    return f"{shown(each.low)} to {shown(each.high)}" + (", evenly in the logarithm" if each.log else "")


def _part(done: Done, space: Space, title: str) -> dict[str, Any]:
    """What the page tells of one round."""
    told = [row for row in done.rows if row.mrr is not None]
    order = sorted(told, key=lambda row: (row.state != "finished", -(row.mrr or 0), row.number))
    decided = importance(told, space)
    drawn = [_history(told)] if len(told) > 1 else []
    drawn += [_curves(order)] if any(len(row.curve) > 1 for row in told) else []
    return {
        "title": title,
        "round": str(done.round),
        "charts": drawn,
        "decided": decided,
        "shares": [] if decided is None else [(name, _bars(found)) for name, found in decided.shares.items()],
        "slices": [_slice(name, space, told) for name in space] if len(told) > 1 else [],
        "options": list(space),
        "rows": [_cells(row, space) for row in order[:LISTED]],
        "others": [_cells(row, space) for row in order[LISTED:TABLED]],
    }


def _cells(row: Row, space: Space) -> tuple[int, float | None, str, list[str]]:
    values = [row.params.get(name) for name in space]
    return row.number, row.mrr, row.state, [f"{value:.4g}" if isinstance(value, float) else shown(value) for value in values]


def _bars(found: Mapping[str, float]) -> list[Bar]:
    return [Bar(name, "", share, f"{share:.0%}") for name, share in found.items()]


def _history(rows: Sequence[Row]) -> Chart:
    """The best MRR of each trial, and the best of those that had finished so far."""
    traces: list[dict[str, Any]] = []
    legend = []
    for state, colour, symbol in (("finished", 0, "circle"), ("stopped", REST, "circle-open"), ("unfinished", 3, "diamond-open")):
        if some := [row for row in rows if row.state == state]:
            traces.append(
                {
                    "type": "scatter",
                    "mode": "markers",
                    "x": [row.number for row in some],
                    "y": [row.mrr for row in some],
                    "name": state,
                    "hovertemplate": "trial %{x}: MRR %{y:.4f}<extra>%{fullData.name}</extra>",
                    "marker": {"size": 8, "symbol": symbol},
                    "meta": colour,
                }
            )
            legend.append(Key(state, (len(traces) - 1,), colour))
    ended = sorted((row for row in rows if row.state == "finished"), key=lambda row: row.number)
    if ended:
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": [row.number for row in ended],
                "y": list(accumulate((row.mrr or 0.0 for row in ended), max)),
                "name": "best so far",
                "line": {"shape": "hv", "width": 2},
                "hovertemplate": "MRR %{y:.4f}<extra>%{fullData.name}</extra>",
                "meta": 1,
            }
        )
        legend.append(Key("best so far", (len(traces) - 1,), 1))
    layout = {"xaxis": {"title": {"text": "trial"}}, "yaxis": {"title": {"text": "validation MRR"}}, "hovermode": "closest"}
    caption = "The best validation MRR of each trial; a trial that was stopped was behind the best third when it was."
    return Chart("History", caption, charts.figure(traces, layout), legend, 300)


def _curves(order: Sequence[Row]) -> Chart:
    """MRR over validations; the best trials in colours of their own, above the others."""
    drawn = order[:DRAWN]
    traces, legend = [], []
    for place, row in reversed(list(enumerate(drawn))):
        best = place < COLOURS
        traces.append(
            {
                "type": "scatter",
                "x": list(range(1, len(row.curve) + 1)),
                "y": list(row.curve),
                "name": f"trial {row.number}, {row.state}",
                "mode": "lines+markers" if best or len(row.curve) == 1 else "lines",
                "line": {"width": 2 if best else 1},
                "marker": {"size": 6 if best else 4},
                "opacity": 1.0 if best else 0.5,
                "hovertemplate": "validation %{x}: MRR %{y:.4f}<extra>%{fullData.name}</extra>",
                "meta": place if best else REST,
            }
        )
    last = len(drawn) - 1
    legend = [Key(f"trial {row.number}", (last - place,), place) for place, row in enumerate(drawn[:COLOURS])]
    if len(drawn) > COLOURS:
        legend.append(Key("others", tuple(range(last - COLOURS + 1)), REST))
    layout = {
        "xaxis": {"title": {"text": "validation"}, "dtick": 1 if max(len(row.curve) for row in drawn) <= 12 else None},
        "yaxis": {"title": {"text": "validation MRR"}},
        "hovermode": "closest",
    }
    caption = f"Validation MRR as each trial was trained; the best {COLOURS} have colours of their own."
    if len(order) > DRAWN:
        caption += f" {len(order) - DRAWN:,} more are not drawn."
    return Chart("Curves of the trials", caption, charts.figure(traces, layout), legend, 300)


def _slice(name: str, space: Space, rows: Sequence[Row]) -> Chart:
    """MRR over the values of one option."""
    each = space[name]
    some = [row for row in rows if name in row.params]
    axis: dict[str, Any] = {"title": {"text": name}}
    values: list[Any] = [row.params[name] for row in some]
    if isinstance(each, Choices):
        axis |= {"type": "category", "categoryorder": "array", "categoryarray": [shown(value) for value in each.values]}
        values = [shown(value) for value in values]
    elif each.log:
        axis |= {"type": "log", **charts.POWERS}
    traces = []
    for state, meta, symbol in ((True, 0, "circle"), (False, REST, "circle-open")):
        chosen = [place for place, row in enumerate(some) if (row.state == "finished") == state]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": [values[place] for place in chosen],
                "y": [some[place].mrr for place in chosen],
                "text": [f"trial {some[place].number}, {some[place].state}" for place in chosen],
                "hovertemplate": f"%{{text}}<br>{name} %{{x}}: MRR %{{y:.4f}}<extra></extra>",
                "marker": {"size": 7, "symbol": symbol},
                "meta": meta,
            }
        )
    layout = {"xaxis": axis, "yaxis": {"title": {"text": ""}}, "hovermode": "closest"}
    return Chart(name, "Validation MRR of each trial by its value.", charts.figure(traces, layout), (), 200)
