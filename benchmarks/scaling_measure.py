"""What the model of docs/scaling.md is fitted to, and held against: `make bench-scaling` (some minutes), then `make scaling`.

All on one host: what a step costs in messages, over machines, rows, widths and ways to send them (`messages.measure`); what its
arithmetic costs where all rows are here; whole steps of a trainer whose rows are all elsewhere; meetings, in real jobs of a few
machines. The model is fitted neither to whole steps nor to the messages of the most machines: those are what it must foretell.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import scaling
import torch
from dist_accuracy import call, machines
from messages import ENTITIES as TABLE
from messages import Host, measure, spent
from roofs import machine
from store_train import DIM, NEGATIVES, RELATIONS, needs, triples

from kgdist.base.files import write_json
from kgdist.base.machine import keep_freed_memory
from kgdist.kvstore.client import StoreTables
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.tables import MemoryTables, Update, initialise
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runtime.job import trainer_of

# Machines elsewhere, and how many cases of each; of those with the most, none is fitted to.
COUNTS = {1: 8, 2: 6, 4: 6, 8: 8, 16: 10, 32: 14, 63: 20}
WAYS: dict[str, tuple[Any, ...]] = {
    "rows": (1550, 200, 4000, 1550, 50),
    "dim": (400, 4, 400, 100),
    "servers": (1, 4, 2),
    "dtype": ("fp32", "bf16", "fp32"),
    "curve": (False, True, False, False),
    "pull_ahead": (1, 1, 2, 4),
}
HERE = Path(__file__).parent
STEPS = 40
ENTITIES = 300_000  # of whole steps
BATCHES = (1000, 2000, 4000)
WHOLE, WHOLE_WAYS = (4, 16, 63), ({}, {"dtype": "bf16"}, {"curve": True})
MEETINGS, STRETCH = (2, 4, 8), 10  # machines; steps between two meetings


def cases() -> list[dict[str, Any]]:
    """Every value of every way about equally often, in no order; each says whether the model is fitted to it."""
    random = np.random.default_rng(1)
    many = sum(COUNTS.values())
    drawn = {way: random.permutation(np.resize(np.arange(len(values)), many)) for way, values in WAYS.items()}
    found: list[dict[str, Any]] = []
    for count, times in COUNTS.items():
        for _ in range(times):
            case = {way: values[drawn[way][len(found)]] for way, values in WAYS.items()}
            found.append({"machines": count, **case, "fitted": count < max(COUNTS) and len(found) % 5 != 4})
    return found


def config(batch: int) -> Config:
    """DistMult as published, but for the batch."""
    return Config(
        model_name="DistMult", hidden_dim=DIM, gamma=143.0, lr=0.08, neg_adversarial_sampling=True, batch_size=batch,
        neg_sample_size=NEGATIVES, max_step=10**6,
    )  # fmt: skip


def own_memory() -> MemoryTables:
    """Rows of a trainer that has all of them."""
    settings = config(1000)
    tables = MemoryTables.create(model_of(settings).tables(ENTITIES, RELATIONS), settings.optimizer)
    for stream, name in enumerate(tables.names()):
        initialise(tables.rows[name], "uniform", settings.init_range, seed=1, stream=stream)
    return tables


def arithmetic(batch: int) -> dict[str, float]:
    """Milliseconds of a core that a step takes whose rows are all here, and how far steps differ (standard deviation over
    mean)."""
    trainer = trainer_of(config(batch), triples(ENTITIES), own_memory(), 0)
    took = []
    for step in range(90):
        began = time.thread_time()
        trainer.step(step)
        took.append(1000 * (time.thread_time() - began))
    kept = np.sort(took[10:])[: 80 - 4]  # without those that the machine disturbed
    return {"batch": batch, "ms": float(kept.mean()), "spread": float(kept.std() / kept.mean())}


def row_here() -> float:
    """Milliseconds of a core that a row of the own memory takes to be pulled and pushed."""
    tables, random, count, rounds = own_memory(), np.random.default_rng(0), 2000, 40
    out, grads = torch.empty(count, DIM), torch.full((count, DIM), 1e-3)
    batches = [random.choice(ENTITIES, count, replace=False) for _ in range(rounds + 5)]
    for number, ids in enumerate(batches):
        if number == 5:
            began = time.thread_time()
        tables.pull("entity", torch.from_numpy(ids), out)
        tables.push({"entity": Update(ids, grads)}, 0.1)
    return 1000 * (time.thread_time() - began) / rounds / count


def whole_steps(host: Host, count: int, **ways: Any) -> dict[str, Any]:
    """A trainer whose rows are all on so many other machines: what its steps cost, and what they had to do with those."""
    settings, data = config(1000), triples(ENTITIES)
    shapes = model_of(settings).tables(ENTITIES, RELATIONS)
    bounds = {name: np.linspace(0, rows, count + 1).astype(np.int64) for name, (rows, _) in shapes.items()}
    layout = Layout.build({name: width for name, (_, width) in shapes.items()}, bounds, [1] * count)
    trainers: list[Any] = []
    done = [0]

    def work(tables: StoreTables, steps: int) -> None:
        if not trainers:
            trainers.append(trainer_of(settings, data, tables, 0))
        for step in range(done[0], done[0] + steps):
            trainers[0].step(step)
        tables.flush()
        done[0] += steps

    found = spent(host, layout, work, STEPS, **ways)
    planner = trainer_of(settings, data, MemoryTables.create(shapes, settings.optimizer), 0)
    needed = [needs(planner, step) for step in range(done[0] - STEPS, done[0])]
    rows = sum(len(ids) for step in needed for ids in step)
    together = ways.get("pull_ahead", 1)
    pulled = 0
    for first in range(0, STEPS, together):
        pulled += sum(len(np.unique(np.concatenate(ids))) for ids in zip(*needed[first : first + together], strict=True))
    return {"machines": count, "rows": rows / STEPS, "pulled": pulled / STEPS, **ways, "found": found}


def meetings(count: int, folder: Path) -> dict[str, Any]:
    """Milliseconds that meetings of so many machines take that trainer which comes last, so without waiting for the slowest.

    All machines are this host, so they share its cores: on machines of their own it takes less.
    """
    split = folder / f"k{count}"
    files = ["entities.tsv", "relations.tsv", "train.tsv", "valid.tsv", "test.tsv"]
    call("partition", "--dataset", "random", "--format", "udd_hrt", "--data_files", *files, "--data_path", str(folder),
         "-k", str(count), "--method", "random", "--out", str(split / "random"))  # fmt: skip
    text = call("dist_train", "--dataset", "random", "--data_path", str(split), "--path", str(folder), "--save_path", "runs",
                "--backend", "local", "--ip_config", str(machines(folder, count)), "--model_name", "TransE_l2",
                "--hidden_dim", "8", "--batch_size", "32", "--neg_sample_size", "8", "--gamma", "10", "--lr", "0.1",
                "--max_step", "800", "--log_interval", "100", "--force_sync_interval", str(STRETCH), "--negatives", "local",
                "--no_save_emb", "--peer_timeout", "60")  # fmt: skip
    waited: dict[str, list[float]] = {}  # trainer -> seconds of each 100 steps that were spent at nothing else
    took = re.findall(r"^(.*?\[proc \d+\])\[Train\] 100 steps take ([\d.]+) seconds", text, re.MULTILINE)
    parts = re.findall(r"^(.*?\[proc \d+\])sample: ([\d.]+), forward: ([\d.]+), backward: ([\d.]+), update: ([\d.]+)", text, re.M)
    for (who, whole), (_, *spent_at) in zip(sorted(took), sorted(parts), strict=True):
        waited.setdefault(who, []).append(float(whole) - sum(map(float, spent_at)))
    each = np.array(list(waited.values()))[:, 1:].min(0) * 1000 / (100 // STRETCH)
    return {"machines": count, "ms": float(np.median(each))}


def graph(folder: Path) -> None:
    """A small random one, of ids."""
    random, entities, relations = np.random.default_rng(0), 2000, 20
    for name, many in (("entities", entities), ("relations", relations)):
        (folder / f"{name}.tsv").write_text("".join(f"{i}\t{name}{i}\n" for i in range(many)))
    for name, many in (("train", 36000), ("valid", 100), ("test", 100)):
        drawn = random.integers([entities, relations, entities], size=(many, 3))
        (folder / f"{name}.tsv").write_text("".join("\t".join(map(str, row)) + "\n" for row in drawn.tolist()))


def main() -> None:
    """Measure everything, and write it as JSON; the pages are made of that."""
    torch.set_num_threads(1)
    keep_freed_memory()
    found: dict[str, Any] = {"machine": machine(), "dim": DIM, "negatives": NEGATIVES, "messages": []}

    def told(kind: str, row: dict[str, Any]) -> None:
        found.setdefault(kind, []).append(row)
        print(kind, row, flush=True)

    for batch in BATCHES:
        told("arithmetic", arithmetic(batch))
    found["row_here"] = row_here()
    with Host() as host:
        for count in WHOLE:
            for ways in WHOLE_WAYS:
                told("whole", whole_steps(host, count, **ways))
        for case in cases():
            ways = {name: value for name, value in case.items() if name != "fitted"}
            pulled = TABLE * (1 - (1 - case["rows"] / TABLE) ** case["pull_ahead"]) / case["pull_ahead"]
            told("messages", case | {"pulled": pulled, "found": measure(host, **ways, steps=STEPS)})
    with tempfile.TemporaryDirectory() as folder:
        graph(Path(folder))
        for count in MEETINGS:
            told("meetings", meetings(count, Path(folder)))
    write_json(HERE / "results" / "scaling.json", found | {"load": os.getloadavg()[1]})
    scaling.main()


if __name__ == "__main__":
    main()
