"""The filter of filtered ranking: the entities already known to complete a query (anchor, relation, ?) or (?, relation, anchor).

It answers whole batches at once from sorted arrays. It ranks nothing, reads no files and knows no names; which splits count as
known is the caller's choice (filtered ranks of Bordes et al. 2013 take train, valid and test together).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kgdist.types import Side


class _Index(NamedTuple):
    """One side in compressed rows; G is the number of different (anchor, relation) pairs, T the number of different triples."""

    keys: np.ndarray  # int64[G], anchor * num_relations + relation, ascending
    starts: np.ndarray  # int64[G + 1], where the answers of each key start in `ids`
    ids: np.ndarray  # int32[T], ascending within a key


class KnownTriples:
    """All known answers on both sides, each query found by binary search.

    Memory: 8 bytes a triple (4 a side) and 16 bytes for each different (anchor, relation) pair of a side; at worst, when every
    triple has pairs of its own, 40 bytes a triple. Building needs about 60 bytes a triple more, for a moment.
    """

    def __init__(self, indices: dict[Side, _Index], num_entities: int, num_relations: int) -> None:
        self._indices = indices
        self.num_entities = num_entities
        self.num_relations = num_relations

    @classmethod
    def build(cls, splits: Sequence[np.ndarray], num_entities: int, num_relations: int) -> KnownTriples:
        """Index the triples of all `splits`, each int[T, 3] of (head, relation, tail); repeated triples count once.

        Raises ValueError for an id outside of the given counts, since it would be taken for another pair.
        """
        for split in splits:
            if split.ndim != 2 or split.shape[1] != 3:
                raise ValueError(f"a split must have the shape [T, 3], found {list(split.shape)}")
            for column, limit in ((0, num_entities), (1, num_relations), (2, num_entities)):
                _check(split[:, column], limit, ("head", "relation", "tail")[column])
        heads, relations, tails = (
            np.concatenate([np.empty(0, np.int32), *(split[:, column] for split in splits)]).astype(np.int64, copy=False)
            for column in range(3)
        )
        indices = {
            Side.TAIL: _index(heads * num_relations + relations, tails, num_entities, num_relations),
            Side.HEAD: _index(tails * num_relations + relations, heads, num_entities, num_relations),
        }
        return cls(indices, num_entities, num_relations)

    def answers(self, side: Side, anchors: np.ndarray, relations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Everything known for the missing `side` of B queries.

        `anchors` and `relations` are int[B]; anchors are tails when heads are missing and heads when tails are missing.
        Returns (offsets int64[B + 1], ids int32[sum]): the answers of query b are ``ids[offsets[b]:offsets[b + 1]]``, ascending,
        each once, and none for a query that no known triple completes. Raises ValueError for ids out of range.
        """
        anchors, relations = np.asarray(anchors, np.int64), np.asarray(relations, np.int64)
        _check(anchors, self.num_entities, "anchor")
        _check(relations, self.num_relations, "relation")
        keys, starts, ids = self._indices[side]
        wanted = anchors * self.num_relations + relations  # int64[B]
        row = np.searchsorted(keys, wanted)  # int64[B], up to and including G
        found = row < len(keys)
        found[found] = keys[row[found]] == wanted[found]
        first = np.where(found, starts[row], 0)
        counts = np.where(found, starts[np.minimum(row + 1, len(keys))] - first, 0)
        offsets = np.zeros(len(wanted) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        take = np.arange(offsets[-1]) + np.repeat(first - offsets[:-1], counts)  # int64[sum]
        return offsets, ids[take]


def _check(ids: np.ndarray, limit: int, what: str) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= limit):
        raise ValueError(f"{what} ids must be in 0..{limit - 1}, found {ids.min()}..{ids.max()}")


def _index(keys: np.ndarray, ids: np.ndarray, num_entities: int, num_relations: int) -> _Index:
    """Sort the pairs (keys int64[T], ids int64[T]), drop the repeated ones and compress the keys."""
    # One machine word can mostly hold a pair, and sorting words is several times faster than sorting by two keys.
    if num_entities * num_entities * num_relations < 2**63:
        packed = keys * num_entities
        packed += ids
        packed.sort()
        packed = packed[_first_of_run(packed)]
        keys, ids = np.divmod(packed, num_entities)
    else:
        order = np.lexsort((ids, keys))
        keys, ids = keys[order], ids[order]
        fresh = _first_of_run(keys) | _first_of_run(ids)
        keys, ids = keys[fresh], ids[fresh]
    starts = np.flatnonzero(_first_of_run(keys))
    return _Index(keys[starts], np.append(starts, len(keys)), ids.astype(np.int32))


def _first_of_run(values: np.ndarray) -> np.ndarray:
    """bool[T]: whether each element differs from the one before it."""
    fresh = np.ones(len(values), bool)
    np.not_equal(values[1:], values[:-1], out=fresh[1:])
    return fresh
