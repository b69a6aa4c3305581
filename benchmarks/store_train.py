"""Training through the store beside training on shared memory: `make bench-kvstore`, after the wire itself.

First one trainer whose rows are all on a server, each process with a core of its own, against the same trainer with the tables in
its own memory. Then whole runs: two machines on this host, one server and one trainer each, against two processes on shared
memory. All ways run in turn, so that a machine that slows down slows all of them; speeds are medians over stretches of steps.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import prepare
from dist_accuracy import machines, partition, rate
from kvstore import IDENTITY, free_port, start
from roofs import machine

from kgdist.data.dataset import Triples
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.tables import MemoryTables, initialise
from kgdist.kvstore.wire import Keys, Transport
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runtime.job import trainer_of

HERE = Path(__file__).parent
RELATIONS, BATCH, NEGATIVES, DIM = 1345, 1000, 200, 400
STRETCH = 50


class LockStep(StoreTables):
    """Without looking ahead, and with every push confirmed before the next step."""

    def ahead(self, *wanted: Mapping[str, np.ndarray]) -> None:
        """Nothing is asked for in advance."""

    def push(self, *given: Any, **more: Any) -> None:
        """As StoreTables, and waits."""
        super().push(*given, **more)
        self.flush()


def triples(entities: int) -> Triples:
    """400,000 at random; relations as unevenly used as FB15k's."""
    rng = np.random.default_rng(0)
    shares = (np.arange(RELATIONS) + 30.0) ** -1.95
    relations = rng.choice(RELATIONS, 400_000, p=shares / shares.sum())
    ends = rng.integers(entities, size=(2, 400_000))
    return Triples(np.stack([ends[0], relations, ends[1]], axis=1).astype(np.int32))


