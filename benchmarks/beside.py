"""This checkout beside another one: `make bench-beside AGAINST=folder`.

Whole commands of each in turn, every other round the other way round: training, ranking, loading, two machines, how soon help is
there. Only ratios within a round mean anything on a machine that others share; the table has their medians and what lies around.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from datasets import prepare
from dist_accuracy import machines, rate
from dist_accuracy import partition as partitioned
from roofs import machine

HERE = Path(__file__).resolve().parent
DATASET = "FB15k"
STRETCH = 25  # steps between two looks at the clock


class Checkout:
    """One version of kgdist, and the data that it works on."""

    def __init__(self, folder: Path, data: Path) -> None:
        self.folder, self.data = folder, data

    def python(self, *words: str) -> str:
        """What a Python that finds this kgdist prints."""
        done = subprocess.run(
            [sys.executable, *words],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=1800,
            cwd=self.data,
            env=os.environ | {"PYTHONPATH": str(self.folder)},
        )
        return done.stdout

    def command(self, name: str, *words: str) -> str:
        """What a command prints."""
        return self.python("-m", f"kgdist.cli.{name}", *words)


def train(one: Checkout, model: str, workers: int, steps: int) -> float:
    """Steps a second on this machine."""
    with tempfile.TemporaryDirectory() as out:
        words = f"--model_name {model} --dataset {DATASET} --preset --max_step {steps} --log_interval {STRETCH} --no_save_emb"
        words += f" --num_proc {workers} --data_path {one.data} --save_path {out}"
        return rate(one.command("train", *words.split()), STRETCH)


def machines_two(one: Checkout, steps: int) -> float:
    """Steps a second of two machines on this host, a server and a trainer each."""
    with tempfile.TemporaryDirectory() as out:
        words = f"--model_name TransE_l2 --dataset {DATASET} --preset --max_step {steps} --log_interval {STRETCH} --no_save_emb"
        words += f" --backend local --path {out} --data_path {partitioned(one.data, 2)} --ip_config {machines(Path(out), 2)}"
        return rate(one.command("dist_train", *words.split()), STRETCH)


def rank(one: Checkout, model: str) -> float:
    """Evaluations a second: the whole test split by a run that has been trained for a moment."""
    with tempfile.TemporaryDirectory() as out:
        words = f"--model_name {model} --dataset {DATASET} --preset --max_step 20 --data_path {one.data} --save_path {out}"
        one.command("train", *words.split())
        (run,) = Path(out).iterdir()
        started = time.perf_counter()
        one.command("eval", str(run), "--data_path", str(one.data))
        return 1 / (time.perf_counter() - started)


LOAD = """
import sys, time
from kgdist.data.dataset import load_dataset
for folder in sys.argv[1:3]:
    started = time.perf_counter()
    load_dataset(path=folder, name=sys.argv[3])
print(time.perf_counter() - started)
"""


def load(one: Checkout) -> float:
    """Loads a second of the data set's text, into a cache of its own; the first, which also loads libraries, does not count."""
    with tempfile.TemporaryDirectory() as data:
        for number in "12":
            folder = Path(data) / number / DATASET
            folder.mkdir(parents=True)
            for file in filter(Path.is_file, (one.data / DATASET).iterdir()):
                shutil.copy(file, folder)
        return 1 / float(one.python("-c", LOAD, f"{data}/1", f"{data}/2", DATASET))


def start(one: Checkout, *words: str) -> float:
    """Starts a second; the median of several."""
    found = []
    for _ in range(7):
        started = time.perf_counter()
        one.python(*words)
        found.append(time.perf_counter() - started)
    return 1 / statistics.median(found)


def cases(steps: int) -> dict[str, Callable[[Checkout], float]]:
    """Name -> its figure a second."""
    rows: dict[str, Callable[[Checkout], float]] = {}
    for model, share in (
        ("TransE_l2", 1.0),
        ("DistMult", 1.0),
        ("ComplEx", 1.0),
        ("RotatE", 0.5),
        ("RESCAL", 0.5),
        ("TransR", 0.2),
    ):
        rows[f"train {model}"] = partial(train, model=model, workers=1, steps=max(3 * STRETCH, int(steps * share)))
    rows["train TransE_l2, 2 processes"] = partial(train, model="TransE_l2", workers=2, steps=steps)
    rows["two machines, TransE_l2"] = partial(machines_two, steps=steps)
    rows["rank TransE_l2"] = partial(rank, model="TransE_l2")
    rows["rank RotatE"] = partial(rank, model="RotatE")
    rows["load FB15k from text"] = load
    rows["kgdist-train --help"] = lambda one: start(one, "-m", "kgdist.cli.train", "--help")
    rows["import kgdist"] = lambda one: start(one, "-c", "import kgdist")
    return rows


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="rows; default: all")
    parser.add_argument("--against", type=Path, required=True, help="folder of another checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600, help="of each training")
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--save", type=Path, default=HERE / "results" / "beside.md")
    options = parser.parse_args()
    data = options.data.resolve()
    prepare(DATASET, data)
    ours, theirs = Checkout(HERE.parent, data), Checkout(options.against.resolve(), data)
    commit = subprocess.run(
        ["git", "-C", theirs.folder, "rev-parse", "--short", "HEAD"], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    ).stdout.strip()
    found: dict[str, list[tuple[float, float]]] = {
        name: [] for name in cases(options.steps) if name in options.names or not options.names
    }
    for number in range(options.rounds):
        for name, measure in cases(options.steps).items():
            if name in found:
                figures = {}
                for one in (ours, theirs)[:: -1 if number % 2 else 1]:
                    figures[one] = measure(one)
                found[name].append((figures[ours], figures[theirs]))
                print(name, json.dumps([round(each, 3) for each in found[name][-1]]), flush=True)
    lines = [
        "# This version beside another",
        "",
        f"Figures a second, of {commit} and of this version, {options.rounds} rounds in turn: medians, the median of the ratios",
        "within a round (above 1: faster now), and the least and the largest. Training in steps, ranking and loading in whole",
        "data sets (FB15k), starts in starts. Written by `make bench-beside`.",
        "",
        f"| | {commit} | now | ratio | from - to |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, pairs in found.items():
        ratios = sorted(now / then for now, then in pairs)
        now, then = (statistics.median(each) for each in zip(*pairs, strict=True))
        lines.append(
            f"| {name} | {then:.3g} | {now:.3g} | {statistics.median(ratios):.2f} | {ratios[0]:.2f} - {ratios[-1]:.2f} |"
        )
    text = "\n".join([*lines, "", f"Machine: {machine()}.", ""])
    options.save.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
