"""Attributes of entities as features, beside scikit-learn alone, by one and two processes and tasks of Ray, and at ten times the
entities: `make bench-preprocess`, KGDIST_DATA being the folder of archives.

Entities are made from a seed: a number, a date, a category, words of 500 by a power law, a text. Where FB15k's attributes are
there, these are repeated to as many entities as well. Every figure is that of a process of its own, run after run in turn; the
parent does nothing meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from datasets import prepare
from roofs import machine

HERE = Path(__file__).parent
PATIENCE = 3600.0  # seconds of one run
WORDS = 12  # of a text
ALONE = "scikit-learn alone"
SCHEMA = """\
key: entity
attributes:
  population: {kind: numeric, bins: 20}
  birth_date: {kind: date, bins: 20}
  country: {kind: categorical}
  types: {kind: multi, min_count: 5}
  description: {kind: text, dim: 64}
"""


def make(path: Path, count: int) -> None:
    """Write the entities: tab-separated, a third of each column missing but the text."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, 501)
    words = [f"word{number}" for number in range(20_000)]
    with path.open("w") as file:
        file.write("entity\tpopulation\tbirth_date\tcountry\ttypes\tdescription\n")
        for start in range(0, count, 10_000):
            size = min(10_000, count - start)
            there = draw.random((size, 4)) < 2 / 3
            numbers = draw.lognormal(9, 2, size).astype(int)
            days = np.datetime64("1900-01-01") + draw.integers(0, 36_000, size)
            countries = draw.integers(0, 200, size)
            types = draw.choice(500, (size, 6), p=weights / weights.sum())
            texts = (draw.pareto(1, (size, WORDS)) * 20).astype(int) % len(words)
            for row in range(size):
                cells = [
                    str(numbers[row]),
                    str(days[row]),
                    f"country{countries[row]}",
                    "|".join(f"type{each}" for each in types[row]),
                ]
                kept = [cell if kept else "" for cell, kept in zip(cells, there[row], strict=True)]
                text = " ".join(words[each] for each in texts[row])
                file.write("\t".join([f"/m/{start + row:07x}", *kept, text]) + "\n")


def repeat(source: Path, path: Path, count: int) -> None:
    """Write the rows of a table of entities again and again, under names of their own."""
    header, *rows = source.read_text(encoding="utf-8").splitlines()
    with path.open("w", encoding="utf-8") as file:
        file.write(f"{header}\n")
        for number in range(count):
            name, rest = rows[number % len(rows)].split("\t", 1)
            file.write(f"{name}_{number // len(rows)}\t{rest}\n")


def alone(path: Path, out: Path) -> None:
    """The same features by scikit-learn, on whole columns in memory: read, fitted, transformed, saved."""
    import pyarrow as pa
    import pyarrow.csv
    import scipy.sparse
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import HashingVectorizer
    from sklearn.preprocessing import KBinsDiscretizer, MultiLabelBinarizer, OneHotEncoder

    options = pa.csv.ConvertOptions(column_types={"birth_date": pa.date32()}, strings_can_be_null=True)
    table = pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(delimiter="\t"), convert_options=options)
    out.mkdir()

    def save(name: str, found: Any, there: np.ndarray) -> None:
        np.save(out / f"{name}.rows.npy", np.flatnonzero(there))
        scipy.sparse.save_npz(out / f"{name}.npz", found, compressed=False)

    for name in ("population", "birth_date"):
        column = table.column(name)
        there = ~column.is_null().to_numpy()
        days = column.cast(pa.int32()) if name == "birth_date" else column
        numbers = days.to_numpy()[there].astype(np.float64)
        made = KBinsDiscretizer(20, encode="onehot", strategy="quantile", quantile_method="averaged_inverted_cdf")
        save(name, made.fit_transform(numbers[:, None]), there)
    there = ~table.column("country").is_null().to_numpy()
    save("country", OneHotEncoder().fit_transform(table.column("country").to_numpy()[there][:, None]), there)
    lists = [set(text.split("|")) if text else set() for text in table.column("types").to_pylist()]
    save("types", MultiLabelBinarizer(sparse_output=True).fit_transform(lists), np.array(list(map(bool, lists))))
    hashed = HashingVectorizer(n_features=1 << 14, ngram_range=(1, 2)).transform(table.column("description").to_numpy())
    sample = np.random.default_rng(0).choice(hashed.shape[0], min(20_000, hashed.shape[0]), replace=False)
    directions = TruncatedSVD(64, random_state=0).fit(hashed[np.sort(sample)])
    np.save(out / "description.npy", directions.transform(hashed).astype(np.float32))


