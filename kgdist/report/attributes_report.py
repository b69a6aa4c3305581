"""The page of a folder of attributes: who has which, in which intervals and words, what was missing or left out, and the time.

Everything but the time is read from the folder that was written, so the page shows what a training will find.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from kgdist.attributes.attribute_folder import Attributes, NodeAttributes, OnesOfRows
from kgdist.attributes.declaration import Attribute, Declaration
from kgdist.attributes.transforming import FITTED
from kgdist.base.files import PathLike, read_json
from kgdist.options.option import table
from kgdist.report import charts, page
from kgdist.report.charts import Bar, Chart
from kgdist.report.run_facts import machine, versions

BARS = 60  # intervals of a chart; more are put together
WORDS = 15  # words of a chart, the most frequent ones
PIECE = 1 << 22  # ones that are counted at a time


def write_attributes_report(
    path: PathLike, attributes: Attributes, declarations: Sequence[Declaration], times: Sequence[tuple[str, str]]
) -> None:
    """Write the page of `attributes`, which was made by `declarations`; `times` are its table of what took how long.

    Takes memory of one number for each interval and word. Raises OptionError when the extra `viz` is missing, CheckpointError for
    a folder that was changed, KgdistError when the file cannot be written.
    """
    charts.require("--report")
    types = [_node_type(attributes[each.node_type], each) for each in declarations]
    drawn = any(each["charts"] for each in types)
    made = [*versions(), *machine()]
    page.write(path, "attributes.html", drawn=drawn, notes=(), folder=attributes.folder, types=types, times=times, machine=made)


def _node_type(opened: NodeAttributes, declaration: Declaration) -> dict[str, Any]:
    """What the page tells of the entities of one type."""
    about = opened.about
    fitted = read_json(opened.folder / FITTED)
    bars, rows, drawn = [], [], list[Chart]()
    for attribute, each, fit in zip(declaration.attributes, about["attributes"], fitted, strict=True):
        share = each["present"] / max(about["entities"], 1)
        bars.append(Bar(each["name"], f"{each['kind']}, {each['present']:,} entities", share, f"{share:.0%}"))
        missing = about["entities"] - each["present"]
        rows.append(
            (each["name"], _settings(attribute), each["width"], each["present"], missing, each.get("nan"), each.get("unseen"))
        )
        column = opened[each["name"]]
        if isinstance(column, OnesOfRows):
            drawn.append(_chart(each, fit["state"], counts_of(column)))
    return {"name": declaration.node_type, "file": declaration.path, "about": about, "bars": bars, "rows": rows, "charts": drawn}


def _settings(attribute: Attribute) -> str:
    """The kind and the settings as words."""
    given = [(name, getattr(attribute.settings, name)) for name in table(type(attribute.settings))]
    return ", ".join([attribute.kind, *(f"{name} {value!r}" for name, value in given if value is not None)])


def counts_of(column: OnesOfRows) -> np.ndarray:
    """int64[width]: how many entities have a one in each column."""
    counts = np.zeros(column.width, np.int64)
    for start in range(0, len(column.indices), PIECE):
        counts += np.bincount(column.indices[start : start + PIECE], minlength=column.width)
    return counts


def _chart(about: Mapping[str, Any], state: Mapping[str, Any], counts: np.ndarray) -> Chart:
    """The entities of each interval or word."""
    name, width = about["name"], len(counts)
    if "edges" in state:
        step = -(-width // BARS)
        edges = [_edge(edge, about["kind"]) for edge in [*state["edges"][:-1:step], state["edges"][-1]]]
        labels = [f"{low} to {high}" for low, high in pairwise(edges)]
        caption = f"{width:,} intervals" + (f", {step} in each bar." if step > 1 else ".")
        sums = np.add.reduceat(counts, np.arange(0, width, step)).tolist()
        return charts.counts_chart(name, caption, labels, sums, f"{edges[0]} … {edges[-1]}")
    often = np.argsort(-counts, kind="stable")[:WORDS]
    caption = f"The {WORDS} most frequent of {width:,} words." if width > WORDS else f"{width:,} words."
    if about["kind"] == "multi" and about["present"]:
        caption += f" {about['ones'] / about['present']:.1f} of them an entity."
    return charts.counts_chart(name, caption, [state["words"][place] for place in often], counts[often].tolist(), None)


def _edge(value: float, kind: str) -> str:
    """An edge of intervals; dates are days since 1970-01-01."""
    return str(np.datetime64(0, "D") + np.timedelta64(int(np.floor(value)), "D")) if kind == "date" else f"{value:.6g}"
