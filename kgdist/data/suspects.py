"""What was probably not meant to be in a graph: names of columns read as a triple, quotation marks in names, repeated triples.

A training warns of it by what its reading pass has at hand; kgdist-inspect looks at everything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kgdist.data.read.header import names_columns
from kgdist.data.vocabulary import Vocabulary
from kgdist.kernels.random import GOLDEN

QUOTED = 0.5  # share of names that are in quotation marks, from which they are none of the names' own


def header(splits: Sequence[np.ndarray], entities: Vocabulary, relations: Vocabulary) -> list[str] | None:
    """The first triple of one of `splits`, int32[T, 3] each, where it is the names of columns and no triple."""
    if entities.count is not None or relations.count is not None:
        return None
    for triples in filter(len, splits):
        head, relation, tail = triples[0].tolist()
        words = [entities[head], relations[relation], entities[tail]]
        if names_columns(dict(zip("hrt", words, strict=True))):
            often = sum(int(np.count_nonzero(each[:, 1] == relation)) for each in splits)
            if often <= len(splits):
                return words
    return None


def share(entities: Vocabulary, relations: Vocabulary, says: Callable[[str], bool], most: int | None = None) -> float:
    """The share of names of entities or of relations of which `says` is true, the larger one; of the first `most` names."""
    found = 0.0
    for names in (entities, relations):
        if names.count is None and len(names):
            count = len(names) if most is None else min(most, len(names))
            found = max(found, sum(map(says, names if count == len(names) else names.names(range(count)))) / count)
    return found


def in_quotes(name: str) -> bool:
    """Whether it begins and ends with a quotation mark."""
    return len(name) > 1 and name[0] == name[-1] == '"'


def repeated(triples: np.ndarray) -> int:
    """How many of int32[n, 3] stand among them before, by hashes of 64 bits: a third of what sorting rows costs."""
    pairs = triples[:, 0].astype(np.uint64) << np.uint64(32) | triples[:, 2].astype(np.uint64)
    codes = np.sort(pairs * np.uint64(GOLDEN) + triples[:, 1].astype(np.uint64))
    return int(np.count_nonzero(codes[1:] == codes[:-1]))
