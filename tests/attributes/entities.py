"""Entities of every kind of attribute for the tests: made from a seed, written in every kind of file."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

SCHEMA = """\
key: entity
node_type: person
attributes:
  population: {kind: numeric, bins: 5}
  height: {kind: numeric, bins: 4, strategy: uniform}
  born: {kind: date, bins: 3}
  country: {kind: categorical}
  types: {kind: multi, separator: "|", min_count: 2}
  text: {kind: text, dim: 6}
  image: {kind: vector}
"""
COLUMNS = ["entity", "population", "height", "born", "country", "types", "text", "image"]
LETTERS = "rivers kings music towns north stars snow wolves books trains".split()

Row = dict[str, Any]


def rows(count: int, seed: int = 0) -> list[Row]:
    """Entities with text of each column, or None; a third of every column is missing."""
    draw = np.random.default_rng(seed)
    made: list[Row] = []
    for number in range(count):
        row: Row = {
            "population": str(draw.integers(1, 10**6)),
            "height": repr(float(draw.normal())),
            "born": f"{draw.integers(1900, 2000)}-{draw.integers(1, 13):02}-{draw.integers(1, 29):02}",
            "country": str(draw.choice(["fr", "de", "it", "é", "a b"])),
            "types": "|".join(draw.choice(list("abcdefgh"), draw.integers(1, 4))),
            "text": " ".join(draw.choice(LETTERS, draw.integers(1, 9))),
            "image": " ".join(f"{number:.1f}" for number in draw.normal(size=3)),
        }
        missing = draw.random(len(row)) < 1 / 3
        made.append(
            {"entity": f"e{number}"} | {n: None if gone else v for (n, v), gone in zip(row.items(), missing, strict=True)}
        )
    made[0]["types"] = "rare|a"  # once only
    return made


def write_tsv(path: Path, made: list[Row]) -> Path:
    """One kind of file; empty where a value is missing."""
    names = list(made[0])
    path.write_text(
        "\n".join("\t".join(row[name] or "" for name in names) for row in [dict(zip(names, names, strict=True)), *made])
    )
    return path


def write_csv(path: Path, made: list[Row]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    return path


def write_jsonl(path: Path, made: list[Row]) -> Path:
    """Numbers and lists as JSON has them, for every other row; keys of missing values left out."""
    lines = []
    for place, row in enumerate(made):
        values = {name: value for name, value in row.items() if value is not None}
        if place % 2:
            values |= {name: json.loads(values[name]) for name in ("population", "height") if name in values}
            values |= {name: values[name].split(sign) for name, sign in (("types", "|"), ("image", " ")) if name in values}
        lines.append(json.dumps(values))
    path.write_text("\n".join(lines) + "\n")
    return path


def write_parquet(path: Path, made: list[Row]) -> Path:
    """Columns of their own types."""
    column = {name: [row[name] for row in made] for name in made[0]}
    types = [None if text is None else text.split("|") for text in column["types"]]
    images = [None if text is None else [float(each) for each in text.split()] for text in column["image"]]
    table = {
        "entity": pa.array(column["entity"]),
        "population": pa.array([text and int(text) for text in column["population"]], pa.int64()),
        "height": pa.array([text and float(text) for text in column["height"]], pa.float64()),
        "born": pa.array(np.array([text or "NaT" for text in column["born"]], "datetime64[D]")),
        "country": pa.array(column["country"]).dictionary_encode(),
        "types": pa.array(types, pa.list_(pa.string())),
        "text": pa.array(column["text"], pa.large_string()),
        "image": pa.array(images, pa.list_(pa.float64(), 3)),
    }
    parquet.write_table(pa.table(table), path, row_group_size=17)
    return path


WRITERS = {"tsv": write_tsv, "csv": write_csv, "jsonl": write_jsonl, "parquet": write_parquet}


def schema(folder: Path, text: str = SCHEMA, name: str = "schema.yaml") -> Path:
    """The file of a schema."""
    path = folder / name
    path.write_text(text)
    return path
