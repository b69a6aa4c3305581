"""From files to a folder: the same bytes whoever transforms and in whatever chunks, whole or absent, in a dictionary's order."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kgdist.attributes import NumbersOfRows, OnesOfRows, entity_files, open_attributes, scanning
from kgdist.attributes.canonical import Canonical
from kgdist.attributes.declaration import read_declaration
from kgdist.attributes.features import Ones, feature_of
from kgdist.attributes.fitting import fitter_of
from kgdist.attributes.preprocess import coverage, preprocess
from kgdist.attributes.transforming import Executor, InThisProcess, Parts, Transform
from kgdist.base.errors import CheckpointError, DataError, KgdistError, OptionError, UnknownName, UsageError
from kgdist.data.vocabulary import Vocabulary
from tests.attributes.entities import SCHEMA, WRITERS, rows, schema, write_tsv
from tests.cli.graphs import tree


class Two(InThisProcess):
    """Beside whom a thread reads ahead."""

    workers = 2


def made(folder: Path, path: Path, text: str = SCHEMA, out: str = "out", **more: Any) -> Path:
    """The folder of one file."""
    preprocess([path], [read_declaration(schema(folder, text))], folder / out, **more)
    return folder / out


def relative(folder: Path) -> dict[str, bytes]:
    """Every file by its path in the folder."""
    return {name.removeprefix(str(folder)): data for name, data in tree(folder).items()}


def test_chunks_pieces_and_kinds_of_files_have_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = rows(150)
    first = relative(made(tmp_path, write_tsv(tmp_path / "e.tsv", table)))
    for kind, write in WRITERS.items():
        monkeypatch.setattr(entity_files, "ROWS", 40 if kind == "parquet" else 11)
        out = made(tmp_path, write(tmp_path / f"f.{kind}", table), out=kind, chunk_size=7)
        assert relative(out) == first, kind
        assert relative(made(tmp_path, tmp_path / f"f.{kind}", out=f"{kind}_ahead", executor=Two())) == first, kind


def test_every_attribute_of_every_entity_is_what_its_transform_gives(tmp_path: Path) -> None:
    """The folder against a transform of whole columns."""
    table = rows(100)
    opened = open_attributes(made(tmp_path, write_tsv(tmp_path / "e.tsv", table), chunk_size=33))["person"]
    declaration = read_declaration(tmp_path / "schema.yaml")
    assert list(opened) == [each.name for each in declaration.attributes] and len(opened) == 7
    assert list(opened.entities) == [row["entity"] for row in table] and opened.rows.tolist() == list(range(100))
    asked = np.array([5, -1, 99, 5, 0])
    for attribute in declaration.attributes:
        column = pa.array([row[attribute.name] for row in table], pa.string())
        values = Canonical(attribute).read("", entity_files.Piece({attribute.name: column}, np.arange(100)), 0)
        fitter = fitter_of(attribute, Exception)
        fitter.add(values, np.arange(100))
        state, width = fitter.finish()
        expected, found = feature_of(attribute.kind, state, width).transform(values), opened[attribute.name]
        assert found.width == width
        if isinstance(expected, Ones):
            assert isinstance(found, OnesOfRows)
            np.testing.assert_array_equal(np.diff(found.starts), expected.counts)
            np.testing.assert_array_equal(found.indices, expected.indices)
            starts, indices = found.take(asked)
            lists = [found.indices[found.starts[row] : found.starts[row + 1]].tolist() if row >= 0 else [] for row in asked]
            assert [indices[a:b].tolist() for a, b in itertools.pairwise(starts)] == lists
        else:
            assert isinstance(found, NumbersOfRows)
            np.testing.assert_array_equal(found.present, expected.present)
            np.testing.assert_array_equal(found.values, expected.rows)
            present, numbers = found.take(asked)
            assert present.tolist() == [row >= 0 and bool(found.present[row]) for row in asked]
            np.testing.assert_array_equal(numbers, np.where(asked[:, None] >= 0, found.values[asked], 0))


def test_rows_are_found_by_the_dictionary_of_a_data_set(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    table = rows(40)
    names = [f"e{number}" for number in range(59, 9, -1)]  # 20 without attributes; e0 to e9 are not among them
    out = made(tmp_path, write_tsv(tmp_path / "e.tsv", table), vocabulary=Vocabulary.from_names(names), chunk_size=7)
    own = made(tmp_path, write_tsv(tmp_path / "e.tsv", table[10:]), out="own")
    by_names, by_file = open_attributes(out)["person"], open_attributes(own)["person"]
    assert list(by_names.entities) == names and by_names.about["digest"] == Vocabulary.from_names(names).digest
    assert by_names.rows.tolist() == [-1] * 20 + list(range(29, -1, -1))
    assert (by_names.about["unknown"], by_names.about["rows"]) == (10, 30)
    for name in by_file:
        for left, right in zip(by_names[name], by_file[name], strict=True):
            np.testing.assert_array_equal(left, right)
    assert "10 entities are not in the dictionary, such as 'e0': left out" in caplog.text
    assert "20 of the dictionary's 50 entities have no attributes" in caplog.text


def test_a_dictionary_of_numbers(tmp_path: Path) -> None:
    table = [row | {"entity": str(number)} for number, row in enumerate(rows(30))]
    out = made(tmp_path, write_tsv(tmp_path / "e.tsv", table), vocabulary=Vocabulary.numbered(31))
    opened = open_attributes(out)["person"]
    assert opened.rows.tolist() == [*range(30), -1] and opened.entities.count == 31


def test_what_is_fitted_on_some_is_not_learned_from_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "key: entity\nattributes:\n  n: {kind: numeric, bins: 2, strategy: uniform}\n  c: {kind: categorical}\n"
    table = [{"entity": f"e{i}", "n": str(i), "c": "abcd"[i // 5]} for i in range(20)]
    path = write_tsv(tmp_path / "e.tsv", table)
    out = made(tmp_path, path, text, fit_on=Vocabulary.from_names([*(f"e{i}" for i in range(10)), "nobody"]))
    opened = open_attributes(out)["_N"]
    number, word = opened["n"], opened["c"]
    assert isinstance(number, OnesOfRows) and isinstance(word, OnesOfRows)
    assert number.indices.tolist() == [0] * 5 + [1] * 15
    assert (word.width, word.starts[-1], opened.about["attributes"][1]["unseen"]) == (2, 10, 10)
    assert "--fit_on: 1 of its 11 names have no attributes" in caplog.text
    with pytest.raises(OptionError, match="--fit_on: none of its 1 names is an entity of"):
        made(tmp_path, path, text, out="none", fit_on=Vocabulary.from_names(["nobody"]))


def test_vectors_of_a_file_of_their_own(tmp_path: Path) -> None:
    text = "key: entity\nattributes:\n  n: {kind: numeric}\n  image: {kind: vector, file: images.npy}\n"
    path = write_tsv(tmp_path / "e.tsv", [{"entity": f"e{i}", "n": str(i)} for i in range(30)])
    images = np.random.default_rng(0).normal(size=(30, 4))
    np.save(tmp_path / "images.npy", images)
    found = open_attributes(made(tmp_path, path, text, vocabulary=Vocabulary.from_names([f"e{i}" for i in range(5, 30)])))
    image = found["_N"]["image"]
    assert isinstance(image, NumbersOfRows) and image.present.all()
    np.testing.assert_array_equal(image.values, images[5:].astype(np.float32))
    bad = {
        "has 31 rows, and there are 30 entities": np.zeros((31, 4)),
        "has 29 rows, fewer than there are entities": np.ones((29, 4)),
        "holds float64.5., expected rows of numbers": np.zeros(5),
        "has a number that is not finite in row 7": np.where(np.arange(30)[:, None] == 7, np.nan, images),
    }
    for message, array in bad.items():
        np.save(tmp_path / "images.npy", array)
        with pytest.raises(DataError, match=rf"schema.yaml:4: attributes.image: .*images.npy {message}"):
            made(tmp_path, path, text, out="bad")
    (tmp_path / "images.npy").unlink()
    with pytest.raises(DataError, match=r"schema.yaml:4: attributes.image: .* is not a readable .npy array"):
        made(tmp_path, path, text, out="bad")


def test_node_types_have_files_schemas_and_columns_of_their_own(tmp_path: Path) -> None:
    people = write_tsv(tmp_path / "people.tsv", rows(20))
    places = write_tsv(tmp_path / "places.tsv", [{"id": f"p{i}", "area": str(i)} for i in range(9)])
    second = schema(tmp_path, "key: id\nnode_type: place\nattributes: {area: {kind: numeric, bins: 3}}\n", "places.yaml")
    declared = [read_declaration(schema(tmp_path)), read_declaration(second)]
    manifest, _ = preprocess([people, places], declared, tmp_path / "out")
    found = open_attributes(tmp_path / "out")
    assert list(found) == ["person", "place"] and list(found["place"]) == ["area"] and len(found["place"].entities) == 9
    titles, columns = coverage(manifest)
    assert titles[0] == "node type" and columns[0] == ["person"] * 7 + ["place"] and columns[5][-1] == "100.0 %"
    with pytest.raises(OptionError, match="two schemas have the same node_type"):
        preprocess([people, places], [declared[0]] * 2, tmp_path / "twice")


class Broken(InThisProcess):
    """An executor that loses what it is given."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def map(self, function: Transform, chunks: Any) -> Any:
        """The first chunk, and then an end."""
        yield function(next(iter(chunks)))
        if self.error:
            raise self.error


