"""load_dataset: ids, splits, every layout on disk, and a cache that is reused, rebuilt and never half there."""

from __future__ import annotations

import gzip
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import OptionError, UsageError
from kgdist.data.dataset import Dataset, Triples, load_dataset
from kgdist.data.read.formats import ORDERS
from kgdist.data.vocabulary import Vocabulary
from tests.data.graphs import TEST, TRAIN, VALID, Triple, built, fails, named, raw, text, write_raw


@pytest.fixture(autouse=True)
def own_cache_folder(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


# ---- raw_udd


@pytest.mark.parametrize("order", ORDERS)
def test_ids_by_first_appearance_head_before_tail(tmp_path: Path, order: str) -> None:
    dataset = raw(tmp_path, write_raw(tmp_path, order), format=f"raw_udd_{{{order}}}")
    assert list(dataset.entities) == ["b", "a", "c", "is", "d", "e"]
    assert list(dataset.relations) == ["likes", "is", "knows"]
    assert dataset.train.array.tolist() == [[0, 0, 1], [1, 1, 2], [0, 0, 1], [3, 1, 0]]  # repeated triples stay
    assert (named(dataset, dataset.valid), named(dataset, dataset.test)) == (VALID, TEST)
    assert dataset.name == "mine" and dataset.train.weights is None
    assert list(dataset.splits) == ["train", "valid", "test"]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_splits_may_be_missing(tmp_path: Path, count: int) -> None:
    dataset = raw(tmp_path, write_raw(tmp_path)[:count])
    assert [split is not None for split in (dataset.train, dataset.valid, dataset.test)] == [i < count for i in range(3)]


NAME = st.text(st.characters(exclude_characters="\0\r\n\t", exclude_categories=("Cs",)), min_size=1, max_size=4)
ROWS = st.lists(st.tuples(NAME, NAME, NAME), min_size=1, max_size=30)


@settings(max_examples=40)
@given(ROWS, st.none() | ROWS, st.integers(4, 4000))
def test_any_graph_comes_back(
    tmp_path_factory: pytest.TempPathFactory, train: list[Triple], valid: list[Triple] | None, block: int
) -> None:
    folder = tmp_path_factory.mktemp("graph")
    splits = {"train.txt": train, **({"valid.txt": valid} if valid else {})}
    for name, triples in splits.items():
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text(triples).encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("kgdist.data.read.lines.BLOCK", block)
        dataset = raw(folder, list(splits))
    assert named(dataset, dataset.train) == train
    assert valid is None or named(dataset, dataset.valid) == valid
    everything = [*train, *(valid or [])]
    assert list(dataset.entities) == list(dict.fromkeys(name for h, _, t in everything for name in (h, t)))
    assert list(dataset.relations) == list(dict.fromkeys(r for _, r, _ in everything))


def test_unseen_entities_are_kept_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_raw(tmp_path)
    for _ in range(2):  # also when it comes from the cache
        caplog.clear()
        told: set[tuple[Path, str]] = set()  # of another process
        monkeypatch.setattr("kgdist.data.dataset._told", told)
        with caplog.at_level(logging.WARNING, "kgdist"):
            for _ in range(2):  # a report opens the data of its training again
                raw(tmp_path, files)
        assert [record.message for record in caplog.records] == [
            "mine: valid and test hold 2 entities and 1 relations that train lacks; no training triple mentions them",
            "mine: 25.00% of the training triples are repeated, and count as often; kgdist-split leaves repeats out",
        ]
    (tmp_path / files[0]).write_text((tmp_path / files[0]).read_text() + "new\tr\tnewer\n")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "kgdist"):  # that the data are others now is news
        raw(tmp_path, files)
    assert len(caplog.records) == 2


def test_blanks_around_names_are_kept_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "train.txt").write_text("a\tr\tb \na\t r\tb\n")
    with caplog.at_level(logging.WARNING, "kgdist"):
        assert list(raw(tmp_path).entities) == ["a", "b ", "b"]
    assert [record.message for record in caplog.records] == [
        "mine: 1 entities and 1 relations have names that begin or end with a blank"
    ]


