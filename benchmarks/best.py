"""The best ranks, row by row: `make bench-best`. A row that is done is not run again, and one that was killed goes on.

Each row is one `kgdist-train`, run as a user would run it. MRR is that of the whole test split, both sides, filtered by all
splits, among all entities, ties averaged, of the epoch that was best on valid. Minutes are those of the training alone, without
loading and ranks, and beside them what they would be where two threads multiply 400 GFLOP/s in float32, or 800 in bfloat16. A row
is a JSON file in benchmarks/results/best/; the page is made from all that are there.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import prepare
from full import once as seconds_of
from full import products
from roofs import machine

from kgdist.base.files import write_json

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "best", HERE / "results" / "best.md"
NOMINAL = {"float32": 400.0, "bfloat16": 800.0}  # GFLOP/s of two threads that minutes are given for
SIZES = {"FB15k": 14951, "FB15k-237": 14541, "wn18": 40943, "wn18rr": 40943}
FULL = (
    "--candidates all --loss_genre Softmax --reciprocal --optimizer adagrad --init normal --init_scale 1e-3 "
    "--compute_dtype bfloat16 --valid"
)
N3 = f"--model_name ComplEx {FULL} --regularizer n3"


@dataclass(frozen=True)
class Row:
    """One training. `wanted`: MRR that it is to reach, `minutes` it is given for that."""

    name: str
    graph: str
    what: str
    options: str
    published: str = ""
    wanted: float | None = None
    minutes: float | None = None
    group: str = "quality"

    @property
    def words(self) -> list[str]:
        """The command's options, as a user types them."""
        return ["--dataset", self.graph, *self.options.split()]


def grouping() -> list[Row]:
    """--answers 1, 4, 8, all: every rate on valid, then three seeds at the best rate."""
    sizes = {"FB15k-237": (0.05, 1000), "wn18rr": (0.1, 1000)}
    rows = []
    for graph, (coef, examples) in sizes.items():
        for answers, queries in (
            ((1, 1.0), (4, 2.4), (8, 3.0), (0, 3.6)) if graph == "FB15k-237" else ((1, 1.0), (4, 1.55), (8, 1.63), (0, 1.7))
        ):
            for rate in (0.1, 0.2, 0.4):
                for seed in (0, 1, 2):
                    what = f"--answers {answers}, lr {rate:g}, seed {seed}"
                    options = f"{N3} --hidden_dim 200 -rc {coef} --lr {rate} --answers {answers} --max_epoch 20"
                    options += f" --batch_size {round(examples / queries)} --seed {seed} --eval_interval 1000"
                    name = f"grouping-{graph}-{answers}-{rate:g}-{seed}"
                    rows.append(Row(name, graph, what, options, group="grouping"))
    return rows


ROWS: list[Row] = [
    Row("fb15k-sampled", "FB15k", "ComplEx 400, sampled softmax, 1,000 negatives", "", ".790 PBG, .795 Marius", 0.79, 8),
    *grouping(),
]


def done(row: Row) -> dict[str, Any] | None:
    """What was kept of a row."""
    path = RESULTS / f"{row.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def rates(dim: int, entities: int) -> dict[str, float]:
    """GFLOP/s of the best product of two threads in these shapes, by dtype."""
    flops = 2e-9 * 1000 * entities * dim
    return {
        dtype: max(flops / min(seconds_of(call) for _ in range(5)) for call in products(entities, dim, dtype, 2))
        for dtype in NOMINAL
    }


def run(row: Row, root: Path) -> None:
    """Train one row, or go on with it, and keep its result. Raises CalledProcessError."""
    prepare(row.graph, root)
    out = root / "best" / row.name
    command = ["kgdist-train", *row.words, "--test"]
    trained = sorted(out.glob("*_0"))
    words = [
        *command[1:],
        "--data_path",
        str(root),
        "--save_path",
        str(out),
        "--num_thread",
        "2",
        "--log_interval",
        "5000",
        "--yes",
    ]
    if trained and list(trained[0].glob("ckpt-*")):
        words = ["--resume", str(trained[0]), "--data_path", str(root), "--test"]
    else:
        shutil.rmtree(out, ignore_errors=True)
    print("$", " ".join(command), flush=True)
    dim = int(re.search(r"--hidden_dim (\d+)", row.options + " --hidden_dim 400")[1])  # type: ignore[index]
    rate, began = rates(dim, SIZES[row.graph]), time.time()
    finished = subprocess.run([sys.executable, "-m", "kgdist.cli.train", *words], stdout=subprocess.PIPE, text=True, check=True)
    (folder,) = out.glob("*_0")
    curves = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    valid = [(each["step"], each["mrr"]) for each in curves if each.get("kind") == "valid" or each.get("split") == "valid"]
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))["all"]["realistic"]
    seconds = float(re.search(r"training took ([\d.]+) seconds", finished.stdout)[1])  # type: ignore[index]
    low = "bfloat16" in row.options
    found = {
        "test": tested,
        "valid": max((mrr for _, mrr in valid), default=None),
        "step": max(valid, key=lambda each: each[1], default=(None, None))[0],
        "seconds": seconds,
        "wall": time.time() - began,
        "rate": rate["bfloat16" if low else "float32"],
        "nominal": seconds * rate["bfloat16" if low else "float32"] / NOMINAL["bfloat16" if low else "float32"],
        "command": " ".join(command),
        "machine": machine(),
        "load": os.getloadavg()[1],
    }
    write_json(RESULTS / f"{row.name}.json", found)
    shutil.rmtree(out)


def page() -> str:
    """All rows."""
    return ""


if __name__ == "__main__":
    pass
