"""Training speed on GPUs beside all cores of the CPU: `make bench-gpu`. Ends with one line where there is no GPU.

Every figure is a whole `kgdist-train` on the graph of benchmarks/train.py: tables on the GPU, tables in CPU memory with pinned
copies (--mix_cpu_gpu), the same with --async_update, products in bfloat16, and one process on each GPU.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from dataclasses import replace
from pathlib import Path

import torch
from roofs import machine
from train import BATCH, ROWS, Row, graph, once

HERE = Path(__file__).parent
WAYS = {
    "on the GPU": "--gpu 0",
    "bfloat16": "--gpu 0 --compute_dtype bfloat16",
    "rows from the CPU": "--gpu 0 --mix_cpu_gpu",
    "updates beside it": "--gpu 0 --mix_cpu_gpu --async_update",
}
NO_PRODUCTS = ("TransE_l1", "RotatE", "TransR")


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="default: all")
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each training")
    parser.add_argument("--entities", type=int, default=700_000)
    options = parser.parse_args()
    gpus, cores = torch.cuda.device_count(), os.cpu_count() or 1
    if not gpus:
        sys.exit("bench-gpu: torch finds no GPU here, so there is nothing to measure")
    ways: dict[str, tuple[str, int]] = {f"{cores} cores": ("", cores)} | {name: (flags, 1) for name, flags in WAYS.items()}
    if gpus > 1:
        ways[f"{gpus} GPUs"] = ("--mix_cpu_gpu --gpu " + " ".join(map(str, range(gpus))), gpus)
    lines = [
        "# Training speed on GPUs",
        "",
        f"Positive triples per second of all processes, batches of {BATCH}, as benchmarks/results/train.md says; medians of",
        f"{options.rounds} interleaved runs. Written by `make bench-gpu`.",
        "",
        "| model | " + " | ".join(ways) + " |",
        "|---|" + "---:|" * len(ways),
    ]
    rows = [row for row in ROWS if not row.extra and (not options.models or row.model in options.models)]
    for row in rows:
        folder, rates = graph(options.data, options.entities * 400 // row.dim), {name: list[float]() for name in ways}
        for _ in range(options.rounds):
            for name, (flags, workers) in ways.items():
                if name == "bfloat16" and row.model in NO_PRODUCTS:
                    continue
                changed: Row = replace(row, extra=flags)
                rates[name].append(once(changed, folder, workers, seconds=options.seconds).rate)
        cells = (f"{statistics.median(each):,.0f}" if each else "" for each in rates.values())
        lines.append(f"| {row.model} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(gpus))
    text = "\n".join([*lines, "", f"GPUs: {names}. Machine: {machine()}.", ""])
    (HERE / "results" / "gpu.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
