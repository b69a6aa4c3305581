"""Columns as their kind wants them: numbers, days, words, vectors; missing is null; what is none is told by its line."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.attributes.canonical import Canonical
from kgdist.attributes.declaration import KINDS, Attribute
from kgdist.attributes.entity_files import Piece
from kgdist.base.errors import DataError


def canonical(kind: str, array: Any, **settings: Any) -> Any:
    """The canonical values of a column whose first row stands in line 2."""
    array = array if isinstance(array, pa.Array) else pa.array(array)
    reader = Canonical(Attribute("a", KINDS[kind](**settings), 1))
    return reader.read("e.tsv", Piece({"a": array}, np.arange(2, len(array) + 2)), 0)


DAY = datetime.date(1970, 1, 1)


@pytest.mark.parametrize(
    ("kind", "settings", "array", "expected"),
    [
        ("numeric", {}, ["1", " -2.5e3 ", None, "nan", ""], [1.0, -2500.0, None, None, None]),
        ("numeric", {}, pa.array([1.5, float("nan"), None]), [1.5, None, None]),
        ("numeric", {}, pa.array([2**62, None]), [2.0**62, None]),
        ("date", {}, ["1970-01-02", "1984", "2001-05", None], [1.0, 5113.0, 11443.0, None]),
        ("date", {}, ["1970-01-01T12:00:00Z", "1970-01-01 06:00"], [0.5, 0.25]),
        ("date", {"format": "%d/%m/%Y"}, ["13/02/1970", None], [43.0, None]),
        ("date", {}, pa.array([datetime.date(2000, 1, 1), None]), [10957.0, None]),
        ("date", {}, pa.array([datetime.datetime(2000, 1, 1, 12, tzinfo=datetime.timezone.utc)]), [10957.5]),
        ("date", {}, pa.array([1984, None]), [5113.0, None]),
        ("categorical", {}, ["a", "", None, " a"], ["a", None, None, " a"]),
        ("categorical", {}, pa.array([1, None]), ["1", None]),
        ("multi", {}, ["a|b|", None, "|", "c"], [["a", "b"], None, None, ["c"]]),
        ("multi", {"separator": ", "}, ["a, b,c"], [["a", "b,c"]]),
        ("multi", {}, pa.array([["a|b", None], [], None, ["", "x"]]), [["a|b"], None, None, ["x"]]),
        ("multi", {}, pa.array([["z"], ["a"], [], ["b", ""]]).slice(1), [["a"], None, ["b"]]),
        ("vector", {}, ["1  2", None, "3 4"], [[1.0, 2.0], None, [3.0, 4.0]]),
        ("vector", {"separator": ","}, ["1,2", "3, 4"], [[1.0, 2.0], [3.0, 4.0]]),
        ("vector", {}, pa.array([[9.0], [1.0, 2.0], None, [3.0, 4.0]]).slice(1), [[1.0, 2.0], None, [3.0, 4.0]]),
        ("vector", {}, pa.array([[1, 2], None], pa.list_(pa.int32(), 2)), [[1.0, 2.0], None]),
    ],
)
def test_values_of_every_kind(kind: str, settings: dict[str, Any], array: Any, expected: list[Any]) -> None:
    assert canonical(kind, array, **settings).to_pylist() == expected


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("numeric", ["1", None, "x1"], "e.tsv:4: column 'a': 'x1' is not a number"),
        ("numeric", ["1", "1_0"], "e.tsv:3: column 'a': '1_0' is not a number"),
        ("numeric", ["1", "-inf"], "e.tsv:3: column 'a': infinity cannot be put into an interval"),
        ("numeric", pa.array([[1.0]]), "e.tsv:2: column 'a': holds list<item: double>, expected numbers"),
        ("date", ["1984", "today"], "e.tsv:3: column 'a': 'today' is not a date, such as 1970, 1970-01 or 1970-01-31"),
        ("date", ["1984-13"], "e.tsv:2: column 'a': '1984-13' is not a date"),
        ("date", pa.array([1.5]), "e.tsv:2: column 'a': holds double, expected dates"),
        ("multi", pa.array([[1.5]]), "e.tsv:2: column 'a': holds list<item: double>, expected lists of words"),
        ("text", pa.array([["a"]]), "e.tsv:2: column 'a': holds list<item: string>, expected texts"),
        ("vector", ["1 2", None, "3"], "e.tsv:4: column 'a': a vector of 1 numbers, but the first has 2"),
        ("vector", ["1 2", "3 x"], "e.tsv:3: column 'a': 'x' is not a number"),
        ("vector", ["1 2", "3 inf"], "e.tsv:3: column 'a': a number of a vector is missing, infinite, or none"),
        ("vector", pa.array([[1.0, None]]), "e.tsv:2: column 'a': a number of a vector is missing, infinite, or none"),
        ("vector", pa.array([["a"]]), "e.tsv:2: column 'a': 'a' is not a number"),
    ],
)
def test_what_is_none_is_told_by_its_line(kind: str, array: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        canonical(kind, array)
    assert str(caught.value).startswith(message)


def test_a_format_that_is_not_met_is_told() -> None:
    with pytest.raises(DataError, match="e.tsv:3: column 'a': '1984' is not a date of the format '%d/%m/%Y'"):
        canonical("date", ["01/02/1984", "1984"], format="%d/%m/%Y")


@given(st.lists(st.none() | st.dates(datetime.date(1, 1, 1), datetime.date(9999, 12, 31)), min_size=1))
def test_days_are_those_of_the_calendar(dates: list[datetime.date | None]) -> None:
    expected = [None if date is None else float((date - DAY).days) for date in dates]
    assert canonical("date", pa.array([date and date.isoformat() for date in dates], pa.string())).to_pylist() == expected
    assert canonical("date", pa.array(dates, pa.date32())).to_pylist() == expected


@given(st.lists(st.none() | st.floats(allow_infinity=False), min_size=1))
def test_numbers_survive_their_text(numbers: list[float | None]) -> None:
    expected = [None if number is None or number != number else number for number in numbers]
    assert canonical("numeric", pa.array([None if n is None else repr(n) for n in numbers], pa.string())).to_pylist() == expected


WORDS = st.lists(st.none() | st.lists(st.text("ab|é", max_size=3), max_size=4), min_size=1)


@given(WORDS, st.integers(0, 3))
def test_words_are_those_between_the_separators(table: list[list[str] | None], skipped: int) -> None:
    """Lists and texts alike, also where an array is a slice of another one."""
    texts = [None if words is None else "|".join(words) for words in table]
    expected = [[word for word in (text or "").split("|") if word] or None for text in texts]
    array = pa.array([None] * skipped + texts, pa.string()).slice(skipped)
    assert canonical("multi", array).to_pylist() == expected
    lists = pa.array([["z"]] * skipped + table, pa.list_(pa.string())).slice(skipped)
    assert canonical("multi", lists).to_pylist() == [[word for word in words or () if word] or None for words in table]