def one_trainer(entities: int, rounds: int) -> list[str]:
    """The first table."""
    config = Config(
        model_name="DistMult", hidden_dim=DIM, gamma=143.0, lr=0.08, neg_adversarial_sampling=True, batch_size=BATCH,
        neg_sample_size=NEGATIVES, max_step=10**6,
    )  # fmt: skip
    shapes = model_of(config).tables(entities, RELATIONS)
    local = MemoryTables.create(shapes, config.optimizer, shared=True)
    for stream, name in enumerate(local.names()):
        initialise(local.rows[name], "uniform", config.init_range, seed=1, stream=stream)
    bounds = {name: np.array([0, count]) for name, (count, _) in shapes.items()}
    layout = Layout.build({name: width for name, (_, width) in shapes.items()}, bounds, [1])
    handles = local.handles()
    keys, servers = Keys.make(), []
    ways: dict[str, Any] = {"own memory": local}
    for number, (name, secret, kind, more) in enumerate(
        (
            ("store, one batch ahead", None, StoreTables, {}),
            ("store, lock-step", None, LockStep, {}),
            ("store, bf16", None, StoreTables, {"transport_dtype": "bf16"}),
            ("store, CURVE", keys, StoreTables, {}),
        )
    ):
        port = free_port()
        job = {
            "keys": secret and secret.to_json(),
            "port": port,
            "layout": layout.to_json(),
            "handles": handles,
            "parent": os.getpid(),
        }
        servers.append(start("server", job, tuple(handle["fd"] for handle in handles.values())))
        ways[name] = kind(layout, [("127.0.0.1", port)], Transport(secret), IDENTITY, client=number, **more)
    data = triples(entities)
    trainers = {name: trainer_of(config, data, tables, 0) for name, tables in ways.items()}
    steps = 0
    found: dict[str, list[float]] = {name: [] for name in ways}
    moved: dict[str, float] = {}
    work: dict[str, list[float]] = {name: [0.0, 0.0] for name in ways}  # seconds of cores, of trainer and server
    for turn in range(rounds + 1):  # the first one warms up
        for place, (name, trainer) in enumerate(trainers.items()):
            before = ways[name].traffic() if isinstance(ways[name], StoreTables) else (0, 0)
            spent = time.process_time(), core_seconds(servers[place - 1]) if place else 0.0
            began = time.perf_counter()
            for step in range(steps, steps + STRETCH):
                trainer.step(step)
            ways[name].flush()
            if turn:
                found[name].append(time.perf_counter() - began)
                work[name][0] += (time.process_time() - spent[0]) / rounds / STRETCH
                work[name][1] += ((core_seconds(servers[place - 1]) if place else 0.0) - spent[1]) / rounds / STRETCH
            if isinstance(ways[name], StoreTables):
                moved[name] = (sum(ways[name].traffic()) - sum(before)) / STRETCH
        steps += STRETCH
    for server in servers:
        server.kill()
        server.wait(timeout=10)
    needed = sum(bytes_needed(trainers["own memory"], step) for step in range(steps - STRETCH, steps)) / STRETCH
    lines = [
        f"One trainer (DistMult, dim {DIM}, batch {BATCH}, {NEGATIVES} negatives, {entities:,} entities), all rows of",
        "entities and relations on one server, a core for each:",
        "",
        "| rows in | triples/s | of own memory | KB a step, both ways | of what must move | trainer, ms of a core | server |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, seconds in found.items():
        ratio = statistics.median(a / b for a, b in zip(found["own memory"], seconds, strict=True))
        cells = [name, f"{STRETCH * BATCH / statistics.median(seconds):,.0f}", f"{ratio:.2f}", "", ""]
        cells += [f"{1000 * seconds:.2f}" for seconds in work[name]]
        if name in moved:
            cells[3] = f"{moved[name] / 1024:,.0f}"
            cells[4] = f"{moved[name] / (needed / 2 if 'bf16' in name else needed):.3f}"
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def core_seconds(process: subprocess.Popen[str]) -> float:
    """Of all threads of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def needs(trainer: Any, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The different entities and relations of a step."""
    plan = trainer._plan(step)
    return plan.ids, plan.relation_ids


def bytes_needed(trainer: Any, step: int) -> float:
    """Of one step in float32: different ids x 8, different rows x width x 4 x 2."""
    return float(sum(len(ids) * (8 + DIM * 8) for ids in needs(trainer, step)))


def whole_runs(data: Path, rounds: int, steps: int) -> list[str]:
    """The second table."""
    prepare("FB15k", data)
    folder, stretch = partition(data, 2), 100
    common = ["--model_name", "TransE_l2", "--dataset", "FB15k", "--preset", "--no_save_emb", "--log_interval", str(stretch)]
    common += ["--max_step", str(steps)]
    found: dict[str, list[float]] = {"two processes, shared memory": []}
    extra = {
        "two machines": [],
        "two machines, --pull_ahead 4": ["--pull_ahead", "4"],
        "two machines, bf16": ["--transport_dtype", "bf16"],
        "two machines, CURVE": ["--transport_security", "curve"],
    }
    found |= {name: [] for name in extra}
    for _ in range(rounds):
        for name in found:
            with tempfile.TemporaryDirectory() as out:
                if name in extra:
                    words = ["dist_train", *common, *extra[name], "--backend", "local", "--path", out, "--data_path", str(folder)]
                    words += ["--ip_config", str(machines(Path(out), 2))]
                else:
                    words = ["train", *common, "--num_proc", "2", "--save_path", out, "--data_path", str(data)]
                run = subprocess.run(
                    [sys.executable, "-m", f"kgdist.cli.{words[0]}", *words[1:]],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                    timeout=900,
                )
            found[name].append(rate(run.stdout, stretch) * BATCH)
            print(name, f"{found[name][-1]:,.0f}", flush=True)
            for line in re.findall(r"^.*network:.*$", run.stdout, re.MULTILINE):
                print(line)
    base = found["two processes, shared memory"]
    lines = [
        "Two machines on this host, one server and one trainer each, FB15k in two METIS partitions, TransE_l2 as published:",
        "",
        "| | triples/s together | of shared memory |",
        "|---|---:|---:|",
    ]
    for name, rates in found.items():
        ratio = statistics.median(a / b for a, b in zip(rates, base, strict=True))
        lines.append(f"| {name} | {statistics.median(rates):,.0f} | {ratio:.2f} |")
    return lines


def main() -> None:
    """Print and save the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--entities", type=int, default=700_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500, help="of each trainer in the whole runs")
    options = parser.parse_args()
    torch.set_num_threads(1)
    second = whole_runs(options.data.absolute(), max(2, options.rounds // 2), options.steps)
    first = one_trainer(options.entities, options.rounds)
    lines = ["# Training through the store", "", "Written by `make bench-kvstore`. Medians; ratios are of runs side by side.", ""]
    text = "\n".join([*lines, *first, "", *second, "", f"Machine: {machine()}.", ""])
    (HERE / "results" / "store_train.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
