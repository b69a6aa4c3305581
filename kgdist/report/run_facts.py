"""What a run folder says without its embeddings: options and the command that repeats it, curves, metrics, versions and machine.

It opens no data set and computes nothing.

Anything but config.json may be missing or damaged; what could not be used is said in `notes`.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kgdist.base.errors import CheckpointError
from kgdist.base.files import PathLike, read_json
from kgdist.base.machine import processor, usable_cores
from kgdist.evaluation.ranks import Ties, in_order
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import DIGEST
from kgdist.options.option import Option, words_of
from kgdist.options.resolve import meant
from kgdist.runs.checkpoint import encoded_from
from kgdist.runs.rundir import open_run
from kgdist.runtime.doctor import version_of
from kgdist.version import __version__

FEW = 10  # queries below which a relation's MRR says little
POINTS = 1000  # of a curve, at most: a screen has no more columns
Row = Mapping[str, Any]


class RelationMetrics(NamedTuple):
    """How well one relation is ranked."""

    name: str
    queries: int
    metrics: Mapping[str, float]

    @property
    def mrr(self) -> float:
        """The one that is always there."""
        return self.metrics["mrr"]


@dataclass(frozen=True)
class RunFacts:
    """One run, as its files tell."""

    path: Path
    config: Config
    curves: Mapping[str, list[Row]]  # "train" | "valid" | "test" -> at most POINTS rows of metrics.jsonl, by step
    test: Mapping[str, Any] | None  # test.json
    notes: tuple[str, ...]
    seconds: float | None = None  # of the steps that count, all sessions together; no validations, checkpoints and pauses
    triples: float | None = None  # trained in that time
    digest: str | None = None  # of the data that it was trained on
    encoded: Mapping[str, Any] | None = None  # of a run that kgdist-encode has made: see kgdist.runs.checkpoint.encoded_from

    @property
    def name(self) -> str:
        """The name of the folder."""
        return self.path.absolute().name

    @property
    def began(self) -> float | None:
        """When the first row of metrics.jsonl was written, in seconds since 1970."""
        return min((row["time"] for rows in self.curves.values() for row in rows if "time" in row), default=None)

    @property
    def speed(self) -> float | None:
        """Triples per second of all steps that count, each once in an epoch."""
        return self.triples / self.seconds if self.seconds and self.triples else None

    def metrics(self, ties: Ties = Ties.REALISTIC) -> dict[str, float] | None:
        """The test metrics under a policy, those that are there; None when there are none."""
        return numbers(self.test["all"][ties.value]) if self.test is not None else None

    @property
    def classification(self) -> Mapping[str, Any]:
        """What triple classification has found; empty where that was not asked for."""
        found = self.test.get("classification") if self.test is not None else None
        return found if isinstance(found, dict) else {}

    @property
    def best_valid(self) -> float | None:
        """The highest MRR of the validations."""
        return max((row["mrr"] for row in self.curves.get("valid", ()) if "mrr" in row), default=None)


def read(path: PathLike) -> RunFacts:
    """Read the folder. Raises CheckpointError when it is none of a run."""
    run, notes = open_run(Path(path)), []
    curves, bad = _curves(run.path / "metrics.jsonl")
    if bad:
        notes.append(f"metrics.jsonl: {bad} line{'s' * (bad > 1)} cannot be read and {'are' if bad > 1 else 'is'} left out")
    test = None
    if (run.path / "test.json").exists():
        try:
            test = _report(run.path / "test.json")
        except CheckpointError as error:
            notes.append(f"test.json: {str(error).partition(': ')[2]}")
    spans = [(row["seconds"], row.get("triples_per_second", 0)) for row in curves.get("train", ()) if "seconds" in row]
    return RunFacts(
        run.path,
        run.config,
        {kind: _thinned(rows) for kind, rows in curves.items()},
        test,
        tuple(notes),
        seconds=sum(seconds for seconds, _ in spans) if spans else None,
        triples=sum(seconds * rate for seconds, rate in spans) if spans else None,
        digest=read_json(run.path / "config.json").get(DIGEST),
        encoded=encoded_from(run.path),
    )


def numbers(row: Any) -> dict[str, float]:
    """The metrics of a part of a report that are finite numbers."""
    return {name: float(row[name]) for name in in_order(row) if _finite(row[name])} if isinstance(row, Mapping) else {}


def relations(report: Any) -> dict[int, RelationMetrics]:
    """The relations of a report by id, those that have an MRR."""
    parts = report.get("relations") if isinstance(report, Mapping) else None
    found = {}
    for key, part in parts.items() if isinstance(parts, Mapping) else ():
        row, count = numbers(part), part.get("count") if isinstance(part, Mapping) else None
        if key.isdecimal() and "mrr" in row and isinstance(count, int):
            found[int(key)] = RelationMetrics(str(part.get("name", key)), count, row)
    return found


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _report(path: Path) -> Mapping[str, Any]:
    """A report of kgdist.evaluation.evaluator. Raises CheckpointError for something else, such as metrics that another program
    wrote."""
    report = read_json(path)
    every = report.get("all") if isinstance(report, dict) else None
    if not isinstance(every, dict) or not all("mrr" in numbers(every.get(ties.value)) for ties in Ties):
        raise CheckpointError(f"{path}: not the metrics that kgdist-eval saves")
    return dict(report)


def _curves(path: Path) -> tuple[dict[str, list[Row]], int]:
    """Rows by kind, and the number of lines that are none.

    A run that was resumed from an earlier step has written some steps twice; the later row counts.
    """
    curves: dict[str, list[Row]] = {}
    bad = 0
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                row = _row(line)
                if row is None:
                    bad += 1
                    continue
                rows = curves.setdefault(row["kind"], [])
                while rows and rows[-1]["step"] >= row["step"]:
                    rows.pop()
                rows.append(row)
    except OSError:
        return {}, 0  # a run of DGL-KE, or one that has not begun
    return curves, bad


def _row(line: str) -> dict[str, Any] | None:
    """The finite numbers of a line, and its kind."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str) or not _finite(row.get("step")):
        return None
    return {key: value for key, value in row.items() if key == "kind" or _finite(value)}


