"""The options of attributes: files of entities, their schemas, the data set whose entities they are, who transforms them; and of
entities that a run has never seen."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import PurePath

from kgdist.options.config import clean_format
from kgdist.options.option import option

_what = partial(option, group="what is asked")
_how = partial(option, group="how it is answered")
_output = partial(option, group="output")


def _whole_path(text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))


def _page(path: str) -> str:
    if PurePath(path).suffix.lower() != ".html":
        raise ValueError(f"must end in .html, not {path[-60:]!r}")
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class EntityOptions:
    """Of kgdist-preprocess."""

    entities: tuple[str, ...] = _what(
        (),
        "a file for each node type, with a row for each entity: .tsv, .csv (a first line names the columns), .jsonl or .parquet",
        metavar="FILE",
    )
    schema: tuple[str, ...] = _what((), "what the columns are, of each file of --entities in turn", metavar="FILE.yaml")
    draft_schema: bool = _what(
        False, "guess a schema from the first rows of the file and write it to --schema, or on the terminal; nothing else is done"
    )
    fit_on: str | None = _what(
        None, "fit bins, words and directions on these entities only, a name a line: those that are trained on", metavar="FILE"
    )
    dataset: str | None = _what(
        None, "the data set whose entities these are: rows are found by its dictionary, and others are left out", metavar="NAME"
    )
    data_path: str = _what("data", "folder of the data set's files", metavar="FOLDER")
    format: str = _what(
        "built_in", "what the data set's files are: built_in, raw_udd_XYZ or udd_XYZ, as for a training", clean=clean_format
    )
    data_files: tuple[str, ...] = _what((), "the data set's files, as for a training", metavar="FILE")
    delimiter: str = _what("\t", "what parts the fields of a line of --data_files")
    header: bool = _what(False, "the first line of each of --data_files is a header, and skipped")
    executor: str = _how(
        "local",
        "who transforms: this process, processes of this machine, or tasks of Ray (the extra kgdist[ray]); what is written is "
        "the same",
        choices=("local", "process", "ray"),
    )
    num_workers: int | None = _how(
        None,
        "processes of --executor process, or tasks of Ray at a time; as many as there are cores when not given",
        low=1,
        high=4096,
    )
    ray_address: str | None = _how(
        None,
        "with --executor ray: a cluster that is there, such as auto or 10.0.0.5:6379; one on this machine when not given",
        metavar="ADDRESS",
    )
    gpu: int = _how(-1, "number of the GPU on which models of texts compute; -1: the CPU", low=-1, high=1023)
    chunk_size: int = _how(
        8192, "entities that are transformed at a time; with a model of texts at most 512", low=1, high=1 << 24
    )
    out: str = _output("attributes", "folder to write", metavar="FOLDER")
    report: str | None = _output(
        None,
        "write a page to be looked at, in one file: coverage, intervals and words, what is missing, the time (needs the extra "
        "kgdist[viz])",
        clean=_page,
        metavar="FILE.html",
    )
    force: bool = _output(False, "replace attributes, or a drafted schema, that are there")


@dataclasses.dataclass(frozen=True, kw_only=True)
class NewEntityOptions:
    """Of kgdist-encode."""

    triples: str | None = _what(
        None,
        "triples among new and known entities, by name: a file as for a training, also .nt, .parquet and packed",
        metavar="FILE",
    )
    entities: str | None = _what(
        None,
        "attributes of the new entities, for a run with --attributes: a file with the columns that kgdist-preprocess was given, "
        ".tsv, .csv, .jsonl or .parquet. What was fitted then transforms them",
        metavar="FILE",
    )
    test: str | None = _what(
        None,
        "triples to rank among all entities, when all rows are made; they become the test triples of the new run",
        metavar="FILE",
    )
    format: str = _what(
        "raw_udd_hrt",
        "what --triples and --test are: raw_udd_XYZ, XYZ being the order of head, relation, tail",
        clean=clean_format,
    )
    delimiter: str = _what("\t", "what parts the fields of a line of --triples and --test")
    header: bool = _what(False, "the first line of each of these is a header, and skipped")
    data_path: str | None = _what(None, "folder of the data that the run was trained on, if it has moved", metavar="FOLDER")
    attributes: str | None = _what(
        None, "folder of the attributes that the run was trained with, if it has moved", clean=_whole_path, metavar="FOLDER"
    )
    start: str = _how(
        "mean",
        "what new entities without attributes begin with, before their neighbours are heard: the mean of what known ones begin "
        "with, or zeros",
        choices=("mean", "zeros"),
    )
    num_thread: int | None = _how(None, "threads; all cores when not given", low=1, high=4096)
    out: str | None = _output(None, "folder of the new run; <RUN>_encoded when not given", metavar="FOLDER")
    force: bool = _output(False, "replace a run that kgdist-encode has written there")
