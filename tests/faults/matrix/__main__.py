"""`make faults`: every fault of the matrix, one after another, as a table: what happened after it, when, and whether that is
what docs/reliability.md promises.

Two machines are two sshd on this host, with one server and one trainer each; where a case needs it they have network namespaces
or disks of their own, which takes root. Whatever a case leaves is ended. Exit code 1 when any is not as promised.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

import pytest
import torch
import zmq

import kgdist
from kgdist.base.machine import processor
from tests.faults.disks import Missing
from tests.faults.jobs import ROOT, workspace
from tests.faults.matrix import alone, places, processes, terminals
from tests.faults.matrix.trial import CASES, CLOSE, STEPS, Case, Never, T, Trial

RESULT = ROOT / "benchmarks" / "results" / "faults.md"
LOGS = ROOT / "build" / "faults"
LIMIT = 180.0  # seconds that a case may take in all
SCALE = {"entities": 2000, "relations": 10, "triples": 40000, "held_out": 0.05}
ORDER = [module.__name__ for module in (processes, places, terminals, alone)]  # the unfailed runs are first


class Hang(Exception):
    """A case took longer than any may."""


def attempt(found: Case, folder: Path, data: Path, slack: float, calm: dict[str, float]) -> tuple[Trial, str]:
    """Run a case; what it has found, and the verdict."""
    trial = Trial(folder, data, slack, calm.get("one" if found.name.startswith("one-") else "two"))

    def stop(number: int, frame: FrameType | None) -> None:
        raise Hang(f"not over within {LIMIT * min(slack, 2.0):.0f} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT * min(slack, 2.0))
    try:
        found.run(trial)
        verdict = "ok" if not trial.problems else "not ok"
    except (Missing, pytest.skip.Exception) as why:
        verdict = f"not run: {why}"
    except (Hang, Never) as why:
        trial.problems.append(str(why))
        verdict = "hang"
    except Exception as why:
        trial.problems.append(f"{type(why).__name__}: {why}"[:300])
        verdict = "not ok"
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return trial, verdict


def number(value: float | None, form: str = ".1f") -> str:
    """For the table."""
    return "" if value is None else format(value, form)


def cells(*texts: str) -> str:
    """A row of the table, or the beginning of one."""
    return "| " + " | ".join(text.replace("|", "\\|") for text in texts) + " |"


def row(found: Case, trial: Trial, verdict: str) -> str:
    """Of the table."""
    what = "; ".join([*([verdict] if verdict != "not ok" or not trial.problems else []), *trial.problems, *trial.notes])
    if trial.problems and verdict == "not ok":
        what = f"**not ok**: {what}"
    code = "" if trial.code is None else str(trial.code)
    return cells(
        found.event,
        found.contract,
        number(trial.seen),
        number(trial.again),
        number(trial.mrr, ".4f"),
        code,
        number(trial.gone),
        what,
    )


def report(rows: list[str], slack: float) -> str:
    """As markdown."""
    cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[2]
    machine = f"{processor()[0]}, {cores} cores, load average {load:.1f}, Linux {platform.release()}"
    versions = f"Python {platform.python_version()}, kgdist {kgdist.__version__}, torch {torch.__version__.split('+')[0]}"
    lines = [
        "# Faults",
        "",
        "Written by `make faults`, one run a case. Two machines over real ssh on this host, one",
        f"server and one trainer each ({STEPS:,} steps, a checkpoint every 400; 2,000 entities, 36,000 triples, TransE_l2),",
        f"`--peer_timeout` T = {T:g}; the cases of one machine: two worker processes. Seconds after the blow: *seen*, the first",
        "line that says so; *again*, the next line of training of all machines concerned, or the end where all is to end. MRR",
        f"of the test, within {CLOSE} of the unfailed run's. *gone*: seconds after the end until no process, shared memory,",
        "port, half-written checkpoint or temporary file was left.",
        *([f"On a busy machine: {slack:g} times the promised seconds were allowed."] if slack != 1 else []),
        "",
        "| event | promised | seen | again | MRR | exit | gone | verdict |",
        "|---|---|---:|---:|---:|---:|---:|---|",
        *rows,
        "",
        f"Machine: {machine}, {versions}, libzmq {zmq.zmq_version()}.",
    ]
    return "\n".join(lines) + "\n"


def merged(cases: list[Case], made: dict[str, str]) -> list[str]:
    """The rows of the table: those `made` now, by the names of their cases, and of other cases those that it has."""
    before = RESULT.read_text(encoding="utf-8").splitlines() if RESULT.exists() else []
    rows = []
    for found in cases:
        start = cells(found.event, found.contract)
        rows += [made[found.name]] if found.name in made else [old for old in before if old.startswith(start)]
    return rows


def main() -> int:
    """Run the cases; the exit code."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these cases alone; the rows of others stay as they are")
    parser.add_argument(
        "--slack", type=float, default=1.0, help="how much longer than promised things may take, on a busy machine"
    )
    parser.add_argument("--list", action="store_true", help="the names of all cases")
    options = parser.parse_args()
    cases = sorted(CASES, key=lambda found: ORDER.index(found.run.__module__))
    if options.list:
        print("\n".join(f"{found.name:24} {found.event}" for found in cases))
        return 0
    chosen = [found for found in cases if not options.only or any(re.fullmatch(name, found.name) for name in options.only)]
    if not chosen:
        parser.error("no case of that name; see --list")
    LOGS.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup the jobs would ignore it, too
    known = LOGS / "calm.json"
    calm: dict[str, float] = json.loads(known.read_text()) if known.exists() and options.only else {}
    rows, bad, begun = dict[str, str](), [], time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kgdist-faults-") as root:
        data = workspace(Path(root) / "toy", **SCALE) / "data"
        for count, found in enumerate(chosen):
            trial, verdict = attempt(found, Path(root) / str(count), data, options.slack, calm)
            if found.name.endswith("nothing") and trial.mrr is not None:
                calm["one" if found.name.startswith("one-") else "two"] = trial.mrr
                known.write_text(json.dumps(calm), encoding="utf-8")
            line = rows[found.name] = row(found, trial, verdict)
            (LOGS / f"{found.name}.log").write_text("\n".join([*trial.log, "", line, ""]), encoding="utf-8")
            print(f"{time.monotonic() - begun:5.0f} s  {found.name}: {line}", flush=True)
            if verdict != "ok" and not verdict.startswith("not run"):
                bad.append(found.name)
    RESULT.write_text(report(merged(cases, rows), options.slack), encoding="utf-8")
    print(f"not as promised: {', '.join(bad)}; what they printed is in {LOGS.relative_to(ROOT)}" if bad else "all as promised")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
