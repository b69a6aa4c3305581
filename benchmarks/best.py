"""The best ranks, row by row: `make bench-best`. A row that is done is not run again, and one that was killed goes on.

Each row is one `kgdist-train`, run as a user would run it. MRR is that of the whole test split, both sides, filtered by all
splits, among all entities, ties averaged, of the epoch that was best on valid. Minutes are those of the training alone, without
loading and ranks, and beside them what they would be where two threads multiply 400 GFLOP/s in float32, or 800 in bfloat16; with
"<" where other work ran beside, which slows the training and not the ranks. "wanted" is the MRR that a row is to reach, "given"
the minutes at that rate that it may take. "GPU": trained there (`--gpu`), by the same command and in float32, beside other
trainings, so its minutes say little. A row is a JSON file in benchmarks/results/best/; the page is made from all that are there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import prepare
from full import once as seconds_of
from full import products
from roofs import machine

from kgdist.base.files import write_json
from kgdist.kernels import gemm
from kgdist.options.parse import parse
from kgdist.options.presets import find
from kgdist.runs import checkpoint

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "best", HERE / "results" / "best.md"
BUSY = 3.0  # load of a machine of two cores on which something else runs besides two threads
NOMINAL = {"float32": 400.0, "bfloat16": 800.0}  # GFLOP/s of two threads that minutes are given for
SIZES = {"FB15k": 14951, "FB15k-237": 14541, "wn18": 40943, "wn18rr": 40943}
ANSWERS = (1, 4, 8, 0)  # taken at once; 0: all
TRIED = {"FB15k-237": (0.1, 0.2, 0.4), "wn18rr": (0.2, 0.4, 0.8)}  # rates of each number: the best is to be none of the ends
FULL = "--candidates all --loss_genre Softmax --reciprocal --optimizer adagrad --init normal --init_scale 1e-3 --valid"
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


def preset(graph: str, model: str, kind: str, *, more: str = "", name: str = "", **about: Any) -> Row:
    """A row of the table of presets, with `more` options over it."""
    found = find(model, graph, kind=kind)
    options = f"--model_name {model} --preset {kind} {more}".strip()
    about.setdefault("what", found.source)
    return Row(name or f"{graph}-{model}-{kind}", graph, options=options, **about)


def grouping() -> list[Row]:
    """Answers taken at once: of each number, rates on one seed, and the best of them on two more (`wanted` leaves out others)."""
    rows = []
    for graph, coef, savings in (("FB15k-237", 0.05, (1.0, 2.41, 3.02, 3.64)), ("wn18rr", 0.1, (1.0, 1.55, 1.63, 1.68))):
        for answers, saved in zip(ANSWERS, savings, strict=True):
            for seed, rate in itertools.product(range(3), TRIED[graph]):
                options = f"{N3} --hidden_dim 200 -rc {coef} --lr {rate} --answers {answers} --batch_size {round(1000 / saved)}"
                options += f" --max_epoch 20 --eval_interval 1000 --seed {seed}"
                what = f"--answers {answers}, lr {rate:g}, seed {seed}"
                rows.append(Row(f"grouping-{graph}-{answers}-{rate:g}-{seed}", graph, what, options, group="grouping"))
    return rows


def ablation() -> list[Row]:
    """FB15k-237, rank 100, one thing left out at a time."""
    without = {
        "nothing": "",
        "inverse relations": "--reciprocal=false",
        "n3": "-rc 0",
        "loss of relations": "--relation_loss 0",
        "several answers at once": "--answers 1 --batch_size 1000",
        "bfloat16": "--compute_dtype float32",
        # of which an epoch has one side of each triple, not both
        "all but 1,000 drawn candidates": "--candidates sampled --neg_sample_size 1000 --batch_size 1000 --max_epoch 80",
    }
    rows = []
    for number, (what, more) in enumerate(without.items()):
        options = more if "--compute_dtype" in more else f"{more} --compute_dtype bfloat16".strip()
        name = f"ablation-{number}"
        rows.append(preset("FB15k-237", "ComplEx", "fast", more=options, name=name, what=what, group="ablation"))
    return rows


def quality() -> list[Row]:
    """The table of the best ranks. Rows that no preset holds are those of their authors, or of systems that searched for them."""
    sampled = f"--model_name ComplEx --loss_genre Softmax --optimizer adagrad --init normal --init_scale 1e-3 --valid {SAMPLED}"
    overnight = "--hidden_dim 4000 --batch_size 420 --eval_interval 9640 --lr .01 -rc 2.5e-3 --max_epoch 200"
    rows = [
        Row("FB15k-sampled", "FB15k", "ComplEx, 1,000 negatives", sampled, ".790 PBG, .795 Marius", 0.79, 8),
        preset("FB15k", "ComplEx", "fast", what="ComplEx-N3, rank 100", published=".83", wanted=0.83, minutes=30),
        preset("FB15k", "ComplEx", "best", what="ComplEx-N3, rank 500", published=".84", wanted=0.84, minutes=120),
        preset(
            "FB15k",
            "ComplEx",
            "best",
            more=overnight,
            name="FB15k-overnight",
            what="ComplEx-N3, rank 2000",
            published=".86",
            wanted=0.86,
            minutes=600,
        ),
        preset("FB15k-237", "ComplEx", "fast", what="ComplEx-N3, rank 100", published=".35", wanted=0.35, minutes=18),
        preset(
            "FB15k-237",
            "ComplEx",
            "best",
            what="ComplEx-N3, rank 1000, loss of relations",
            published=".388",
            wanted=0.385,
            minutes=150,
        ),
        preset("wn18", "ComplEx", "fast", what="ComplEx-N3, rank 100", published=".95", wanted=0.95, minutes=10),
        preset("wn18rr", "RESCAL", "best", what="RESCAL-DURA, rank 256", published=".498", wanted=0.495, minutes=75),
        preset("wn18rr", "ComplEx", "best", what="ComplEx-N3, rank 500", published=".49", wanted=0.485, minutes=75),
    ]
    for graph, shape, schedule, steps, found in (
        ("FB15k", "1024 256 1000 24 1 1e-4", "step", 150_000, (".797", 0.795)),
        ("FB15k-237", "1024 256 1000 9 1 5e-5", "step", 100_000, (".337", 0.335)),
        ("wn18", "512 1024 500 12 .5 1e-4", "step", 80_000, (".949", 0.948)),
        # its authors': 1,024 negatives, rate 5e-5, 80,000 steps: 10 hours
        ("wn18rr", "512 256 500 6 .5 1e-3", "cosine", 40_000, (".477", 0.475)),
    ):
        what = "RotatE, as its authors" if schedule == "step" else "RotatE, fewer negatives and steps"
        names = ("--batch_size", "--neg_sample_size", "--hidden_dim", "--gamma", "--adversarial_temperature", "--lr")
        words = " ".join(f"{name} {value}" for name, value in zip(names, shape.split(), strict=True))
        options = f"--model_name RotatE --double_ent -adv {words} -rc 0 --optimizer adam --lr_schedule {schedule} --subsampling"
        options += f" --valid --max_step {steps} --eval_interval {steps // 10}"
        rows.append(Row(f"{graph}-RotatE", graph, what, options, *found, 150))
    for graph, model, options, published, wanted in OTHERS:
        rows.append(
            Row(
                f"{graph}-{model}",
                graph,
                model,
                f"--model_name {model} {options}",
                published,
                wanted,
                60,
            )
        )
    return rows


SAMPLED = "--hidden_dim 400 --regularizer n3 -rc 1e-3 --lr .1 --batch_size 1000 --neg_sample_size 1000 --max_epoch 50"
SOFTMAX = "--loss_genre Softmax --reciprocal --optimizer adagrad --init normal --init_scale 1e-2 -rc 0 --valid --max_epoch 30"
FAR = "--batch_size 1000 --neg_sample_size 200 --lr_schedule cosine --max_step 24000 --valid --eval_interval 6000"
LONG = "--lr .1 --batch_size 415 --max_epoch 60"
N3_FB = "--regularizer n3 --lr .1 --batch_size 420"
OTHERS = (
    ("FB15k", "DistMult", f"{FULL} {N3_FB} --lr_schedule cosine --max_epoch 24 --hidden_dim 600 -rc 8e-4", ".841", 0.83),
    ("FB15k", "TransE_l2", f"{FAR} --hidden_dim 400 --gamma 19.9 --lr 1 -adv -rc 1e-9", ".676", 0.675),
    ("FB15k", "SimplE", f"{FULL} {N3_FB} --max_epoch 60 --double_ent --double_rel --hidden_dim 200 -rc 2.5e-3", ".791", 0.79),
    ("FB15k-237", "RESCAL", f"{FULL} --regularizer dura --hidden_dim 128 -rc .05 {LONG}", ".356", 0.355),
    ("FB15k-237", "DistMult", f"{FULL} --regularizer n3 --hidden_dim 400 -rc .05 {LONG}", ".343", 0.343),
    (
        "FB15k-237",
        "TransE_l2",
        f"{SOFTMAX} --lr_schedule cosine --hidden_dim 128 --lr .3 --batch_size 256 --neg_sample_size 256",
        ".313",
        0.312,
    ),
)
ROWS: list[Row] = [*quality(), *grouping(), *ablation()]


def done(row: Row) -> dict[str, Any] | None:
    """What was kept of a row."""
    path = RESULTS / f"{row.name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def rates(dim: int, entities: int, threads: int) -> dict[str, float]:
    """GFLOP/s of the best product of the threads in these shapes, by dtype; 0 for bfloat16 where float32 is as fast."""
    flops = 2e-9 * 1000 * entities * dim
    found = dict.fromkeys(NOMINAL, 0.0)  # where bfloat16 is not fast, one large product of it can take minutes
    for dtype in ("float32", "bfloat16") if gemm.fast_on_this_cpu() else ("float32",):
        found[dtype] = max(flops / min(seconds_of(call) for _ in range(5)) for call in products(entities, dim, dtype, threads))
    return found


def run(row: Row, root: Path, *, gpu: bool = False, threads: int = 2) -> None:
    """Train one row, or go on with it, and keep its result. Raises CalledProcessError."""
    prepare(row.graph, root)
    out = root / "best" / row.name
    config = parse("train", row.words).config
    rate = dict.fromkeys(NOMINAL, 0.0) if gpu else rates(config.hidden_dim, SIZES[row.graph], threads)
    command = ["kgdist-train", *row.words, "--test"] + ["--gpu", "0"] * gpu
    chosen = "--compute_dtype" in row.words or config.candidates == "sampled"
    if not chosen and rate["bfloat16"] > 1.2 * rate["float32"]:
        command += ["--compute_dtype", "bfloat16"]
    dtype = "bfloat16" if "bfloat16" in command else "float32"
    trained, asked = sorted(out.glob("*_0")), out / "options.txt"
    same = asked.exists() and asked.read_text(encoding="utf-8") == " ".join(row.words)  # else its options changed
    begun = max((step for step, _ in checkpoint.numbered(trained[0])), default=0) if trained and same else 0
    if begun:
        words = ["--resume", str(trained[0]), "--data_path", str(root), "--test"]
    else:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        asked.write_text(" ".join(row.words), encoding="utf-8")
        places = ["--data_path", str(root), "--save_path", str(out)]
        words = [*command[1:], *places, "--num_thread", "1" if gpu else str(threads), "--log_interval", "5000"]
        words += ["--yes"] * (config.candidates == "all")
    print("$", " ".join(command), flush=True)
    began = time.time()
    finished = subprocess.run([sys.executable, "-m", "kgdist.cli.train", *words], stdout=subprocess.PIPE, text=True, check=True)
    (folder,) = out.glob("*_0")
    curves = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    valid = [(each["step"], each["mrr"]) for each in curves if each.get("kind") == "valid" or each.get("split") == "valid"]
    tested = json.loads((folder / "test.json").read_text(encoding="utf-8"))["all"]["realistic"]
    took = re.search(r"training took ([\d.]+) seconds", finished.stdout)
    if took is None:  # nothing was left but the test, so nothing is known of its pace
        shutil.rmtree(out)
        return run(row, root, gpu=gpu, threads=threads)
    seconds, last = float(took[1]), curves[-1]["step"]
    seconds *= last / (last - begun)  # of all steps, at the pace of those of this call
    found = {
        "test": tested,
        "valid": max((mrr for _, mrr in valid), default=None),
        "step": max(valid, key=lambda each: each[1], default=(None, None))[0],
        "seconds": seconds,
        "wall": time.time() - began,
        "rate": rate[dtype],
        "nominal": seconds * rate[dtype] / NOMINAL[dtype],
        "command": " ".join(command),
        "gpu": gpu,
        "threads": threads,
        "machine": f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}" if gpu else machine(),
        "load": os.getloadavg()[1],
    }
    write_json(RESULTS / f"{row.name}.json", found)
    shutil.rmtree(out)


def page() -> str:
    """All rows that are done, by group."""
    lines = ["# The best ranks", "", *(__doc__ or "").strip().splitlines()[2:], ""]
    lines += [
        "| graph | recipe | MRR | wanted | HITS@1 | HITS@10 | published | minutes | at 400 / 800 GFLOP/s | given | processor "
        "| command |"
    ]
    lines += ["|---|---|---:|---:|---:|---:|---|---:|---:|---:|---|---|"]
    for row in (each for each in ROWS if each.group == "quality"):
        found, wanted = done(row), f"{row.wanted:g}" if row.wanted else ""
        cells = [row.graph, row.what, "not run", wanted, "", "", row.published, "", "", f"{row.minutes:g}" if row.minutes else ""]
        if found is not None:
            test = found["test"]
            cells[2], cells[4], cells[5] = f"{test['mrr']:.4f}", f"{test['hits@1']:.3f}", f"{test['hits@10']:.3f}"
            cells[7], cells[8] = (_minutes(found, name) for name in ("seconds", "nominal"))
        command = " ".join(["kgdist-train", *row.words, "--test"]) if found is None else found["command"]
        lines.append(f"| {' | '.join([*cells, _processor(found)])} | `{command}` |")
    lines += _grouped() + _ablated()
    machines = sorted({found["machine"] for row in ROWS if (found := done(row)) is not None})
    return "\n".join([*lines, "", *(f"Machine: {each}." for each in machines), "By `make bench-best`.", ""])


def _processor(found: dict[str, Any] | None) -> str:
    """What LLVM calls the processor that trained a row."""
    named = re.search(r"(\w+) to LLVM", found["machine"]) if found is not None else None
    return "" if named is None else named[1]


def _minutes(found: dict[str, Any], name: str) -> str:
    """A duration of a row."""
    if found.get("gpu"):
        return "GPU" if name == "seconds" else ""
    return f"{'< ' * (found['load'] > BUSY)}{found[name] / 60:.1f}{_alone(found)}"


def _alone(found: dict[str, Any]) -> str:
    """What a duration is of, if not of two threads."""
    return " (one thread)" * (found.get("threads", 2) == 1 and not found.get("gpu", False))


def _grouped() -> list[str]:
    """Answers taken at once, at the best rate of each; nothing before one was found."""
    title = ["", "## Answers taken at once", "", "Test MRR of three seeds at the rate that was best on valid, 20 epochs.", ""]
    lines = ["| graph | answers | lr | valid MRR | test MRR, seeds | mean | seconds |", "|---|---:|---:|---:|---|---:|---:|"]
    for graph, answers in itertools.product(TRIED, ANSWERS):
        if (rate := best_rate(graph, answers)) is None:
            continue
        seeds = [found for seed in range(3) if (found := done(_named(f"grouping-{graph}-{answers}-{rate:g}-{seed}"))) is not None]
        tests = [found["test"]["mrr"] for found in seeds]
        valid = statistics.mean(found["valid"] for found in seeds)
        cells = [graph, str(answers or "all"), f"{rate:g}", f"{valid:.4f}", ", ".join(f"{mrr:.4f}" for mrr in tests)]
        where = " on a GPU" if seeds[0].get("gpu") else _alone(seeds[0])
        cells += [f"{statistics.mean(tests):.4f}", f"{statistics.mean(found['seconds'] for found in seeds):.0f}{where}"]
        lines.append(f"| {' | '.join(cells)} |")
    return title + lines if len(lines) > 2 else []


def _ablated() -> list[str]:
    """One thing left out at a time; nothing before one was."""
    title = ["", "## What each part brings", "", "FB15k-237, `--preset fast` in bfloat16, without one thing each.", ""]
    lines = ["| without | valid MRR | test MRR | minutes |", "|---|---:|---:|---:|"]
    for row in (each for each in ROWS if each.group == "ablation"):
        if (found := done(row)) is not None:
            lines.append(f"| {row.what} | {found['valid']:.4f} | {found['test']['mrr']:.4f} | {_minutes(found, 'seconds')} |")
    return title + lines if len(lines) > 2 else []


def _named(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def best_rate(graph: str, answers: int) -> float | None:
    """The rate that was best on valid with the first seed; None before all were tried."""
    tried = {rate: done(_named(f"grouping-{graph}-{answers}-{rate:g}-0")) for rate in TRIED[graph]}
    if any(found is None for found in tried.values()):
        return None
    return max(tried, key=lambda rate: (tried[rate] or {})["valid"])


def wanted(row: Row) -> bool:
    """Whether a row is to be run: of grouped ones, more seeds of the best rate alone."""
    if row.group != "grouping" or row.name.endswith("-0"):
        return True
    _, graph, answers, rate, _ = row.name.replace("FB15k-237", "FB15k_237").split("-")
    return best_rate(graph.replace("_", "-"), int(answers)) == float(rate)


def main() -> None:
    """Run what is not done, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", nargs="*", help="names, or parts of them; default: all of quality")
    parser.add_argument("--data", type=Path, default=HERE / "data")
    parser.add_argument("--gpu", action="store_true", help="train on the first GPU")
    parser.add_argument("--threads", type=int, default=2, help="of each training; one leaves the other core to another row")
    parser.add_argument("--list", action="store_true", help="print the rows and what is done")
    options = parser.parse_args()
    RESULTS.mkdir(parents=True, exist_ok=True)
    for row in ROWS:
        asked = any(part in row.name for part in options.rows) if options.rows else row.group == "quality"
        if options.list:
            found = done(row)
            print(f"{row.name}: {row.what}" + (f": MRR {found['test']['mrr']:.4f}" if found else ""))
        elif asked and wanted(row) and done(row) is None:
            run(row, options.data, gpu=options.gpu, threads=options.threads)
            PAGE.write_text(page(), encoding="utf-8")
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
