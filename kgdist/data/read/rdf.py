"""Turtle (.ttl) and RDF/XML (.rdf, .owl), also compressed -> rows of triples, as pyoxigraph (the extra `rdf`) parses them.

Terms become names as those of N-Triples do (ntriples.py), relative IRIs with what the file says is its base. A blank node without
a label, which a parser calls anything, is numbered in the order of the file: `_:train.ttl-1`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import DataError, UsageError
from kgdist.data.read.columns import Rows, Spec
from kgdist.data.read.lines import check_file, open_bytes, suffix
from kgdist.data.read.ntriples import check_spec

FORMATS = {".ttl": "TURTLE", ".rdf": "RDF_XML", ".owl": "RDF_XML"}
_ROWS = 1 << 15  # statements of a block
_UNLABELLED = re.compile("[0-9a-f]{24,32}")  # 128 random bits, leading zeros left out


def read_rdf(path: Path, spec: Spec) -> Iterator[Rows]:
    """Yield the statements of a file; rows are numbered by statement, for a parser does not say their lines.

    Raises DataError with the line of the first that is wrong, OptionError for options that it cannot follow, UsageError without
    pyoxigraph.
    """
    check_spec(path, spec, "RDF")
    check_file(path, "statements of RDF")
    try:
        import pyoxigraph
    except ImportError as error:
        raise UsageError(f"{path}: Turtle and RDF/XML need pyoxigraph ({error}); pip install 'kgdist[rdf]'") from error
    import pyarrow as pa

    numbers: dict[str, str] = {}

    def name(term: Any) -> str:
        if isinstance(term, pyoxigraph.NamedNode):
            return str(term.value)
        if isinstance(term, pyoxigraph.BlankNode) and _UNLABELLED.fullmatch(term.value):
            return numbers.setdefault(term.value, f"_:{path.name}-{len(numbers) + 1}")
        if isinstance(term, pyoxigraph.Triple):
            raise DataError(
                path, f"statement {first}: a triple stands where a term is expected; RDF 1.2's triple terms are not read"
            )
        return str(term)

    first = 1
    with open_bytes(path) as file:
        found = pyoxigraph.parse(file, format=getattr(pyoxigraph.RdfFormat, FORMATS[suffix(path)]))
        while True:
            try:
                quads = list(islice(found, _ROWS))
            except SyntaxError as error:
                raise DataError(path, f"not {suffix(path)} ({error.msg})", line=error.lineno) from error
            if not quads:
                return
            heads, relations, tails = (
                pa.array([name(term) for term in column], pa.string()).dictionary_encode()
                for column in zip(*((quad.subject, quad.predicate, quad.object) for quad in quads), strict=True)
            )
            yield Rows(heads, relations, tails, None, first, np.arange(first, first + len(quads)))
            first += len(quads)
