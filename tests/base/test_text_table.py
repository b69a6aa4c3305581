"""Aligned lines for a person: widths, letters that take two columns or none, what a terminal must not be told, and colours."""

from __future__ import annotations

import io
import os

import hypothesis.strategies as st
import pytest
from hypothesis import given

from kgdist.base.text_table import TextTable, cut, width


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_columns_are_aligned() -> None:
    table = TextTable(["name", "n", "score"], io.StringIO())
    assert table.lines([["dog", "犬", "e\N{COMBINING ACUTE ACCENT}"], [1, 20, 300], [0.5, -12.25, 1e-9]]) == [
        "name    n      score",
        "dog     1     0.5000",
        "犬     20   -12.2500",
        "e\N{COMBINING ACUTE ACCENT}     300  1.000e-09",
    ]
    assert table.lines([["a much longer name"], [4], [None]]) == ["a much longer name    4          -"]


def test_what_would_speak_to_the_terminal_is_shown_as_a_sign() -> None:
    (_, line) = TextTable(["name"], None).lines([["red\x1b[31m\r\b\N{RIGHT-TO-LEFT OVERRIDE}x"]])
    assert line == "red�[31m���x"


def test_colours_on_a_terminal_only_and_not_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert TextTable(["name"], Terminal()).lines([["x"]]) == ["\x1b[1mname\x1b[0m", "x"]
    assert TextTable(["name"], io.StringIO()).lines([["x"]]) == ["name", "x"]
    monkeypatch.setenv("NO_COLOR", "1")
    assert TextTable(["name"], Terminal()).lines([["x"]]) == ["name", "x"]


@given(st.lists(st.text(max_size=40), min_size=1, max_size=5), st.integers(20, 60))
def test_lines_fit_the_terminal(names: list[str], columns: int) -> None:
    before = os.environ.get("COLUMNS"), os.environ.get("TERM"), os.environ.get("NO_COLOR")
    os.environ.update(COLUMNS=str(columns), TERM="xterm", NO_COLOR="1")
    try:
        made = TextTable(["left", "right"], Terminal()).lines([names, names])
    finally:
        for name, value in zip(("COLUMNS", "TERM", "NO_COLOR"), before, strict=True):
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
    assert all(width(line) <= columns for line in made) and len(made) == len(names) + 1


@given(st.text(), st.integers(1, 20))
def test_a_cut_text_is_as_wide_as_it_may_be(text: str, size: int) -> None:
    short = cut(text, size)
    assert width(short) <= size
    assert short == text if width(text) <= size else short.endswith("…") and width(short) >= size - 1
