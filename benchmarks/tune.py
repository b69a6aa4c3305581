"""kgdist-tune over several seeds, beside another checkout's: `make bench-tune AGAINST=folder`.

The same search by each checkout in turn, every other seed the other way round: the wall time of the command, and the best MRR
that it found on the valid split. With one job, equal rules choose equal trials; searches of several jobs are not repeatable, and
only their medians can be compared.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import optuna
from roofs import machine

from kgdist.base.machine import usable_cores

HERE = Path(__file__).resolve().parent
BASE = "--dataset wordnet --model_name ComplEx --hidden_dim 100 --max_step 3000 --validations 9 --eval_percent 0.2"


class Found(NamedTuple):
    """What one search came to."""

    mrr: float
    seconds: float
    states: str


def search(checkout: Path, words: list[str], data: Path, out: Path) -> Found:
    """Run the command of a checkout, whose folder is `out`."""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "kgdist.cli.tune", *words, "--data_path", str(data), "--out", str(out), "--json"],
        stdout=subprocess.PIPE,
        cwd=checkout,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        timeout=6 * 3600,
        check=True,
    )
    found = json.loads(done.stdout)
    states = [row["state"] for row in found["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states)))
    return Found(found["best"]["mrr"], time.monotonic() - started, counts)


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path, help="folder of another checkout")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--jobs", type=int, nargs="+", default=sorted({1, usable_cores()}))
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--base", default=BASE, help="options of kgdist-tune")
    options = parser.parse_args()
    checkouts = {"this": HERE.parent} | ({"other": options.against.resolve()} if options.against else {})
    command = f"{options.base} --trials {options.trials}"
    rows: dict[tuple[int, str], list[Found]] = {(jobs, name): [] for jobs in options.jobs for name in checkouts}
    lines = ["| jobs | seed | checkout | best MRR | seconds | trials |", "|---:|---:|---|---:|---:|---|"]
    for seed in range(options.seeds):
        for jobs, name in list(rows)[:: -1 if seed % 2 else 1]:
            with tempfile.TemporaryDirectory() as folder:
                words = [*command.split(), "--jobs", str(jobs), "--seed", str(seed)]
                found = search(checkouts[name], words, options.data.resolve(), Path(folder) / "tune")
            rows[jobs, name].append(found)
            lines.append(f"| {jobs} | {seed} | {name} | {found.mrr:.4f} | {found.seconds:.0f} | {found.states} |")
            print(lines[-1], flush=True)
    for (jobs, name), each in rows.items():
        mrr, seconds = statistics.median(one.mrr for one in each), statistics.median(one.seconds for one in each)
        lines.append(f"| {jobs} | median | {name} | {mrr:.4f} | {seconds:.0f} | |")
    text = [
        "# Searches for options",
        "",
        f"Best MRR on the valid split and wall time of whole searches, {options.seeds} seeds, checkouts interleaved. Written by",
        "`make bench-tune`. Command:",
        "",
        f"`kgdist-tune {command} --jobs JOBS --seed SEED`",
        "",
        *lines,
        "",
        f"Machine: {machine()}, Optuna {optuna.__version__}.",
        "",
    ]
    (HERE / "results" / "tune.md").write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
