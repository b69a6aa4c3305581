"""Training on several machines against one machine, at equal total steps: `make bench-dist-accuracy`.

Every machine is one server and one trainer on this host (`--backend local`), so the figures tell of accuracy, not of speed.
Ranks are over all entities, filtered. Rows are kept one JSON file each in benchmarks/results/dist_accuracy/, so that they can be
run on different days; the table is made from all that are there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from datasets import prepare
from roofs import machine

import kgdist
from kgdist.base.files import write_json
from kgdist.options.presets import find

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "dist_accuracy"
DATASET = "FB15k"
# The recipe of sampled softmax and N3 (the first row of best.md), with inverse relations and its 50 epochs of steps.
SOFTMAX = (
    "--loss_genre Softmax --reciprocal --optimizer adagrad --init normal --init_scale 1e-3 --regularizer n3 -rc 1e-3 --lr .1 "
    "--hidden_dim 400 --batch_size 1000 --neg_sample_size 1000"
)
# The published options, and others of ours: model, options, steps of all processes together.
RECIPES = {
    **{model: (model, "--preset", find(model, DATASET).steps) for model in ("TransE_l2", "ComplEx", "RotatE")},
    "ComplEx-softmax": ("ComplEx", SOFTMAX, 24_160),
}
# Machines, how the graph is partitioned, and options besides.
WAYS = {
    "one": (1, "", ()),
    "k2": (2, "metis", ("--negatives", "global")),
    "k2-random": (2, "random", ("--negatives", "global")),
    "k4": (4, "metis", ("--negatives", "global")),
    "k4-ahead": (4, "metis", ("--negatives", "global", "--pull_ahead", "4")),
    "k2-local": (2, "metis", ("--negatives", "local")),
    "k4-local": (4, "metis", ("--negatives", "local")),
}
PROCESSES = 2  # of the training on one machine


def partition(root: Path, parts: int, method: str) -> Path:
    """The data set in `parts` partitions, as a --data_path."""
    folder = root / f"k{parts}{'-random' * (method == 'random')}"
    if not (folder / DATASET / f"partition_{parts - 1}").exists():
        words = ["--dataset", DATASET, "--data_path", str(root), "-k", str(parts), "--method", method]
        words += ["--out", str(folder / DATASET)]
        call("partition", *words)
    return folder


def call(command: str, *words: str) -> str:
    """Run one of kgdist's commands; what it prints. Leaves with its error."""
    done = subprocess.run([sys.executable, "-m", f"kgdist.cli.{command}", *words], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"kgdist-{command} {' '.join(words)} ended with exit code {done.returncode}")
    return done.stdout


