"""Several runs side by side, as a table: metrics, speed, and the options in which they differ.

It reads what the runs have written and ranks nothing. A run that has no metrics keeps its row, with blanks. Cells are plain
values; how they look on a terminal, in a file or on a page is decided at the end of this file.
"""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError, OptionError, UsageError, counted
from kgdist.base.files import PathLike
from kgdist.base.log import log
from kgdist.base.text_table import TextTable
from kgdist.evaluation.ranks import METRICS, in_order
from kgdist.options.config import OPTIONS
from kgdist.options.option import closest
from kgdist.report import charts, page
from kgdist.report.run_facts import RunFacts, read, shown
from kgdist.report.standings import Standing, columns_of, standings

OTHERS = ("valid mrr", "triples/s", "seconds")
CLASSIFIED = "accuracy"  # of triple classification, where a run has it
SMALLER = ("mr", "median", "seconds")  # columns of which less is better
UNSHOWN = ("model_path", "save_path", "resume", "config", "preset", "report", "tensorboard")  # say nothing about a run's quality


@dataclass(frozen=True)
class Comparison:
    """The runs in order, and what is said of each."""

    folders: list[RunFacts]
    names: list[str]  # distinct
    results: dict[str, list[float | None]]  # by column, the metrics before OTHERS; of each run
    options: dict[str, list[str]]  # those that differ, as one types them
    best: dict[str, float]  # by column; empty where runs do not compare
    notes: list[str]
    metric: str = "mrr"  # by which runs are held against one another
    standings: list[Standing] = field(default_factory=list)  # of each run; empty where runs do not compare


def compare(paths: Sequence[str | Path], sort: str = "mrr") -> Comparison:
    """Read the runs in `paths`, each the folder of a run or one that holds runs, and put them in the order of a column.

    Raises UsageError for no runs at all, CheckpointError for a folder that neither is a run nor holds one, OptionError for no
    such column.
    """
    folders = [read(path) for path in _runs(paths)]
    names = _names(folders)
    values = {name: [shown(getattr(folder.config, name)) for folder in folders] for name in OPTIONS if _tells(name)}
    differing = {name: column for name, column in values.items() if len(set(column)) > 1}
    rows = [_results(folder) for folder in folders]
    classified = [CLASSIFIED] * any(CLASSIFIED in row for row in rows)
    columns = [*in_order([*METRICS, *(name for row in rows for name in row if name != CLASSIFIED)]), *classified, *OTHERS]
    order = _order(sort, columns, names, rows, differing, folders)
    results = {column: [rows[place].get(column) for place in order] for column in columns}
    sets = {folder.config.dataset for folder in folders}
    notes = [f"{name}: {note}" for folder, name in zip(folders, names, strict=True) for note in folder.notes]
    if untested := [folder for folder in folders if folder.test is None]:
        notes += _asked_for("no test metrics yet", untested)
    rules = {_rules(folder) for folder in folders if folder.test is not None}
    digests = {folder.digest for folder in folders if folder.digest}
    if len(sets) > 1:
        notes.append(f"different data sets ({', '.join(sorted(sets))}): no value is marked as the best")
    elif len(digests) > 1:
        notes.append(f"{counted(len(digests), 'data set')} of one name ({min(sets)}): no value is marked as the best")
    elif len(rules) > 1:
        notes.append(f"ranked under different rules ({'; '.join(sorted(rules))}): no value is marked as the best")
    alike = len(sets) == 1 and len(digests) <= 1 and len(rules) <= 1
    best = _best(results) if alike else {}
    if CLASSIFIED in best and len({_classified(folder) for folder in folders} - {()}) > 1:
        del best[CLASSIFIED]
        notes.append("triples were classified beside different negatives: no accuracy is marked as the best")
    metric = sort.lower() if sort.lower() in results and sort.lower().startswith("hits@") else "mrr"
    ordered = [folders[place] for place in order]
    standing, lacking, apart = standings(ordered, results[metric], metric) if alike else ([], [], [])
    if lacking:
        notes += _asked_for("no ranks to tell runs apart by", lacking)
    if apart:
        others = ", ".join(folder.path.name for folder in apart)
        notes.append(f"tested on different triples ({others} on others than the best): no value is marked as the best")
        best = {}
    return Comparison(
        ordered,
        [names[place] for place in order],
        results,
        {name: [column[place] for place in order] for name, column in differing.items()},
        best,
        notes,
        metric,
        standing,
    )


