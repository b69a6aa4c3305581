"""N-Triples: every kind of term, and statements that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgdist.base.errors import OptionError
from kgdist.data.read.columns import Spec
from tests.data.graphs import CLOSERS, error_of, triples, write

NT = """# a comment

<http://example.org/s> <http://example.org/p> <http://example.org/o> .
<http://example.org/s>\t<http://example.org/p>\t"plain \\"text\\"\\n" . # another
_:b1 <http://example.org/p> "caf\\u00e9"@fr-CA .
<http://example.org/s><http://example.org/p>"1"^^<http://www.w3.org/2001/XMLSchema#integer>.
_:b1 <http://example.org/p> _:b.2 .
   <http://example.org/s> <http://example.org/p> _:x.
"""
NT_TRIPLES = [
    ("http://example.org/s", "http://example.org/p", "http://example.org/o"),
    ("http://example.org/s", "http://example.org/p", '"plain \\"text\\"\\n"'),
    ("_:b1", "http://example.org/p", '"caf\\u00e9"@fr-CA'),
    ("http://example.org/s", "http://example.org/p", '"1"^^<http://www.w3.org/2001/XMLSchema#integer>'),
    ("_:b1", "http://example.org/p", "_:b.2"),
    ("http://example.org/s", "http://example.org/p", "_:x"),
]


@pytest.mark.parametrize("ending", list(CLOSERS))
def test_ntriples(tmp_path: Path, ending: str) -> None:
    assert triples(write(tmp_path / f"t.nt{ending}", NT)) == NT_TRIPLES
    assert triples(write(tmp_path / f"t.nt{ending}", NT.replace("\n", "\r\n"))) == NT_TRIPLES


@pytest.mark.parametrize(
    "line",
    [
        "<http://example.org/s> <http://example.org/p> <http://example.org/o>",
        "<http://example.org/s> <http://example.org/p> .",
        '"s" <http://example.org/p> <http://example.org/o> .',
        "<http://example.org/s> _:p <http://example.org/o> .",
        '<http://example.org/s> <http://example.org/p> "open .',
        "<a b> <http://example.org/p> <http://example.org/o> .",
        "a\tr\tb",
        "<http://example.org/s> <http://example.org/p> <http://example.org/o> . <http://example.org/s>",
    ],
)
def test_wrong_ntriples(tmp_path: Path, line: str) -> None:
    assert error_of(write(tmp_path / "t.nt", NT + line + "\n" + NT)).startswith(":9: expected an N-Triples statement")


def test_ntriples_refuse_other_options_and_bytes(tmp_path: Path) -> None:
    path = write(tmp_path / "t.nt", NT)
    for spec in (Spec("trh"), Spec(limits=(3, 3)), Spec(header=True), Spec(weights=True)):
        with pytest.raises(OptionError, match="N-Triples"):
            triples(path, spec)
    assert error_of(write(path, NT.encode() + b'_:a <http://example.org/p> "\xff" .\n')).startswith(":9: invalid UTF-8")
    assert error_of(write(path, NT + "_:a\0\n")).startswith(":9: NUL")