def machines(root: Path, count: int) -> Path:
    """An ip_config.txt of `count` machines on this host."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.randrange(10_000, 32_000, 2)  # outgoing connections are given none of these; the next one is for the agent
        with contextlib.suppress(OSError), socket.socket() as trial:
            trial.bind(("127.0.0.1", port))
            ports.append(port)
    file = root / f"ip_config_{count}.txt"
    file.write_text("".join(f"127.0.0.1 {port} 1\n" for port in ports))
    return file


def rate(printed: str, stretch: int) -> float:
    """Steps a second of all trainers together, told every `stretch` of them; without their first ones."""
    found: dict[str, list[float]] = {}
    for who, seconds in re.findall(r"^(.*?\[proc \d\])\[Train\] \d+ steps take ([\d.]+) seconds", printed, re.MULTILINE):
        found.setdefault(who, []).append(float(seconds))
    return sum(stretch / statistics.median(each[1:]) for each in found.values())


def train(recipe: str, way: str, root: Path, share: float) -> None:
    """One row, kept as JSON; `share` of the recipe's steps."""
    parts, method, besides = WAYS[way]
    model, options, every = RECIPES[recipe]
    steps = int(every * share) // (4 * PROCESSES) * (4 * PROCESSES)  # divisible by every number of trainers
    out = root / "dist_runs" / f"{recipe}_{way}"
    shutil.rmtree(out, ignore_errors=True)
    chosen = ["--model_name", model, "--dataset", DATASET, *options.split()]
    common = [*chosen, "--test", "--no_save_emb", "--save_path", str(out)]
    started = time.time()
    if parts == 1:
        words = ["--num_proc", str(PROCESSES), "--max_step", str(steps // PROCESSES)]
        text = call("train", *common, *words, "--data_path", str(root))
        command = "kgdist-train"
    else:
        words = ["--max_step", str(steps // parts), *besides]
        places = ["--backend", "local", "--ip_config", str(machines(root, parts)), "--path", str(root)]
        text = call("dist_train", *common, *words, *places, "--data_path", str(partition(root, parts, method)))
        command = "kgdist-dist-train"
    (folder,) = out.iterdir()
    metrics = json.loads((folder / "test.json").read_text())["all"]["realistic"]
    RESULTS.mkdir(parents=True, exist_ok=True)
    row = {
        "model": recipe,
        "way": way,
        "steps": steps,
        "command": f"{command} {' '.join(chosen)} --test {' '.join(words)}",
        "training": next(line for line in text.splitlines() if line.startswith("training took")).removeprefix("training took "),
        "seconds": round(time.time() - started),
        "metrics": metrics,
        "machine": machine(),
        "kgdist": kgdist.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }
    write_json(RESULTS / f"{recipe}_{way}.json", row)
    print(recipe, way, f"MRR {metrics['mrr']:.4f}", row["training"], flush=True)


def table() -> str:
    """All results as markdown."""
    lines = [
        "# Accuracy on several machines",
        "",
        f"{DATASET}, the published options and (ComplEx-softmax) sampled softmax with inverse relations and N3, at equal",
        f"total steps; filtered ranks over all entities, realistic ties. One machine: {PROCESSES} processes on shared memory.",
        "k machines: METIS partitions with even triples, or `random` ones, one server and one trainer each, all on this host.",
        "`global` draws negatives from all entities, `local` from the machine's own (as DGL-KE does).",
        "`ahead`: rows and updates of 4 steps travel together (`--pull_ahead 4`), `global`.",
        "Written by `make bench-dist-accuracy`.",
        "",
        "| model | steps | one | k = 2, global | k = 2, random | k = 4, global | k = 4, ahead | k = 2, local | k = 4, local |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    for model in RECIPES:
        found = {row["way"]: row for row in rows if row["model"] == model}
        if "one" not in found:
            continue
        base = found["one"]["metrics"]["mrr"]
        cells = [model, str(found["one"]["steps"]), f"{base:.4f}"]
        for way in WAYS:
            if way != "one":
                mrr = found[way]["metrics"]["mrr"] if way in found else None
                cells.append("" if mrr is None else f"{mrr:.4f} ({mrr - base:+.4f})")
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Commands (with `--backend local` and an ip_config.txt of loopback addresses):", ""]
    lines += [f"- {row['way']}: `{row['command']}`: {row['training']}" for row in rows]
    lines += ["", "Machines: " + "; ".join(sorted({f"{row['machine']}, kgdist {row['kgdist']}" for row in rows})) + ".", ""]
    return "\n".join(lines)


def main() -> None:
    """Run the rows named (RECIPE/WAY; all that have no result by default) and rewrite the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [f"{model}/{way}" for model in RECIPES for way in WAYS]
    parser.add_argument("rows", nargs="*", help=f"of {', '.join(every)}")
    parser.add_argument("--data", type=Path, default=Path("data"), help="folder of the data sets")
    parser.add_argument("--share", type=float, default=1.0, help="fraction of the steps")
    parser.add_argument("--table", action="store_true", help="only make the table anew")
    options = parser.parse_args()
    if not options.table:
        prepare(DATASET, options.data)
        for name in options.rows or every:
            model, way = name.split("/")
            if options.rows or not (RESULTS / f"{model}_{way}.json").exists():
                train(model, way, options.data.absolute(), options.share)
    text = table()
    (HERE / "results" / "dist_accuracy.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
