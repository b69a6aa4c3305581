"""The layouts that a graph can be written in: a function for each, and their names. N-Triples have a file of their own."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import OptionError
from kgdist.data.read.formats import Format, check_delimiter
from kgdist.data.read.lines import BOM, MAX_LINE
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange import graphs
from kgdist.exchange.graphs import NOUNS, Unfit, Words, Writer, Written, refuse_weights, warn_unused

LONGEST = MAX_LINE // 4  # bytes of a name: three of them and a weight are a line that can be read again


def layout(name: str, *, delimiter: str = "\t", base: str | None = None) -> Writer:
    """The writer of a layout. Raises OptionError for one that is not there, and for options that have no say in it."""
    if delimiter != "\t" and (name in PLAIN or name == "ntriples"):
        raise OptionError("--output_delimiter", f"has no effect in the layout {name}; drop it")
    if name == "ntriples":
        return graphs.writer(base)
    if name in PLAIN:
        return PLAIN[name]
    try:
        form = Format.parse(name)
    except OptionError as error:
        known = f"raw_udd_XYZ or udd_XYZ (XYZ: the order of h, r, t), ntriples, {', '.join(PLAIN)}"
        raise OptionError("--output_format", f"{name!r} is not a layout; use {known}") from error
    try:
        check_delimiter(delimiter)
    except OptionError as error:
        raise OptionError("--output_delimiter", str(error).partition(": ")[2]) from error
    return partial(write_text, form=form, delimiter=delimiter)


def write_text(graph: Written, folder: Path, form: Format, delimiter: str) -> None:
    """`train.tsv` and its kin in raw_udd_XYZ or udd_XYZ; udd also has entities.tsv and relations.tsv."""
    if form.kind == "udd":
        _write_dictionaries(graph, folder, "entities.tsv", "relations.tsv", delimiter)
        words: tuple[Words, Words, Words] = (digits, digits, digits)
    else:
        warn_unused(graph)
        words = _by_name(graph, partial(names, delimiter=delimiter))
    for split in graph.dataset.splits:
        _write_split(graph, split, folder / f"{split}.tsv", words, form.order, delimiter)


def write_built_in(graph: Written, folder: Path) -> None:
    """What `--format built_in --dataset <folder>` reads: entities.dict, relations.dict, train.txt and its kin."""
    _write_dictionaries(graph, folder, "entities.dict", "relations.dict")
    _write_names(graph, folder, names)


def write_pykeen(graph: Written, folder: Path) -> None:
    """train.txt and its kin for `TriplesFactory.from_path`, entity_to_id.tsv.gz and relation_to_id.tsv.gz.

    PyKEEN reads triples with pandas (`pykeen.triples.utils.load_triples`): a name that begins with a quotation mark or holds a
    tab is quoted there as CSV has it. Its two maps are those that its TriplesFactory.to_path_binary writes, `id<TAB>label` with a
    header, so that `TriplesFactory.from_path("train.txt", entity_to_id=..., relation_to_id=...)` gives the same ids as here; the
    third file of that folder is a pickle, which kgdist does not write.
    """
    refuse_weights(graph, "pykeen")
    for kind, vocabulary in (("entity", graph.dataset.entities), ("relation", graph.dataset.relations)):
        with (
            (folder / f"{kind}_to_id.tsv.gz").open("wb") as raw,
            gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
            io.BufferedWriter(packed) as file,
        ):
            file.write(b"id\tlabel\n")
            for number, name in enumerate(vocabulary):
                file.write(f"{number}\t{quoted(name)}\n".encode())
    _write_names(graph, folder, csv_names)


def write_libkge(graph: Written, folder: Path) -> None:
    """A data folder of LibKGE (github.com/uma-pi1/kge, data/preprocess); put it below its data/ and name it by dataset.name.

    Names in train.txt and its kin, ids in train.del and its kin, the names of the ids in entity_ids.del and relation_ids.del, and
    dataset.yaml on all of them. Not written are the splits that its script derives besides (train_sample, ...): no training needs
    them.
    """
    refuse_weights(graph, "libkge")
    dataset = graph.dataset
    _write_dictionaries(graph, folder, "entity_ids.del", "relation_ids.del")
    _write_names(Written(dataset, graph.files, graph.headed), folder, names)
    facts: dict[str, object] = {}
    for kind in ("entity_ids", "relation_ids"):
        facts |= {f"files.{kind}.filename": f"{kind}.del", f"files.{kind}.type": "map"}
    for split, triples in dataset.splits.items():
        _write_split(graph, split, folder / f"{split}.del", (digits, digits, digits))
        own = {"filename": f"{split}.del", "size": len(triples), "split_type": split, "type": "triples"}
        facts |= {f"files.{split}.{key}": value for key, value in own.items()}
    facts |= {"name": dataset.name, "num_entities": len(dataset.entities), "num_relations": len(dataset.relations)}
    with (folder / "dataset.yaml").open("wb") as file:  # a string of JSON is one of YAML
        lines = [f"  {key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in facts.items()]
        file.write(("dataset:\n" + "".join(lines)).encode())


def write_parquet(graph: Written, folder: Path) -> None:
    """`<split>.parquet` with columns head, relation, tail of names, and weight if there is one. Any name fits.

    One row group for each piece; equal names of a row group are stored once.
    """
    from pyarrow import parquet  # only here: it loads a large library

    warn_unused(graph)
    words = _by_name(graph, Vocabulary.take)
    for split, triples in graph.dataset.splits.items():
        fields = [pa.field(name, pa.large_string(), nullable=False) for name in NOUNS]
        if triples.weights is not None:
            fields.append(pa.field("weight", pa.float32(), nullable=False))
        schema = pa.schema(fields)
        with (folder / f"{split}.parquet").open("wb") as file, parquet.ParquetWriter(file, schema) as writer:
            for piece in graph.pieces(split):
                columns = [graph.column(piece, place, how) for place, how in enumerate(words)]
                columns += [] if piece.weights is None else [pa.array(piece.weights)]
                writer.write_batch(pa.record_batch(columns, schema=schema))


PLAIN: dict[str, Writer] = {
    "built_in": write_built_in,
    "parquet": write_parquet,
    "pykeen": write_pykeen,
    "libkge": write_libkge,
}


# ---- lines of text


def _write_dictionaries(graph: Written, folder: Path, entities: str, relations: str, delimiter: str = "\t") -> None:
    """Two files of lines `id<delimiter>name`; a name may hold the delimiter."""
    for file, vocabulary in ((entities, graph.dataset.entities), (relations, graph.dataset.relations)):
        with (folder / file).open("wb") as lines:
            for number, name in enumerate(vocabulary):
                lines.write(f"{number}{delimiter}{name}\n".encode())


def _write_names(graph: Written, folder: Path, how: Callable[[Vocabulary, np.ndarray], Any]) -> None:
    """`<split>.txt`, tabs between names."""
    for split in graph.dataset.splits:
        _write_split(graph, split, folder / f"{split}.txt", _by_name(graph, how))


def _write_split(
    graph: Written, split: str, path: Path, words: tuple[Words, Words, Words], order: str = "hrt", delimiter: str = "\t"
) -> None:
    """A line for each triple, its columns in `order`, and behind them its weight where there is one."""
    with path.open("wb") as file:
        for piece in graph.pieces(split):
            columns = [graph.column(piece, "hrt".index(letter), words["hrt".index(letter)]) for letter in order]
            if piece.weights is not None:
                columns.append(pc.cast(pa.array(piece.weights), pa.large_string()))
            lines = pc.binary_join_element_wise(*columns, pa.scalar(delimiter, pa.large_string()))
            text = "\n".join([*lines.to_pylist(), ""]).encode()
            # Readers take a byte-order mark off the start of a file; a name that begins with one keeps its own behind it.
            file.write(BOM + text if piece.first == 0 and text.startswith(BOM) else text)


def _by_name(graph: Written, how: Callable[[Vocabulary, np.ndarray], Any]) -> tuple[Words, Words, Words]:
    """How heads, relations and tails are written."""
    entities, relations = (partial(how, vocabulary) for vocabulary in (graph.dataset.entities, graph.dataset.relations))
    return entities, relations, entities


def digits(ids: np.ndarray) -> Any:
    """Ids as they are."""
    return pa.array(ids).cast(pa.large_string())


def names(vocabulary: Vocabulary, ids: np.ndarray, delimiter: str = "\t") -> Any:
    """Names as they are. Raises Unfit for those that a line split at `delimiter` would not give back."""
    found = vocabulary.take(ids)
    ended = pc.binary_join_element_wise(found, pa.scalar(delimiter, pa.large_string()), pa.scalar("", pa.large_string()))
    # Also a|b in front of || ends too early: the first delimiter from the left must be the one behind the name.
    unfit = pc.not_equal(pc.find_substring(ended, delimiter), pc.binary_length(found))
    why = f"cannot stand in a line that is split at {delimiter!r}; choose another --output_delimiter"
    why += ", or let kgdist-convert write udd or parquet"
    Unfit.check(ids, unfit, why)
    Unfit.check(ids, pc.greater(pc.binary_length(found), LONGEST), f"is longer than {LONGEST:,} bytes; choose udd or parquet")
    return found


def csv_names(vocabulary: Vocabulary, ids: np.ndarray) -> Any:
    """Names as pandas reads them."""
    found = vocabulary.take(ids)
    special = pc.match_substring_regex(found, '^"|\t')
    if not pc.any(special, min_count=0).as_py():
        return found
    return pa.array([quoted(name) for name in found.to_pylist()], pa.large_string())


def quoted(name: str) -> str:
    """A field of tab-separated CSV."""
    return '"' + name.replace('"', '""') + '"' if name.startswith('"') or "\t" in name else name