@pytest.mark.parametrize("error", [None, KgdistError("lost"), KeyboardInterrupt()])
def test_a_folder_is_whole_or_absent(tmp_path: Path, error: Any) -> None:
    path = write_tsv(tmp_path / "e.tsv", rows(40))
    out = made(tmp_path, path)
    before = tree(tmp_path)
    with pytest.raises(type(error) if error else KgdistError, match=None if error else "7 of 40 entities came back"):
        made(tmp_path, path, executor=Broken(error), chunk_size=7, force=True)
    with pytest.raises(UsageError, match=r"out: is there already; --force replaces it"):
        made(tmp_path, path)
    with pytest.raises(UsageError, match=r"holds other files already; name a new folder"):
        made(tmp_path, path, out=".", force=True)
    assert tree(tmp_path) == before
    assert relative(made(tmp_path, path, chunk_size=7, force=True)) == {n.removeprefix(str(out)): d for n, d in tree(out).items()}


@pytest.mark.parametrize(
    ("content", "text", "message"),
    [
        ("entity\ta\n", "a: {kind: numeric}", "e.tsv: has no entities"),
        ("entity\ta\nx\t1\ny\t2\nx\t3\n", "a: {kind: numeric}", "e.tsv:4: entity 'x' appears twice"),
        ("entity\ta\nx\t1\n\t2\n", "a: {kind: numeric}", "e.tsv:3: column 'entity', which names the entity, is empty"),
        ("entity\ta\nx\t1\ny\ttwo\n", "a: {kind: numeric}", "e.tsv:3: column 'a': 'two' is not a number"),
        ("entity\tage\nx\t1\n", "ag: {kind: numeric}", "schema.yaml:3: attributes.ag: "),
        ("entity\tage\nx\t1\n", "ag: {kind: numeric}", "e.tsv has no column 'ag'; did you mean age?"),
        ("entity\ta\ta\nx\t1\t2\n", "a: {kind: numeric}", "e.tsv has the column 'a' twice"),
        ("id\ta\nx\t1\n", "a: {kind: numeric}", "key: "),
        ("id\ta\nx\t1\n", "a: {kind: numeric}", "e.tsv has no column 'entity'; it has id, a"),
        ("entity\ta\nx\t1\ny\t1\n", "a: {kind: numeric}", "schema.yaml:3: attributes.a: all values are 1, which tells no entity"),
        ("entity\ta\nx\t\ny\t\n", "a: {kind: date}", "schema.yaml:3: attributes.a: no entity has a value of it; drop it"),
    ],
)
@pytest.mark.parametrize("executor", [InThisProcess(), Two()])
def test_what_is_wrong_is_told_by_file_and_line(
    tmp_path: Path, content: str, text: str, message: str, executor: Executor
) -> None:
    (tmp_path / "e.tsv").write_text(content)
    with pytest.raises(DataError) as caught:
        made(tmp_path, tmp_path / "e.tsv", f"key: entity\nattributes:\n  {text}\n", executor=executor)
    assert message in str(caught.value) and not (tmp_path / "out").exists()


