"""Speed and memory of the likeliest answers: `make bench-predict`.

The ten best tails of (head, relation) pairs among all entities of a random table, on all cores and on one.
Measured in the same rounds: plain torch that sorts all scores, at its best batch size; torch's own topk; and the comparisons
alone, of the same queries in the same blocks on the same threads, without any selection. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from roofs import machine

from kgdist.base.types import RelationRows, Side
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import make_model
from kgdist.predict.engine import CANDIDATES, QUERIES, Predictor

HERE = Path(__file__).parent
K, RELATIONS = 10, 100
BATCHES = (1, 8, 64)  # of the sort
SHARES = {"DistMult": 1.0, "TransE_l2": 0.2, "TransE_l1": 0.03, "RotatE": 0.02}  # of the pairs: where a comparison is slow, few


class World:
    """A model with random tables, and pairs to ask."""

    def __init__(self, name: str, entities: int, dim: int, pairs: int) -> None:
        sizes = {"hidden_dim": dim, "entity_dim": dim, "relation_dim": dim // 2 if name == "RotatE" else dim}
        self.model, random = make_model(name, gamma=12.0, **sizes), torch.Generator().manual_seed(0)
        shapes = self.model.tables(entities, RELATIONS).items()
        rows = {table: torch.empty(shape).uniform_(-1, 1, generator=random) for table, shape in shapes}
        self.tables, self.entities = MemoryTables(rows, {}, "sgd"), entities
        rng = np.random.default_rng(0)
        self.heads, self.relations = rng.integers(0, entities, pairs), np.sort(rng.integers(0, RELATIONS, pairs))

    def ours(self, count: int, threads: int) -> np.ndarray:
        """int64[count,K]."""
        predictor = Predictor(self.model, self.tables, self.entities, RELATIONS, threads=threads)
        return predictor.top(Side.TAIL, self.heads[:count], self.relations[:count], K).ids

    def queries(self, count: int) -> torch.Tensor:
        """float32[count,Q]."""
        rows = self.tables.rows
        relation = RelationRows({"relation": rows["relation"]}, torch.from_numpy(self.relations[:count]))
        return self.model.queries(rows["entity"][torch.from_numpy(self.heads[:count])], relation, Side.TAIL)

    def scores(self, queries: torch.Tensor) -> torch.Tensor:
        """As one writes them first in torch."""
        table = self.tables.rows["entity"]
        return queries @ table.T if self.model.compare == "dot" else -torch.cdist(queries, table)

    def sort(self, count: int, batch: int) -> np.ndarray:
        """The same by sorting all scores: int64[count,K]."""
        parts = torch.split(self.queries(count), batch)
        return torch.cat([self.scores(part).sort(descending=True).indices[:, :K] for part in parts]).numpy()

    def topk(self, count: int, batch: int) -> np.ndarray:
        """The same by torch's topk of all scores: int64[count,K]."""
        return torch.cat([self.scores(part).topk(K).indices for part in torch.split(self.queries(count), batch)]).numpy()

    def alone(self, count: int, threads: int) -> None:
        """The comparisons of the same queries with the same blocks, and nothing else."""
        parts = iter(torch.split(self.queries(count), min(QUERIES, -(-count // threads))))
        blocks, lock = torch.split(self.tables.rows["entity"], CANDIDATES), threading.Lock()

        def work() -> None:
            torch.set_num_threads(1)
            while True:
                with lock:
                    part = next(parts, None)
                if part is None:
                    return
                for block in blocks:
                    self.model.comparator.order(part, block)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(600)


def rate(count: int, call: Callable[[], object]) -> float:
    """Queries/s."""
    started = time.perf_counter()
    call()
    return count / (time.perf_counter() - started)


def row(name: str, options: argparse.Namespace, threads: int, pairs: int) -> str:
    """A line of the table."""
    world = World(name, options.entities, options.dim, pairs)
    sample = min(pairs, options.sample) if world.model.compare in ("dot", "l2") else 0
    torch.set_num_threads(threads)
    world.ours(2, threads)  # loads the loops
    batches = {}
    if sample:
        assert (world.ours(sample, threads) == world.sort(sample, 16)).mean() > 0.999, "the twin finds something else"
        for kind in ("sort", "topk"):
            speeds = {min(sample, 2 * batch): batch for batch in BATCHES}
            rates = [(rate(count, partial(getattr(world, kind), count, batch)), batch) for count, batch in speeds.items()]
            batches[kind] = max(rates)[1]
    found: list[dict[str, float]] = []
    for _ in range(options.rounds):
        torch.set_num_threads(threads)
        speed = {kind: rate(sample, partial(getattr(world, kind), sample, batch)) for kind, batch in batches.items()}
        speed["alone"] = rate(pairs, partial(world.alone, pairs, threads))
        found.append(speed | {"ours": rate(pairs, partial(world.ours, pairs, threads))})
    median = {kind: statistics.median(each[kind] for each in found) for kind in found[0]}
    ratio = {kind: statistics.median(each["ours"] / each[kind] for each in found) for kind in median}
    twins = f"{ratio['sort']:.1f} | {ratio['topk']:.1f}" if sample else "- | -"
    line = f"| {name} | {threads} | {pairs:,} | {median['ours']:,.0f} | {twins} | {1 / ratio['alone']:.2f} |"
    print(line, flush=True)
    return line


def memory(pairs: int) -> str:
    """MiB that asking so many pairs adds, in a process of its own; on a small table, for it is many pairs that matter here."""
    command = [sys.executable, __file__, "--added", str(pairs)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout.split()[-1]


def added(pairs: int) -> None:
    """Print how much the peak of this process grows by the answers to so many pairs; 0 where the system does not tell."""
    status = Path("/proc/self/status")

    def now(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", status.read_text()) if status.exists() else None
        return int(found[1]) // 1024 if found else 0

    world = World("DistMult", 4000, 32, 1)
    predictor = Predictor(world.model, world.tables, world.entities, RELATIONS, threads=os.cpu_count() or 1)
    heads, relation, count = np.random.default_rng(0).integers(0, world.entities, pairs), np.array([3]), 0
    for block in predictor.best(heads[:2000], relation, None, K, each="head"):
        count -= len(block.heads)  # loads the loops
    before = now("VmRSS")
    for block in predictor.best(heads, relation, None, K, each="head"):
        count += len(block.heads)
    assert count == K * (pairs - 2000)
    print(now("VmHWM") - before)


def main() -> None:
    """Print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(SHARES))
    parser.add_argument("--entities", type=int, default=265_000)
    parser.add_argument("--dim", type=int, default=400)
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=32, help="pairs that plain torch sorts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--added", type=int, help="only the memory that asking so many pairs adds")
    options = parser.parse_args()
    if options.added:
        return added(options.added)
    cores, table = os.cpu_count() or 1, []
    for name in options.models:
        for threads in dict.fromkeys((cores, 1)):
            pairs = min(options.pairs, max(300, int(options.pairs * SHARES[name] * (1 if threads == cores else 0.1))))
            table.append(row(name, options, threads, pairs))
    many = (200_000, 800_000)
    held = ", ".join(f"{memory(pairs)} MiB for {pairs:,}" for pairs in many)
    lines = [
        "# Predicting",
        "",
        f"The {K} best tails of (head, relation) pairs among {options.entities:,} entities, random rows of {options.dim}",
        f"numbers, found exactly. Medians of {options.rounds} interleaved rounds. `sort` and `topk`: torch computes all scores",
        f"of a batch and sorts them, or takes its `topk`; {options.sample} pairs at the best of the batch sizes",
        f"{', '.join(map(str, BATCHES))}. The last column: the time beside that of the same comparisons (for DistMult, matrix",
        "products) alone, which find nothing.",
        "",
        "| model | threads | pairs | pairs/s | times `sort` | times `topk` | time of comparing alone |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *table,
        "",
        f"Memory that it adds to a process on {cores} threads, while answers are read block by block, of a table of 4,000",
        f"entities: {held} pairs.",
        "",
        f"Command: `make bench-predict`. Machine: {machine()}.",
        "",
    ]
    text = "\n".join(lines)
    (HERE / "results" / "predict.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
