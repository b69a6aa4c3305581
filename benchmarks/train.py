"""Training speed of one process and of several, run in turn: `make bench-train`.

Every figure is a whole `kgdist-train` on FB15k (or on `wordnet`, which ships with kgdist, where FB15k is not at hand); medians of
interleaved runs, so that a machine that slows down slows both down. Steps are those after the process has started.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from datasets import prepare

HERE = Path(__file__).parent
OPTIONS = {
    "TransE_l2": "--hidden_dim 400 --gamma 19.9 --lr .25 -rc 1e-9",
    "TransE_l1": "--hidden_dim 400 --gamma 16 --lr .01 -rc 1e-7",
    "DistMult": "--hidden_dim 400 --gamma 143 --lr .08",
    "ComplEx": "--hidden_dim 400 --gamma 143 --lr .1",
    "SimplE": "--hidden_dim 400 --gamma 143 --lr .1",
    "RotatE": "--hidden_dim 200 -de --gamma 12 --lr .009 -rc 1e-7",
    "RESCAL": "--hidden_dim 100 --gamma 24 --lr .03",
    "TransR": "--hidden_dim 100 --gamma 8 --lr .015 -rc 5e-8",
}
STEPS = {"RESCAL": 200, "TransR": 60, "RotatE": 400, "TransE_l1": 600}


def once(dataset: str, model: str, processes: int, steps: int, data: Path) -> tuple[float, int]:
    """(triples/s, peak MiB) of one training."""
    with tempfile.TemporaryDirectory() as folder:
        command = f"--dataset {dataset} --model_name {model} {OPTIONS[model]} -adv --batch_size 1000 --neg_sample_size 200"
        command += f" --num_proc {processes} --max_step {steps} --no_save_emb"
        run = subprocess.run(
            [sys.executable, "-m", "kgdist.cli.train", *command.split(), "--data_path", str(data), "--save_path", folder],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
        )
    speed = re.search(r"triples, ([\d,]+) triples/s", run.stdout)
    memory = re.search(r"peak memory: (\d+) MiB", run.stdout)
    assert speed is not None and memory is not None
    return float(speed[1].replace(",", "")), int(memory[1])


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(OPTIONS))
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    dataset = "FB15k" if prepare("FB15k", options.data) else "wordnet"
    several = options.processes
    lines = [
        "# Training speed",
        "",
        f"Positive triples per second on {dataset}, batches of 1000 with 200 negatives, dim 400 (RESCAL and TransR 100, RotatE",
        f"200 complex); medians of {options.rounds} interleaved runs. Written by `make bench-train`.",
        "",
        f"| model | 1 process | {several} processes | ratio | peak memory, 1 / {several} processes |",
        "|---|---:|---:|---:|---:|",
    ]
    for model in options.models:
        results: dict[int, list[tuple[float, int]]] = {1: [], several: []}
        for _ in range(options.rounds):
            for processes, found in results.items():
                found.append(once(dataset, model, processes, STEPS.get(model, 1000), options.data))
        one, many = (statistics.median(speed for speed, _ in found) for found in results.values())
        ratio = statistics.median(b / a for (a, _), (b, _) in zip(*results.values(), strict=True))
        memory = " / ".join(f"{max(mib for _, mib in found)} MiB" for found in results.values())
        lines.append(f"| {model} | {one:,.0f} | {many:,.0f} | {ratio:.2f} | {memory} |")
        print(lines[-1], flush=True)
    versions = f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}"
    machine = f"{os.cpu_count()} cores, {platform.machine()}, {versions}"
    text = "\n".join([*lines, "", f"Machine: {machine}.", ""])
    (HERE / "results" / "train.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
