"""Trains the published rows and writes our figures beside them: `make bench-accuracy`.

Each row is one `kgdist-train --preset` on a built-in data set, run as a user would run it. Results are kept one JSON file a row
in benchmarks/results/accuracy/, so that rows can be run on different days; the table is made from all that are there.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
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
RESULTS = HERE / "results" / "accuracy"
ROWS = [
    ("FB15k", "TransE_l1"),
    ("FB15k", "TransE_l2"),
    ("FB15k", "DistMult"),
    ("FB15k", "ComplEx"),
    ("FB15k", "RotatE"),
    ("FB15k", "SimplE"),
    ("FB15k", "RESCAL"),
    ("FB15k", "TransR"),
    ("wn18", "DistMult"),
    ("wn18", "ComplEx"),
    ("wn18", "RotatE"),
    ("FB15k-237", "ComplEx"),
    ("FB15k-237", "RotatE"),
    ("FB15k-237", "PairRE"),
    ("wn18rr", "ComplEx"),
    ("wn18rr", "RotatE"),
]


def run(dataset: str, model: str, root: Path, processes: int, extra: list[str]) -> None:
    """Train one row and keep its result."""
    prepare(dataset, root)
    out = root / "runs" / f"{dataset}_{model}"
    shutil.rmtree(out, ignore_errors=True)
    arguments = ["--model_name", model, "--dataset", dataset, "--preset", "--num_proc", str(processes), "--test", *extra]
    command = ["kgdist-train", *arguments]
    print("$", " ".join(command), flush=True)
    started = time.time()
    places = ["--data_path", str(root), "--save_path", str(out), "--no_save_emb"]
    finished = subprocess.run(
        [sys.executable, "-m", "kgdist.cli.train", *arguments, *places], stdout=subprocess.PIPE, text=True, check=False
    )
    print("\n".join(line for line in finished.stdout.splitlines() if "[Train]" not in line and "sample:" not in line), flush=True)
    if finished.returncode:
        sys.exit(f"{' '.join(command)} ended with exit code {finished.returncode}")
    (folder,) = out.iterdir()
    metrics = json.loads((folder / "test.json").read_text())
    training = next(line for line in finished.stdout.splitlines() if line.startswith("training took"))
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_json(
        RESULTS / f"{dataset}_{model}.json",
        {
            "dataset": dataset,
            "model": model,
            "command": " ".join(command),
            "seconds": round(time.time() - started),
            "training": training,
            "all": metrics["all"],
            "machine": machine(),
            "kgdist": kgdist.__version__,
            "date": time.strftime("%Y-%m-%d"),
        },
    )


def table() -> str:
    """All results as markdown."""
    lines = [
        "# Accuracy: our figures beside the published ones",
        "",
        "Filtered ranks over all entities, both sides, test split. MRR is given with realistic and with pessimistic ties",
        "(DGL-KE's rule). Published: DGL-KE's documentation, one GPU, except where the note says otherwise; its rows of 2020",
        "were measured with a filter that let some known triples through. Written by `make bench-accuracy`, which keeps one",
        "JSON file a row.",
        "",
        "| data set | model | MRR | MRR pess. | MR | HITS@1 | HITS@3 | HITS@10 | published MRR / HITS@10 | training |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|---|",
    ]
    commands, machines = [], set()
    for dataset, model in ROWS:
        file = RESULTS / f"{dataset}_{model}.json"
        if not file.exists():
            continue
        row = json.loads(file.read_text())
        real, pess = row["all"]["realistic"], row["all"]["pessimistic"]
        goal = find(model, dataset).published
        published = f"{goal.mrr:g}" + (f" / {goal.hits10:g}" if goal.hits10 is not None else "") if goal else ""
        note = row.get("note", "")
        cells = [dataset, model, f"{real['mrr']:.3f}", f"{pess['mrr']:.3f}", f"{real['mr']:.1f}"]
        cells += [f"{real[key]:.3f}" for key in ("hits@1", "hits@3", "hits@10")]
        lines.append(
            "| "
            + " | ".join([*cells, published, row["training"].removeprefix("training took ") + (f"; {note}" if note else "")])
            + " |"
        )
        commands.append(f"- `{row['command']}`")
        machines.add(f"{row['machine']}, kgdist {row['kgdist']}")
    return "\n".join([*lines, "", "Commands:", "", *commands, "", "Machines: " + "; ".join(sorted(machines)) + ".", ""])


def main() -> None:
    """Run the rows named (all of them by default) and rewrite the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="rows such as FB15k/ComplEx; default: all that have no result yet")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="folder for data sets and runs")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--table", action="store_true", help="only rewrite the table")
    parser.add_argument("--extra", default="", help="more flags of kgdist-train")
    options = parser.parse_args()
    wanted = options.rows or [f"{d}/{m}" for d, m in ROWS if not (RESULTS / f"{d}_{m}.json").exists()]
    for name in [] if options.table else wanted:
        dataset, _, model = name.partition("/")
        run(dataset, model, options.data, options.processes, options.extra.split())
        (HERE / "results" / "accuracy.md").write_text(table(), encoding="utf-8")
    (HERE / "results" / "accuracy.md").write_text(table(), encoding="utf-8")


if __name__ == "__main__":
    main()
