"""The step against all entities beside the best matrix product, beside plain torch, and grouped by query: `make bench-full`.

FB15k, ComplEx, softmax over its 14,951 entities, N3, Adagrad by element, 1,000 queries a step. A step is three products of
queries and entities; the roof is the best rate at which this machine multiplies matrices of these shapes, whole, by as many
threads. All figures are taken in turns in one run, each right after a call that is not timed. Plain torch is the same
objective triple by triple with autograd and torch.optim.Adagrad.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from datasets import prepare
from roofs import machine, threads

from kgdist.base.machine import keep_freed_memory
from kgdist.data.dataset import Triples, load_dataset
from kgdist.data.queries import Queries
from kgdist.kernels import gemm
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runtime.job import queries_of
from kgdist.training.full_step import FullStep
from kgdist.training.step import Clock

HERE = Path(__file__).parent
QUERIES, RATE = 1000, 0.1
LARGE = 265_010  # entities of WordNet30-full
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def config_of(dim: int, dtype: str, count: int, answers: int = 4) -> Config:
    """A training."""
    return Config(
        model_name="ComplEx", hidden_dim=dim, candidates="all", loss_genre="Softmax", regularizer="n3", regularization_coef=0.01,
        optimizer="adagrad", reciprocal=True, num_thread=count, batch_size=QUERIES, compute_dtype=dtype, answers=answers,
    )  # fmt: skip


class Ours:
    """One training after another step."""

    def __init__(self, config: Config, triples: Triples, entities: int, relations: int) -> None:
        self.config, self.model = config, model_of(config)
        model = self.model
        if config.compute_dtype == "bfloat16":
            model.comparator = model.comparator.in_bfloat16()
        self.tables = MemoryTables.create(model.shapes(entities, relations), config.optimizer)
        for rows in self.tables.rows.values():
            rows.normal_(0, 0.1)
        self.queries = queries_of(config.replace(seed=1), triples)
        self.step, self.number = FullStep(config, model, self.tables), 0

    def __call__(self) -> None:
        with threads(1):  # of this thread beside the step's own, as FullStep has it in a training
            updates, _ = self.step(self.step.plan(self.queries.batch(self.number)), Clock())
            self.tables.push(updates, RATE)
        self.number += 1


class Plain:
    """The same objective in plain torch, triple by triple: rows by nn.Embedding, cross_entropy, autograd, torch.optim.Adagrad."""

    def __init__(
        self, triples: Triples, entities: int, relations: int, rank: int, count: int, coef: float = 0.01, scale: float = 0.1
    ) -> None:
        self.rank, self.count, self.coef = rank, count, coef
        self.rows = [torch.nn.Embedding(n, 2 * rank, sparse=True) for n in (entities, 2 * relations)]
        for each in self.rows:
            each.weight.data.normal_(0, scale)
        self.optimizer = torch.optim.Adagrad([each.weight for each in self.rows], lr=RATE)
        both = np.concatenate([triples.array, triples.array[:, ::-1] + np.array([0, relations, 0])]).astype(np.int64)
        self.examples, self.rng = torch.from_numpy(both), np.random.default_rng(0)

    def __call__(self) -> None:
        with threads(self.count):
            batch, rank = self.examples[self.rng.integers(len(self.examples), size=QUERIES)], self.rank
            h, r, t = self.rows[0](batch[:, 0]), self.rows[1](batch[:, 1]), self.rows[0](batch[:, 2])
            h1, h2, r1, r2 = h[:, :rank], h[:, rank:], r[:, :rank], r[:, rank:]
            weight = self.rows[0].weight
            scores = (h1 * r1 - h2 * r2) @ weight[:, :rank].T + (h1 * r2 + h2 * r1) @ weight[:, rank:].T
            norms = sum((x[:, :rank].square() + x[:, rank:].square()).sqrt().pow(3).sum() for x in (h, r, t))
            loss = torch.nn.functional.cross_entropy(scores, batch[:, 2]) + self.coef * norms / len(batch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()


def products(entities: int, dim: int, dtype: str, count: int) -> list[Callable[[], object]]:
    """The three products of a step as whole matrices, each by every library that keeps the dtype."""
    q, c, g = (torch.randn(*shape).to(DTYPES[dtype]) for shape in ((QUERIES, dim), (entities, dim), (QUERIES, entities)))
    turned = q.T.contiguous()
    calls: list[Callable[[], object]] = [lambda: torch.mm(q, c.T), lambda: torch.mm(g, c), lambda: torch.mm(g.T, q)]
    calls.append(lambda: torch.mm(turned, g))
    if dtype == "float32":
        calls += [lambda: gemm.linear(q, c), lambda: gemm.multiply(g, c), lambda: gemm.multiply(turned, g)]

    def timed(call: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            with threads(count):
                call()

        return run

    return [timed(call) for call in calls]


def once(call: Callable[[], object]) -> float:
    """Seconds, right after another call, as in a training, and not after what else is measured."""
    call()
    started = perf_counter()
    call()
    return perf_counter() - started


def memory() -> None:
    """Print what a step adds at LARGE entities, in a process of its own: bytes beside tables, state and gradient."""
    rng, config = np.random.default_rng(0), config_of(200, "float32", 2)
    array = np.stack([rng.integers(top, size=100_000) for top in (LARGE, 20, LARGE)], 1).astype(np.int32)
    subject = Ours(config, Triples(array, None), LARGE, 20)
    subject.step.buffers.take("everybody", LARGE, 200).zero_()
    for rows in subject.tables.state.values():
        for part in rows.values():
            part.fill_(1.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        subject()
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)


def main() -> None:
    """Measure in turns, print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    keep_freed_memory()
    if options.memory:
        return memory()
    prepare("FB15k", options.data)
    dataset = load_dataset(path=options.data, name="FB15k")
    sizes, train = (len(dataset.entities), len(dataset.relations)), dataset.train
    calls: dict[tuple[str, ...], Callable[[], object]] = {}
    for dim in (200, 1000):
        for dtype in DTYPES:
            for count in (1, 2):
                calls["step", str(dim), dtype, str(count)] = Ours(config_of(dim, dtype, count), train, *sizes)
                for number, product in enumerate(products(sizes[0], dim, dtype, count)):
                    calls["product", str(dim), dtype, str(count), str(number)] = product
        calls["plain", str(dim)] = Plain(train, *sizes, dim // 2, 2)
    for answers in (0, 1):
        for dtype in DTYPES:
            calls["answers", str(answers), dtype] = Ours(config_of(200, dtype, 2, answers), train, *sizes)
    found: dict[tuple[str, ...], list[float]] = {key: [] for key in calls}
    for number in range(options.rounds + 2):
        for key, call in calls.items():
            seconds = once(call)
            if number >= 2:
                found[key].append(seconds)
        print(f"round {number + 1} of {options.rounds + 2}", flush=True)
    middle = {key: statistics.median(times) for key, times in found.items()}
    lines = ["# Training against all entities", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    lines.append(
        "| dim | products in | step, 2 threads | best product | of the roof | 2 threads over 1 | of the product | plain torch |"
    )
    lines.append("|---:|---|---:|---:|---:|---:|---:|---:|")
    for dim in (200, 1000):
        flops = 2.0 * QUERIES * sizes[0] * dim
        for dtype in DTYPES:
            roofs = [
                max(flops / t for key, t in middle.items() if key[:4] == ("product", str(dim), dtype, count)) / 1e9
                for count in ("1", "2")
            ]
            roof = roofs[1]
            one, two = (middle["step", str(dim), dtype, count] for count in ("1", "2"))
            plain = f"{middle['plain', str(dim)] * 1e3:.0f} ms" if dtype == "float32" else ""
            cells = (
                dim,
                dtype,
                f"{two * 1e3:.0f} ms",
                f"{roof:,.0f} GFLOP/s",
                f"{3 * flops / 1e9 / two / roof:.2f}",
                f"{one / two:.2f}",
                f"{roof / roofs[0]:.2f}",
            )
            lines.append(f"| {' | '.join(map(str, cells))} | {plain} |")
    lines += ["", f"An epoch of FB15k, dim 200, {2 * len(train):,} examples:", ""]
    lines += ["| answers a visit | visits | seconds, float32 | bfloat16 | over triple by triple |", "|---|---:|---:|---:|---:|"]
    epochs: dict[tuple[int, str], float] = {}
    for answers in (1, 4, 0):
        visits = Queries(train, QUERIES, answers=answers, seed=1).visits
        for dtype in DTYPES:
            key = ("step", "200", dtype, "2") if answers == 4 else ("answers", str(answers), dtype)
            epochs[answers, dtype] = middle[key] * visits / QUERIES
        gains = [epochs[1, dtype] / epochs[answers, dtype] for dtype in DTYPES]
        cells = [str(answers or "all"), f"{visits:,}", *(f"{epochs[answers, dtype]:.1f}" for dtype in DTYPES)]
        lines.append(f"| {' | '.join(cells)} | {gains[0]:.2f}, {gains[1]:.2f} |")
    plain = middle["plain", "200"] * 2 * len(train) / QUERIES
    gains = [plain / epochs[1, dtype] for dtype in DTYPES]
    gain = f"triple by triple is {gains[0]:.1f} ({gains[1]:.1f} in bfloat16) times as fast"
    lines.append(f"| plain torch | {2 * len(train):,} | {plain:.1f} | | {gain} |")
    call = [sys.executable, __file__, "--memory"]
    beside = int(subprocess.run(call, capture_output=True, text=True, check=True, timeout=600).stdout.split()[-1])
    lines += [
        "",
        f"At {LARGE:,} entities of dim 200, {QUERIES:,} queries need {beside / 2**20:.0f} MiB beside rows, state and gradient.",
    ]
    text = "\n".join([*lines, "", f"Machine: {machine()}. Medians of {options.rounds} rounds. By `make bench-full`.", ""])
    (HERE / "results" / "full.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