def _asked_for(missing: str, folders: Sequence[RunFacts]) -> list[str]:
    """What to do about runs that lack what kgdist-eval writes: those whose embeddings were not saved it cannot rank."""
    found = []
    for saved in (True, False):
        if asked := [folder for folder in folders if folder.config.no_save_emb is not saved]:
            first, others = asked[0], f" and {counted(len(asked) - 1, 'other run')}" if len(asked) > 1 else ""
            again = f"run kgdist-eval {first.path}{others and ', ...'}"
            hint = again if saved else "trained with --no_save_emb, so there is nothing to rank: train again without"
            found.append(f"{missing}: {first.path.name}{others}; {hint}")
    return found


def _runs(paths: Sequence[str | Path]) -> list[Path]:
    """The run folders, each once, in the order given."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        inside = sorted(file.parent for file in path.glob("*/config.json")) if path.is_dir() else []
        if (path / "config.json").exists() or not inside:
            found.setdefault(path.resolve(), path)  # if it is no run, `read` says so
            continue
        for run in inside:
            try:
                read(run)
            except CheckpointError as error:
                log.warning("%s; it is left out", error)
                continue
            found.setdefault(run.resolve(), run)
    if not found:
        raise UsageError("no runs to compare; name the folders of some, or one that holds them, such as ckpts")
    return list(found.values())


def _names(folders: Sequence[RunFacts]) -> list[str]:
    """The folders' names, with as many folders above as it takes to tell them apart."""
    for depth in range(1, 8):
        names = ["/".join(folder.path.absolute().parts[-depth:]) for folder in folders]
        if len(set(names)) == len(names):
            return names
    return [str(folder.path) for folder in folders]


def _tells(name: str) -> bool:
    return OPTIONS[name].sticky and name not in UNSHOWN and {"train", "dist-train"} & set(OPTIONS[name].commands) != set()


def _results(folder: RunFacts) -> dict[str, float | None]:
    others = {"valid mrr": folder.best_valid, "triples/s": folder.speed, "seconds": folder.seconds}
    accuracy = folder.classification.get("accuracy")
    classified = {CLASSIFIED: accuracy} if isinstance(accuracy, float) else {}
    return {**(folder.metrics() or {}), **classified, **others}


def _classified(folder: RunFacts) -> tuple[Any, ...]:
    """What the accuracy of a run depends on besides the model; () where it has none."""
    found = folder.classification
    return tuple(found.get(name) for name in ("negatives", "count", "true")) if found else ()


def _rules(folder: RunFacts) -> str:
    """Under which rules a run was ranked, as far as figures depend on them."""
    found = folder.test.get("protocol") if folder.test is not None else None
    rules = found if isinstance(found, dict) else {}
    pool = f"among {rules['sampled']} entities" if rules.get("sampled") else "among all entities"
    part = "" if rules.get("fraction", 1) == 1 else f", {rules['fraction']} of the split"
    return f"{'filtered' if rules.get('filter') else 'raw'} {pool}{part}"


def _order(
    sort: str,
    columns: Sequence[str],
    names: Sequence[str],
    rows: Sequence[dict[str, Any]],
    options: dict[str, list[str]],
    folders: Sequence[RunFacts],
) -> list[int]:
    column = sort.lower()
    places = range(len(rows))
    if column == "run":
        return sorted(places, key=lambda place: names[place])
    if column in columns:
        sign = 1 if column in SMALLER else -1
        return sorted(places, key=lambda place: ((value := rows[place].get(column)) is None, sign * (value or 0)))
    if column in options:
        return sorted(
            places, key=lambda place: (getattr(folders[place].config, column) is None, _sortable(folders[place], column))
        )
    if column in OPTIONS and _tells(column):
        raise OptionError("--sort", f"{column} is the same in all of these runs, or shown in none")
    near = closest(column, [*columns, "run", *options])
    hint = f"did you mean {near!r}?" if near else f"there are run, {', '.join(columns)} and the options that differ"
    raise OptionError("--sort", f"no such column: {sort[:60]!r}; {hint}")


def _sortable(folder: RunFacts, name: str) -> tuple[float, str]:
    value = getattr(folder.config, name)
    return (float(value), "") if isinstance(value, int | float) else (0.0, str(value))


def _best(results: dict[str, list[float | None]]) -> dict[str, float]:
    """The best of every column in which there are at least two different values."""
    found = {}
    for column, values in results.items():
        there = {value for value in values if value is not None}
        if len(there) > 1:
            found[column] = min(there) if column in SMALLER else max(there)
    return found


# ---------------------------------------------------------------------------------------------------------------- as text
def cell(column: str, value: float | None) -> str:
    """A result as a reader wants it."""
    if value is None:
        return ""
    return f"{value:.1f}" if column in SMALLER else f"{value:,.0f}" if column == "triples/s" else f"{value:.4f}"


