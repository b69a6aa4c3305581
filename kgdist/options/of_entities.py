"""The options of attributes: files of entities, their schemas, the data set whose entities they are, who transforms them; and of
entities that a run has never seen."""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.of_files import HEADER, QUOTED, clean_format
from kgdist.options.option import option, page_file, whole_path

_what = partial(option, group="input")
_how = partial(option, group="options")
_output = partial(option, group="output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityOptions:
    """Of kgdist-preprocess."""

    entities: tuple[str, ...] = _what(
        (),
        "one file per node type, with one row per entity: .tsv or .csv (the first line names the columns), .jsonl or .parquet",
        metavar="FILE",
    )
    schema: tuple[str, ...] = _what((), "description of the columns, for each file of --entities in turn", metavar="FILE.yaml")
    draft_schema: bool = _what(
        False, "guess a schema from the first rows of the file, write it to --schema or to the terminal, and do nothing else"
    )
    fit_on: str | None = _what(
        None, "fit bins, words and directions on these entities only, one name per line: those to train on", metavar="FILE"
    )
    dataset: str | None = _what(
        None, "the data set that these entities belong to: rows are matched by its names, and others are left out", metavar="NAME"
    )
    data_path: str = _what("data", "folder of the data set's files", metavar="FOLDER")
    format: str = _what(
        "built_in", "format of the data set's files: built_in, raw_udd_XYZ or udd_XYZ, as for a training", clean=clean_format
    )
    data_files: tuple[str, ...] = _what((), "the data set's files, as for a training", metavar="FILE")
    delimiter: str = _what("\t", "what separates the columns of --data_files")
    header: str = _what(
        "no", "the first line of each of --data_files is a header, and skipped: no, yes (--header alone), or auto", **HEADER
    )
    quoted: bool = _what(False, f"of --data_files: {QUOTED}")
    executor: str = _how(
        "local",
        "where the work is done: in this process, in processes of this machine, or in tasks of Ray (needs the extra "
        "kgdist[ray]); the output is the same",
        choices=("local", "process", "ray"),
    )
    num_workers: int | None = _how(
        None,
        "processes of --executor process, or Ray tasks at a time; one per core when not given",
        low=1,
        high=4096,
    )
    ray_address: str | None = _how(
        None,
        "with --executor ray: an existing cluster, such as auto or 10.0.0.5:6379; when not given, one is started on this machine",
        metavar="ADDRESS",
    )
    gpu: int = _how(-1, "number of the GPU for text models; -1: the CPU", low=-1, high=1023)
    chunk_size: int = _how(8192, "entities to transform at a time; with a text model at most 512", low=1, high=1 << 24)
    out: str = _output("attributes", "folder to write", metavar="FOLDER")
    report: str | None = _output(
        None,
        "write an HTML page, in one file: coverage, intervals and words, missing values, time (needs the extra kgdist[viz])",
        clean=page_file,
        metavar="FILE.html",
    )
    force: bool = _output(False, "replace existing attributes, or an existing draft of a schema")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewEntityOptions:
    """Of kgdist-encode."""

    triples: str | None = _what(
        None,
        "triples among new and known entities, by name: a file as for a training, also .nt, .parquet or compressed",
        metavar="FILE",
    )
    entities: str | None = _what(
        None,
        "attributes of the new entities, for a run with --attributes: a file with the same columns as the one given to "
        "kgdist-preprocess, .tsv, .csv, .jsonl or .parquet. They are transformed by what was fitted then",
        metavar="FILE",
    )
    test: str | None = _what(
        None,
        "triples to rank among all entities afterwards; they become the test triples of the new run",
        metavar="FILE",
    )
    format: str = _what(
        "raw_udd_hrt",
        "format of --triples and --test: raw_udd_XYZ, where XYZ is the order of head, relation, tail",
        clean=clean_format,
    )
    delimiter: str = _what("\t", "what separates the columns of --triples and --test")
    header: str = _what(
        "no", "the first line of each of these is a header, and skipped: no, yes (--header alone), or auto", **HEADER
    )
    quoted: bool = _what(False, f"of these: {QUOTED}")
    data_path: str | None = _what(None, "folder of the data that the run was trained on, if it has moved", metavar="FOLDER")
    attributes: str | None = _what(
        None, "folder of the attributes that the run was trained with, if it has moved", clean=whole_path, metavar="FOLDER"
    )
    start: str = _how(
        "mean",
        "initial row of new entities without attributes, before messages from neighbours: the mean of known entities' initial "
        "rows, or zeros",
        choices=("mean", "zeros"),
    )
    num_thread: int | None = _how(None, "threads; all cores when not given", low=1, high=4096)
    out: str | None = _output(None, "folder of the new run; <RUN>_encoded when not given", metavar="FOLDER")
    force: bool = _output(False, "replace a run that kgdist-encode wrote there earlier")
