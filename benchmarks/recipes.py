"""--preset on graphs without a row, beside a search: `make bench-recipes`. A pair that is done is not run again, and a search
that was killed goes on.

For each graph and model one `kgdist-tune`, whose first trial is the preset as it is; the others search around it for equally many
epochs and the same dim. On WN18RR, FB15k-237 and WordNet it searches in rounds, on parts of the graph first; TransE_l2's preset
was trained anew when its rate on small graphs had changed. MRR is that of the valid split, of a trial's best validation. A pair
is a JSON file in benchmarks/results/recipes/; the page is made from all that are there, and the others were not run. The
constants of `kgdist/models/recipes.py` were chosen by UMLS, Kinships and Nations: they are to hold where `preset` is within .02
of `best`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from datasets import prepare
from roofs import machine

from kgdist.base.files import write_json

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results" / "recipes", HERE / "results" / "recipes.md"
FILES = "train.txt valid.txt test.txt"
SMALL = ("UMLS", "Kinships", "Nations")
MODELS = ("TransE_l1", "TransE_l2", "DistMult", "ComplEx", "RotatE", "SimplE", "RESCAL", "TransR", "PairRE")
LARGE = ("WN18RR", "FB15k-237", "WordNet30-full")
PAIRS = [*itertools.product(SMALL, MODELS), *itertools.product(LARGE, ("TransE_l2", "ComplEx", "RotatE"))]
NEAR = 0.02


def search(graph: str, model: str, root: Path, trials: int) -> dict[str, object]:
    """One pair: the MRR of the preset and of the best trial, with its options."""
    rounds = ["--rounds", "3"] if graph in LARGE else []
    words = (
        f"--dataset {graph} --data_path {root / graph} --format raw_udd_hrt --data_files {FILES} --model_name {model} --jobs 1"
    )
    out = root / "recipes" / f"{graph}-{model}"
    started = time.monotonic()
    found = _tune([*words.split(), *rounds], out, trials)
    seconds = round(time.monotonic() - started)
    begins, ends = (found["rounds"][place]["trials"] for place in (0, -1))  # the last round is of the whole graph
    preset = next(row for row in ends if row["params"] == begins[0]["params"])
    kept = {name: {key: row[key] for key in ("mrr", "params")} for name, row in (("preset", preset), ("best", found["best"]))}
    return {"graph": graph, "model": model, **kept, "trials": trials, "seconds": seconds}


def _tune(words: list[str], out: Path, trials: int) -> Any:
    """What a search has come to."""
    done = subprocess.run(
        [sys.executable, "-m", "kgdist.cli.tune", *words, "--trials", str(trials), "--out", str(out), "--json"],
        stdout=subprocess.PIPE,
        cwd=HERE.parent,
        timeout=12 * 3600,
        check=True,
    )
    return json.loads(done.stdout)


def page() -> str:
    """The table of all pairs that are there."""
    rows = [json.loads((RESULTS / f"{graph}-{model}.json").read_text()) for graph, model in PAIRS if _file(graph, model).exists()]
    lines = ["# --preset beside a search", "", *(__doc__ or "").split("\n\n", 1)[1].strip().splitlines(), ""]
    lines += ["| graph | model | preset | best of the search | below by | its options | trials | seconds |"]
    lines += ["|---|---|---:|---:|---:|---|---:|---:|"]
    for row in rows:
        preset, best = row["preset"]["mrr"], row["best"]["mrr"]
        below = f"{best - preset:.4f}" + ("" if best - preset <= NEAR else " **")
        options = ", ".join(f"{name} {value:.3g}" for name, value in row["best"]["params"].items())
        cells = (row["graph"], row["model"], f"{preset:.4f}", f"{best:.4f}", below, options, row["trials"], row["seconds"])
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    machines = sorted({row["machine"] for row in rows})
    within = sum(row["best"]["mrr"] - row["preset"]["mrr"] <= NEAR for row in rows)
    lines += [
        "",
        f"Within {NEAR}: {within} of {len(rows)}.",
        "",
        *(f"Machine: {each}." for each in machines),
        "By `make bench-recipes`.",
    ]
    return "\n".join(lines) + "\n"


def _file(graph: str, model: str) -> Path:
    return RESULTS / f"{graph}-{model}.json"


def main() -> None:
    """Run what is missing, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path("data"), help="where graphs are unpacked, and searches left")
    parser.add_argument("--trials", type=int, default=40)
    parser.add_argument("pairs", nargs="*", help="GRAPH-MODEL, or a part of it; default: all")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    RESULTS.mkdir(parents=True, exist_ok=True)
    for graph, model in PAIRS:
        wanted = not options.pairs or any(part in f"{graph}-{model}" for part in options.pairs)
        if not wanted or _file(graph, model).exists():
            continue
        if not prepare(graph, options.data):
            sys.exit(f"{graph}: name the folder of its archive, KGDIST_DATA=...")
        found = search(graph, model, options.data.absolute(), options.trials)
        write_json(_file(graph, model), {**found, "machine": machine()})
        PAGE.write_text(page())
        print(f"{graph} {model}: {found['preset']}; {found['best']}", flush=True)
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
