"""Embeddings for other tools: a function for each format, their names, and a folder of them, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kgdist.base.errors import OptionError
from kgdist.base.files import write_json
from kgdist.base.listed_folder import check_replaceable, listed_folder
from kgdist.base.log import bar
from kgdist.data.vocabulary import Vocabulary
from kgdist.exchange.source import Source
from kgdist.options.config import OPTIONS
from kgdist.options.configfile import run_json
from kgdist.runs.rundir import array_names
from kgdist.version import __version__

SPACE = re.compile(r"[\s\x1c-\x1f\x85]")  # what str.split splits at, which is more than a regular expression calls white space
_MAPS = {"entity": "entities.tsv", "relation": "relations.tsv"}
DGLKE = ("TransE", "TransE_l1", "TransE_l2", "TransR", "RESCAL", "DistMult", "ComplEx", "RotatE", "SimplE")  # its models
_DGLKE_KEYS = ("model", "emb_size", "max_train_step", "emp_file", "emap_file", "rmap_file")


def export(source: Source, target: str, out: Path, *, tables: str = "both", force: bool = False, blank: str = "_") -> list[Path]:
    """Write the folder `out`, and return its files: the embeddings, the names of the rows, and export.json on what they are.

    `tables`: "both", "entity" or "relation". `blank` replaces white space in the names of word2vec. Memory is a few blocks of
    rows and the names. Raises UsageError (a folder that is there, without `force`), OptionError, KgdistError (disk full): then
    `out` is as it was.
    """
    if target not in TARGETS:
        raise OptionError("--to", f"no format is called {target!r}; known: {', '.join(TARGETS)}")
    check_replaceable(out, force)
    source = source.only(tables)
    write = partial(write_word2vec, blank=blank) if target == "word2vec" else TARGETS[target]
    total = sum(len(rows) for rows in source.tables.values())
    about = {"format": target, **source.about()}
    with bar(total=total, desc=f"writing {target}", unit=" rows") as progress, listed_folder(out, about, force=force) as folder:
        write(dataclasses.replace(source, tick=progress.update), folder)
        for kind, names in source.names.items():
            names.write_tsv(folder / _MAPS[kind])
    return sorted(out.iterdir())


def write_npy(source: Source, folder: Path) -> None:
    """NumPy arrays, `<table>.npy`: float32[n, width]."""
    for table in source.tables:
        _write_array(source, table, folder / f"{table}.npy")


def _write_array(source: Source, table: str, path: Path) -> None:
    """One table as a `.npy` file of format 1.0, a block of rows at a time."""
    with path.open("wb") as file:
        shape = source.tables[table].shape
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for rows in source.blocks(table):
            file.write(rows.astype("<f4", copy=False).data)


def write_safetensors(source: Source, folder: Path) -> None:
    """`embeddings.safetensors`: tensors F32 by table; model, sizes and the meaning of columns in its metadata, all of it text.

    Eight bytes of length, a header of JSON, the numbers (github.com/huggingface/safetensors, "Format"). The library of that name
    wants every table in memory, and again in bytes.
    """
    about = source.about()
    facts = {key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for key, value in about.items()}
    header: dict[str, Any] = {"__metadata__": facts}
    offset = 0
    for name, rows in source.tables.items():
        header[name] = {"dtype": "F32", "shape": list(rows.shape), "data_offsets": [offset, offset + rows.nbytes]}
        offset += rows.nbytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of eight
    with (folder / "embeddings.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for table in source.tables:
            for rows in source.blocks(table):
                file.write(rows.astype("<f4", copy=False).data)


def write_parquet(source: Source, folder: Path) -> None:
    """`entity.parquet`, `relation.parquet`: columns id (int64), name (string), and each table as a list of float32.

    TransR's projections are one more column of relation.parquet. Float bits do not compress, so they are stored as they are.
    """
    from pyarrow import parquet  # only here: it loads a large library

    for kind in source.names:
        tables = [table for table in source.tables if source.kind(table) == kind]
        vectors = {"embedding" if table == kind else table: source.tables[table].shape[1] for table in tables}
        lists = [pa.field(name, pa.list_(pa.float32(), width)) for name, width in vectors.items()]
        schema = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.string()), *lists])
        facts = {key: str(value) for key, value in source.about().items() if key != "tables"}
        packed = {"id": "snappy", "name": "snappy"}
        facts |= {f"columns of {name}": source.columns(table) for name, table in zip(vectors, tables, strict=True)}
        with (
            (folder / f"{kind}.parquet").open("wb") as file,
            parquet.ParquetWriter(file, schema.with_metadata(facts), compression=packed, use_dictionary=False) as writer,
        ):
            start = 0
            for (names, first), *others in zip(
                source.named_blocks(tables[0]), *(source.blocks(table) for table in tables[1:]), strict=True
            ):
                columns = [pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1]) for rows in (first, *others)]
                ids = pa.array(range(start, start + len(names)), pa.int64())
                writer.write_batch(pa.record_batch([ids, pa.array(names, pa.string()), *columns], schema=schema))
                start += len(names)


def write_word2vec(source: Source, folder: Path, blank: str = "_") -> None:
    """word2vec text, `<table>.txt`: `count width`, then a line for each name: the word, a blank, the numbers with blanks between.

    gensim's `KeyedVectors.load_word2vec_format` splits a line at every blank and takes the first part as the word; other readers
    split at any white space. So a name must become one word: each white space in it becomes `blank`. Of two equal words gensim
    would drop one, so OptionError refuses that. The exact names, in the same order, are in entities.tsv and relations.tsv.
    """
    for kind, names in source.names.items():
        _check_words(names, kind, blank)
    for table, rows in source.tables.items():
        with (folder / f"{table}.txt").open("wb") as file:
            file.write(b"%d %d\n" % rows.shape)
            for names_of_block, block in source.named_blocks(table):
                file.write(lines_of(block, " ", [word(name, blank) for name in names_of_block]))


def word(name: str, blank: str) -> str:
    """The name as one word."""
    return SPACE.sub(blank, name)


def _check_words(names: Vocabulary, kind: str, blank: str) -> None:
    """Raise OptionError when `blank` cannot stand in a word, or makes two names equal. Memory: the names with white space."""
    if SPACE.search(blank):
        raise OptionError("--blank", f"{blank!r} holds white space itself; take _ or another sign")
    changed: dict[str, str] = {}
    for name in names:
        if SPACE.search(name):
            made = word(name, blank)
            other = changed.setdefault(made, name)
            if other != name:
                raise OptionError("--blank", f"{kind} {name!r} and {other!r} would both be the word {made!r}; give another sign")
    for made, place in zip(changed, names.find(list(changed)).tolist() if changed else [], strict=True):
        if place >= 0:
            message = f"{kind} {changed[made]!r} would be the word {made!r}, which there is already; give another sign"
            raise OptionError("--blank", message)


def write_projector(source: Source, folder: Path) -> None:
    """TensorFlow Embedding Projector: `<table>_vectors.tsv`, `<table>_metadata.tsv` for each table, and projector_config.pbtxt.

    Two ways to look: load a pair by hand at the projector's page, or `tensorboard --logdir FOLDER`, which reads the config.
    (tensorflow.org, "Visualizing data using the Embedding Projector in TensorBoard": labels of one column have no header, and of
    more columns do; so a tab in a name, which would make a second column, becomes a blank.)
    """
    config = []
    for table in source.tables:
        vectors, labels = f"{table}_vectors.tsv", f"{table}_metadata.tsv"
        with (folder / vectors).open("wb") as numbers, (folder / labels).open("wb") as words:
            for names, rows in source.named_blocks(table):
                numbers.write(lines_of(rows, "\t"))
                words.write("".join(name.replace("\t", " ") + "\n" for name in names).encode())
        fields = {"tensor_name": table, "tensor_path": vectors, "metadata_path": labels}
        config.append("embeddings {\n" + "".join(f'  {key}: "{value}"\n' for key, value in fields.items()) + "}\n")
    with (folder / "projector_config.pbtxt").open("wb") as file:
        file.write("".join(config).encode())


def write_dglke(source: Source, folder: Path) -> None:
    """The folder that DGL-KE's training leaves: `<dataset>_<model>_entity.npy` and its kin, config.json with the keys of both of
    its releases, and the maps; what dglke_eval, dglke_predict and dglke_emb_sim read.

    Its dglke_predict turns RotatE's phases by (gamma + 2) / 2 too far unless asked for --score_func logsigmoid, and cannot read
    TransR; dglke_eval can. Raises OptionError for a model that DGL-KE has not, for inverse relations, and for half of a model.
    """
    config = source.config
    if config.reciprocal:
        message = "DGL-KE has one row for a relation, and this run two; take another format, or train with --reciprocal=false"
        raise OptionError("--to", message)
    if config.model_name not in DGLKE:
        raise OptionError("--to", f"DGL-KE has no model {config.model_name}; take another format")
    if len(source.names) < 2:
        raise OptionError("--tables", "a DGL-KE folder holds both; leave the option out")
    for table, name in array_names(config).items():
        _write_array(source, table, folder / name)
    values = run_json(config, version=__version__)
    theirs = {name: values[name] for name, row in OPTIONS.items() if "train" in row.dglke}
    computed = {"eval_filter": not config.no_eval_filter, "soft_rel_part": False, "strict_rel_part": False}
    write_json(folder / "config.json", {**theirs, **computed, **{key: values[key] for key in _DGLKE_KEYS}})


def lines_of(rows: np.ndarray, delimiter: str, words: list[str] | None = None) -> bytes:
    """float32[n, width], and a word to begin each line with -> n lines of UTF-8. Some 500 ns a number.

    The decimals are the shortest that read back as the same float32.
    """
    count, width = rows.shape
    offsets = np.arange(count + 1, dtype=np.int32) * width
    joined = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), pc.cast(pa.array(rows.ravel()), pa.string())), delimiter)
    if words is not None:
        joined = pc.binary_join_element_wise(pa.array(words, pa.string()), joined, delimiter)
    return "".join(f"{line}\n" for line in joined.to_pylist()).encode()


TARGETS = {
    "npy": write_npy,
    "safetensors": write_safetensors,
    "parquet": write_parquet,
    "word2vec": write_word2vec,
    "projector": write_projector,
    "dglke": write_dglke,
}