def test_weights(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\tr\tb\t0.5\nb\tr\ta\t2\n")
    (tmp_path / "valid.txt").write_text("a\tr\tb\n")
    (tmp_path / "test.txt").write_text("a\tr\tb\t3\n")
    dataset = raw(tmp_path, ["train.txt", "valid.txt", "test.txt"], weighted=True)
    assert dataset.train.weights is not None and dataset.train.weights.dtype == np.float32
    assert dataset.train.weights.tolist() == [0.5, 2.0]
    assert dataset.valid is not None and dataset.valid.weights is None
    assert dataset.test is not None and dataset.test.weights is not None and dataset.test.weights.tolist() == [3.0]
    assert f"{tmp_path / 'train.txt'}:1: expected 3 tab-separated fields, found 4; give --has_edge_importance" in fails(
        lambda: raw(tmp_path)
    )


def test_header_and_delimiter(tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("head||rel||tail\na||r||b\n")
    dataset = raw(tmp_path, ["train.csv"], header="yes", delimiter="||")
    assert named(dataset, dataset.train) == [("a", "r", "b")]
    (tmp_path / "train.csv").write_text("head||rel||tail\n")
    assert "holds no triples" in fails(lambda: raw(tmp_path, ["train.csv"], header="yes", delimiter="||"))


@pytest.mark.parametrize("name", ["with space", 'it\'s "quoted"', "$(touch pwned)", "-n", "~", "é\u05d0", "new\nline", ".."])
def test_odd_folders(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    files = write_raw(Path(name))
    dataset = raw(Path(name), files)
    assert named(dataset, dataset.train) == TRAIN
    assert built(Path(name)) and not (Path(name) / "pwned").exists()


def test_the_same_graph_from_other_files_has_the_same_digest(tmp_path: Path) -> None:
    first = raw(tmp_path / "a", write_raw(tmp_path / "a"))
    other = raw(tmp_path / "b", write_raw(tmp_path / "b", "trh"), format="raw_udd_trh")
    assert first.digest == other.digest
    (tmp_path / "b" / "train.txt").write_text(text([*TRAIN, TRAIN[0]], "trh"))
    assert raw(tmp_path / "b", ["train.txt"], format="raw_udd_trh").digest not in (first.digest, raw(tmp_path / "a").digest)


# ---- udd


def write_udd(folder: Path, train: str = "0\t0\t1\n1\t0\t2\n") -> list[str]:
    (folder / "e.dict").write_text("0\tzero\n1\tone\n2\ttwo\n")
    (folder / "r.dict").write_text("likes\t0\n")
    (folder / "train.txt").write_text(train)
    return ["e.dict", "r.dict", "train.txt"]


@pytest.mark.parametrize("order", ORDERS)
def test_udd_ids_stand_for_names(tmp_path: Path, order: str) -> None:
    files = write_udd(tmp_path, text([("0", "0", "1"), ("1", "0", "2")], order))
    dataset = raw(tmp_path, files, format=f"udd_{order}")
    assert dataset.train.array.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert named(dataset, dataset.train) == [("zero", "likes", "one"), ("one", "likes", "two")]


def test_udd_ids_are_checked_against_the_dictionaries(tmp_path: Path) -> None:
    for row, words in (
        ("0\t0\t3", "tail id 3 is out of range, allowed entity ids: 0 to 2"),
        ("0\t1\t0", "allowed relation ids: 0 to 0"),
    ):
        files = write_udd(tmp_path, f"0\t0\t1\n{row}\n")
        message = fails(lambda files=files: raw(tmp_path, files, format="udd_hrt"))
        assert message.startswith(f"{tmp_path / 'train.txt'}:2: ") and words in message


def test_udd_dictionary_errors_reach_the_user(tmp_path: Path) -> None:
    files = write_udd(tmp_path)
    (tmp_path / "e.dict").write_text("0\tzero\n2\ttwo\n")
    assert f"{tmp_path / 'e.dict'}:2: id 2 follows id 0 (line 1)" in fails(lambda: raw(tmp_path, files, format="udd_hrt"))
    (tmp_path / "e.dict").unlink()
    assert "e.dict: no such file" in fails(lambda: raw(tmp_path, files, format="udd_hrt"))


# ---- built_in


def built_in(path: Path, name: str = "set", **options: Any) -> Dataset:
    return load_dataset(path=path, name=name, **options)


def test_built_in_with_dictionaries(tmp_path: Path) -> None:
    write_raw(tmp_path / "set")
    (tmp_path / "set" / "entities.dict").write_text("0\te\n1\td\n2\tis\n3\tc\n4\ta\n5\tb\n")
    (tmp_path / "set" / "relations.dict").write_text("0\tknows\n1\tis\n2\tlikes\n")
    dataset = built_in(tmp_path)
    assert list(dataset.entities) == ["e", "d", "is", "c", "a", "b"]
    assert [named(dataset, split) for split in dataset.splits.values()] == [TRAIN, VALID, TEST]
    assert list(built(tmp_path / "set" / ".kgdist"))
    (tmp_path / "set" / "relations.dict").write_text("0\tknows\n1\tlikes\n")
    message = fails(lambda: built_in(tmp_path))
    assert message == f"{tmp_path}/set/train.txt:2: relation 'is' is not in {tmp_path}/set/relations.dict; did you mean 'likes'?"
    (tmp_path / "set" / "relations.dict").unlink()
    assert "relations.dict: no such file" in fails(lambda: built_in(tmp_path))


def test_built_in_without_dictionaries_is_raw(tmp_path: Path) -> None:
    files = write_raw(tmp_path / "set")
    assert list(built_in(tmp_path).entities) == list(raw(tmp_path / "set", files).entities)


@pytest.mark.parametrize("end", [".tsv", ".tsv.gz"])
def test_a_folder_may_be_one_that_a_split_or_a_conversion_wrote(tmp_path: Path, end: str) -> None:
    files = write_raw(tmp_path / "set")
    known = raw(tmp_path / "set", files)
    for name in files:
        text = (tmp_path / "set" / name).read_bytes()
        (tmp_path / "set" / name).with_suffix(end).write_bytes(gzip.compress(text) if end.endswith("gz") else text)
        (tmp_path / "set" / name).unlink()
    found = built_in(tmp_path)
    assert found.digest == known.digest and [named(found, split) for split in found.splits.values()] == [TRAIN, VALID, TEST]
    (tmp_path / "set" / "entities.tsv").write_text("0\ta\n")
    told = f"train{end}: beside entities.tsv it holds ids; give --data_path {tmp_path}/set --format udd_hrt --data_files"
    assert told in fails(lambda: built_in(tmp_path))


def write_freebase(folder: Path, entities: str, relations: str) -> None:
    folder.mkdir()
    (folder / "entity2id.txt").write_text(entities)
    (folder / "relation2id.txt").write_text(relations)
    (folder / "train.txt").write_text("0\t2\t1\n1\t0\t0\n")  # head, tail, relation


def test_freebase_layout(tmp_path: Path) -> None:
    write_freebase(tmp_path / "set", "3\nx\t0\ny\t1\nz\t2\n", "2\np\t0\nq\t1\n")
    dataset = built_in(tmp_path)
    assert named(dataset, dataset.train) == [("x", "q", "z"), ("y", "p", "x")]


def test_freebase_counts_without_names(tmp_path: Path) -> None:
    write_freebase(tmp_path / "set", "3\n", "2\n")
    for _ in range(2):
        dataset = built_in(tmp_path)
        assert named(dataset, dataset.train) == [("0", "1", "2"), ("1", "0", "0")]
        assert dataset.entities.count == 3


def test_claims_of_a_dictionary_are_not_believed(tmp_path: Path) -> None:
    write_freebase(tmp_path / "set", "1000000000\n", "2\n")
    assert "entity2id.txt:1: claims 1,000,000,000 entries, but 2 triples" in fails(lambda: built_in(tmp_path))


@pytest.mark.parametrize("name", ["../set", "/set", "..", "", "a\0b"])
def test_names_that_climb_out_are_refused(tmp_path: Path, name: str) -> None:
    write_raw(tmp_path / "set")
    fails(lambda: built_in(tmp_path / "set", name), UsageError)


@pytest.mark.parametrize(
    ("option", "value"),
    [("files", ["train.txt"]), ("delimiter", ","), ("header", True), ("format", "raw_udd_hrx"), ("format", "udd")],
)
def test_options_that_do_not_go_with_built_in(tmp_path: Path, option: str, value: object) -> None:
    write_raw(tmp_path / "set")
    assert fails(lambda: built_in(tmp_path, **{option: value}), OptionError).startswith("--")


def test_data_url_goes_with_built_in_only(tmp_path: Path) -> None:
    write_raw(tmp_path)
    assert fails(lambda: raw(tmp_path, data_url="http://localhost"), OptionError).startswith("--data_url")


# ---- given vocabularies


def test_given_vocabularies_give_the_ids(tmp_path: Path) -> None:
    write_raw(tmp_path)
    trained = raw(tmp_path)
    (tmp_path / "other.txt").write_text(text([("c", "is", "b")]))
    again = raw(tmp_path, ["other.txt"], vocabularies=(trained.entities, trained.relations))
    assert again.train.array.tolist() == [[2, 1, 0]]
    assert again.entities.digest == trained.entities.digest
    assert raw(tmp_path, ["other.txt"]).train.array.tolist() == [[0, 0, 1]]  # not from the cache of the other
    (tmp_path / "other.txt").write_text(text([("c", "is", "b"), ("c", "is", "stranger"), ("c", "new", "b")]))
    message = fails(lambda: raw(tmp_path, ["other.txt"], vocabularies=(trained.entities, trained.relations)))
    assert message == f"{tmp_path / 'other.txt'}:2: tail 'stranger' is not in the entities of the trained model"


def test_given_vocabularies_must_be_those_of_the_dictionaries(tmp_path: Path) -> None:
    files = write_udd(tmp_path)
    trained = raw(tmp_path, files, format="udd_hrt")
    again = raw(tmp_path, files, format="udd_hrt", vocabularies=(trained.entities, trained.relations))
    assert again.digest == trained.digest
    other = Vocabulary.from_names(["one", "zero", "two"])
    message = fails(lambda: raw(tmp_path, files, format="udd_hrt", vocabularies=(other, trained.relations)))
    assert message.startswith(f"{tmp_path / 'e.dict'}: does not give the names the same ids")


# ---- files that cannot be read


def test_unusable_files(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "blank.txt").write_text("\n\n")
    (tmp_path / "folder.txt").mkdir()
    (tmp_path / "loop.txt").symlink_to("loop.txt")
    os.mkfifo(tmp_path / "pipe.txt")
    for name, words in (
        ("absent.txt", "no such file"),
        ("empty.txt", "is empty"),
        ("blank.txt", "holds no triples"),
        ("folder.txt", "is a folder"),
        ("loop.txt", "cannot be read"),
        ("pipe.txt", "is not a regular file"),
        ("a\0b", "cannot be read"),
    ):
        message = fails(lambda name=name: raw(tmp_path, [name]))
        assert message.startswith(f"{tmp_path / name}: ") and words in message
    assert not built(tmp_path) and not list((tmp_path / ".kgdist").glob(".build-*"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_unreadable_file(tmp_path: Path) -> None:
    write_raw(tmp_path)
    (tmp_path / "train.txt").chmod(0)
    assert "cannot be read (Permission denied)" in fails(lambda: raw(tmp_path))


# ---- the real graph


def test_fb15k(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("FB15k")
    files = ["train.txt", "valid.txt", "test.txt"]
    lines = (folder / "train.txt").read_text().splitlines()
    sets = [load_dataset(path=folder.parent, name="FB15k"), raw(folder, files)]
    for dataset in sets:
        assert [len(split) for split in dataset.splits.values()] == [483142, 50000, 59071]
        assert (len(dataset.entities), len(dataset.relations)) == (14951, 1345)
        some = Triples(dataset.train.array[::997])
        assert named(dataset, some) == [tuple(line.split("\t")) for line in lines[::997]]
    assert sets[0].entities[0] == "/m/014_24" and sets[1].entities[0] == "/m/027rn"


def test_a_data_set_says_what_it_is_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.tsv").write_text("a\tr\tb\nb\tr\tc\n")
    found = load_dataset(path=tmp_path, name="mine", format="raw_udd_hrt", files=["t.tsv"])
    assert repr(found) == "<kgdist data set mine: 3 entities, 1 relations, triples: 2 train>"
