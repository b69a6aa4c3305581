"""Entities that were not there when attributes were fitted get what they would have got then, whatever file they come in."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kgdist.attributes.attribute_folder import NodeAttributes, OnesOfRows, open_attributes
from kgdist.attributes.declaration import read_declaration
from kgdist.attributes.preprocess import preprocess
from kgdist.attributes.unseen import names_in, transform_unseen
from kgdist.base.errors import DataError
from kgdist.data.vocabulary import Vocabulary
from tests.attributes.entities import WRITERS, Row, rows, schema, write_tsv


def made(folder: Path, table: list[Row], fit_on: list[str] | None = None, name: str = "out") -> NodeAttributes:
    path = write_tsv(folder / f"{name}.tsv", table)
    known = None if fit_on is None else Vocabulary.from_names(fit_on)
    preprocess([path], [read_declaration(schema(folder))], folder / name, fit_on=known)
    return open_attributes(folder / name)["person"]


@pytest.mark.parametrize("kind", WRITERS)
def test_they_are_as_if_they_had_been_there_and_not_fitted_on(kind: str, tmp_path: Path) -> None:
    table = rows(60, seed=4)
    old, new = table[:40], table[40:]
    new[3]["country"], new[5]["types"] = "never seen", "a|never|seen"
    names = [row["entity"] for row in old]
    fitted, whole = made(tmp_path, old), made(tmp_path, table, names, "whole")
    write: Callable[[Path, list[Row]], Path] = WRITERS[kind]
    path = write(tmp_path / f"new.{kind}", new)
    assert names_in(path, fitted) == [row["entity"] for row in new]
    order = Vocabulary.from_names([row["entity"] for row in new[::-1]] + ["of whom nothing is said"])
    found = transform_unseen(path, fitted, order)
    assert found.rows.tolist() == [*range(len(new) - 1, -1, -1), -1] and found.unseen == 3
    there = whole.rows[whole.entities.encode([row["entity"] for row in new[::-1]])]
    met = np.zeros(len(new), bool)
    assert list(found.attributes) == list(fitted)
    for name, each in found.attributes.items():
        assert each.width == whole[name].width == fitted[name].width
        for own, other in zip(each.take(found.rows[:-1]), whole[name].take(there), strict=True):
            np.testing.assert_array_equal(own, other)
        first = whole[name].take(there)[0]
        met |= np.diff(first) > 0 if isinstance(each, OnesOfRows) else first
    assert found.known.tolist() == [*met.tolist(), False]


def test_others_in_the_file_are_left_out(tmp_path: Path) -> None:
    table = rows(50)
    fitted = made(tmp_path, table[:30])
    path = write_tsv(tmp_path / "new.tsv", table[20:])
    found = transform_unseen(path, fitted, Vocabulary.from_names([row["entity"] for row in table[40:]]))
    alone = transform_unseen(
        write_tsv(tmp_path / "alone.tsv", table[40:]), fitted, Vocabulary.from_names([row["entity"] for row in table[40:]])
    )
    assert found.rows.tolist() == alone.rows.tolist() == list(range(10))
    for name in found.attributes:
        for own, other in zip(found.attributes[name].take(found.rows), alone.attributes[name].take(alone.rows), strict=True):
            np.testing.assert_array_equal(own, other)


def test_vectors_of_a_file_of_their_own_are_a_column_for_new_entities(tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.arange(6, dtype=np.float32).reshape(2, 3))
    declared = tmp_path / "schema.yaml"
    declared.write_text("key: entity\nnode_type: person\nattributes:\n  image: {kind: vector, file: images.npy}\n")
    path = tmp_path / "e.tsv"
    path.write_text("entity\na\nb\n")
    preprocess([path], [read_declaration(declared)], tmp_path / "out")
    fitted = open_attributes(tmp_path / "out")["person"]
    new = tmp_path / "new.tsv"
    new.write_text("entity\timage\nc\t7 8 9\n")
    found = transform_unseen(new, fitted, Vocabulary.from_names(["c"]))
    assert found.attributes["image"].take(found.rows)[1].tolist() == [[7, 8, 9]]
    new.write_text("entity\timage\nc\t7 8\n")
    with pytest.raises(DataError, match=r"new.tsv:2: column 'image': a vector of 2 numbers"):
        transform_unseen(new, fitted, Vocabulary.from_names(["c"]))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("entity\theight\theight\nc\t1\t2\n", "has two columns 'height', which is an attribute in"),
        ("name\theight\nc\t1\n", "has no column 'entity', which names the entity$"),
        ("", "is empty, expected the names of its columns in the first line$"),
    ],
)
def test_columns_that_are_not_there_once_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    declared = tmp_path / "schema.yaml"
    declared.write_text("key: entity\nattributes:\n  height: {kind: numeric, bins: 2}\n")
    path, new = tmp_path / "e.tsv", tmp_path / "new.tsv.gz"
    path.write_text("entity\theight\na\t1\nb\t2\n")
    preprocess([path], [read_declaration(declared)], tmp_path / "out")
    (fitted,) = open_attributes(tmp_path / "out").values()
    new.write_bytes(gzip.compress(text.encode()))
    with pytest.raises(DataError, match=problem):
        names_in(new, fitted)
    with pytest.raises(DataError, match=problem):
        transform_unseen(new, fitted, Vocabulary.from_names(["c"]))
