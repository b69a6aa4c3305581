"""Time to quality on FB15k: MRR on valid against minutes of training: `make bench-race`.

In turns, a minute each, in one process: the recipe (`--preset fast`) and the same objective triple by triple in plain torch
(autograd, torch.optim.Adagrad), both on all cores, each until it has reached the goal. After them, `--preset` alone, DGL-KE's
options, whose training ends before. Time is that of steps; ranks are of the whole valid split, filtered, among all entities.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from datasets import prepare
from full import Ours, Plain, once
from roofs import machine

from kgdist.base.machine import keep_freed_memory, usable_cores
from kgdist.data.dataset import load_dataset
from kgdist.evaluation.evaluator import Evaluator
from kgdist.evaluation.ranks import metrics
from kgdist.kvstore.tables import MemoryTables
from kgdist.options.parse import parse

HERE = Path(__file__).parent
SCALE = 1e-3  # of the first rows, as in the recipe


class Runner:
    """One of those that train in turns. `step` does a step; `rows` copies what it has learned into tables for ranking."""

    def __init__(self, name: str, step: Callable[[], object], tables: Callable[[], MemoryTables]) -> None:
        self.name, self.step, self.tables = name, step, tables
        self.seconds, self.curve = 0.0, [(0.0, 0.0)]

    def go_on(self, seconds: float) -> None:
        """Train so long."""
        until = self.seconds + seconds
        while self.seconds < until:
            self.seconds += once(self.step)

    def reached(self, goal: float) -> float | None:
        """Seconds, between the two looks around it; None if it has not."""
        for (before, low), (after, high) in zip(self.curve, self.curve[1:], strict=False):
            if high >= goal:
                return before + (after - before) * (goal - low) / (high - low)
        return None


def published(root: Path) -> list[tuple[float, float]]:
    """(seconds of steps, MRR on valid) of DGL-KE's options."""
    with tempfile.TemporaryDirectory() as out:
        words = [
            "--dataset",
            "FB15k",
            "--model_name",
            "ComplEx",
            "--preset",
            "--valid",
            "--eval_interval",
            "2000",
            "--num_proc",
            str(usable_cores()),
        ]
        places = ["--data_path", str(root), "--save_path", out, "--log_interval", "500", "--no_save_emb"]
        subprocess.run([sys.executable, "-m", "kgdist.cli.train", *words, *places], check=True, stdout=subprocess.DEVNULL)
        (run,) = Path(out).iterdir()
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
    rates = [each["triples_per_second"] for each in lines if each["kind"] == "train"]
    a_step = config["batch_size"] * len(rates) / sum(rates)  # of one process, whose rate it is
    return [(each["step"] * a_step, each["mrr"]) for each in lines if each["kind"] == "valid"]


def main() -> None:
    """Run, print and save the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--dataset", default="FB15k")
    parser.add_argument("--goal", type=float, default=0.8)
    parser.add_argument("--turn", type=float, default=60.0, help="seconds")
    parser.add_argument("--most", type=float, default=180.0, help="minutes of each, at most")
    options = parser.parse_args()
    keep_freed_memory()
    prepare(options.dataset, options.data)
    dataset = load_dataset(path=options.data, name=options.dataset)
    sizes, cores = (len(dataset.entities), len(dataset.relations)), usable_cores()
    words = ["--dataset", "FB15k", "--model_name", "ComplEx", "--preset", "fast"]
    config = parse("train", [*words, "--num_thread", str(cores)]).config
    ours = Ours(config, dataset.train, *sizes)
    for rows in ours.tables.rows.values():
        rows.normal_(0, SCALE)
    plain = Plain(dataset.train, *sizes, config.hidden_dim // 2, cores, config.regularization_coef, SCALE)

    def tables_of_plain() -> MemoryTables:
        made = MemoryTables.create(ours.model.shapes(*sizes), config.optimizer)
        made.rows["entity"].copy_(plain.rows[0].weight.data)
        both = plain.rows[1].weight.data.view(2, sizes[1], -1)  # relations, then their inverses: ours lie side by side
        made.rows["relation"].copy_(both.transpose(0, 1).reshape(2 * sizes[1], -1))
        return made

    runners = [Runner("--preset fast", ours, lambda: ours.tables), Runner("plain torch", plain, tables_of_plain)]
    evaluator = Evaluator(dataset, config)
    while any(each.reached(options.goal) is None and each.seconds < 60 * options.most for each in runners):
        for each in runners:
            if each.reached(options.goal) is None and each.seconds < 60 * options.most:
                each.go_on(options.turn)
                with torch.no_grad():
                    mrr = metrics(evaluator.rank(ours.model, each.tables(), "valid"))["mrr"]
                each.curve.append((each.seconds, float(mrr or 0)))
                print(f"{each.name}: {each.seconds / 60:.1f} minutes, MRR {mrr:.4f}", flush=True)
    others = published(options.data)
    times = [each.reached(options.goal) for each in runners]
    lines = ["# Time to quality", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    lines += ["| minutes | `--preset fast` | plain torch | `--preset` |", "|---:|---:|---:|---:|"]
    for number in range(1, max(len(each.curve) for each in runners)):
        minutes = number * options.turn / 60
        cells = [f"{each.curve[number][1]:.3f}" if number < len(each.curve) else "" for each in runners]
        last = [mrr for seconds, mrr in others if seconds <= 60 * minutes]
        lines.append(f"| {minutes:g} | {' | '.join(cells)} | {f'{last[-1]:.3f}' if last else ''} |")
    said = ["not" if seconds is None else f"after {seconds / 60:.1f} minutes" for seconds in times]
    lines += ["", f"MRR {options.goal:g}: `--preset fast` {said[0]}, plain torch {said[1]}, `--preset` {highest(others)}."]
    if times[0] and times[1]:
        lines.append(f"The recipe is there {times[1] / times[0]:.1f} times as soon as plain torch.")
    text = "\n".join([*lines, "", f"Machine: {machine()}. By `make bench-race`.", ""])
    (HERE / "results" / "race.md").write_text(text, encoding="utf-8")
    print(text)


def highest(curve: list[tuple[float, float]]) -> str:
    """The best of it, in words."""
    seconds, mrr = max(curve, key=lambda each: each[1])
    return f"reaches {mrr:.3f} in {seconds / 60:.1f} minutes"


if __name__ == "__main__":
    main()
