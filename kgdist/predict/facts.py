"""Which triples are known: those of all splits that could be among the answers, and whether a triple is one of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.evaluation.candidates import Skip

ROWS = 1 << 20  # triples looked at together


def known_among(
    splits: Iterable[np.ndarray],
    num_entities: int,
    num_relations: int,
    lists: Sequence[np.ndarray | None] = (None, None, None),
) -> KnownTriples:
    """The triples int[T,3] of all `splits` whose head, relation and tail are in `lists` (None: any), ready to be asked.

    So a large graph costs only what is asked of it: next to nothing for a few heads.
    """
    wanted = []
    for ids, count in zip(lists, (num_entities, num_relations, num_entities), strict=True):
        mask = np.ones(count, bool) if ids is None else np.zeros(count, bool)
        if ids is not None:
            mask[ids] = True
        wanted.append(mask)
    found = [np.zeros((0, 3), np.int32)]
    for split in splits:
        for start in range(0, len(split), ROWS):
            part = split[start : start + ROWS]
            found.append(part[wanted[0][part[:, 0]] & wanted[1][part[:, 1]] & wanted[2][part[:, 2]]])
    return KnownTriples.build([np.concatenate(found)], num_entities, num_relations)


def are_known(
    known: KnownTriples, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, by: Side = Side.TAIL
) -> np.ndarray:
    """bool[B]: whether each triple, int[B] ids, is known; asked by the query whose `by` is missing."""
    given, wanted = by.pick(tails, heads), by.pick(heads, tails)
    found = Skip(*known.answers(by, given, relations))
    rows, listed = found.rows, np.zeros(len(heads), bool)
    listed[rows[found.positions == wanted[rows]]] = True
    return listed
