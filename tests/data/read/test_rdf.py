"""Turtle and RDF/XML against the same graph in N-Triples, and what is refused."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kgdist.base.errors import DataError, OptionError
from kgdist.data.labels import read_labels
from kgdist.data.read.columns import Spec
from kgdist.data.read.formats import read_rows
from kgdist.data.vocabulary import Vocabulary

TURTLE = """@prefix e: <http://example.org/> .
@prefix rdfs: <http://www.w3.org/2000/01/rdf-schema#> .
e:Paris e:in e:France ; rdfs:label "Paris"@fr , "\\u5df4\\u9ece"@zh , "City of \\"light\\""@en ; e:near [ e:in e:France ] .
e:France e:size 7 .
_:x e:in e:France .
"""
XML = """<?xml version="1.0"?>
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#" xmlns:e="http://example.org/">
<rdf:Description rdf:about="http://example.org/Paris"><e:in rdf:resource="http://example.org/France"/></rdf:Description>
</rdf:RDF>
"""


def triples(path: Path) -> list[tuple[str, ...]]:
    return [
        triple
        for rows in read_rows(path, Spec())
        for triple in zip(*(column.to_pylist() for column in (rows.heads, rows.relations, rows.tails)), strict=True)
    ]


def test_the_formats_say_the_same(tmp_path: Path) -> None:
    about, label = "http://example.org/", "http://www.w3.org/2000/01/rdf-schema#label"
    expected = [
        (f"{about}Paris", f"{about}in", f"{about}France"),
        (f"{about}Paris", label, '"Paris"@fr'),
        (f"{about}Paris", label, '"巴黎"@zh'),
        (f"{about}Paris", label, '"City of \\"light\\""@en'),
        ("_:g.ttl.gz-1", f"{about}in", f"{about}France"),
        (f"{about}Paris", f"{about}near", "_:g.ttl.gz-1"),
        (f"{about}France", f"{about}size", '"7"^^<http://www.w3.org/2001/XMLSchema#integer>'),
        ("_:x", f"{about}in", f"{about}France"),
    ]
    (tmp_path / "g.ttl.gz").write_bytes(gzip.compress(TURTLE.encode()))
    assert sorted(triples(tmp_path / "g.ttl.gz")) == sorted(expected)
    plain = [row for row in expected if not row[0].startswith("_:") and not row[2].startswith("_:")]
    terms = [[text if text.startswith('"') else f"<{text}>" for text in row] for row in plain]
    (tmp_path / "g.nt").write_text("".join(" ".join(row) + " .\n" for row in terms), encoding="utf-8")
    assert triples(tmp_path / "g.nt") == plain
    for name in ("g.rdf", "g.owl"):
        (tmp_path / name).write_text(XML)
        assert triples(tmp_path / name) == expected[:1]
    labels, _ = read_labels(
        tmp_path / "g.ttl.gz", Vocabulary.from_names([f"{about}Paris"]), Vocabulary.from_names([f"{about}in"])
    )
    assert labels.names([0]) == ['City of "light"']


def test_what_is_no_rdf_is_refused_by_its_line(tmp_path: Path) -> None:
    file = tmp_path / "g.ttl"
    file.write_text(TURTLE + "e:a e:b .\n")
    with pytest.raises(DataError, match="g.ttl:6: not .ttl"):
        triples(file)
    with pytest.raises(OptionError, match="--header: .*g.ttl is RDF"):
        list(read_rows(file, Spec(header=True)))
