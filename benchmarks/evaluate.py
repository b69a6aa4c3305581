"""Speed and memory of filtered ranking: `make bench-eval`.

Both ends of test triples of FB15k (of `wordnet`, which ships with kgdist, where FB15k is not at hand) are ranked among all
entities, with embeddings as they were drawn and after a light training, on one thread and on all cores. Measured in the same
rounds: the twin that one writes first in torch, and what matrix products reach without any ranking. Medians of the rounds.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from datasets import prepare
from roofs import machine

from kgdist.base.types import RelationRows
from kgdist.data.dataset import Dataset, open_dataset
from kgdist.data.known import KnownTriples
from kgdist.evaluation.candidates import not_rivals
from kgdist.evaluation.evaluator import evaluate
from kgdist.evaluation.ranks import SIDES, Ranks
from kgdist.kernels.gemm import linear
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import model_of
from kgdist.runs import rundir

HERE = Path(__file__).parent
P, N = 1000, 1024  # queries and candidates of one product


@dataclass(frozen=True)
class Setup:
    """One model."""

    options: str
    steps: int = 400  # of a light training
    twin: int = 4000  # queries that the twin ranks: a sample where it is slow


MODELS = {
    "DistMult": Setup("--hidden_dim 400 --gamma 143 --lr .08"),
    "TransE_l2": Setup("--hidden_dim 400 --gamma 19.9 --lr .25 -rc 1e-9"),
    "TransE_l1": Setup("--hidden_dim 400 --gamma 16 --lr .01 -rc 1e-7", twin=300),
    "RotatE": Setup("--hidden_dim 200 -de --gamma 12 --lr .009 -rc 1e-7", steps=200, twin=40),
    "RESCAL": Setup("--hidden_dim 100 --gamma 24 --lr .03", steps=200),
    "TransR": Setup("--hidden_dim 100 --gamma 8 --lr .015 -rc 5e-8", steps=40, twin=600),
}


@dataclass
class World:
    """A trained run, and what is asked of it."""

    model: Model
    tables: MemoryTables
    dataset: Dataset
    triples: np.ndarray  # int32[T,3]
    known: KnownTriples

    @classmethod
    def of(cls, run: Path, count: int) -> World:
        """The run in a folder, and `count` test triples at random, by relation; of few relations if the model projects.

        A relation costs it the same with few queries as with many, so each must have as many as in the whole split.
        """
        trained = rundir.open_run(run)
        dataset = open_dataset(trained.config, trained.vocabularies)
        entities, relations = len(dataset.entities), len(dataset.relations)
        model = model_of(trained.config)
        mapped = rundir.load_tables(trained, trained.config, model, entities, relations)
        tables = MemoryTables({name: rows.clone() for name, rows in mapped.rows.items()}, {}, "sgd")
        test = dataset.splits["test"].array
        rng = np.random.default_rng(0)
        places = rng.permutation(relations)[test[:, 1]] if model.projects else rng.permutation(len(test))
        chosen = test[np.argsort(places, kind="stable")[:count]]
        known = KnownTriples.build([split.array for split in dataset.splits.values()], entities, relations, asked=test)
        return cls(model, tables, dataset, chosen if model.projects else chosen[np.argsort(chosen[:, 1], kind="stable")], known)

    def rank(self, threads: int) -> Ranks:
        """kgdist's ranks."""
        count = len(self.dataset.entities)
        return evaluate(self.model, self.tables, self.triples, num_entities=count, known=self.known, threads=threads)

    @torch.no_grad()
    def twin(self, triples: np.ndarray) -> np.ndarray:
        """The same in plain torch, at most 1000 queries at a time: int64[2T], how many candidates are above, heads first."""
        entity, above = self.tables.rows["entity"], []
        for code, side in enumerate(SIDES):
            for part in parts(triples, by_relation=self.model.projects):
                anchor, true = (part[:, column] for column in side.pick((2, 0), (0, 2)))
                unique, index = np.unique(part[:, 1], return_inverse=True)
                rows = {name: rows[torch.from_numpy(unique)] for name, rows in self.tables.rows.items() if name != "entity"}
                relation = RelationRows(rows, torch.from_numpy(index))
                queries = self.model.queries(entity[torch.from_numpy(anchor)], relation, SIDES[code])
                scores = plain(self.model.compare, queries, self.model.project(entity, relation, side))
                truth = scores[torch.arange(len(part)), torch.from_numpy(true).long()]
                skip = not_rivals(self.known, side, anchor, part[:, 1], true)
                scores[torch.from_numpy(skip.rows), torch.from_numpy(skip.positions).long()] = -torch.inf
                above.append((scores > truth.unsqueeze(1)).sum(1))
        return torch.cat(above).numpy()


