"""Training speed of one worker and of several against plain torch and against the machine: `make bench-train`.

Every figure is a whole `kgdist-train` on a made-up graph whose entity table has a gigabyte, far more than caches hold; relations
are as unevenly used as FB15k's. One worker, all workers and the torch twins (KGDIST_KERNELS=torch) run in turn, and the roofs are
measured among them, so that a machine that slows down slows all of them. Speeds are the median over stretches of steps, without
the first stretch.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from roofs import HEADER, Roofs, big_table, machine, measure

HERE = Path(__file__).parent
RELATIONS, TRIPLES = 1345, 400_000  # as FB15k: a batch of 1000 has about 267 different relations, the most frequent 3 % of it
BATCH, NEGATIVES = 1000, 200
MOST = 100  # stretches


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    options: str
    stretch: int  # steps between two looks at the clock
    twin: int  # the same for plain torch; 0: not run
    dim: int = 400
    extra: str = ""

    @property
    def name(self) -> str:
        """As printed."""
        return f"{self.model} {self.extra}".strip()


ROWS = (
    Row("TransE_l2", "--hidden_dim 400 --gamma 19.9 --lr .25 -rc 1e-9", 50, 10),
    Row("DistMult", "--hidden_dim 400 --gamma 143 --lr .08", 50, 10),
    Row("ComplEx", "--hidden_dim 400 --gamma 143 --lr .1", 50, 10),
    Row("SimplE", "--hidden_dim 400 --gamma 143 --lr .1", 50, 10),
    Row("TransE_l1", "--hidden_dim 400 --gamma 16 --lr .01 -rc 1e-7", 40, 2),
    Row("RotatE", "--hidden_dim 200 -de --gamma 12 --lr .009 -rc 1e-7", 25, 1),
    Row("PairRE", "--hidden_dim 400 --gamma 12 --lr .05 -rc 0", 25, 1),
    Row("RESCAL", "--hidden_dim 100 --gamma 24 --lr .03", 50, 8, dim=100),
    Row("TransR", "--hidden_dim 100 --gamma 8 --lr .015 -rc 5e-8", 8, 2, dim=100),
    Row("DistMult", "--hidden_dim 400 --gamma 143 --lr .08", 50, 0, extra="--compute_dtype bfloat16"),
    Row("DistMult", "--hidden_dim 400 --gamma 143 --lr .08", 50, 0, extra="--worker thread"),
    Row("DistMult", "--hidden_dim 400 --gamma 143 --lr .08", 50, 0, extra="--worker thread --huge_pages"),
)


class Speed(NamedTuple):
    """One training."""

    rate: float  # positive triples/s of all workers together
    memory: int  # MiB at the peak


def graph(root: Path, entities: int) -> Path:
    """Files of ids of a graph drawn at random, made on the first call."""
    folder = root / f"random{entities}"
    if folder.exists():
        return folder
    making = root / f"random{entities}.part"
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    for name, count in (("entities.dict", entities), ("relations.dict", RELATIONS)):
        (making / name).write_text("".join(f"{i}\t{i}\n" for i in range(count)))
    rng = np.random.default_rng(0)
    shares = (np.arange(RELATIONS) + 30.0) ** -1.95
    relations = rng.choice(RELATIONS, TRIPLES, p=shares / shares.sum())
    ends = rng.integers(entities, size=(2, TRIPLES))
    np.savetxt(making / "train.tsv", np.stack([ends[0], relations, ends[1]], axis=1), fmt="%d", delimiter="\t")
    making.rename(folder)
    return folder


def once(row: Row, folder: Path, workers: int, *, seconds: float, twin: bool = False, guess: float = 100.0) -> Speed:
    """Train for about `seconds`, given a `guess` of steps/s."""
    stretch = row.twin if twin else row.stretch
    stretches = int(min(MOST, max(3.0, guess * seconds / stretch)))
    with tempfile.TemporaryDirectory() as out:
        command = (
            f"--dataset random --format udd_hrt --data_files entities.dict relations.dict train.tsv --model_name {row.model}"
        )
        command += f" {row.options} {row.extra} -adv --batch_size {BATCH} --neg_sample_size {NEGATIVES} --no_save_emb"
        command += f" --num_proc {workers} --max_step {stretch * (stretches + 1)} --log_interval {stretch} --seed 1"
        run = subprocess.run(
            [sys.executable, "-m", "kgdist.cli.train", *command.split(), "--data_path", str(folder), "--save_path", out],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=600,
            env=os.environ | ({"KGDIST_KERNELS": "torch"} if twin else {}),
        )
    rate = 0.0
    for worker in range(workers):
        found = re.findall(rf"\[proc {worker}\]\[Train\] \d+ steps take ([\d.]+) seconds", run.stdout)[1:]
        rate += stretch * BATCH / statistics.median(map(float, found))
    memory = re.search(r"peak memory: (\d+) MiB", run.stdout)
    assert memory is not None
    return Speed(rate, int(memory[1]))


def floor(row: Row, one: Roofs) -> float | None:
    """Seconds that a step of one worker must take: three matrix products at the best rate, and 3260 rows read, copied, read again
    and written (performance.md). None for the models that do something else."""
    if row.model not in ("TransE_l2", "DistMult", "ComplEx", "SimplE") or row.extra:
        return None
    flops = 3 * 2 * BATCH * NEGATIVES * row.dim
    moved = 4 * 4 * row.dim * (2 * BATCH + BATCH + 268)
    return flops / (one.products * 1e9) + moved / (one.rows * 1e9)


def main() -> None:
    """Print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", help="default: all rows")
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each training")
    parser.add_argument("--entities", type=int, default=700_000, help="of dim 400; four times as many of dim 100")
    options = parser.parse_args()
    rows = [row for row in ROWS if not options.models or row.model in options.models]
    table = big_table()
    roofs: dict[int, list[Roofs]] = {1: [], options.workers: []}
    found: dict[str, dict[str, list[Speed]]] = {row.name: {"one": [], "all": [], "twin": []} for row in rows}
    for number in range(options.rounds):
        for count, measured in roofs.items():
            measured.append(measure(count, table))
        for row in rows:
            folder, speeds = graph(options.data, options.entities * 400 // row.dim), found[row.name]
            for kind, workers in (("one", 1), ("all", options.workers)):
                guess = speeds[kind][-1].rate / workers / BATCH if speeds[kind] else 100.0
                speeds[kind].append(once(row, folder, workers, seconds=options.seconds, guess=guess))
            if row.twin and number < 2:  # the slow one, twice is enough
                speeds["twin"].append(once(row, folder, options.workers, seconds=options.seconds / 2, twin=True, guess=5.0))
            print(row.name, {kind: f"{each[-1].rate:,.0f}" for kind, each in speeds.items() if each}, flush=True)
    middle = {count: _median(measured) for count, measured in roofs.items()}
    several, gigaflops = options.workers, middle[options.workers].gemm
    lines = [
        "# Training speed",
        "",
        f"Positive triples per second, batches of {BATCH} in chunks of {NEGATIVES}, {NEGATIVES} negatives each, self-adversarial",
        "weights, row Adagrad; dim 400 (RotatE 200 complex numbers, RESCAL and TransR 100); entity tables of",
        f"{options.entities * 1600 / 2**30:.1f} GiB in shared memory. Medians of {options.rounds} interleaved runs. Workers are",
        "processes of one thread. `torch` is the same training by kgdist's plain torch twins, one thread each. Per GFLOP/s: of",
        f"the float32 GEMM that torch does on {several} threads as it is. Of the roof: of one worker, what its products take",
        "at the best rate seen here and its rows at the speed of a random gather. Written by `make bench-train`.",
        "",
        f"| model | 1 worker | {several} workers | ratio | per GFLOP/s | torch, {several} workers | gain | of the roof "
        f"| memory, 1 / {several} |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        speeds = found[row.name]
        one, many = (statistics.median(each.rate for each in speeds[kind]) for kind in ("one", "all"))
        ratio = statistics.median(b.rate / a.rate for a, b in zip(speeds["one"], speeds["all"], strict=True))
        cells = [row.name, f"{one:,.0f}", f"{many:,.0f}", f"{ratio:.2f}", f"{many / gigaflops:,.0f}"]
        if speeds["twin"]:
            twin = statistics.median(each.rate for each in speeds["twin"])
            cells += [f"{twin:,.0f}", f"{many / twin:.1f}"]
        else:
            cells += ["", ""]
        least = floor(row, middle[1])
        cells.append(f"{least * one / BATCH:.0%}" if least is not None else "")
        cells.append(" / ".join(f"{max(each.memory for each in speeds[kind])} MiB" for kind in ("one", "all")))
        lines.append("| " + " | ".join(cells) + " |")
    lines += ["", "Roofs:", "", *HEADER, *(line for each in middle.values() for line in each.lines())]
    text = "\n".join([*lines, "", f"Machine: {machine()}.", ""])
    (HERE / "results" / "train.md").write_text(text, encoding="utf-8")
    print(text)


def _median(measured: list[Roofs]) -> Roofs:
    """Field by field."""
    values = zip(*((each.gemm, each.products, each.bfloat16, each.copy, each.rows) for each in measured), strict=True)
    return Roofs(measured[0].threads, *(statistics.median(value) for value in values))


if __name__ == "__main__":
    main()
