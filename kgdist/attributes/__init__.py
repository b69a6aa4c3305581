"""Attributes of entities (numbers, dates, categories, words, texts, vectors) as features for graph encoders (extra kgdist[gnn]).

    from kgdist.attributes import open_attributes

    person = open_attributes("attributes")["person"]
    rows = person.rows[ids]                                   # int64[n]: the row of each entity, -1 without attributes
    starts, indices = person["population"].take(rows)         # numeric, date, categorical, multi: rows of ones, compressed
    present, values = person["description"].take(rows)        # text, vector: bool[n], float32[n, width]

attribute_folder.py  the folder that is left, and opening it, mapped
canonical.py         columns as their kind wants them, or the line that is wrong
declaration.py       schema.yaml
draft.py             a schema guessed from a file
entity_files.py      .tsv, .csv, .jsonl and .parquet, piece by piece
features.py          the transform of each kind
fitting.py           what is learned before: edges, words, directions
growing.py           .npy files of as many rows as come
preprocess.py        from files to the folder
scanning.py          the one pass over a file
text_model.py        texts by a model of sentences
transforming.py      chunks, and who transforms them
unseen.py            attributes of entities that were not there when it was fitted
vector_file.py       vectors of an .npy file

Each name below is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgdist.attributes.attribute_folder import Attributes, NodeAttributes, NumbersOfRows, OnesOfRows, open_attributes

__all__ = ["Attributes", "NodeAttributes", "NumbersOfRows", "OnesOfRows", "open_attributes"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'kgdist.attributes' has no attribute {name!r}")
    return getattr(import_module("kgdist.attributes.attribute_folder"), name)
