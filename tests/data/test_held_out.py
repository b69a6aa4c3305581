"""Valid and test taken from train: disjoint, all of it, and always the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kgdist
from kgdist.base.errors import OptionError
from kgdist.cli import eval as eval_command
from kgdist.cli import train
from kgdist.data import held_out
from kgdist.data.dataset import Dataset, load_dataset
from kgdist.options.configfile import read_run
from tests.cli.graphs import SMALL, metrics, random_splits, write


def load(
    folder: Path, rows: list[tuple[object, ...]], split: tuple[float, ...] = (0.8, 0.1, 0.1), weighted: bool = False
) -> Dataset:
    write(folder / "train.tsv", rows)
    how = {"format": "raw_udd_hrt", "files": ["train.tsv"], "weighted": weighted}
    return load_dataset(path=folder, name="toy", **how, split=split)  # type: ignore[arg-type]


def rows_of(dataset: Dataset, name: str) -> list[list[int]]:
    return dataset.splits[name].array.tolist()


@pytest.mark.parametrize("weighted", [False, True])
def test_the_splits_are_the_whole_in_its_order(tmp_path: Path, weighted: bool) -> None:
    rows: list[tuple[object, ...]] = [(f"e{i}", "r", f"e{i + 1}", *([i + 0.5] if weighted else [])) for i in range(200)]
    whole, divided = load(tmp_path, rows, (), weighted), load(tmp_path, rows, (0.8, 0.15, 0.05), weighted)
    assert {name: len(split) for name, split in divided.splits.items()} == {"train": 160, "valid": 30, "test": 10}
    heads = [[row[0] for row in rows_of(divided, name)] for name in divided.splits]
    assert sorted(head for each in heads for head in each) == [row[0] for row in rows_of(whole, "train")]
    assert all(each == sorted(each) for each in heads)
    if weighted:
        assert divided.train.weights is not None and (divided.train.weights == np.array(heads[0]) + 0.5).all()
    assert (divided.train.weights is None) != weighted and divided.digest != whole.digest
    assert load(tmp_path, rows, (0.8, 0.15, 0.05), weighted).digest == divided.digest
    assert [name for name in load(tmp_path, rows, (0.9, 0, 0.1), weighted).splits] == ["train", "test"]


def test_the_same_splits_in_files_are_the_same_data_set(tmp_path: Path) -> None:
    divided = load(tmp_path / "one", [("a", "r", "b")] * 2 + [("b", "r", "a")] * 18)
    names = list(divided.entities)
    for name in divided.splits:
        write(tmp_path / "two" / f"{name}.tsv", [(names[h], "r", names[t]) for h, _, t in rows_of(divided, name)])
    files = ["train.tsv", "valid.tsv", "test.tsv"]
    read = load_dataset(path=tmp_path / "two", name="toy", format="raw_udd_hrt", files=files)
    assert list(read.entities) != names or read.digest == divided.digest


def test_pieces_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[tuple[object, ...]] = [(f"e{i}", "r", f"e{i * 7 % 90}") for i in range(90)]
    whole = load(tmp_path / "one", rows)
    monkeypatch.setattr(held_out, "_PIECE", 11)
    assert load(tmp_path / "two", rows).digest == whole.digest


@given(st.integers(1, 300), st.integers(0, 9), st.integers(0, 9))
def test_counts_add_up(triples: int, valid: int, test: int) -> None:
    shares = (1 - (valid + test) / 20, valid / 20, test / 20)
    try:
        counts = held_out._counts(triples, shares)
    except OptionError as error:
        assert triples < 30 and "is none" in str(error)
        return
    assert sum(counts) == triples and all((count > 0) == (share > 0) for count, share in zip(counts, shares, strict=True))


@pytest.mark.parametrize("shares", [(0.8, 0.2), (0.8, 0.1, 0.2), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1), (1.0,)])
def test_shares_that_cannot_be(tmp_path: Path, shares: tuple[float, ...]) -> None:
    with pytest.raises(OptionError, match="--split: needs three shares that add up to 1"):
        load(tmp_path, [("a", "r", "b")] * 9, shares)


def test_splits_that_are_there_or_come_to_nothing(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"--split: 0.1 of 3 triples for valid is none"):
        load(tmp_path, [("a", "r", "b")] * 3)
    with pytest.raises(OptionError, match="--split: the data set has a valid split already; drop it"):
        load_dataset(path=tmp_path, name="wordnet", split=(0.8, 0.1, 0.1))


def test_a_run_keeps_its_split(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (rows, _, _) = random_splits()
    write(tmp_path / "train.tsv", rows)
    data = ["--data_path", str(tmp_path), "--format", "raw_udd_hrt", "--data_files", "train.tsv", "--split", ".8", ".1", ".1"]
    assert train.main([*data, "--save_path", str(tmp_path / "ckpts"), *SMALL, "--test"]) == 0, capsys.readouterr().err
    (run,) = (tmp_path / "ckpts").iterdir()
    assert read_run(run).split == (0.8, 0.1, 0.1)
    before = metrics(run)
    (run / "test.json").unlink()
    assert eval_command.main([str(run)]) == 0
    assert metrics(run) == before
    graph = kgdist.load_dataset(tmp_path / "train.tsv", split=(0.8, 0.1, 0.1), data_path=str(tmp_path))
    assert graph.test is not None and len(graph.test) == 15
