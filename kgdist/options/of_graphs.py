"""The options of the commands that work on triples alone: split, inspect, convert."""

from __future__ import annotations

import dataclasses
from functools import partial

from kgdist.options.of_files import HEADER, QUOTED, clean_format
from kgdist.options.option import option, page_file

_what = partial(option, group="input")
_how = partial(option, group="options")
_output = partial(option, group="output")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SplittingOptions:
    """See kgdist.data.split."""

    file: str | None = _what(None, "the triples, text or Parquet or N-Triples, compressed or not", metavar="FILE")
    format: str = _what("raw_udd_hrt", "the order of its columns, as for a training: raw_udd_XYZ", clean=clean_format)
    delimiter: str = _what("\t", "what separates the columns")
    header: str = _what(
        "no", "the first line is a header, and skipped: no, yes (--header alone), or auto: if it names columns", **HEADER
    )
    quoted: bool = _what(False, QUOTED)
    has_edge_importance: bool = _what(
        False, "a fourth column holds the weight of a triple, and is kept; of a triple that is there twice, the first weight"
    )
    ratio: tuple[float, ...] = _how((0.8, 0.1, 0.1), "shares of train, valid and test, which add up to 1", low=0, high=1)
    seed: int = _how(0, "which of the possible splits is made", low=0)
    no_leaks: bool = _how(
        False,
        "put triples that say the same by an inverse or duplicate relation into one split, so that no test triple is answered by "
        "its other form in train",
    )
    output_path: str | None = _output(
        None, "folder to write train.tsv, valid.tsv and test.tsv to", metavar="FOLDER", synonyms=("--out",)
    )
    output_delimiter: str = _output("\t", "what separates the columns of the files written")
    force: bool = _output(False, "replace what an earlier kgdist-split has written there")


@dataclasses.dataclass(frozen=True, kw_only=True)
class InspectingOptions:
    """See kgdist.report.inspection."""

    data: tuple[str, ...] = _what(
        (),
        "files of train, valid and test, or a folder that has them as train.txt or train.tsv and so on, or a known data set",
        metavar="DATA",
    )
    data_path: str = _what("data", "where known data sets lie, or are downloaded to", metavar="FOLDER")
    format: str = _what("raw_udd_hrt", "what files are: raw_udd_XYZ, as for a training", clean=clean_format)
    delimiter: str = _what("\t", "what separates the columns")
    header: str = _what(
        "no",
        "the first line of each file is a header, and skipped: no, yes (--header alone), or auto: if it names columns",
        **HEADER,
    )
    quoted: bool = _what(False, QUOTED)
    most: int = _output(10, "relations that are shown of each kind", low=1)
    report: str | None = _output(
        None,
        "write an HTML page, in one file: sizes, degrees, relations, findings (needs the extra kgdist[viz])",
        clean=page_file,
        metavar="FILE.html",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertingOptions:
    """What kgdist-convert reads."""

    data_path: str = _what("data", "folder of the data files", metavar="FOLDER")
    data_files: tuple[str, ...] = _what(
        (),
        "train [valid [test]], or entities relations train [valid [test]] for udd; also .nt, .parquet and compressed files",
        metavar="FILE",
    )
    dataset: str | None = _what(None, "a built-in data set, with --input_format built_in", metavar="NAME")
    input_format: str = _what(
        "raw_udd_hrt", "what the files are: raw_udd_XYZ, udd_XYZ or built_in, as for a training", clean=clean_format
    )
    delimiter: str = _what("\t", "what separates the columns")
    header: str = _what(
        "no",
        "the first line of each file is a header, and skipped: no, yes (--header alone), or auto: if it names columns",
        **HEADER,
    )
    quoted: bool = _what(False, QUOTED)
    has_edge_importance: bool = _what(False, "a fourth column holds the weight of a triple, and is kept")