def _thinned(rows: list[Row]) -> list[Row]:
    """At most POINTS of the rows, evenly, with the first and the last."""
    if len(rows) <= POINTS:
        return rows
    return [rows[round(number * (len(rows) - 1) / (POINTS - 1))] for number in range(POINTS)]


STANDS_ON = ("torch", "numpy", "numba", "pyarrow", "pyzmq", "plotly")
_HIDDEN = ("model_path", "resume", "config", "preset")  # about an invocation, or another command


def shown(value: Any) -> str:
    """The value of an option as one would type it."""
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "tab" if value == "\t" else f"{value:.12g}" if isinstance(value, float) else str(value)


def command_of(config: Config) -> str:
    """The command that trained it: kgdist-dist-train for what several machines trained."""
    return "dist-train" if config.num_client_proc is not None else "train"


def options(config: Config) -> tuple[list[tuple[str, str, str]], list[tuple[str, str]]]:
    """(name, value, default) of the options that differ from their defaults, then (name, value) of the others."""
    changed, same = [], []
    for name, row in OPTIONS.items():
        if not _repeated(config, row):
            continue
        value = _typed(config, name)
        if value == row.default:
            same.append((name, shown(row.default)))
        else:
            changed.append((name, shown(value), shown(row.default)))
    return changed, same


def command(config: Config) -> list[str]:
    """A command line that trains the same again, from the current folder: the command, then each flag with its values."""
    parts, said = [f"kgdist-{command_of(config)}"], meant(config)
    for name, row in OPTIONS.items():
        value = _typed(config, name)
        if (value == row.default and name not in said) or not _repeated(config, row):
            continue
        values = [] if row.kind is bool else words_of(value)
        parts.append(shlex.join([row.flag if value is not False else f"{row.flag}=false", *values]))
    return parts


def _repeated(config: Config, row: Option) -> bool:
    """Whether who trains the same again needs the option: a model of one's own comes from its file, which no run brings."""
    return command_of(config) in row.commands and row.name not in _HIDDEN and (row.made_again or row.name == "model_file")


def _typed(config: Config, name: str) -> Any:
    """The value of an option, as one would type it from the current folder."""
    value = getattr(config, name)
    return _near(value) if name in ("data_path", "model_file") and value is not None else value


def _near(path: str) -> str:
    """Relative to the current folder, if it is in there: config.json has absolute folders."""
    here = os.path.relpath(path) if Path(path).is_absolute() else path
    return path if here.startswith("..") else here


def versions() -> list[tuple[str, str]]:
    """kgdist, Python and the libraries, those that are there."""
    libraries = [(name, version) for name in STANDS_ON if (version := version_of(name)) is not None]
    return [("kgdist", __version__), ("Python", platform.python_version()), *libraries]


def machine() -> list[tuple[str, str]]:
    """This machine; that it is the one of the training is for the caller to know."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    cores = usable_cores()
    return [
        ("processor", processor()[0]),
        ("cores", f"{cores} to use, {os.cpu_count()} in all"),
        ("memory", f"{memory / 2**30:.0f} GiB"),
        ("system", f"{platform.system()} {platform.release()}"),
    ]
