"""kgdist-tune in rounds on parts of the graph, beside random search with three times the time: `make bench-tune`.

First `kgdist-tune --rounds`, then trainings on the whole graph whose options are drawn independently from the same space, until
they have taken `--times` as long; the first trial of both has the options of the preset, if there is one. One process at a time
on both sides. An interrupted call goes on where it was, at the cost of the training that was under way.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from datasets import prepare
from roofs import machine

from kgdist.base.files import read_json, write_json
from kgdist.cli.tune import first_trial
from kgdist.data.dataset import open_dataset
from kgdist.report.run_facts import command
from kgdist.tuning.space import Choices, Range, Space
from kgdist.tuning.trials import SearchFolder, trial_config

HERE = Path(__file__).resolve().parent
BASE = "--dataset FB15k-237 --model_name ComplEx --hidden_dim 400 --max_step 10000"
VALIDATIONS = 9


def drawn(space: Space, rng: np.random.Generator) -> dict[str, Any]:
    """One value of each option, independently."""
    return {name: _drawn(each, rng) for name, each in space.items()}


def _drawn(each: Range | Choices, rng: np.random.Generator) -> Any:
    if isinstance(each, Choices):
        return each.values[int(rng.integers(len(each.values)))]
    low, high = (math.log(each.low), math.log(each.high)) if each.log else (each.low, each.high)
    value = float(rng.uniform(low, high))
    value = min(max(math.exp(value) if each.log else value, each.low), each.high)
    return round(value) if isinstance(each.low, int) and isinstance(each.high, int) else value


def rounds(words: list[str], out: Path, log: Path) -> None:
    """The search, which leaves the seconds of all its calls and what it found in `log`."""
    taken = read_json(log)["seconds"] if log.exists() else 0.0
    began = time.monotonic()
    whole = ["--out", str(out / "search"), "--jobs", "1", "--validations", str(VALIDATIONS), "--json", *words]
    done = subprocess.run([sys.executable, "-m", "kgdist.cli.tune", *whole], stdout=subprocess.PIPE, check=False)
    found = {"seconds": taken + time.monotonic() - began, "found": json.loads(done.stdout) if done.returncode == 0 else None}
    write_json(log, found)
    if done.returncode:
        sys.exit(done.returncode)


def trained(words: list[str], folder: Path) -> float | None:
    """The best MRR of a training on the valid split, None when it failed."""
    done = subprocess.run([sys.executable, "-m", "kgdist.cli.train", *words, "--quiet"], stdout=subprocess.DEVNULL, check=False)
    if done.returncode == 130:
        sys.exit(130)
    if done.returncode:
        return None
    (metrics,) = folder.glob("*/metrics.jsonl")
    told = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return max(each["mrr"] for each in told if each["kind"] == "valid")


def draws(out: Path, seconds: float, log: Path, seed: int) -> list[dict[str, Any]]:
    """Random search for so long; a line of `log` for each of its trainings."""
    asked = SearchFolder(out / "search").recall()
    assert asked is not None
    base, rng = asked.options, np.random.default_rng(seed)
    dataset = open_dataset(base)
    first = {name: value for name, value in first_trial(base).items() if name in asked.space}
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log.exists() else []
    number = 0
    while number < len(rows) or sum(row["seconds"] for row in rows) < seconds:
        params = drawn(asked.space, rng) | (first if number == 0 else {})
        if number == len(rows):
            folder = out / "random" / f"{number:04d}"
            shutil.rmtree(folder, ignore_errors=True)
            config = trial_config(base, params, triples=dataset.train, validations=VALIDATIONS, save_path=folder)
            began = time.monotonic()
            mrr = trained(shlex.split(" ".join(command(config)))[1:], folder)
            shutil.rmtree(folder, ignore_errors=True)
            rows.append({"mrr": mrr, "seconds": time.monotonic() - began, "params": params})
            with log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(f"random {number}: {rows[-1]}", flush=True)
        number += 1
    return rows


def main() -> None:
    """Search, draw, and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", default=BASE, help="options of kgdist-tune")
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--times", type=float, default=3.0, help="how much longer the random search takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--out", type=Path, help="folder of what was done so far; below --data when not given")
    parser.add_argument("--result", type=Path, default=HERE / "results" / "rounds.md")
    options = parser.parse_args()
    words = [*options.base.split(), "--trials", str(options.trials), "--rounds", str(options.rounds), "--seed", str(options.seed)]
    out: Path = options.out or options.data / "rounds"
    out.mkdir(parents=True, exist_ok=True)
    prepare(words[words.index("--dataset") + 1], options.data)
    log = out / "rounds.json"
    if not log.exists() or read_json(log)["found"] is None:
        rounds([*words, "--data_path", str(options.data.resolve())], out, log)
    search = read_json(log)
    rows = draws(out, options.times * search["seconds"], out / "random.jsonl", options.seed)
    reached = [row["mrr"] for row in rows if row["mrr"] is not None]
    counts = " + ".join(str(len(each["trials"])) for each in search["found"]["rounds"])
    text = [
        "# A search on parts of the graph, beside random search",
        "",
        "Best MRR on the valid split, and wall time with one process at a time. Written by `make bench-tune`. Command:",
        "",
        f"`kgdist-tune {shlex.join(words)} --jobs 1`",
        "",
        "| search | trials | best MRR | minutes |",
        "|---|---:|---:|---:|",
        f"| {options.rounds} rounds | {counts} | {search['found']['best']['mrr']:.4f} | {search['seconds'] / 60:.1f} |",
        f"| random, whole trainings | {len(rows)} | {max(reached, default=math.nan):.4f} "
        f"| {sum(row['seconds'] for row in rows) / 60:.1f} |",
        "",
        f"Machine: {machine()}, Optuna {optuna.__version__}.",
        "",
    ]
    options.result.write_text("\n".join(text), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
