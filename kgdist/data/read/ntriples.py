"""N-Triples (.nt, also compressed) -> rows of triples: subject, predicate, object are head, relation, tail.

Every term becomes a name, as it is written: an IRI without its angle brackets; a blank node with its `_:`; a literal with
its quotes, escapes and language tag or datatype (`"caf\\u00e9"@fr`, `"1"^^<http://www.w3.org/2001/XMLSchema#integer>`). So
equal values written differently are different entities, and no name holds a raw line end. Blank nodes keep their labels in
all files of a data set. Comments and blank lines are skipped, as the standard has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import DataError, OptionError
from kgdist.data.read.columns import Rows, Spec, shown
from kgdist.data.read.lines import Lines, blocks, each_line
from kgdist.data.read.text import read_columns

_IRI = r'<[^<>"{}|^`\x00-\x20]+>'
_NODE = r'_:(?:[^\s<>"]*[^\s<>".])'  # a label may hold full stops but not end in one
_LITERAL = rf'"(?:[^"\\]|\\.)*"(?:\^\^{_IRI}|@[A-Za-z]+(?:-[A-Za-z0-9]+)*)?'
STATEMENT = rf"^[ \t]*(?P<h>{_IRI}|{_NODE})[ \t]*(?P<r>{_IRI})[ \t]*(?P<t>{_IRI}|{_NODE}|{_LITERAL})[ \t]*\.[ \t]*(?:#.*)?$"
NOTHING = r"^[ \t]*(?:#.*)?$"


def read_ntriples(path: Path, spec: Spec) -> Iterator[Rows]:
    """Yield the statements of a file. Raises DataError with the line of the first that is not N-Triples."""
    check_spec(path, spec, "N-Triples")
    for block in blocks(path):
        rows = _rows(path, block)
        if len(rows.heads):
            yield rows


def check_spec(path: Path, spec: Spec, kind: str) -> None:
    """Raise OptionError for what statements of RDF do not have."""
    if spec.limits is not None or spec.order != "hrt":
        raise OptionError("--format", f"{path} is {kind}, which holds names as head, relation, tail: use raw_udd_hrt")
    if spec.header:
        raise OptionError("--header", f"{path} is {kind}, which has no header line")
    if spec.quoted:
        raise OptionError("--quoted", f"{path} is {kind}, which has rules of its own for quotation marks; drop it")
    if spec.weights:
        raise OptionError("--has_edge_importance", f"{path} is {kind}, which has no column of weights")


def _rows(path: Path, block: Lines) -> Rows:
    columns = read_columns(block.raw, {"line": pa.string()}, None)
    if columns is None:
        for number, line, message in each_line(block):
            if message and line.strip():
                raise DataError(path, message, line=number)
        raise DataError(path, "cannot be split into lines", line=block.line)
    keep = np.flatnonzero(~pc.match_substring_regex(columns["line"], NOTHING).to_numpy(zero_copy_only=False).astype(bool))
    lines = columns["line"].take(pa.array(keep))
    terms = pc.extract_regex(lines, STATEMENT)
    if terms.null_count:
        row = int(np.flatnonzero(terms.is_null().to_numpy(zero_copy_only=False))[0])
        message = f"expected an N-Triples statement `<subject> <predicate> object .`, found {shown(lines[row])}"
        raise DataError(path, message, line=block.line + int(keep[row]))
    heads, relations, tails = (
        pc.replace_substring_regex(terms.field(name), "^<(.*)>$", r"\1").dictionary_encode() for name in "hrt"
    )
    return Rows(heads, relations, tails, None, block.line, keep + block.line)
