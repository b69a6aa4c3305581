"""A graph on its way into another format, piece by piece, and the writing of it, whole or not at all.

Triples keep their order, names their bytes. A name that the layout cannot hold is refused by file and line. What a line is in
each layout, and which names it can hold, is said in layouts.py, and for N-Triples (www.w3.org/TR/n-triples) here. There a name
that is an absolute IRI is written as `<name>`; one that is a literal (quotes, language or type and all) or a blank node
(`_:b0`) stands as it is where the grammar lets it: no literal is a head, and only IRIs are relations. Every other name needs
`--base IRI`: it becomes that IRI with the name behind, its bytes in percent escapes where they are not letters, digits or one
of `-._~`. `unbased` undoes it, so that a graph that went out with a base comes back with its names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import DataError, OptionError, UsageError
from kgdist.base.listed_folder import listed_folder
from kgdist.base.log import bar, log
from kgdist.data.cache import BESIDE
from kgdist.data.dataset import Dataset, Triples
from kgdist.data.read.formats import RDF
from kgdist.data.read.lines import suffix
from kgdist.data.vocabulary import Vocabulary
from kgdist.version import __version__

PIECE = 1 << 17  # triples written at once
NOUNS = ("head", "relation", "tail")


class Unfit(Exception):
    """Some names cannot be written; `ids` int[k], and why."""

    def __init__(self, ids: np.ndarray, why: str) -> None:
        super().__init__(why)
        self.ids, self.why = ids, why

    @classmethod
    def check(cls, ids: np.ndarray, unfit: Any, why: str) -> None:
        """Raise Unfit for the ids where pa.BooleanArray `unfit` says so."""
        found = ids[np.asarray(unfit.to_numpy(zero_copy_only=False), bool)]
        if found.size:
            raise cls(found, why)


Words = Callable[[np.ndarray], Any]  # different ids, int[u] -> how each is written, pa.LargeStringArray[u]; raises Unfit


class Piece(NamedTuple):
    """Consecutive triples of a split."""

    split: str
    first: int  # number of the first one, from 0
    triples: np.ndarray  # int32[b, 3]
    weights: np.ndarray | None  # float32[b]


@dataclass(frozen=True)
class Written:
    """What is written: a data set, and the files its splits came from, and which of these begin with a header, for errors."""

    dataset: Dataset
    files: Mapping[str, Path]
    headed: frozenset[str] = frozenset()  # splits
    tick: Callable[[int], object] = lambda triples: None

    def pieces(self, split: str) -> Iterator[Piece]:
        """The triples of a split, in order."""
        found: Triples = self.dataset.splits[split]
        for start in range(0, len(found), PIECE):
            stop = min(start + PIECE, len(found))
            yield Piece(split, start, found.array[start:stop], None if found.weights is None else found.weights[start:stop])
            self.tick(stop - start)

    def column(self, piece: Piece, column: int, words: Words) -> Any:
        """One column of triples as text, pa.LargeStringArray[b]. Raises UsageError for a name that cannot be written."""
        ids, places = np.unique(piece.triples[:, column], return_inverse=True)
        try:
            return words(ids).take(pa.array(places))  # each different id is spelled once
        except Unfit as unfit:
            raise self._refusal(piece, column, unfit) from unfit

    def _refusal(self, piece: Piece, column: int, unfit: Unfit) -> UsageError:
        """The error for the first triple of `piece` whose `column` holds a name that cannot be written."""
        ids = piece.triples[:, column]
        row = int(np.flatnonzero(np.isin(ids, unfit.ids))[0])
        vocabulary = self.dataset.relations if column == 1 else self.dataset.entities
        name = vocabulary[int(ids[row])]
        what = f"{NOUNS[column]} {name if len(name) <= 80 else name[:77] + '...'!r} {unfit.why}"
        if piece.split not in self.files:  # its triples stand in another order than where they came from
            return UsageError(what)
        path, number = self.files[piece.split], piece.first + row + 1
        if suffix(path) in (*RDF, ".parquet", ".pq"):  # a triple is no line there
            return DataError(path, f"triple {number}: {what}")
        return DataError(path, what, line=number + (piece.split in self.headed))


Writer = Callable[[Written, Path], None]


def convert(graph: Written, name: str, write: Writer, out: Path, *, force: bool = False) -> list[Path]:
    """Write the folder `out` and return its files. Memory: a piece of the graph, and its vocabularies.

    Raises DataError (a name that the layout cannot hold), OptionError (weights that it cannot), UsageError (`out` is there, and
    not `force`), KgdistError (disk full); then `out` is as it was.
    """
    dataset = graph.dataset
    splits = {split: len(triples) for split, triples in dataset.splits.items()}
    sizes = {"entities": len(dataset.entities), "relations": len(dataset.relations), "splits": splits}
    about = {"format": name, "kgdist_version": __version__, "dataset": dataset.name, **sizes}
    with bar(total=sum(splits.values()), desc=f"writing {name}", unit=" triples") as progress:
        ticking = Written(dataset, graph.files, graph.headed, progress.update)
        with listed_folder(out, about, force=force, besides=[BESIDE]) as folder:
            write(ticking, folder)
    return sorted(out.iterdir())


def refuse_weights(graph: Written, name: str) -> None:
    """Raise OptionError if a split has weights, for a layout without a place for them."""
    if any(triples.weights is not None for triples in graph.dataset.splits.values()):
        raise OptionError("--output_format", f"{name} has no place for the weights of triples; use raw_udd, udd or parquet")


def warn_unused(graph: Written) -> None:
    """Say how many names stand in no triple: a layout without dictionaries loses them."""
    used = [np.zeros(len(vocabulary), bool) for vocabulary in (graph.dataset.entities, graph.dataset.relations)]
    for split in graph.dataset.splits:
        for piece in Written(graph.dataset, graph.files).pieces(split):
            used[0][piece.triples[:, 0]] = used[1][piece.triples[:, 1]] = used[0][piece.triples[:, 2]] = True
    lost = [int((~seen).sum()) for seen in used]
    if any(lost):
        log.warning("%d entities and %d relations stand in no triple; this layout has no place for them", *lost)


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


def write(graph: Written, folder: Path, base: str | None) -> None:
    """`<split>.nt`. Raises DataError for a name that is no term, if there is no `base`."""
    refuse_weights(graph, "ntriples")
    warn_unused(graph)
    heads = np.zeros(len(graph.dataset.entities), bool)  # a literal that is one must be an IRI wherever it stands
    for split in graph.dataset.splits:
        for piece in Written(graph.dataset, graph.files).pieces(split):
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
        Unfit.check(ids, other, "is not valid in N-Triples here; --base http://example.org/ makes an IRI of every such name")
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