def parts(triples: np.ndarray, *, by_relation: bool) -> Iterator[np.ndarray]:
    """At most 1000 triples at a time, of one relation if so wanted; `triples` are sorted by relation."""
    for run in np.split(triples, np.flatnonzero(np.diff(triples[:, 1])) + 1) if by_relation else [triples]:
        for start in range(0, len(run), P):
            yield run[start : start + P]


def plain(compare: str, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float32[P,Q], float32[N,Q] -> float32[P,N] as one writes it first."""
    if compare == "dot":
        return q @ c.T
    if compare != "modulus":
        return -torch.cdist(q, c, p=1.0 if compare == "l1" else 2.0)
    lines = []
    for row in q:  # all at once would be an array of [P, N, Q]
        re, im = (row - c).chunk(2, -1)
        lines.append(-(re * re + im * im).sqrt().sum(-1))
    return torch.stack(lines)


def gemm_roof(threads: int, entities: int, dim: int, *, best: bool) -> float:
    """GFLOP/s of [1000,dim] x [dim,1024] products with all entities in turn, each thread its own: torch's mm, or kgdist's."""
    q, table = torch.randn(P, dim), torch.randn(entities, dim)
    blocks = [block for block in torch.split(table, N) if len(block) == N]

    def work() -> None:
        torch.set_num_threads(1)
        out = torch.empty(P, N)
        for _ in range(3):
            for block in blocks:
                linear(q, block) if best else torch.mm(q, block.T, out=out)

    intra, workers = torch.get_num_threads(), [threading.Thread(target=work) for _ in range(threads)]
    started = time.perf_counter()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(600)
    seconds = time.perf_counter() - started
    torch.set_num_threads(intra)
    return threads * 3 * len(blocks) * 2 * P * N * dim / seconds / 1e9


def rates(world: World, threads: int) -> dict[str, float]:
    """One round: queries/s of kgdist and of the twin, and roofs in queries/s of matrix products alone."""
    count, dim = world.tables.shape("entity")
    started = time.perf_counter()
    ranks = world.rank(threads)
    ours = len(ranks) / (time.perf_counter() - started)
    sample = world.triples[: MODELS[world.model.name].twin // 2]
    torch.set_num_threads(threads)
    started = time.perf_counter()
    above = world.twin(sample)
    twin = 2 * len(sample) / (time.perf_counter() - started)
    mine = np.concatenate([ranks.greater[: len(sample)], ranks.greater[len(ranks) // 2 :][: len(sample)]])
    assert np.abs(mine - above).mean() < 1e-3 * count, "the twin ranks something else"
    found = {"ours": ours, "twin": twin}
    for best in (False, True):
        found["best" if best else "mm"] = gemm_roof(threads, count, dim, best=best) * 1e9 / (2 * count * dim)
    return found


def train(name: str, dataset: str, steps: int, data: Path, folder: str) -> Path:
    """The folder of a training of so many steps."""
    command = f"--dataset {dataset} --model_name {name} {MODELS[name].options} -adv --batch_size 1000 --neg_sample_size 200"
    command += f" --num_proc 1 --max_step {steps} --seed 1 --data_path {data} --save_path {folder}"
    done = subprocess.run(
        [sys.executable, "-m", "kgdist.cli.train", *command.split()], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    return next(Path(folder).glob(f"{name}_{dataset}_*"))


def memory(run: Path, triples: int) -> str:
    """MiB that ranking adds on one thread and on all cores, the filter and compiled loops included, in a process of its own."""
    found = []
    for threads in dict.fromkeys((1, os.cpu_count() or 1)):
        command = [sys.executable, __file__, "--added", str(run), "--triples", str(triples), "--threads", str(threads)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
        found.append(done.stdout.split()[-1])
    return " / ".join(found)


def added(run: Path, triples: int, threads: int) -> None:
    """Print how much the peak of this process grows by an evaluation; 0 where the system does not tell."""
    status = Path("/proc/self/status")

    def now(field: str) -> int:
        found = re.search(rf"{field}:\s+(\d+) kB", status.read_text()) if status.exists() else None
        return int(found[1]) // 1024 if found else 0

    world = World.of(run, triples)
    before = now("VmRSS")
    world.rank(threads)
    print(now("VmHWM") - before)


def row(world: World, kind: str, threads: list[int], rounds: int) -> list[str]:
    """Lines of the table: one for each number of threads."""
    found: dict[int, list[dict[str, float]]] = {count: [] for count in threads}
    for _ in range(rounds):
        for count, results in found.items():
            results.append(rates(world, count))
    lines = []
    for count, results in found.items():
        median = {key: statistics.median(each[key] for each in results) for key in results[0]}
        ratio = {key: statistics.median(each["ours"] / each[key] for each in results) for key in ("twin", "mm", "best")}
        many = statistics.median(b["ours"] / a["ours"] for a, b in zip(found[threads[0]], results, strict=True))
        roofs = f"{ratio['mm']:.2f} | {ratio['best']:.2f}" if world.model.compare in ("dot", "l2") else "- | -"
        lines.append(
            f"| {world.model.name}, {kind} | {count} | {median['ours']:,.0f} | {many:.2f} | {ratio['twin']:.1f} | {roofs} |"
        )
        print(lines[-1], flush=True)
    return lines


def main() -> None:
    """Print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--triples", type=int, default=12000, help="test triples, drawn at random")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--added", type=Path, help="only the memory that ranking adds, of the run in this folder")
    parser.add_argument("--threads", type=int, default=1, help="for --added")
    options = parser.parse_args()
    if options.added:
        return added(options.added, options.triples, options.threads)
    dataset = "FB15k" if prepare("FB15k", options.data) else "wordnet"
    threads = list(dict.fromkeys((1, os.cpu_count() or 1)))
    table, held, roofs = [], [], []
    for name in options.models:
        with tempfile.TemporaryDirectory() as folder:
            for kind, steps in {"drawn": 1, "trained": MODELS[name].steps}.items():
                run = train(name, dataset, steps, options.data, f"{folder}/{kind}")
                world = World.of(run, options.triples)
                world.rank(1)  # loads the loops
                table += row(world, kind, threads, options.rounds)
            tables = sum(rows.nbytes for rows in world.tables.rows.values()) / 2**20
            held.append(f"| {name} | {tables:.0f} | {memory(run, min(2000, options.triples))} |")
            print(held[-1], flush=True)
    entities = len(world.dataset.entities)
    for count in threads:
        both = [statistics.median(gemm_roof(count, entities, 400, best=best) for _ in range(3)) for best in (False, True)]
        roofs.append(f"{count} thread{'s' if count > 1 else ''} {both[0]:.0f} and {both[1]:.0f}")
    samples = ", ".join(f"{name} {setup.twin:,}" for name, setup in MODELS.items())
    lines = [
        "# Ranking",
        "",
        f"Filtered ranks of {options.triples:,} test triples of {dataset}, both ends, among all {entities:,} entities; dim",
        "400 (RotatE 200 complex, RESCAL and TransR 100; TransR: all test triples of some relations). `drawn`: embeddings after",
        "one step; `trained`: after a light training, when fewer candidates are above the true one. Medians of "
        f"{options.rounds} interleaved",
        "rounds. The twin is torch: `mm`, `cdist` (for RotatE the formula, a query at a time), known candidates set to minus",
        f"infinity by index, `>` and a sum; on some of the queries ({samples}).",
        f"Roofs: products of [{P}, dim] and [dim, {N}] alone, by torch's `mm` and by the product that kgdist takes. Written by",
        "`make bench-eval`.",
        "",
        "| model | threads | queries/s | times one thread | times the twin | of `mm` alone | of the best product alone |",
        "|---|---:|---:|---:|---:|---:|---:|",
        *table,
        "",
        f"Products of dim 400, GFLOP/s, by `mm` and at best: {'; '.join(roofs)}.",
        "",
        "Memory that an evaluation adds to a process that holds the tables and the filter, the compiled loops and the libraries'",
        "buffers included, in MiB:",
        "",
        f"| model | tables | added on {' / '.join(map(str, threads))} threads |",
        "|---|---:|---:|",
        *held,
        "",
        f"Command: `make bench-eval`. Machine: {machine()}.",
        "",
    ]
    text = "\n".join(lines)
    (HERE / "results" / "evaluate.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
