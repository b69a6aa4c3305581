"""Graphs as delimited text: raw_udd and udd in any order of columns, the folder of a built-in set, and PyKEEN's files.

PyKEEN reads triples with pandas (`pykeen.triples.utils.load_triples`): a name that begins with a quotation mark or holds a tab is
quoted there as CSV has it. Its two maps are those that its TriplesFactory.to_path_binary writes, `id<TAB>label` with a header, so
that `TriplesFactory.from_path("train.txt", entity_to_id=..., relation_to_id=...)` gives the same ids as here; the third file
of that folder is a pickle, which kgdist does not write.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.data.read.formats import Format
from kgdist.data.read.lines import BOM, MAX_LINE
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.folder import durable
from kgdist.exchange.graph import Graph, Piece, Unfit, Writer, refuse_weights, warn_unused

Words = Callable[[np.ndarray], Any]  # different ids, int[u] -> how each is written, pa.LargeStringArray[u]; raises Unfit
LONGEST = MAX_LINE // 4  # bytes of a name: three of them and a weight are a line that can be read again


def writer(form: Format, delimiter: str) -> Writer:
    """`train.tsv` and its kin in raw_udd_XYZ or udd_XYZ; udd also has entities.tsv and relations.tsv."""

    def write(graph: Graph, folder: Path) -> None:
        words: tuple[Words, Words, Words]
        entities, relations = graph.dataset.entities, graph.dataset.relations
        if form.kind == "udd":
            write_dictionary(folder / "entities.tsv", entities, delimiter)
            write_dictionary(folder / "relations.tsv", relations, delimiter)
            words = (digits, digits, digits)
        else:
            warn_unused(graph)
            words = (
                named(entities, delimiter),
                named(relations, delimiter),
                named(entities, delimiter),
            )
        for split in graph.dataset.splits:
            write_split(graph, split, folder / f"{split}.tsv", words, form.order, delimiter)

    return write


def write_built_in(graph: Graph, folder: Path) -> None:
    """What `--format built_in --dataset <folder>` reads: entities.dict, relations.dict, train.txt and its kin."""
    write_dictionary(folder / "entities.dict", graph.dataset.entities, "\t")
    write_dictionary(folder / "relations.dict", graph.dataset.relations, "\t")
    write_names(graph, folder, names)


def write_pykeen(graph: Graph, folder: Path) -> None:
    """train.txt and its kin for `TriplesFactory.from_path`, entity_to_id.tsv.gz and relation_to_id.tsv.gz."""
    refuse_weights(graph, "pykeen")
    for kind, vocabulary in (("entity", graph.dataset.entities), ("relation", graph.dataset.relations)):
        with (
            durable(folder / f"{kind}_to_id.tsv.gz") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
            io.BufferedWriter(packed) as file,
        ):
            file.write(b"id\tlabel\n")
            for number, name in enumerate(vocabulary):
                file.write(f"{number}\t{quoted(name)}\n".encode())
    write_names(graph, folder, csv_names)


def write_names(graph: Graph, folder: Path, how: Callable[[Vocabulary, np.ndarray], Any]) -> None:
    """`<split>.txt`, tabs between names."""
    entities, relations = (partial(how, vocabulary) for vocabulary in (graph.dataset.entities, graph.dataset.relations))
    for split in graph.dataset.splits:
        write_split(graph, split, folder / f"{split}.txt", (entities, relations, entities), "hrt", "\t")


def write_dictionary(path: Path, vocabulary: Vocabulary, delimiter: str) -> None:
    """Lines `id<delimiter>name`; a name may hold the delimiter."""
    with durable(path) as file:
        for number, name in enumerate(vocabulary):
            file.write(f"{number}{delimiter}{name}\n".encode())


def write_split(graph: Graph, split: str, path: Path, words: tuple[Words, Words, Words], order: str, delimiter: str) -> None:
    """A line for each triple, its columns in `order`, and behind them its weight where there is one."""
    import pyarrow as pa
    import pyarrow.compute as pc

    with durable(path) as file:
        for piece in graph.pieces(split):
            columns = [spelled(graph, piece, "hrt".index(letter), words["hrt".index(letter)]) for letter in order]
            if piece.weights is not None:
                columns.append(pc.cast(pa.array(piece.weights), pa.large_string()))
            lines = pc.binary_join_element_wise(*columns, pa.scalar(delimiter, pa.large_string()))
            text = "\n".join([*lines.to_pylist(), ""]).encode()
            # Readers take a byte-order mark off the start of a file; a name that begins with one keeps its own behind it.
            file.write(BOM + text if piece.first == 0 and text.startswith(BOM) else text)


def spelled(graph: Graph, piece: Piece, column: int, words: Words) -> Any:
    """One column of triples as text: each different id once. Raises DataError for a name that cannot be written."""
    import pyarrow as pa

    ids, places = np.unique(piece.triples[:, column], return_inverse=True)
    try:
        return words(ids).take(pa.array(places))
    except Unfit as unfit:
        raise graph.refuse(piece, column, unfit) from unfit


def named(vocabulary: Vocabulary, delimiter: str) -> Words:
    """`names` of one vocabulary."""
    return partial(names, vocabulary, delimiter=delimiter)


def digits(ids: np.ndarray) -> Any:
    """Ids as they are."""
    import pyarrow as pa

    return pa.array(ids).cast(pa.large_string())


def names(vocabulary: Vocabulary, ids: np.ndarray, delimiter: str = "\t") -> Any:
    """Names as they are. Raises Unfit for those that a line split at `delimiter` would not give back."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = vocabulary.take(ids)
    ended = pc.binary_join_element_wise(found, pa.scalar(delimiter, pa.large_string()), pa.scalar("", pa.large_string()))
    # Also a|b in front of || ends too early: the first delimiter from the left must be the one behind the name.
    unfit = pc.not_equal(pc.find_substring(ended, delimiter), pc.binary_length(found))
    check(
        ids, unfit, f"cannot stand in a line that is split at {delimiter!r}; choose another --output_delimiter, or udd or parquet"
    )
    check(ids, pc.greater(pc.binary_length(found), LONGEST), f"is longer than {LONGEST:,} bytes; choose udd or parquet")
    return found


def csv_names(vocabulary: Vocabulary, ids: np.ndarray) -> Any:
    """Names as pandas reads them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = vocabulary.take(ids)
    special = pc.match_substring_regex(found, '^"|\t')
    if not pc.any(special, min_count=0).as_py():
        return found
    return pa.array([quoted(name) for name in found.to_pylist()], pa.large_string())


def quoted(name: str) -> str:
    """A field of tab-separated CSV."""
    return '"' + name.replace('"', '""') + '"' if name.startswith('"') or "\t" in name else name


def check(ids: np.ndarray, unfit: Any, why: str) -> None:
    """Raise Unfit for the ids where the bool array `unfit` says so."""
    found = ids[np.asarray(unfit.to_numpy(zero_copy_only=False), bool)]
    if found.size:
        raise Unfit(found, why)
