"""Files of entities: four kinds of one table read alike, piece by piece, and the line of what is wrong."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.attributes import entity_files
from kgdist.attributes.entity_files import columns_of, read_entities
from kgdist.base.errors import DataError
from tests.attributes.entities import COLUMNS, WRITERS, rows

# Text that a tab-separated line can hold, and text that a record of a .csv or a string of JSON can.
FIELDS = st.text(st.characters(exclude_characters="\t\n\r\0", exclude_categories=["Cs"]), max_size=9)
ANY = st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]), max_size=9)


def read(path: Path, *names: str) -> list[tuple[int, ...]]:
    """All rows as (line, value, ...)."""
    found = []
    for piece in read_entities(path, dict.fromkeys(names)):
        columns = [piece.columns[name].to_pylist() for name in names]
        found += list(zip(piece.lines.tolist(), *columns, strict=True))
    return found


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl"])
def test_kinds_of_text_read_alike_in_pieces_of_any_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    made = rows(50)
    monkeypatch.setattr(entity_files, "ROWS", 7)
    path = WRITERS[kind](tmp_path / f"e.{kind}", made)
    first = 1 if kind == "jsonl" else 2
    names = ("entity", "country", "text")
    assert read(path, *names) == [(place, *(row[name] for name in names)) for place, row in enumerate(made, first)]
    assert columns_of(path) == (None if kind == "jsonl" else COLUMNS)
    packed = tmp_path / f"e.{kind}.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed, *names) == read(path, *names)


@given(st.lists(st.tuples(FIELDS, FIELDS), max_size=20))
def test_a_tab_separated_field_is_what_stands_there(
    tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]]
) -> None:
    path = tmp_path_factory.getbasetemp() / "h.tsv"
    path.write_bytes("\n".join(["a\tb", *("\t".join(row) for row in table)]).encode())
    assert read(path, "b", "a") == [(line, b or None, a or None) for line, (a, b) in enumerate(table, 2)]


@given(st.lists(st.tuples(ANY, ANY), max_size=20))
def test_a_csv_is_what_its_writer_wrote(tmp_path_factory: pytest.TempPathFactory, table: list[tuple[str, str]]) -> None:
    path = tmp_path_factory.getbasetemp() / "h.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("a", "b"), *table])
    lines, line = [], 2
    for row in table:
        lines.append(line)
        line += 1 + sum(field.count("\n") for field in row)
    assert read(path, "a", "b") == [(n, a or None, b or None) for n, (a, b) in zip(lines, table, strict=True)]


@given(st.lists(st.dictionaries(st.sampled_from("ab"), ANY | st.integers() | st.none() | st.booleans()), max_size=20))
def test_a_jsonl_is_what_json_says(tmp_path_factory: pytest.TempPathFactory, table: list[dict[str, object]]) -> None:
    path = tmp_path_factory.getbasetemp() / "h.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in table) or "\n")

    def text(value: object) -> str | None:
        return None if value is None or value == "" else value if isinstance(value, str) else json.dumps(value)

    assert read(path, "a", "b") == [(n, text(row.get("a")), text(row.get("b"))) for n, row in enumerate(table, 1)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.tsv", b"a\tb\n1\t2\n3\n", "e.tsv:3: expected 2 tab-separated fields, as in line 1, found 1"),
        ("e.tsv", b"a\tb\n1\t2\n\n3\t4\n", "e.tsv:3: blank line"),
        ("e.tsv", b"a\tb\n1\t\xff\n", "e.tsv:2: invalid UTF-8 at byte offset 6"),
        ("e.tsv", b"a\tb\n1\t2\n3\t\0\n", "e.tsv:3: NUL byte at offset 10"),
        ("e.csv", b'a,b\n1,2\n3,"4\n', "e.csv:3: not CSV (unexpected end of data)"),
        ("e.csv", b"a,b\n1,2\n3\n", "e.csv:3: expected 2 fields, as in line 1, found 1"),
        ("e.csv", b"a,b\n1,\xff\n", "invalid UTF-8; convert the file to UTF-8"),
        ("e.jsonl", b'{"a": 1}\n{"a": \n', "e.jsonl:2: not JSON"),
        ("e.jsonl", b'{"a": 1}\n[1]\n', "e.jsonl:2: expected an object, such as"),
        ("e.jsonl", b'{"a": {"x": 1}, "b": 1}\n', "e.jsonl:1: column 'a' holds an object, expected text or a number"),
        ("e.jsonl", b'{"a": [1], "b": 1}\n', "e.jsonl:1: column 'a' holds a list, expected text or a number"),
        ("e.jsonl", b'{"a": "\\ud800"}\n', "e.jsonl:1: column 'a' holds half of a surrogate pair"),
        ("e.jsonl", b"[" * 100000 + b"\n", "e.jsonl:1: not JSON"),
        ("e.parquet", b"PAR1", "not a readable Parquet file"),
        ("e.parquet.gz", b"PAR1", "a compressed Parquet file cannot be read"),
        ("e.xlsx", b"PK", "what is it? Names of entity files end in .tsv"),
        ("e.tsv", b"", "is empty, expected entities"),
    ],
)
def test_what_cannot_be_read_is_told_by_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read(path, "a", "b")
    assert message in str(caught.value)
