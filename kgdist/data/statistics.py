"""Statistics: what a graph is like, counted from its triples."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kgdist.base.integers import distinct
from kgdist.base.log import bar

CATEGORIES = ("1-1", "1-N", "N-1", "N-N")  # the codes that `relation_categories` returns
UNSEEN = -1  # the category of a relation without a training triple
MANY = 1.5  # Bordes et al. 2013, section 4.2: an average of at least this many partners counts as N
AT_ONCE, PIECE = 8 << 20, 1 << 20  # triples sorted at once; looked at together


def relation_categories(train: np.ndarray, num_relations: int) -> np.ndarray:
    """Sort relations into 1-1, 1-N, N-1, N-N as Bordes et al. 2013 (section 4.2) do, some at a time where triples are many.

    N stands on the tail side when the relation's heads have at least 1.5 different tails on average; on the head side likewise.
    `train` int32[T,3] -> int8[num_relations], positions in `CATEGORIES`, or UNSEEN for a relation without a triple.
    """
    category = np.full(num_relations, UNSEEN, np.int8)
    for triples in whole_relations(train, num_relations, "relation categories"):
        _categorise(triples, category)
    return category


def whole_relations(train: np.ndarray, num_relations: int, desc: str) -> Iterator[np.ndarray]:
    """The triples int32[T,3] in parts that have all triples of their relations: at once, or AT_ONCE of them where they are many.

    A relation that alone has more than that is a part by itself. `desc`: what the bar says.
    """
    if len(train) <= AT_ONCE:
        yield train
        return
    pieces = [train[start : start + PIECE] for start in range(0, len(train), PIECE)]
    group = np.cumsum(sum(np.bincount(piece[:, 1], minlength=num_relations) for piece in pieces)) // AT_ONCE
    for number in bar(np.unique(group).tolist(), desc=desc, unit=" group"):
        yield np.concatenate([piece[group[piece[:, 1]] == number] for piece in pieces])


def _categorise(train: np.ndarray, category: np.ndarray) -> None:
    """Fill in the relations of int32[T,3], which are all the triples of these."""
    order = np.argsort(train[:, 1], kind="stable")
    ends = np.cumsum(np.bincount(train[:, 1], minlength=len(category)))
    for relation in np.flatnonzero(np.diff(ends, prepend=0)):
        rows = order[ends[relation - 1] if relation else 0 : ends[relation]]
        pairs = distinct(train[rows, 0].astype(np.int64) << 32 | train[rows, 2])  # of head and tail
        heads = 1 + np.count_nonzero(np.diff(pairs >> 32))
        tails = len(distinct(pairs & 0xFFFFFFFF))
        category[relation] = 2 * (len(pairs) >= MANY * tails) + (len(pairs) >= MANY * heads)
