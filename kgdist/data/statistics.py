"""Statistics: what a graph is like, counted from its triples."""

from __future__ import annotations

import numpy as np

CATEGORIES = ("1-1", "1-N", "N-1", "N-N")  # the codes that `relation_categories` returns
UNSEEN = -1  # the category of a relation without a training triple
MANY = 1.5  # Bordes et al. 2013, section 4.2: an average of at least this many partners counts as N


def relation_categories(train: np.ndarray, num_relations: int) -> np.ndarray:
    """Sort relations into 1-1, 1-N, N-1, N-N as Bordes et al. 2013 (section 4.2) do.

    N stands on the tail side when the relation's heads have at least 1.5 different tails on average; on the head side likewise.
    `train` int32[T,3] -> int8[num_relations], positions in `CATEGORIES`, or UNSEEN for a relation without a triple.
    """
    category = np.full(num_relations, UNSEEN, np.int8)
    order = np.argsort(train[:, 1], kind="stable")
    ends = np.cumsum(np.bincount(train[:, 1], minlength=num_relations))
    for relation in np.flatnonzero(np.diff(ends, prepend=0)):
        rows = order[ends[relation - 1] if relation else 0 : ends[relation]]
        pairs = np.unique(train[rows, 0].astype(np.int64) << 32 | train[rows, 2])  # distinct (head, tail), sorted
        heads = 1 + np.count_nonzero(np.diff(pairs >> 32))
        tails = len(np.unique(pairs & 0xFFFFFFFF))
        category[relation] = 2 * (len(pairs) >= MANY * tails) + (len(pairs) >= MANY * heads)
    return category
