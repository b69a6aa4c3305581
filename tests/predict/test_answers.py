"""Answers in files and on the terminal: DGL-KE's layout, the same numbers back from every format, whole files or none."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp
from pyarrow import parquet

from kgdist.base import log
from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.files import check_output
from kgdist.data.vocabulary import Vocabulary
from kgdist.predict import answers
from kgdist.predict.answers import Column, write_answers

NAMES = Vocabulary.from_names(["dog", "a\tb", '"quoted"', "犬", "New York", "a, b"])
TRIPLE = [Column("head", NAMES), Column("relation"), Column("tail", NAMES), Column("score")]
FLOATS = hnp.arrays(np.float32, st.integers(0, 20), elements=st.floats(width=32))


def block(scores: np.ndarray) -> list[np.ndarray]:
    ids = np.arange(len(scores)) % len(NAMES)
    return [ids, ids + 100, ids[::-1], scores]


def test_the_layout_is_that_of_dgl_ke(tmp_path: Path) -> None:
    file = tmp_path / "result.tsv"
    count = write_answers(str(file), TRIPLE, [block(np.float32([-5.11393, 1e-9, 3]))])
    assert count == 3
    assert file.read_text(encoding="utf-8").split("\n") == [
        "head\trelation\ttail\tscore",
        'dog\t100\t"quoted"\t-5.11393',
        "a\\tb\t101\ta\\tb\t1e-09",
        '"quoted"\t102\tdog\t3.0',
        "",
    ]


@settings(max_examples=25)
@given(st.lists(FLOATS, max_size=4))
def test_every_format_gives_the_numbers_back(tmp_path_factory: pytest.TempPathFactory, parts: list[np.ndarray]) -> None:
    folder = tmp_path_factory.getbasetemp()
    blocks = [block(scores) for scores in parts]
    scores = np.concatenate([np.zeros(0, np.float32), *parts])
    heads = [NAMES[int(n)] for each in blocks for n in each[0]]
    for suffix in ("tsv", "csv", "json", "parquet"):
        assert write_answers(str(folder / f"a.{suffix}"), TRIPLE, blocks) == len(scores)
    lines = [line.split("\t") for line in (folder / "a.tsv").read_text(encoding="utf-8").split("\n")[1:-1]]
    assert [line[0].replace("\\t", "\t") for line in lines] == heads
    assert np.array_equal(np.array([line[3] for line in lines], np.float32), scores, equal_nan=True)
    with (folder / "a.csv").open(encoding="utf-8", newline="") as file:
        title, *records = csv.reader(file, strict=True)
    assert title == ["head", "relation", "tail", "score"] and [record[0] for record in records] == heads
    assert np.array_equal(np.array([record[3] for record in records], np.float32), scores, equal_nan=True)
    found = json.loads((folder / "a.json").read_text(encoding="utf-8"), parse_constant=lambda word: pytest.fail(word))
    assert [row["head"] for row in found] == heads
    finite = np.array([np.nan if row["score"] is None else row["score"] for row in found], np.float32)
    assert np.array_equal(finite, np.where(np.isfinite(scores), scores, np.nan), equal_nan=True)
    table = parquet.read_table(folder / "a.parquet")
    assert table.column_names == ["head", "relation", "tail", "score"] and table.num_rows == len(scores)
    assert table["head"].to_pylist() == heads
    assert np.array_equal(table["score"].to_numpy(), scores.astype(table["score"].type.to_pandas_dtype()), equal_nan=True)


def test_blocks_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "ROWS", 7)
    one = [np.arange(5), np.arange(5), np.arange(5), np.ones(5, np.float32)]
    for suffix in ("tsv", "csv", "json", "parquet"):
        file = tmp_path / f"a.{suffix}"
        assert write_answers(str(file), TRIPLE, (one for _ in range(9))) == 45
    assert parquet.ParquetFile(tmp_path / "a.parquet").metadata.num_row_groups > 1
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == len(json.loads((tmp_path / "a.json").read_text())) == 45


@pytest.mark.parametrize("suffix", ["tsv", "csv", "json", "parquet"])
def test_what_fails_in_between_leaves_the_file_before(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"a.{suffix}"
    file.write_text("before")

    def failing() -> Iterator[list[np.ndarray]]:
        yield block(np.ones(3, np.float32))
        raise KgdistError("in the middle")

    with pytest.raises(KgdistError, match="in the middle"):
        write_answers(str(file), TRIPLE, failing())
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


def test_outputs_that_cannot_be_are_refused_before_the_work(tmp_path: Path) -> None:
    for output, says in [
        (tmp_path, "is a folder"),
        (tmp_path / "no" / "a.tsv", "there is no folder"),
        ("/proc/a.tsv", "nothing can be written in /proc"),
    ]:
        with pytest.raises(OptionError, match=f"^--output: .*{says}"):
            check_output("--output", output)
    check_output("--output", tmp_path / "a.tsv")


def test_the_terminal_gets_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    log.setup()  # not as the command of another test has left it
    assert write_answers("-", TRIPLE, [block(np.float32([-5.11393, 0.25])), block(np.float32([7]))]) == 3
    assert capsys.readouterr().out == (
        "head  relation  tail    score\n"
        "dog        100  a\N{REPLACEMENT CHARACTER}b   -5.1139\n"
        "a\N{REPLACEMENT CHARACTER}b        101  dog    0.2500\n"
        "dog        100  dog    7.0000\n"
    )
    assert write_answers("-", TRIPLE, []) == 0
    assert capsys.readouterr().out == "no answers\n"
