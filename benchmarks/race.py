"""Time to quality on FB15k: MRR on valid against minutes of training: `make bench-race`.

One after another, each on all cores: the recipe of sampled softmax and N3 (the first row of best.md), DGL-KE's options
(`--preset`), and kbc's objective of rank 100 (softmax against all entities, N3 of 7.5e-4, Adagrad of rate .1, batches of 1,000),
triple by triple in plain torch, until it has reached the goal. Time is that of steps, without validations; ranks are of the whole
valid split, filtered, among all entities. A race that was killed goes on from its last look, on the same machine by the same
options.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from best import ROWS
from datasets import prepare
from full import Plain, once
from roofs import machine

from kgdist.base.files import atomic_write, write_json
from kgdist.base.machine import keep_freed_memory, usable_cores
from kgdist.data.dataset import load_dataset
from kgdist.evaluation.evaluator import Evaluator
from kgdist.evaluation.ranks import metrics
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import model_of
from kgdist.options.parse import parse

HERE = Path(__file__).parent
DATASET = "FB15k"
RECIPE = next(row.options for row in ROWS if row.name == "FB15k-sampled")
OPTIONS = {"recipe": RECIPE, "`--preset`": "--model_name ComplEx --preset --valid"}
RANK, N3, SCALE = 100, 7.5e-4, 1e-3  # of kbc, on FB15k

Curve = list[tuple[float, float]]  # seconds of steps, MRR on valid


def once_here(kept: Path, run: Callable[[], Curve]) -> Curve:
    """The curve that was kept of an earlier call, or that `run` comes to, which is kept."""
    if kept.exists():
        return [(seconds, mrr) for seconds, mrr in json.loads(kept.read_text(encoding="utf-8"))]
    curve = run()
    write_json(kept, curve)
    return curve


def trained(options: str, root: Path, every: int) -> Curve:
    """What `kgdist-train` comes to, looked at every so many steps of a process."""
    with tempfile.TemporaryDirectory() as out:
        words = ["--dataset", DATASET, *options.split(), "--num_proc", str(usable_cores()), "--no_save_emb"]
        words += ["--eval_interval", str(every), "--log_interval", "500", "--data_path", str(root), "--save_path", out]
        subprocess.run([sys.executable, "-m", "kgdist.cli.train", *words], check=True, stdout=subprocess.DEVNULL)
        (run,) = Path(out).iterdir()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    rates = [each["triples_per_second"] for each in lines if each["kind"] == "train"]  # of all processes
    a_step = statistics.mean(config["batch_size"] * usable_cores() / rate for rate in rates)
    return [(each["step"] * a_step, each["mrr"]) for each in lines if each["kind"] == "valid"]


def plainly(root: Path, kept: Path, goal: float, turn: float, most: float) -> Curve:
    """The same of plain torch, looked at every `turn` seconds, until it has reached `goal`, for `most` seconds. All that the next
    steps depend on is in the file `kept` after each look."""
    dataset = load_dataset(path=root, name=DATASET)
    sizes = len(dataset.entities), len(dataset.relations)
    words = ["--dataset", DATASET, "--model_name", "ComplEx", "--hidden_dim", str(2 * RANK), "--reciprocal"]
    config = parse("train", [*words, "--loss_genre", "Softmax", "--optimizer", "adagrad"]).config
    model, plain = model_of(config), Plain(dataset.train, *sizes, RANK, usable_cores(), N3, SCALE)
    tables, evaluator = MemoryTables.create(model.shapes(*sizes), config.optimizer), Evaluator(dataset, config)
    seconds, curve = 0.0, [(0.0, 0.0)]
    if kept.exists():
        held = torch.load(kept, weights_only=False)
        seconds, curve = held["seconds"], held["curve"]
        plain.optimizer.load_state_dict(held["optimizer"])
        plain.rng.bit_generator.state = held["drawn"]
        for each, rows in zip(plain.rows, held["rows"], strict=True):
            each.weight.data.copy_(rows)
    while curve[-1][1] < goal and seconds < most:
        until = seconds + turn
        while seconds < until:
            seconds += once(plain)
        tables.rows["entity"].copy_(plain.rows[0].weight.data)
        both = plain.rows[1].weight.data.view(2, sizes[1], -1)  # relations, then their inverses: ours lie side by side
        tables.rows["relation"].copy_(both.transpose(0, 1).reshape(tables.rows["relation"].shape))
        with torch.no_grad():
            mrr = float(metrics(evaluator.rank(model, tables, "valid"))["mrr"] or 0)
        curve.append((seconds, mrr))
        held = {"seconds": seconds, "curve": curve, "optimizer": plain.optimizer.state_dict()}
        held |= {"drawn": plain.rng.bit_generator.state, "rows": [each.weight.data for each in plain.rows]}
        with atomic_write(kept) as file:
            torch.save(held, file)
        print(f"plain torch: {seconds / 60:.1f} minutes, MRR {mrr:.4f}", flush=True)
    return curve[1:]


def reached(curve: Curve, goal: float) -> float | None:
    """Seconds, between the two looks around it; None if it has not."""
    for (before, low), (after, high) in zip([(0.0, 0.0), *curve], curve, strict=False):
        if high >= goal:
            return before + (after - before) * (goal - low) / (high - low)
    return None


def page(curves: dict[str, Curve], goal: float) -> str:
    """All that was found, minute by minute."""
    lines = ["# Time to quality", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    lines += [f"| minutes | {' | '.join(curves)} |", f"|---:|{'---:|' * len(curves)}"]
    for minute in range(1, int(max(curve[-1][0] for curve in curves.values()) // 60) + 1):
        seen = [[mrr for seconds, mrr in curve if 60 * (minute - 1) < seconds <= 60 * minute] for curve in curves.values()]
        if any(seen):
            lines.append(f"| {minute} | {' | '.join(f'{mrrs[-1]:.3f}' if mrrs else '' for mrrs in seen)} |")
    times, said = {name: reached(curve, goal) for name, curve in curves.items()}, []
    for name, curve in curves.items():
        seconds, mrr = max(curve, key=lambda each: each[1])
        best = f"at most {mrr:.3f}, after {seconds / 60:.1f} minutes"
        found = times[name]
        said.append(f"{name} {best if found is None else f'after {found / 60:.1f} minutes'}")
    lines += ["", f"MRR {goal:g}: {'; '.join(said)}."]
    first, last = times["recipe"], times["plain torch"]
    if first and last:
        lines.append(f"The recipe is there {last / first:.1f} times as soon as plain torch.")
    commands = [
        f"- {name}: `kgdist-train --dataset {DATASET} {options} --num_proc {usable_cores()}`" for name, options in OPTIONS.items()
    ]
    return "\n".join([*lines, "", *commands, "", f"Machine: {machine()}. By `make bench-race`.", ""])


def main() -> None:
    """Run, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--goal", type=float, default=0.8)
    parser.add_argument("--turn", type=float, default=60.0, help="seconds between two looks at plain torch")
    parser.add_argument("--most", type=float, default=180.0, help="minutes of plain torch, at most")
    parser.add_argument("--every", type=int, default=1000, help="steps between two looks at the others")
    options = parser.parse_args()
    keep_freed_memory()
    prepare(DATASET, options.data)
    out = options.data / "race"
    asked = "\n".join([machine(), *OPTIONS.values(), f"{options.goal:g} {options.turn:g} {options.every}"])
    begun = out / "asked.txt"
    if not begun.exists() or begun.read_text(encoding="utf-8") != asked:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        begun.write_text(asked, encoding="utf-8")
    runs: dict[str, Callable[[], Curve]] = {
        name: partial(trained, words, options.data, options.every) for name, words in OPTIONS.items()
    }
    runs["plain torch"] = partial(plainly, options.data, out / "plain.pt", options.goal, options.turn, 60 * options.most)
    curves = {name: once_here(out / f"{name.strip('`-')}.json", run) for name, run in runs.items()}
    text = page(curves, options.goal)
    (HERE / "results" / "race.md").write_text(text, encoding="utf-8")
    shutil.rmtree(out)
    print(text)


if __name__ == "__main__":
    main()
