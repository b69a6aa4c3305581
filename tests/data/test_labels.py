"""Labels: from text and RDF against a dict, kept and read again, and found where one thing alone has them."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from kgdist.base.errors import DataError
from kgdist.data.labels import RDFS_LABEL, Beside, literal, read_labels, summary, write_labels
from kgdist.data.vocabulary import Vocabulary

ENTITIES = Vocabulary.from_names(["Q90", "Q142", "a\tb", "both", "Q1"])
RELATIONS = Vocabulary.from_names(["P36", "both"])
NAMES = [*ENTITIES, *RELATIONS, "Q0", "nobody"]
LINES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["Paris", "巴黎", "capital of", 'A "b", c', " ", "é"])), min_size=1
)


@settings(max_examples=30, deadline=None)
@given(LINES)
def test_the_first_label_of_a_name_counts(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]) -> None:
    file, again = (tmp_path_factory.getbasetemp() / name for name in ("labels.tsv", "again.tsv"))
    file.write_text("".join(f"{name}\t{label}\n" for name, label in lines), encoding="utf-8")
    expected: dict[str, str] = {}
    for name, label in lines:
        expected.setdefault(name, label)
    if not any(name in ENTITIES or name in RELATIONS for name in expected):
        with pytest.raises(DataError, match="no label of any entity or relation"):
            read_labels(file, ENTITIES, RELATIONS)
        return
    found = read_labels(file, ENTITIES, RELATIONS)
    write_labels(again, found)
    for labels in (found, read_labels(again, ENTITIES, RELATIONS)):
        for each, names in zip(labels, (ENTITIES, RELATIONS), strict=True):
            right = [expected.get(name) for name in names]
            assert each.names(np.arange(len(names))) == right and len(each) == len(names) - right.count(None)
            counts = Counter(right)
            ids, held = each.find(["Paris", "é", "nobody has this"])
            for text, number, count in zip(("Paris", "é", "nobody has this"), ids.tolist(), held.tolist(), strict=True):
                assert count == counts.get(text, 0) and number == (right.index(text) if count else -1)
            assert each.shared() == sum(count > 1 for label, count in counts.items() if label is not None)


def test_rdf_gives_its_labels_without_their_language(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    about = "http://example.org/"
    entities, relations = Vocabulary.from_names([f"{about}Paris", f"{about}Rome"]), Vocabulary.from_names([f"{about}in"])
    triples = [
        (f"<{about}Paris>", f"<{RDFS_LABEL}>", '"巴黎"@zh'),
        (f"<{about}Paris>", f"<{RDFS_LABEL}>", '"P\\u00e1ris \\"la\\tbelle\\""@en-GB'),
        (f"<{about}Paris>", f"<{about}in>", f"<{about}Rome>"),
        (f"<{about}Rome>", f"<{RDFS_LABEL}>", f"<{about}no_literal>"),
        (f"<{about}in>", f"<{RDFS_LABEL}>", '"in"^^<http://www.w3.org/2001/XMLSchema#string>'),
        (f"<{about}Oslo>", f"<{RDFS_LABEL}>", '"Oslo"'),
    ]
    file = tmp_path / "labels.nt.gz"
    file.write_bytes(gzip.compress("".join(" ".join(triple) + " .\n" for triple in triples).encode()))
    found = read_labels(file, entities, relations)
    assert found[0].names([0, 1]) == ['P\u00e1ris "la belle"', None] and found[1].names([0]) == ["in"]
    assert Beside(entities, found[0])[0] == f'{about}Paris (P\u00e1ris "la belle")'
    assert (
        "left out: 1 of names that the graph does not have" in caplog.text and "1 of names that have one already" in caplog.text
    )
    assert summary(found) == "1 of 2 entities and 1 of 1 relations have a label"
    assert literal("<iri>") is None and literal('"\\U0001F600\\uD800"@x') == ("\U0001f600\N{REPLACEMENT CHARACTER}", "x")


def test_lines_that_are_no_labels_are_refused_by_their_number(tmp_path: Path) -> None:
    file = tmp_path / "labels.tsv"
    for text, says in (
        ("Q90\tParis\nQ142\n", "labels.tsv:2: expected `name<TAB>label`, found 'Q142'"),
        ("Q90\tParis\nQ142\t\n", "labels.tsv:2: the label is empty"),
        ("\tParis\n", "labels.tsv:1: the name is empty"),
        ("Q90\tParis\n\nQ142\tFrance\n", "labels.tsv:2: blank line"),
        ("Q7\tParis\tcity\n", "no label of any .*; the first of 1 labels is of 'Q7.tParis'"),
    ):
        file.write_text(text)
        with pytest.raises(DataError, match=says.replace("tParis", "*Paris")):
            read_labels(file, ENTITIES, RELATIONS)
    for content, says in ((b"", "is empty"), (b"Q90\t\xff\n", "labels.tsv:1: invalid UTF-8")):
        file.write_bytes(content)
        with pytest.raises(DataError, match=says):
            read_labels(file, ENTITIES, RELATIONS)
