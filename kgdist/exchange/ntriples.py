"""Graphs as N-Triples (www.w3.org/TR/n-triples): `<split>.nt`, the inverse of kgdist.data.read.ntriples.

A name that is an absolute IRI is written as `<name>`; one that is a literal (quotes, language or type and all) or a blank node
(`_:b0`) stands as it is where the grammar lets it: no literal is a head, and only IRIs are relations. Every other name needs
`--base IRI`: it becomes that IRI with the name behind, its bytes in percent escapes where they are not letters, digits or one of
`-._~`. `unbased` undoes it, so that a graph that went out with a base comes back with its names.
"""

from __future__ import annotations

import dataclasses
import re
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import OptionError
from kgdist.data.dataset import Dataset
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.graphs import Graph, Unfit, Writer, refuse_weights, warn_unused

# The grammar of the standard, section 7, as both `re` and RE2 read it.
_U = r"(?:\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8})"
_LETTER = (
    "A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u02ff\u0370-\u037d\u037f-\u1fff\u200c-\u200d\u2070-\u218f\u2c00-\u2fef\u3001-\ud7ff"
    "\uf900-\ufdcf\ufdf0-\ufffd\U00010000-\U000effff"
)
_LATER = _LETTER + r"_0-9\-" + "\u00b7\u0300-\u036f\u203f-\u2040"
IRI = rf'[A-Za-z][A-Za-z0-9+.\-]*:(?:[^\x00-\x20<>"{{}}|^`\\]|{_U})*'
NODE = rf"_:[{_LETTER}_0-9](?:[{_LATER}.]*[{_LATER}])?"
LITERAL = rf'"(?:[^"\\\r\n]|\\[tbnrf"\'\\]|{_U})*"(?:\^\^<{IRI}>|@[A-Za-z]+(?:-[A-Za-z0-9]+)*)?'


def writer(base: str | None) -> Writer:
    """The writer for names that are no terms by themselves, with `base` before them. Raises OptionError if that is no IRI."""
    if base is not None and not re.fullmatch(IRI, base):
        raise OptionError("--base", f"{base!r} is not an absolute IRI such as http://example.org/")
    return partial(write, base=base)


def write(graph: Graph, folder: Path, base: str | None) -> None:
    """`<split>.nt`. Raises DataError for a name that is no term, if there is no `base`."""
    refuse_weights(graph, "ntriples")
    warn_unused(graph)
    heads = np.zeros(len(graph.dataset.entities), bool)  # a literal that is one must be an IRI wherever it stands
    for split in graph.dataset.splits:
        for piece in Graph(graph.dataset, graph.files).pieces(split):
            heads[piece.triples[:, 0]] = True
    entities = partial(terms, graph.dataset.entities, base, heads)
    relations = partial(terms, graph.dataset.relations, base, None)
    blank, stop = (pa.scalar(text, pa.large_string()) for text in (" ", "."))
    for split in graph.dataset.splits:
        with (folder / f"{split}.nt").open("wb") as file:
            for piece in graph.pieces(split):
                columns = [graph.column(piece, place, words) for place, words in enumerate((entities, relations, entities))]
                lines = pc.binary_join_element_wise(*columns, stop, blank)
                file.write("\n".join([*lines.to_pylist(), ""]).encode())


def terms(vocabulary: Vocabulary, base: str | None, heads: np.ndarray | None, ids: np.ndarray) -> Any:
    """The terms of some ids, pa.LargeStringArray[u]; `heads` bool[entities], None for relations. Raises Unfit."""
    names = vocabulary.take(ids)
    iri = pc.match_substring_regex(names, f"^(?:{IRI})$")
    if base is not None:
        iri = pc.and_not(iri, pc.starts_with(names, base))
    asis = pa.array(np.zeros(len(ids), bool))
    if heads is not None:
        literal = pc.and_(pc.match_substring_regex(names, f"^(?:{LITERAL})$"), pa.array(~heads[ids]))
        asis = pc.or_(literal, pc.match_substring_regex(names, f"^(?:{NODE})$"))
    other = pc.invert(pc.or_(iri, asis))
    if base is None:
        Unfit.check(
            ids, other, "is no term of N-Triples in this place; --base http://example.org/ makes an IRI of every such name"
        )
    rows = np.flatnonzero(other.to_numpy(zero_copy_only=False))
    first, last, nothing = (pa.scalar(text, pa.large_string()) for text in ("<", ">", ""))
    made = pc.if_else(asis, names, pc.binary_join_element_wise(first, names, last, nothing))
    if not rows.size:
        return made
    encoded = pa.array([f"<{based(name, str(base))}>" for name in names.take(pa.array(rows)).to_pylist()], pa.large_string())
    return pc.replace_with_mask(made, other, encoded)


def based(name: str, base: str) -> str:
    """The IRI of a name that is none."""
    return base + quote(name, safe="")


def unbased(vocabulary: Vocabulary, base: str, *, relations: bool = False) -> Vocabulary:
    """The names that `based` made IRIs of, in their places; other names as they are. Raises OptionError when two become one.

    What `terms` would write as another term stays as it is, so this undoes what it did and nothing else.
    """
    kept = IRI if relations else f"{IRI}|{NODE}"
    found = []
    for name in vocabulary:
        short = unquote(name[len(base) :], errors="replace") if name.startswith(base) else ""
        itself = not short.startswith(base) and re.fullmatch(kept, short)
        fits = bool(short) and not re.search(r"[\0\r\n]", short) and based(short, base) == name
        found.append(short if fits and not itself else name)
    try:
        return Vocabulary.from_names(found)
    except ValueError as error:
        raise OptionError("--base", f"two names of {base} would become one ({error}); take another base, or none") from error


def without_base(dataset: Dataset, base: str) -> Dataset:
    """The data set under the names that it had before `base` came before them. Raises OptionError, see `unbased`."""
    entities, relations = unbased(dataset.entities, base), unbased(dataset.relations, base, relations=True)
    return dataclasses.replace(dataset, entities=entities, relations=relations)
