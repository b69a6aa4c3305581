"""A graph that grows: ids of what was known stay, new ones follow as they come, and what is written is read again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import DataError
from kgdist.data.dataset import load_dataset
from kgdist.data.growing import Growing, known_names, read_named, without, write_named
from kgdist.data.read.columns import Spec
from kgdist.data.vocabulary import Vocabulary
from tests.cli.graphs import write

ENTITIES, RELATIONS = Vocabulary.from_names(["b", "a", "é"]), Vocabulary.from_names(["likes", "knows"])

ids = st.integers(0, 3)
triples = st.lists(st.tuples(ids, ids, ids), max_size=30).map(lambda rows: np.array(rows, np.int32).reshape(-1, 3))


def test_new_names_get_the_next_ids_as_they_come(tmp_path: Path) -> None:
    file = tmp_path / "new.tsv"
    write(file, [("z", "knows", "a"), ("b", "likes", "y"), ("y", "knows", "z"), ("late", "likes", "early")])
    growing = Growing(ENTITIES, RELATIONS, "the run")
    growing.add(["early", "a", "early", "x"])
    found = read_named(file, Spec(), growing)
    entities, relations = growing.vocabularies()
    assert list(entities) == ["b", "a", "é", "early", "x", "z", "y", "late"] and relations is RELATIONS
    assert found.dtype == np.int32 and found.tolist() == [[5, 1, 1], [0, 0, 6], [6, 1, 5], [7, 0, 3]]


@pytest.mark.parametrize("column", [0, 2])
def test_what_nobody_knows_is_named_by_its_line(tmp_path: Path, column: int) -> None:
    file = tmp_path / "new.tsv"
    row = ["a", "knows", "b"]
    row[column] = "w"
    write(file, [("a", "knows", "b"), row, ("a", "hates", "b")])
    noun = "head" if column == 0 else "tail"
    with pytest.raises(DataError, match=rf"new.tsv:2: {noun} 'w' is not in the run$"):
        read_named(file, Spec(), known_names(ENTITIES, RELATIONS, ("the run", "its relations")))
    with pytest.raises(DataError, match=r"new.tsv:3: relation 'hates' is not in its relations$"):
        read_named(file, Spec(), Growing(ENTITIES, RELATIONS, "its relations"))
    file.write_text("head\trelation\ttail\n")
    with pytest.raises(DataError, match=r"new.tsv: holds no triples"):
        read_named(file, Spec(header=True), Growing(ENTITIES, RELATIONS, "its relations"))


@given(triples, triples)
def test_without_is_what_sets_say(new: np.ndarray, known: np.ndarray) -> None:
    seen = set(map(tuple, known.tolist()))
    expected = [row for row in dict.fromkeys(map(tuple, new.tolist())) if row not in seen]
    assert list(map(tuple, without(new, known).tolist())) == expected


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.data.growing.PIECE", 2)
    (tmp_path / "toy").mkdir()
    parts = [np.array([[0, 1, 2], [1, 0, 0], [2, 1, 1]], np.int32), np.array([[2, 0, 0]], np.int32)]
    write_named(tmp_path / "toy", {"train": parts, "test": parts[1:]}, ENTITIES, RELATIONS)
    found = load_dataset(path=tmp_path, name="toy", vocabularies=(ENTITIES, RELATIONS))
    assert np.array_equal(found.train.array, np.concatenate(parts)) and found.valid is None
    assert found.test is not None and np.array_equal(found.test.array, parts[1])
