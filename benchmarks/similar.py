"""Speed and memory of kgdist-emb-sim over all pairs: `make bench-emb-sim`.

Random float32 embeddings, as many as wn18 has entities, 400 wide. The ten most similar of all pairs (`--format *`), and of each
one (`--exec_mode batch_left`), by each function, on all cores. In the same rounds, the comparisons alone: the same products or
distances without looking at any. Medians of the rounds. Memory is what one search adds to a process of its own at its peak.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from roofs import machine

from kgdist.base.machine import usable_cores
from kgdist.predict.similar import LEFT, MEASURES, RIGHT, Measure, SimilarSearch

HERE = Path(__file__).parent
K = 10


def embeddings(rows: int, dim: int) -> torch.Tensor:
    """float32[rows,dim]."""
    return torch.from_numpy(np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32))


def alone(measure: Measure, threads: int, *, half: bool) -> None:
    """Every block of comparisons of a search, and nothing else."""
    starts, lock = iter(range(0, len(measure), LEFT)), threading.Lock()

    def work() -> None:
        torch.set_num_threads(1)
        while True:
            with lock:
                start = next(starts, None)
            if start is None:
                return
            left = measure.seen(slice(start, start + LEFT))
            for first in range(start if half else 0, len(measure), RIGHT):
                measure.comparator.order(left.rows, measure.seen(slice(first, first + RIGHT)).rows)

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)


def seconds(call: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def row(name: str, rows: int, dim: int, threads: int, rounds: int) -> str:
    """A line of the table."""
    measure = MEASURES[name](embeddings(rows, dim))
    search = SimilarSearch(measure, threads=threads)
    search.best(np.arange(9), None, K)  # loads the loops
    found = []
    for _ in range(rounds):
        found.append(
            {
                "all": seconds(lambda: search.best(None, None, K)),
                "alone": seconds(lambda: alone(measure, threads, half=True)),
                "each": seconds(lambda: sum(len(part.left) for part in search.best_of_each(None, None, K))),
            }
        )
    median = {kind: statistics.median(each[kind] for each in found) for kind in found[0]}
    ratio = statistics.median(each["all"] / each["alone"] for each in found)
    command = [sys.executable, __file__, "--peak", name, "--rows", str(rows), "--dim", str(dim)]
    added = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.strip()
    line = f"| {name} | {median['all']:.1f} | {ratio:.2f} | {median['each']:.1f} | {added} |"
    print(line, flush=True)
    return line


def peak(name: str, rows: int, dim: int) -> None:
    """Print how many MiB the search adds to a process that has the embeddings and has searched in a few of them (Linux)."""
    search = SimilarSearch(MEASURES[name](embeddings(rows, dim)), threads=usable_cores())
    search.best(np.arange(9), None, K)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what there is
    search.best(None, None, K)
    print(status("VmHWM") - before)


def status(field: str) -> int:
    """MiB."""
    return int(Path("/proc/self/status").read_text().split(f"{field}:")[1].split()[0]) // 1024


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=40943)
    parser.add_argument("--dim", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--functions", nargs="+", default=list(MEASURES), choices=list(MEASURES))
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        return peak(options.peak, options.rows, options.dim)
    threads = usable_cores()
    lines = [
        f"# The most similar of all pairs of {options.rows:,} embeddings, dim {options.dim}",
        "",
        f"Command: `make bench-emb-sim`: the {K} best, {threads} threads, medians of {options.rounds} rounds. Alone: the same",
        f"comparisons without looking at any. MiB: what the search adds to the process. Machine: {machine()}.",
        "",
        "| function | `*`: seconds | / alone | `*` `batch_left`: seconds | `*`: MiB |",
        "|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    lines += [row(name, options.rows, options.dim, threads, options.rounds) for name in options.functions]
    (HERE / "results" / "emb_sim.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
