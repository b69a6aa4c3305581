"""Names of formats, and which files a data set consists of. What is inside the files is for text, parquet, ntriples and
dictionary.

| --format      | --data_files                              | triples hold                                                   |
|---------------|-------------------------------------------|----------------------------------------------------------------|
| built_in      | none; the folder <data_path>/<dataset>    | names (Freebase: ids, in the order head, tail, relation)       |
| raw_udd_XYZ   | train [valid [test]]                      | names; ids are given by first appearance                       |
| udd_XYZ       | entities relations train [valid [test]]   | ids, which the first two files name                            |

XYZ is the order of the columns, any permutation of h, r, t; braces as in DGL-KE's manual (`raw_udd_{hrt}`) are accepted.
Files are looked for under --data_path; those ending in .gz, .xz, .zst or .bz2 are decompressed, .parquet and (raw_udd_hrt
only) RDF (.nt, .ttl, .rdf, .owl) are read as what they are. A built_in folder holds train.txt, train.tsv or train.parquet, and
valid and test likewise; without dictionary files it is read as raw_udd_hrt.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kgdist.base.errors import DataError, OptionError
from kgdist.base.files import PathLike, safe_join
from kgdist.data.read.columns import Rows, Spec
from kgdist.data.read.lines import find, split_file, suffix

SPLITS = ("train", "valid", "test")
RDF = (".nt", ".ttl", ".rdf", ".owl")  # kinds of files that hold RDF
ORDERS = ("hrt", "htr", "rht", "rth", "thr", "trh")


@dataclass(frozen=True)
class Format:
    """A value of --format."""

    kind: str  # "built_in", "raw_udd" or "udd"
    order: str = "hrt"

    @classmethod
    def parse(cls, text: str) -> Format:
        """Raises OptionError for anything but the three kinds of the table above."""
        if text == "built_in":
            return cls(text)
        match = re.fullmatch(r"(raw_udd|udd)_(?:([hrt]{3})|\{([hrt]{3})\})", text)
        order = match and (match[2] or match[3])
        if not match or order not in ORDERS:
            raise OptionError(
                "--format", f"{text!r} is not a format; use built_in, raw_udd_XYZ or udd_XYZ with XYZ one of {', '.join(ORDERS)}"
            )
        return cls(match[1], str(order))


@dataclass(frozen=True)
class Sources:
    """The files of a data set and how to read them."""

    home: Path  # beside which a cache may be kept
    splits: dict[str, Path]
    order: str
    ids: bool  # the triples hold ids
    entities: Path | None = None
    relations: Path | None = None
    counted: bool = False  # the dictionary files begin with their count (Freebase)
    delimiter: str = "\t"
    header: bool | None = False  # every file begins with a line to skip; None: those whose first line names columns
    quoted: bool = False  # fields may stand in quotation marks

    @property
    def roles(self) -> dict[str, Path]:
        """Every file by what it holds, dictionaries first."""
        found = {"entities": self.entities, "relations": self.relations, **self.splits}
        return {role: path for role, path in found.items() if path is not None}

    @property
    def files(self) -> list[Path]:
        """Every file."""
        return list(self.roles.values())


def check_delimiter(delimiter: str, quoted: bool = False) -> None:
    """Raise OptionError for a string that cannot part the fields of a line, or not those that may be quoted."""
    if not delimiter or set(delimiter) & set("\n\r\0"):
        raise OptionError(
            "--delimiter", f"{delimiter!r} cannot separate columns; give one or more characters other than line ends and NUL"
        )
    try:
        delimiter.encode()
    except UnicodeEncodeError as error:
        raise OptionError("--delimiter", f"{delimiter!r} is not valid Unicode") from error
    if quoted and (len(delimiter) > 1 or not delimiter.isascii() or delimiter == '"'):
        raise OptionError(
            "--quoted", f"goes with a delimiter of one ASCII character that is no quotation mark, not {delimiter!r}"
        )


def user_files(
    path: PathLike,
    form: Format,
    files: Sequence[PathLike] | None,
    delimiter: str = "\t",
    header: bool | None = False,
    quoted: bool = False,
) -> Sources:
    """The files of a raw_udd or udd data set, looked for under `path`. Raises OptionError if their number is wrong."""
    check_delimiter(delimiter, quoted)
    least, words = (1, "train [valid [test]]") if form.kind == "raw_udd" else (3, "entities relations train [valid [test]]")
    if files is None or not least <= len(files) <= least + 2:
        found = "none is" if not files else f"{len(files)} are"
        raise OptionError(
            "--data_files", f"--format {form.kind}_{form.order} takes {least} to {least + 2} files ({words}), {found} given"
        )
    paths = [Path(path) / file for file in files]
    for given, full in zip(files, paths, strict=True):
        if not full.exists() and Path(given).exists():
            raise DataError(
                full,
                f"no such file; data files are looked for under --data_path, and {given} is in this folder: give --data_path .",
            )
    ids = form.kind == "udd"
    entities, relations, *rest = paths if ids else (None, None, *paths)
    splits = {split: file for split, file in zip(SPLITS, rest, strict=False) if file is not None}
    home = Path(path) if Path(path).is_dir() else splits["train"].parent
    return Sources(home, splits, form.order, ids, entities, relations, delimiter=delimiter, header=header, quoted=quoted)


def built_in_files(path: PathLike, name: str, data_url: str | None) -> Sources:
    """The files of the folder `path/name`, fetched or unpacked if it is not there. Raises DataError, OptionError or
    UsageError.
    """
    folder = safe_join(path, name)
    if split_file(folder, "train") is None:
        from kgdist.data.builtin.catalog import ensure  # only here: no download machinery for those who bring their own files

        folder = ensure(name, path, data_url=data_url)
    splits = {split: file for split in SPLITS if (file := split_file(folder, split)) is not None}
    if "train" not in splits:
        raise DataError(folder / "train.txt", "no such file, expected the triples to train on")
    if (folder / "entities.tsv").exists() and splits["train"].name.startswith("train.tsv"):
        files = " ".join(["entities.tsv", "relations.tsv", *(file.name for file in splits.values())])
        message = f"beside entities.tsv it holds ids; give --data_path {folder} --format udd_hrt --data_files {files}"
        raise DataError(splits["train"], message)
    for entities, relations, order, ids in (
        ("entities.dict", "relations.dict", "hrt", False),
        ("entity2id.txt", "relation2id.txt", "htr", True),
    ):
        found = (find(folder, entities), find(folder, relations))
        if all(found):
            return Sources(folder, splits, order, ids, *found, counted=ids)
        if any(found):
            missing = entities if found[0] is None else relations
            raise DataError(folder / missing, "no such file, expected as the other dictionary file is there")
    return Sources(folder, splits, "hrt", False)


def read_rows(path: Path, spec: Spec) -> Iterator[Rows]:
    """The triples of one file, by its suffix. Raises DataError with the line, OptionError for options that its kind cannot
    follow.
    """
    kind = suffix(path)
    if spec.header is None:
        spec = replace(spec, header=has_header(path, spec))
    if kind == ".nt":
        from kgdist.data.read.ntriples import read_ntriples

        return read_ntriples(path, spec)
    if kind in RDF:
        from kgdist.data.read.rdf import read_rdf

        return read_rdf(path, spec)
    if kind in (".parquet", ".pq"):
        from kgdist.data.read.parquet import read_parquet

        return read_parquet(path, spec)
    from kgdist.data.read.text import read_text

    return read_text(path, spec)


def has_header(path: Path, spec: Spec) -> bool:
    """Whether a file of text begins with the names of its columns. Raises DataError for one that cannot be read."""
    if suffix(path) in (*RDF, ".parquet", ".pq"):
        return False
    from kgdist.data.read.text import begins_with_names

    return begins_with_names(path, spec)