def terminal(found: Comparison, stream: Any) -> list[str]:
    """Lines for a person: the results, with a star at the best of each column, then the options that differ."""

    def table(columns: dict[str, list[str]]) -> list[str]:
        return TextTable(["run", *columns], stream).lines([found.names, *columns.values()])

    starred = {
        column: [
            cell(column, value) + ("*" if value is not None and value == found.best.get(column) else " ") for value in values
        ]
        for column, values in found.results.items()
        if any(value is not None for value in values)
    }
    aligned = {column: [text.rjust(max(map(len, cells))) for text in cells] for column, cells in starred.items()}
    lines = table(aligned) if aligned else []
    if found.options:
        lines += ["", *table(found.options)]
    elif len(found.names) > 1:
        lines += ["", "all options are the same"]
    return [*lines, "", *table(columns_of(found.standings, found.names, found.metric))] if found.standings else lines


def as_json(found: Comparison) -> dict[str, Any]:
    """All of it as plain values."""
    return {
        "runs": [
            {
                "run": found.names[place],
                "path": str(folder.path),
                "results": {column: values[place] for column, values in found.results.items()},
                "options": {name: getattr(folder.config, name) for name in found.options},
                **({"standing": found.standings[place].as_json(found.metric)} if found.standings else {}),
            }
            for place, folder in enumerate(found.folders)
        ],
        "best": found.best,
        "notes": found.notes,
    }


def write_text(found: Comparison, kind: str) -> str:
    """The content of a file of the kind tsv, json or md."""
    if kind == "json":
        return json.dumps(as_json(found), indent=2, ensure_ascii=False) + "\n"
    out = io.StringIO()
    if kind == "tsv":
        plain = {column: ["" if value is None else repr(value) for value in values] for column, values in found.results.items()}
        for row in _rows(found.names, {**plain, **found.options}):
            out.write("\t".join(text.replace("\t", " ").replace("\n", " ") for text in row) + "\n")
        return out.getvalue()
    marked = {
        column: [f"**{cell(column, value)}**" if value is not None and value == found.best.get(column) else cell(column, value)
                 for value in values]
        for column, values in found.results.items()
    }  # fmt: skip
    _table(out, _rows(found.names, {**marked, **found.options}), len(found.results))
    if found.standings:
        out.write("\n")
        _table(out, _rows(found.names, columns_of(found.standings, found.names, found.metric)))
    for note in found.notes:
        out.write(f"\n{note}\n")
    return out.getvalue()


def _table(out: io.StringIO, rows: Sequence[tuple[str, ...]], numbers: int = 0) -> None:
    """A table of Markdown; so many columns after the first are of numbers."""
    for number, row in enumerate(rows):
        out.write("| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |\n")
        if number == 0:
            out.write("|---" + "|---:" * numbers + "|---" * (len(row) - 1 - numbers) + "|\n")


def _rows(names: Sequence[str], columns: dict[str, list[str]]) -> list[tuple[str, ...]]:
    return [("run", *columns), *zip(names, *columns.values(), strict=True)]


# -------------------------------------------------------------------------------------------------------------- as a page
def write_page(found: Comparison, path: PathLike) -> None:
    """Write the page: tables, and the runs' curves in one picture each. Raises OptionError when the extra `viz` is missing,
    KgdistError when the file cannot be written."""
    charts.require("--output")
    sets = sorted({folder.config.dataset for folder in found.folders})
    curves = _curves(found)
    facts = {
        "found": found,
        "shown": {
            name: column for name, column in found.results.items() if name in METRICS or any(x is not None for x in column)
        },
        "notes": found.notes,
        "sets": sets,
        "metrics": in_order(found.results),
        "cell": cell,
        "curves": curves,
        "standing": columns_of(found.standings, found.names, found.metric) if found.standings else {},
    }
    page.write(path, "compare.html", drawn=bool(curves), **facts)


def _legend(found: Comparison) -> list[str]:
    """What curves are called: by the one or two options that tell the runs apart, or else by the runs."""
    told = [", ".join(f"{name} {value}" for name, value in zip(found.options, values, strict=True))
            for values in zip(*found.options.values(), strict=True)]  # fmt: skip
    return told if len(found.options) <= 2 and len(set(told)) == len(found.names) > 1 else found.names


def _curves(found: Comparison) -> list[charts.Chart]:
    several = any(folder.config.num_proc > 1 for folder in found.folders)
    made = []
    for title, caption, kind, key, zero in (
        ("Loss", "Of a step, mean since the previous point.", "train", "loss", False),
        ("Validation MRR", "Of the valid split; higher is better.", "valid", "mrr", False),
        ("Throughput", "Triples per second, each once in an epoch.", "train", "triples_per_second", True),
    ):
        lines = [(name, folder.curves.get(kind, []), key) for name, folder in zip(_legend(found), found.folders, strict=True)]
        made.append(charts.curves(title, caption, lines, x="step of each process" if several else "step", zero=zero))
    return [chart for chart in made if chart is not None]
