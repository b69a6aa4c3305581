"""schema.yaml: what it says, and the line and key of what it cannot say."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgdist.attributes.declaration import DateKind, MultiKind, NumericKind, TextKind, VectorKind, read_declaration
from kgdist.base.errors import DataError
from tests.attributes.entities import schema

HEAD = "key: entity\nattributes:\n"


def test_a_schema_says_key_type_kinds_and_settings(tmp_path: Path) -> None:
    text = """\
key: name
node_type: person
attributes:
  population: {kind: numeric, bins: 7, strategy: uniform}
  birth_date: {kind: date, format: "%d/%m/%Y"}
  types: {kind: multi, separator: ",", min_count: 5}
  "a description": {kind: text, encoder: hashed}
  image:
    kind: vector
    file: images.npy
"""
    found = read_declaration(schema(tmp_path, text))
    assert (found.key, found.node_type) == ("name", "person")
    assert {each.name: (each.settings, each.line) for each in found.attributes} == {
        "population": (NumericKind(bins=7, strategy="uniform"), 4),
        "birth_date": (DateKind(format="%d/%m/%Y"), 5),
        "types": (MultiKind(separator=",", min_count=5), 6),
        "a description": (TextKind(), 7),
        "image": (VectorKind(file="images.npy"), 8),
    }
    assert found.columns == {"name": None, "population": None, "birth_date": None, "types": ",", "a description": None}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", ": expected names and values, such as kind: numeric, not None"),
        ("attributes: {a: {kind: date}}\n", ": key: is missing; the least is key: NAME"),
        ("key: e\n", ": attributes: is missing"),
        ("key: e\nattributes: {}\n", "2: attributes: names none"),
        ("key: e\nattributes: [a]\n", "2: attributes: expected names and values, such as kind: numeric, not ['a']"),
        ("key: 7\nattributes: {a: {kind: date}}\n", '1: key: must be a name, not 7; put it in "quotes"'),
        ("key: e\nnode_typ: x\nattributes: {a: {kind: date}}\n", "2: node_typ: is not known; did you mean node_type?"),
        ("key: e\nnode_type: ../x\nattributes: {a: {kind: date}}\n", "2: node_type: must be letters, digits"),
        (HEAD + "  entity: {kind: date}\n", "3: attributes.entity: is the key; its names are not an attribute"),
        (HEAD + "  a: {kind: date}\n  a: {kind: text}\n", "4: a: set already in line 3"),
        (HEAD + "  a: {bins: 3}\n", "3: attributes.a.kind: is missing; it is one of numeric, date, "),
        (
            HEAD + "  a: {kind: numerc}\n",
            "3: attributes.a.kind: must be one of numeric, date, categorical, multi, text, vector, ",
        ),
        (HEAD + "  a: {kind: numerc}\n", "not 'numerc'; did you mean numeric?"),
        (HEAD + "  a: {kind: numeric, bin: 3}\n", "3: attributes.a.bin: is not known; did you mean bins?"),
        (HEAD + "  a: {kind: date, dim: 3}\n", "3: attributes.a.dim: is not known; there are kind, bins, strategy, format"),
        (HEAD + "  a:\n    kind: numeric\n    bins: 1\n", "5: attributes.a.bins: must be an integer >= 2"),
        (
            HEAD + "  a: {kind: numeric, strategy: kmeans}\n",
            "attributes.a.strategy: must be one of quantile, uniform, not 'kmeans'",
        ),
        (HEAD + "  a: {kind: [text]}\n", "3: attributes: nested too deep"),
        (HEAD + "  a: &x {kind: text}\n  b: *x\n", "3: attributes: anchors (&x) are not used here; write the plain value"),
    ],
)
def test_what_a_schema_cannot_say_is_refused_by_line_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = schema(tmp_path, text)
    with pytest.raises(DataError) as caught:
        read_declaration(path)
    assert str(caught.value).startswith(str(path)) and message in str(caught.value)


def test_a_schema_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read .*; --schema wants a YAML file"):
        read_declaration(tmp_path / "none.yaml")