def test_a_file_that_nothing_comes_from_is_not_waited_for_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanning, "PATIENCE", 0.0)
    monkeypatch.setattr(scanning, "names_of", lambda *_: time.sleep(0.5))
    with pytest.raises(DataError, match=r"e.tsv: nothing has come from it for 0 s; is its disk or server there\?"):
        made(tmp_path, write_tsv(tmp_path / "e.tsv", rows(9)), executor=Two())
    assert not (tmp_path / "out").exists()


def test_a_dictionary_of_others(tmp_path: Path) -> None:
    path = write_tsv(tmp_path / "e.tsv", rows(9))
    with pytest.raises(DataError, match=r"none of its 9 entities is in the dictionary, such as 'e0'; is --dataset right\?"):
        made(tmp_path, path, vocabulary=Vocabulary.from_names(["x"]))
    with pytest.raises(DataError, match=r"e.tsv:11: entity 'e0' appears twice"):
        made(tmp_path, write_tsv(path, [*rows(9), rows(1)[0]]), vocabulary=Vocabulary.from_names(["e0", "e1"]))


def test_nan_is_missing_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write_tsv(tmp_path / "e.tsv", [{"entity": f"e{i}", "n": "nan" if i % 2 else str(i)} for i in range(8)])
    opened = open_attributes(made(tmp_path, path, "key: entity\nattributes: {n: {kind: numeric, bins: 2}}\n"))
    number = opened["_N"]["n"]
    assert isinstance(number, OnesOfRows) and np.diff(number.starts).tolist() == [1, 0] * 4
    assert "n is NaN for 4 entities, which counts as missing" in caplog.text


