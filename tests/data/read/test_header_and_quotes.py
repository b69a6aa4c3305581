"""Quoted fields against the csv module, and first lines that are headers, or are not."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kgdist.base.errors import DataError, OptionError
from kgdist.data.dataset import load_dataset
from kgdist.data.read.columns import Spec
from kgdist.data.read.dictionary import read_dictionary
from kgdist.data.read.formats import check_delimiter, read_rows
from kgdist.data.read.text import read_columns, split_line

QUOTED = Spec(delimiter=",", quoted=True)


def triples(path: Path, spec: Spec) -> list[tuple[str, ...]]:
    return [triple for rows in read_rows(path, spec) for triple in zip(*(column.to_pylist() for column in rows[:3]), strict=True)]


@settings(max_examples=120)
@given(st.lists(st.text('",a\u00e9', min_size=1, max_size=7), min_size=1, max_size=4), st.integers(1, 3))
@example(['"a', 'b"'], 1)
@example(['"a""b",""'], 2)
@example(['a,""",",'], 3)
def test_fields_are_those_of_the_csv_module(lines: list[str], width: int) -> None:
    text = "".join(f"{line}\n" for line in lines)
    parted = [split_line(line.encode(), ",", True) for line in lines]
    right = all(not isinstance(fields, str) and len(fields) == width for fields in parted)
    found = read_columns(text.encode(), {f"{number}": pa.string() for number in range(width)}, ",", quoted=True)
    assert (found is not None) == right
    if found is not None:
        rows = [list(row) for row in zip(*(column.to_pylist() for column in found.values()), strict=True)]
        assert rows == [[field.decode() for field in fields] for fields in parted if not isinstance(fields, str)]
        assert rows == list(csv.reader(io.StringIO(text), strict=True))


def test_quoted_triples_come_back_from_any_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["New York, NY", 'the "Big Apple"', "plain", '"', ",", "é,ü", " a "]
    wanted = [(head, relation, tail) for head in names for relation in names[:2] for tail in names]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("head", "relation", "tail"), *wanted])
    for block in (60, 1 << 20):
        monkeypatch.setattr("kgdist.data.read.lines.BLOCK", block)
        assert triples(tmp_path / "t.csv", Spec(delimiter=",", header=None, quoted=True)) == wanted
    (tmp_path / "ids.csv").write_text('"0","1",2,".5"\n1,"0","2","1e3"\n')
    (rows,) = read_rows(tmp_path / "ids.csv", Spec(delimiter=",", limits=(3, 3), weights=None, quoted=True))
    assert rows.heads.to_pylist() == [0, 1] and rows.weights is not None and rows.weights.tolist() == [0.5, 1000.0]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"a,r,b', "the quotation mark that opens field 1 is never closed on its line"),
        ('a,"r', "the quotation mark that opens field 2 is never closed"),
        ('a,r,"b"c', "field 3 goes on after its closing quotation mark"),
        ('a,r"s,b', "field 2 holds a quotation mark, but is not quoted"),
        ('a,"",b', "the relation is empty"),
        ('a,"r,b"', "expected 3 comma-separated fields, found 2"),
    ],
)
def test_wrong_quotes_are_named_by_line(line: str, said: str, tmp_path: Path) -> None:
    for after in ("", 'x,r,y"\n', '"x","r","y"\n'):
        (tmp_path / "t.csv").write_text(f'"a","r, s","b"\n{line}\n{after}')
        with pytest.raises(DataError) as refused:
            triples(tmp_path / "t.csv", QUOTED)
        assert str(refused.value).startswith(f"{tmp_path / 't.csv'}:2: {said}")


def test_quoted_dictionaries(tmp_path: Path) -> None:
    def read(text: str, **how: Any) -> list[str]:
        (tmp_path / "d.csv").write_text(text)
        found: list[str] = read_dictionary(tmp_path / "d.csv", ",", quoted=True, **how).to_pylist()
        return found

    assert read('1,"b, c"\n0,"a ""x"""\n') == ['a "x"', "b, c"]
    assert read('"a, b",0\nc,1\n') == ["a, b", "c"]
    assert read('id,name\n0,"a"\n', header=None) == ["a"]
    assert read('"a, b"\nc\n', header=None) == ["a, b", "c"]
    for text, said in (('0,"a"\n1,"b\n', ":2: the quotation mark"), ("0,a\n1,b,c\n", ":2: expected"), ("0,a\n2,b\n", ":2: id 2")):
        with pytest.raises(DataError, match=said):
            read(text)


def test_a_header_is_found_file_by_file(tmp_path: Path) -> None:
    (tmp_path / "train.tsv").write_text("Subject\tpredicate\tobject\na\tr\tb\nb\ttype\tsource\n")
    (tmp_path / "test.tsv").write_text("a\tr\tsource\n")
    for name, form in (("named", "raw_udd_hrt"), ("turned", "raw_udd_trh")):
        files = ["train.tsv", "test.tsv"]
        data = load_dataset(path=tmp_path, name=name, format=form, files=files, header="auto")
        counts = [len(each) for each in data.splits.values()]
        assert counts == ([2, 1] if name == "named" else [3, 1])  # there, the columns are called otherwise
    (tmp_path / "ids.tsv").write_text("from\tby\tto\n0\t0\t1\n")
    (tmp_path / "e.tsv").write_text("entity_id\tname\n0\ta\n1\tb\n")
    (tmp_path / "r.tsv").write_text("0\tid\n")
    files = ["e.tsv", "r.tsv", "ids.tsv"]
    data = load_dataset(path=tmp_path, name="ids", format="udd_hrt", files=files, header="auto")
    assert len(data.train) == 1 and data.entities[0] == "a" and data.relations[0] == "id"
    (tmp_path / "t.nt").write_text("<a:a> <a:r> <a:b> .\n")
    assert triples(tmp_path / "t.nt", Spec(header=None)) == [("a:a", "a:r", "a:b")]
    (tmp_path / "short.tsv").write_text("head\trelation\n")
    with pytest.raises(DataError, match="short.tsv:1: expected 3"):
        triples(tmp_path / "short.tsv", Spec(header=None))


def test_what_cannot_be_quoted(tmp_path: Path) -> None:
    for delimiter in ("||", "é", '"'):
        with pytest.raises(OptionError, match="--quoted: goes with a delimiter of one ASCII character"):
            check_delimiter(delimiter, quoted=True)
    with pytest.raises(OptionError, match="--quoted: .* N-Triples"):
        list(read_rows(tmp_path / "t.nt", Spec(quoted=True)))
