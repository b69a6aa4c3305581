"""Parquet files of triples: columns by name and by place, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgdist.base.errors import OptionError
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import ORDERS
from tests.data.graphs import error_of, triples, write

GOOD = "a\tr\tb\n"


@pytest.mark.parametrize("order", ORDERS)
def test_parquet_by_position_and_by_name(tmp_path: Path, order: str) -> None:
    wanted = [("a", "r", "b"), ("c", "s\t", "a")]
    columns = dict(zip("hrt", zip(*wanted, strict=True), strict=True))
    pq.write_table(pa.table({f"c{i}": list(columns[letter]) for i, letter in enumerate(order)}), tmp_path / "p.parquet")
    assert triples(tmp_path / "p.parquet", Spec(order)) == wanted
    named = pa.table(
        {"id": [1, 2], "tail": columns["t"], "relation": pa.array(columns["r"]).dictionary_encode(), "head": columns["h"]}
    )
    pq.write_table(named, tmp_path / "n.parquet")
    assert triples(tmp_path / "n.parquet", Spec(order)) == wanted


def test_parquet_ids_and_weights(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"a": [0, 1], "b": pa.array([1, 0], pa.uint8()), "c": [2, 2], "w": [0.5, 2]}), path)
    assert triples(path, Spec(limits=(3, 2), weights=True)) == [(0, 1, 2, 0.5), (1, 0, 2, 2.0)]
    assert triples(path, Spec(limits=(3, 2))) == [(0, 1, 2), (1, 0, 2)]
    assert triples(path) == [("0", "1", "2"), ("1", "0", "2")]  # as names, integers are their digits
    assert error_of(path, Spec(limits=(3, 1))).startswith(":1: relation id 1 is out of range")
    assert error_of(path, Spec(limits=(2, 2))).startswith(":1: tail id 2 is out of range, allowed entity ids: 0 to 1")


@pytest.mark.parametrize(
    ("columns", "spec", "words"),
    [
        ({"a": ["x", None], "b": ["r", "r"], "c": ["y", "y"]}, Spec(), ":2: column 'a' is null"),
        ({"a": ["x", "x"], "b": ["r", ""], "c": ["y", "y"]}, Spec(), ":2: relation '' is empty"),
        ({"a": ["x", "x\ny"], "b": ["r", "r"], "c": ["y", "y"]}, Spec(), ":2: head 'x\\ny' is empty or holds NUL or a line end"),
        ({"a": [1.5], "b": ["r"], "c": ["y"]}, Spec(), "column 'a' holds double, expected strings"),
        ({"a": ["x"], "b": [1], "c": [1]}, Spec(limits=(5, 5)), "column 'a' holds string, expected integers"),
        ({"a": [0], "b": [0], "c": [pow(2, 64) - 1]}, Spec(limits=(5, 5)), ":1: tail id"),
        ({"a": ["x"], "b": ["r"]}, Spec(), "at least 3 columns"),
        ({"a": ["x"], "b": ["r"], "c": ["y"]}, Spec(weights=True), "fourth column"),
        ({"a": ["x"], "b": ["r"], "c": ["y"], "d": ["heavy"]}, Spec(weights=True), "column 'd' holds string"),
        ({"a": ["x"] * 2, "b": ["r"] * 2, "c": ["y"] * 2, "d": [1.0, -1.0]}, Spec(weights=True), ":2: weight '-1.0'"),
    ],
)
def test_wrong_parquet(tmp_path: Path, columns: dict[str, list[object]], spec: Spec, words: str) -> None:
    arrays = {
        name: pa.array(values, pa.uint64()) if values[0] == pow(2, 64) - 1 else pa.array(values)
        for name, values in columns.items()
    }
    pq.write_table(pa.table(arrays), tmp_path / "t.parquet")
    assert words in error_of(tmp_path / "t.parquet", spec)


def test_parquet_that_is_none(tmp_path: Path) -> None:
    assert "Parquet" in error_of(write(tmp_path / "t.parquet", GOOD))
    assert "decompress it" in error_of(write(tmp_path / "t.parquet.gz", GOOD))
    with pytest.raises(OptionError, match="--header"):
        triples(write(tmp_path / "t.parquet", GOOD), Spec(header=True))
