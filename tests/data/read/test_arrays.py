"""Files of numbers in pieces: all formats say the same, and what is no number is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from kgdist.base.errors import DataError
from kgdist.data.read import arrays
from kgdist.data.read.arrays import mapped, read_numbers, read_pairs

NUMBER = st.integers(-(2**63), 2**63 - 1)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.tuples(NUMBER, NUMBER), max_size=20), delimiter=st.sampled_from(" ,\t;|"), size=st.integers(1, 7))
def test_pairs_are_read_as_they_were_written(
    rows: list[tuple[int, int]], delimiter: str, size: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder, table = tmp_path_factory.mktemp("pairs"), np.array(rows, np.int64).reshape(-1, 2)
    (folder / "a.csv").write_text("".join(f"{a}{delimiter}{b}\n" for a, b in rows))
    np.save(folder / "a.npy", table)
    parquet.write_table(pa.table({"s": table[:, 0], "d": table[:, 1]}), folder / "a.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrays, "ROWS", size)
        for name, kind in (("a.csv", "csv"), ("a.npy", "numpy"), ("a.parquet", "parquet")):
            pieces = list(read_pairs(folder / name, kind, delimiter))
            assert np.array_equal(np.concatenate([np.zeros((0, 2), np.int64), *pieces]), table)
            assert kind == "csv" or all(len(piece) <= size for piece in pieces)


def test_lists_of_parquet_are_rows_of_several(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": pa.array([[1.0, 2.0], [3.0, 4.0]])}), tmp_path / "a.parquet")
    (rows,) = read_numbers(tmp_path / "a.parquet", "parquet", " ")
    assert rows.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([1, None]), "column 'x' has empty fields"),
        (pa.array([[1.0], [2.0, 3.0]]), "lists of different lengths"),
        (pa.array(["1", "2"]), "column 'x' holds string, expected numbers"),
    ],
)
def test_what_are_no_numbers_is_refused(column: pa.Array, words: str, tmp_path: Path) -> None:
    parquet.write_table(pa.table({"x": column}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=words):
        list(read_numbers(tmp_path / "a.parquet", "parquet", " "))


def test_arrays_of_other_things_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.array(["x"]))
    with pytest.raises(DataError, match="expected rows of numbers"):
        mapped(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.float32(3))
    with pytest.raises(DataError, match="expected rows of numbers"):
        mapped(tmp_path / "a.npy")
    with pytest.raises(DataError, match="no such file"):
        mapped(tmp_path / "b.npy")
