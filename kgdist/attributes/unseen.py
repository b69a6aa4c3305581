"""Attributes of entities that were not there when the transforms were fitted: as those would have been, and nothing is fitted.

A folder of attributes keeps what was fitted, the column of names and the settings of every attribute, so a file of the same
columns is all that is needed. What comes is held in memory: some hundred bytes an entity.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.attributes.attribute_folder import MANIFEST, NodeAttributes, NumbersOfRows, OnesOfRows
from kgdist.attributes.canonical import Canonical
from kgdist.attributes.declaration import KINDS, Attribute, Declaration
from kgdist.attributes.entity_files import columns_of, kind_of, read_entities
from kgdist.attributes.fitting import require_sklearn
from kgdist.attributes.scanning import Places, names_of
from kgdist.attributes.transforming import Parts, features_of, read_fitted, transformed
from kgdist.base.errors import DataError, OptionError
from kgdist.base.log import bar
from kgdist.data.read.columns import shown
from kgdist.data.vocabulary import Vocabulary


class Unseen(NamedTuple):
    """Features of new entities, by the transforms of others."""

    attributes: dict[str, OnesOfRows | NumbersOfRows]  # by name, in the order of the folder
    rows: np.ndarray  # int64[entities], the row of each in these, -1 where the file has it not
    unseen: int  # words that were not there when it was fitted: they are nothing

    @property
    def known(self) -> np.ndarray:
        """bool[entities]: those that have an attribute at all."""
        met = np.zeros(len(self.rows), bool)
        for each in self.attributes.values():
            found = each.take(self.rows)[0]
            met |= np.diff(found) > 0 if isinstance(each, OnesOfRows) else found
        return met


def declaration_of(attributes: NodeAttributes) -> Declaration:
    """How the columns of a file are to be read for its entities to get the features of `attributes`.

    Vectors that lay in an .npy file are a column of their attribute's name, for that file is of other entities. Raises
    OptionError for a folder that does not say it.
    """
    about = attributes.about
    if "key" not in about:
        message = f"{attributes.folder} was made by an older kgdist, and does not say how its columns were read"
        raise OptionError("--attributes", f"{message}; make it again by kgdist-preprocess, of the same files")
    made = []
    for each in about["attributes"]:
        settings = each["settings"] | ({"file": None} if each["kind"] == "vector" else {})
        made.append(Attribute(each["name"], KINDS[each["kind"]](**settings), 1))
    return Declaration(attributes.folder.parent / MANIFEST, about["key"], attributes.folder.name, tuple(made))


def names_in(path: Path, attributes: NodeAttributes) -> list[str]:
    """The entities that a file has, in its order. Raises DataError (file:line) for a name that cannot be, or a missing column."""
    declaration = declaration_of(attributes)
    _check_columns(path, declaration, attributes)
    found: list[str] = []
    for piece in read_entities(path, {declaration.key: None}):
        found += names_of(path, declaration.key, piece).to_pylist()
    return found


def transform_unseen(path: Path, attributes: NodeAttributes, entities: Vocabulary) -> Unseen:
    """The features of `entities` by their rows in a file; other rows of it are left out.

    Raises DataError (file:line) for a value that its kind cannot be, an entity that appears twice, and vectors of another length.
    """
    require_sklearn()
    import pyarrow as pa

    declaration = declaration_of(attributes)
    _check_columns(path, declaration, attributes)
    readers = [Canonical(each) for each in declaration.attributes]
    for reader, about in zip(readers, attributes.about["attributes"], strict=True):
        reader.width = about["width"] if about["kind"] == "vector" else 0  # the first vector is no measure: others are there
    features = features_of(read_fitted(attributes.folder))
    places, parts = Places(path, entities), []
    seen = 0
    with bar(desc=f"reading {path.name}", unit=" entities") as progress:
        for piece in read_entities(path, declaration.columns):
            kept = places.add(names_of(path, declaration.key, piece), piece.lines) >= 0
            mask = pa.array(kept)
            columns = [reader.read(path, piece, seen).filter(mask) for reader in readers]
            parts.append(transformed(features, pa.record_batch(columns, [f"{place}" for place in range(len(columns))])))
            seen += len(kept)
            progress.update(len(kept))
    found: dict[str, OnesOfRows | NumbersOfRows] = {}
    unseen = 0
    for place, each in enumerate(attributes.about["attributes"]):
        if each["form"] == "ones":
            counts = _joined(parts, f"{place}.counts", np.int64)
            starts = np.concatenate([[0], np.cumsum(counts)])
            found[each["name"]] = OnesOfRows(int(each["width"]), starts, _joined(parts, f"{place}.indices", np.int32))
            unseen += sum(int(part[f"{place}.unseen"][0]) for part in parts)
        else:
            present, width = _joined(parts, f"{place}.present", np.bool_), int(each["width"])
            found[each["name"]] = NumbersOfRows(
                width, present, _joined(parts, f"{place}.rows", np.float32).reshape(len(present), width)
            )
    return Unseen(found, places.rows, unseen)


def _joined(parts: Sequence[Parts], name: str, dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(part[name].astype(dtype, copy=False).reshape(-1) for part in parts)])


def _check_columns(path: Path, declaration: Declaration, attributes: NodeAttributes) -> None:
    """Raises DataError for the first column that is not there, or not once. Objects of .jsonl have each their own."""
    there = columns_of(path)
    if there is None:
        return
    if not there:
        raise DataError(path, "is empty, expected the names of its columns in the first line")
    line = None if kind_of(path) == "parquet" else 1
    for name in declaration.columns:
        if there.count(name) != 1:
            problem = "has two columns" if name in there else "has no column"
            whose = "names the entity" if name == declaration.key else f"is an attribute in {attributes.folder.parent}"
            hint = "" if name in there or name == declaration.key else "; add it, its fields empty where nothing is known"
            raise DataError(path, f"{problem} {shown(name)}, which {whose}{hint}", line=line)