def test_nan_of_entities_that_are_left_out_is_not_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    frame = {"entity": [f"e{i}" for i in range(8)], "n": [float("nan") if i % 2 else float(i) for i in range(8)]}
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table(frame | {"word": frame["n"]}), path)
    schema = "key: entity\nattributes: {n: {kind: numeric, bins: 2}, word: {kind: categorical}}\n"
    out = made(tmp_path, path, schema, vocabulary=Vocabulary.from_names([f"e{i}" for i in range(4)]))
    assert [each["nan"] for each in json.loads((out / "manifest.json").read_text())["node_types"]["_N"]["attributes"]] == [2, 2]
    assert "n is NaN for 2 entities, which counts as missing" in caplog.text
    assert "word is NaN for 2 entities" in caplog.text and "4 entities are not in the dictionary" in caplog.text


def test_a_folder_that_is_none_or_was_changed(tmp_path: Path) -> None:
    out = made(tmp_path, write_tsv(tmp_path / "e.tsv", rows(20)))
    found = open_attributes(out)
    found.verify()
    with pytest.raises(UnknownName, match="there is no node type 'place': there are person"):
        found["place"]
    with pytest.raises(UnknownName, match="there is no attribute 'size': there are population, height, "):
        found["person"]["size"]
    starts = out / "person/0.starts.npy"
    data = bytearray(starts.read_bytes())
    data[-1] ^= 1
    starts.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"0.starts.npy: was changed since it was written"):
        found.verify()
    starts.write_bytes(data[:-8])
    with pytest.raises(CheckpointError):
        found["person"]["population"]
    np.save(starts, np.zeros(3, np.int64))
    with pytest.raises(CheckpointError, match=r"0.starts.npy: not the array that manifest.json describes"):
        found["person"]["population"]
    with pytest.raises(CheckpointError, match=r"manifest.json: no such file"):
        open_attributes(tmp_path)
    (out / "manifest.json").write_text('{"format": "kgdist attributes 0"}')
    with pytest.raises(CheckpointError, match="not written by kgdist-preprocess, or by another version of it"):
        open_attributes(out)


def test_parts_are_plain_arrays(tmp_path: Path) -> None:
    """What executors carry needs no pickle."""
    seen: list[Parts] = []

    class Looking(InThisProcess):
        def map(self, function: Transform, chunks: Any) -> Any:
            """Each, looked at."""
            for chunk in chunks:
                seen.append(function(chunk))
                yield seen[-1]

    made(tmp_path, write_tsv(tmp_path / "e.tsv", rows(20)), executor=Looking(), chunk_size=8)
    assert len(seen) == 3 and all(array.dtype.kind in "ifb" for parts in seen for array in parts.values())
