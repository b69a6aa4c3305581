"""The book: ranges that cover all ids once, owners, and numberings that lead back."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.kernels.route import owners
from kgdist.partition.book import Book, Numbering

assignments = st.integers(1, 9).flatmap(
    lambda parts: st.tuples(st.just(parts), st.lists(st.integers(0, parts - 1), max_size=30), st.integers(0, 20))
)


@given(assignments)
def test_new_ids_are_a_bijection_in_which_every_part_owns_one_range(drawn: tuple[int, list[int], int]) -> None:
    parts, assigned, relations = drawn
    numbering = Numbering.of(np.array(assigned, np.int32), parts, relations)
    book = numbering.book
    assert (book.parts, book.num_entities, book.num_relations) == (parts, len(assigned), relations)
    for old, new in ((numbering.entities, numbering.new_entities), (numbering.relations, numbering.new_relations)):
        assert old.dtype == new.dtype == np.int32
        assert sorted(old.tolist()) == list(range(len(old))) and (new[old] == np.arange(len(old))).all()
    for part in range(parts):
        own = numbering.entities[book.entities[part] : book.entities[part + 1]]
        assert own.tolist() == [entity for entity, at in enumerate(assigned) if at == part]
        links = numbering.relations[book.relations[part] : book.relations[part + 1]]
        assert links.tolist() == [relation for relation in range(relations) if relation % parts == part]
    assert [assigned[entity] for entity in numbering.entities] == owners(book.entities, np.arange(len(assigned))).tolist()
    assert (numbering.relations % parts == owners(book.relations, np.arange(relations))).all()
    assert (book.original_relations() == numbering.relations).all()


@given(assignments)
def test_a_book_survives_json(drawn: tuple[int, list[int], int]) -> None:
    parts, assigned, relations = drawn
    book = Numbering.of(np.array(assigned, np.int32), parts, relations).book
    again = Book.from_json(json.loads(json.dumps(book.to_json())))
    assert again == book and again.entities.dtype == np.int64
    assert book != Numbering.of(np.zeros(len(assigned) + 1, np.int32), parts, relations).book


@pytest.mark.parametrize(
    "value",
    [
        {},
        [],
        {"entities": [0, 2]},
        {"entities": [0, 2], "relations": [0]},
        {"entities": [1, 2], "relations": [0, 1]},
        {"entities": [0, 2, 1], "relations": [0, 1, 2]},
        {"entities": [0, 2, 3], "relations": [0, 0, 2]},  # not dealt out
        {"entities": [0, 2.5], "relations": [0, 1]},
        {"entities": ["0", "2"], "relations": [0, 1]},
        {"entities": [0, 2**70], "relations": [0, 1]},
        {"entities": 3, "relations": [0, 1]},
    ],
)
def test_what_is_no_book_is_refused(value: object) -> None:
    with pytest.raises(ValueError):
        Book.from_json(value)  # type: ignore[arg-type]


def test_a_part_that_does_not_exist_is_refused() -> None:
    for assigned in ([0, 2], [-1, 0]):
        with pytest.raises(ValueError, match=r"outside of 0\.\.1"):
            Numbering.of(np.array(assigned, np.int32), 2, 1)