def run(words: list[str]) -> dict[str, Any]:
    """Wall and core seconds of a process, and the object that it prints."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=PATIENCE)
    wall, after = time.perf_counter() - began, os.times()
    if done.returncode:
        sys.exit(done.stderr)
    core = after.children_user + after.children_system - before.children_user - before.children_system
    return {"wall": wall, "core": core, **(json.loads(done.stdout) if done.stdout.startswith("{") else {})}


def ours(path: Path, schema: Path, out: Path, *words: str) -> dict[str, Any]:
    """One run of kgdist-preprocess."""
    files = ["--entities", str(path), "--schema", str(schema), "--out", str(out), "--force", "--json"]
    return run(["-m", "kgdist.cli.preprocess", *files, *words])


def rows_of(found: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The rows of the table: medians."""
    lines = []
    for name, runs in found.items():
        cells = [name]
        cells += [f"{statistics.median(each[kind] for each in runs):.1f}" for kind in ("wall", "core")]
        for kind in ("scan", "transform", "work"):
            cells.append(f"{statistics.median(each['seconds'][kind] for each in runs):.1f}" if "seconds" in runs[0] else "")
        cells.append(f"{statistics.median(each['peak_bytes'] for each in runs) / 2**20:,.0f}" if "peak_bytes" in runs[0] else "")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


EXECUTORS = {
    "local": [],
    **{f"process, {n}": ["--executor", "process", "--num_workers", f"{n}"] for n in (1, 2)},
    **{f"ray, {n}": ["--executor", "ray", "--num_workers", f"{n}"] for n in (1, 2)},
}


def section(title: str, few: Path, many: Path, schema: Path, rounds: int, beside: bool) -> list[str]:
    """Measure one kind of entities; its part of the page."""
    found: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        for number in range(rounds):
            if beside:
                found.setdefault(ALONE, []).append(run([__file__, "--alone", str(few), str(Path(folder, f"alone{number}"))]))
            for name in ("local", "process, 1", "process, 2"):
                found.setdefault(name, []).append(ours(few, schema, out, *EXECUTORS[name]))
        count = found["local"][0]["node_types"]["_N"]["entities"]
        size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
        for name, words in EXECUTORS.items():
            found[f"{name}; ten times as many"] = [ours(many, schema, out, *words) for _ in range(1 + ("local" not in name))]
            print(*rows_of(found), sep="\n", flush=True)

    def middle(name: str, *path: str) -> float:
        values = found[name]
        for step in path:
            values = [each[step] for each in values]
        return statistics.median(values)  # type: ignore[type-var]

    lines = [
        f"## {title}",
        "",
        "| | wall | of a core | scan and fit | transform | work | peak, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [*rows_of(found), ""]
    if beside:
        lines.append(f"- local / scikit-learn alone, seconds of a core: {middle('local', 'core') / middle(ALONE, 'core'):.2f}")
    for kind in ("process", "ray"):
        one, two = (f"{kind}, {n}; ten times as many" for n in (1, 2))
        whole, transform = (middle(one, *path) / middle(two, *path) for path in (("seconds", "whole"), ("seconds", "transform")))
        net = middle(one, "seconds", "work") / (middle(two, "seconds", "work") / 2)
        lines.append(f"- {kind}, 1 over 2: net work of each {net:.2f}, transforming {transform:.2f}, the whole {whole:.2f}")
    grown = middle("local; ten times as many", "peak_bytes") / middle("local", "peak_bytes")
    return [*lines, f"- memory, ten times the entities: {grown:.2f} times; on the disk {size / count:.0f} bytes an entity", ""]


def main() -> None:
    """Measure, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entities", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--alone", nargs=2, type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.alone:
        alone(*options.alone)
        return
    lines = [
        "# Attributes as features",
        "",
        f"{options.entities:,} entities and ten times as many. Each run is a process of its own, from its start to the folder on",
        f"the disk; medians of {options.rounds} runs in turn, of one or two with ten times the entities; seconds. `work`: of the",
        "transforms alone, summed over processes. Two processes or tasks share the cores with the command itself, which reads,",
        "hands out and writes. Ray is begun and ended by the command, which is part of its wall.",
        "",
    ]
    with tempfile.TemporaryDirectory() as folder:
        few, many, schema = (Path(folder, name) for name in ("few.tsv", "many.tsv", "schema.yaml"))
        schema.write_text(SCHEMA)
        make(few, options.entities)
        make(many, 10 * options.entities)
        title = (
            f"Made: a number, a date, one of 200 countries, six of 500 types (a third of each missing), a text of {WORDS} words"
        )
        lines += section(title, few, many, schema, options.rounds, beside=True)
        if prepare("FB15k-attributes", Path(folder)):
            table = Path(folder, "FB15k-attributes", "entity_attributes.tsv")
            repeat(table, few, options.entities)
            repeat(table, many, 10 * options.entities)
            lines += section(
                "FB15k's attributes, repeated", few, many, HERE / "encoder_attributes.yaml", options.rounds, beside=False
            )
    lines += [
        "scikit-learn alone reads, fits, transforms and saves whole columns in memory (directions of texts learned from as many",
        "texts).",
        "",
        f"Command: `make bench-preprocess`. Machine: {machine()}.",
        "",
    ]
    (HERE / "results" / "preprocess.md").write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
