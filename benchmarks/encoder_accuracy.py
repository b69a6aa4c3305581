"""Trains graph encoders on FB15k-237 and writes their ranks: `make bench-encoder-accuracy DATA=folder`.

Each row is a training by kgdist-train with two threads that ends when validation gets no better; the rows of the best validation
are tested, filtered, among all entities. Rows are kept one JSON file each in benchmarks/results/encoder_accuracy/; the
table is made
from all. `DATA` has the folders FB15k-237 (train.txt, valid.txt, test.txt) and FB15k-attributes (entity_attributes.tsv).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from roofs import machine

from kgdist.base.files import write_json

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "results" / "encoder_accuracy", HERE / "results" / "encoder_accuracy.md"
DECODER = (
    "--model_name DistMult --hidden_dim 100 --gamma 10 --neg_sample_size 256 -adv -rc 0 --lr 0.1 --batch_size 8192"  # of all
)
ENCODER = "--encoder_dim 100 --encoder_lr 0.01 --dropout 0.2"
THREADS = 2
HOW = f"--num_thread {THREADS} --seed 0 --valid --early_stop_patience 2 --eval_interval 150 --max_step 3000 --test --quiet"


class Row(NamedTuple):
    """A line of the table."""

    name: str
    encoder: str | None
    attributes: bool = False
    more: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """Options besides those of all."""
        return [*DECODER.split(), *(["--encoder", self.encoder, *ENCODER.split()] if self.encoder else []), *self.more]


ROWS = [
    Row("DistMult alone", None),
    *(
        Row(f"{encoder}{', attributes' if attributes else ''}", encoder, attributes, more)
        for encoder, more in (("rgcn", ("--num_bases", "30")), ("compgcn", ()), ("relgnn", ()), ("sage", ()), ("gat", ()))
        for attributes in (False, True)
    ),
]


def source(data: Path, cache: Path) -> list[str]:
    """The flags that name the graph."""
    files = [str(data / "FB15k-237" / f"{split}.txt") for split in ("train", "valid", "test")]
    return ["--dataset", "FB15k-237", "--data_path", str(cache), "--format", "raw_udd_hrt", "--data_files", *files]


def run(row: Row, data: Path, folder: Path) -> dict[str, object]:
    """Train and test; what is to be kept. Raises CalledProcessError."""
    words = [*source(data, folder / "cache"), *row.words, *HOW.split(), "--save_path", str(folder / "runs")]
    if row.attributes:
        features = folder / "features"
        if not features.exists():
            made = ["--entities", str(data / "FB15k-attributes" / "entity_attributes.tsv"), "--out", str(features)]
            schema = ["--schema", str(HERE / "encoder_attributes.yaml")]
            subprocess.run(
                [sys.executable, "-m", "kgdist.cli.preprocess", *made, *schema, *source(data, folder / "cache")], check=True
            )
        words += ["--attributes", str(features)]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "kgdist.cli.train", *words], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - began
    (trained,) = (folder / "runs").iterdir()
    tested = json.loads((trained / "test.json").read_text())["all"]["realistic"]
    curve = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    valid = max((each for each in curve if each["kind"] == "valid"), key=lambda each: float(each["mrr"]))
    return {
        "row": row.name,
        "options": " ".join(row.words),
        "seconds": round(seconds),
        "threads": THREADS,
        "best step": valid["step"],
        "valid mrr": valid["mrr"],
        "test": tested,
        "machine": machine(),
    }


def table() -> str:
    """The page, of all rows that are there."""
    lines = [
        "# Accuracy of graph encoders on FB15k-237",
        "",
        "Filtered ranks of the test triples among all 14,541 entities, after the best validation; one seed.",
        "All rows have DistMult of 100 numbers, 256 negatives, self-adversarial. R-GCN's paper has .248 with DistMult.",
        "",
        "| | MRR | HITS@1 | HITS@3 | HITS@10 | validation MRR | best step | seconds in all | threads |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    files = {row.name: RESULTS / f"{file_of(row)}.json" for row in ROWS}
    found = [json.loads(file.read_text()) for file in files.values() if file.exists()]
    for each in found:
        tested = each["test"]
        ranks = " | ".join(f"{tested[name]:.3f}" for name in ("mrr", "hits@1", "hits@3", "hits@10"))
        how = f"{each['best step']:,} | {each['seconds']:,} | {each['threads']}"
        lines.append(f"| {each['row']} | {ranks} | {each['valid mrr']:.3f} | {how} |")
    missing = [name for name, file in files.items() if not file.exists()]
    lines += ["", f"Not run yet: {'; '.join(missing)}." if missing else ""]
    machines = sorted({str(each["machine"]) for each in found})
    lines += ["", "Command: `make bench-encoder-accuracy DATA=folder`. Machine: " + "; ".join(machines) + "."]
    return "\n".join(lines) + "\n"


def file_of(row: Row) -> str:
    return row.name.replace(", ", "_").replace(" ", "_")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", nargs="*", help="those to run, by name; all when not given")
    options = parser.parse_args()
    RESULTS.mkdir(exist_ok=True)
    for row in ROWS:
        if options.rows and row.name not in options.rows:
            continue
        with tempfile.TemporaryDirectory() as folder:
            kept = run(row, options.data, Path(folder))
        write_json(RESULTS / f"{file_of(row)}.json", kept)
        PAGE.write_text(table())
        print(json.dumps(kept), flush=True)


if __name__ == "__main__":
    main()
