"""The filter of filtered ranking: the entities already known to complete a query (anchor, relation, ?) or (?, relation, anchor).

It answers whole batches at once from sorted arrays, and holds only what an evaluation is going to ask: of a large graph with a
small test split that is next to nothing. It ranks nothing and knows no names; which splits count as known is the caller's choice
(filtered ranks of Bordes et al. 2013 take train, valid and test together). A partition saves it: no machine has all triples.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import load_npy, write_npy
from kgdist.base.integers import distinct
from kgdist.base.types import Side
from kgdist.kernels.jit import strict

ROWS = 1 << 18  # triples looked at together
SIEVE = 1 << 20  # flags that tell most triples which nobody asks about from the others, for a few nanoseconds each


class _Index(NamedTuple):
    """One side in compressed rows; G is the number of different queries, A the number of different answers to them."""

    keys: np.ndarray  # int64[G], anchor * num_relations + relation, ascending
    starts: np.ndarray  # int64[G + 1], where the answers of each key start in `ids`
    ids: np.ndarray  # int32[A], ascending within a key


class KnownTriples:
    """The known answers on both sides, each query found by binary search.

    Memory, on each side: 16 bytes for each different query and 4 for each different answer; building needs 16 more for each
    triple that answers, for a moment.
    """

    def __init__(self, indices: dict[Side, _Index], num_entities: int, num_relations: int, *, complete: bool) -> None:
        self._indices = indices
        self._complete = complete
        self.num_entities = num_entities
        self.num_relations = num_relations

    @classmethod
    def build(
        cls, splits: Sequence[np.ndarray], num_entities: int, num_relations: int, asked: np.ndarray | None = None
    ) -> KnownTriples:
        """Index the triples of all `splits`, each int[T, 3] of (head, relation, tail); repeated triples count once.

        With `asked` int[Q, 3], only what answers the queries that its triples make, on either side, and only those may be asked.
        Raises ValueError for an id outside of the given counts, since it would be taken for another pair.
        """
        for split in [*splits, *([] if asked is None else [asked])]:
            if split.ndim != 2 or split.shape[1] != 3:
                raise ValueError(f"a split must have the shape [T, 3], found {list(split.shape)}")
            for column, limit in ((0, num_entities), (1, num_relations), (2, num_entities)):
                _check(split[:, column], limit, ("head", "relation", "tail")[column])
        questions = splits if asked is None else [asked]
        indices = {side: _index(splits, questions, side, num_entities, num_relations) for side in Side}
        return cls(indices, num_entities, num_relations, complete=asked is None)

    @classmethod
    def among(
        cls,
        splits: Iterable[np.ndarray],
        num_entities: int,
        num_relations: int,
        lists: Sequence[np.ndarray | None] = (None, None, None),
    ) -> KnownTriples:
        """Index the triples int[T, 3] of all `splits` whose head, relation and tail are in `lists` (None: any).

        So a large graph costs only what is asked of it: next to nothing for a few heads.
        """
        wanted = []
        for ids, count in zip(lists, (num_entities, num_relations, num_entities), strict=True):
            mask = np.full(count, ids is None)
            if ids is not None:
                mask[ids] = True
            wanted.append(mask)
        found = [np.zeros((0, 3), np.int32)]
        for split in splits:
            for start in range(0, len(split), ROWS):
                part = split[start : start + ROWS]
                found.append(part[wanted[0][part[:, 0]] & wanted[1][part[:, 1]] & wanted[2][part[:, 2]]])
        return cls.build([np.concatenate(found)], num_entities, num_relations)

    def save(self, folder: Path, stem: str) -> None:
        """Write `<stem>.<side>.keys.npy`, `.starts.npy` and `.ids.npy` for both sides, which `open` maps, into a folder being
        built."""
        for side, index in self._indices.items():
            for name, array in zip(index._fields, index, strict=True):
                write_npy(folder / f"{stem}.{side.value}.{name}.npy", array)

    @classmethod
    def open(cls, folder: Path, stem: str, num_entities: int, num_relations: int) -> KnownTriples:
        """Map what `save` wrote; only the queries that it holds may be asked. Raises CheckpointError where files do not fit."""
        indices = {}
        for side in Side:
            name = folder / f"{stem}.{side.value}"
            index = _Index(*(load_npy(f"{name}.{field}.npy", mmap=True) for field in _Index._fields))
            kinds = [(array.dtype.name, array.ndim) for array in index]
            right = kinds == [("int64", 1), ("int64", 1), ("int32", 1)] and len(index.starts) == len(index.keys) + 1
            if not right or index.starts[0] != 0 or index.starts[-1] != len(index.ids):
                raise CheckpointError(f"{name}: the arrays of the filter do not fit together")
            indices[side] = index
        return cls(indices, num_entities, num_relations, complete=False)

    def answers(self, side: Side, anchors: np.ndarray, relations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Everything known for the missing `side` of B queries.

        `anchors` and `relations` are int[B]; anchors are tails when heads are missing and heads when tails are missing.
        Returns (offsets int64[B + 1], ids int32[sum]): the answers of query b are ``ids[offsets[b]:offsets[b + 1]]``, ascending,
        each once, and none for a query that no known triple completes. Raises ValueError for ids out of range, and for a query
        that is not among those the filter was built for.
        """
        first, counts = self._places(side, anchors, relations)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        take = np.repeat(first - offsets[:-1], counts)  # int64[sum], tens of megabytes where answers are many
        take += np.arange(len(take))
        return offsets, self._indices[side].ids[take]

    def of(self, side: Side, anchor: int) -> tuple[np.ndarray, np.ndarray]:
        """Everything known of one entity: (relations int64[n], answers for the missing `side` int32[n]), by relation.

        Raises ValueError for an id out of range, and for an index of some queries.
        """
        if not self._complete:
            raise ValueError("the filter was built for some queries only")
        _check(np.array([anchor]), self.num_entities, "anchor")
        keys, starts, ids = self._indices[side]
        first, last = np.searchsorted(keys, [anchor * self.num_relations, (anchor + 1) * self.num_relations])
        relations = np.repeat(keys[first:last] - anchor * self.num_relations, np.diff(starts[first : last + 1]))
        return relations, ids[starts[first] : starts[last]]

    def counts(self, side: Side, anchors: np.ndarray, relations: np.ndarray) -> np.ndarray:
        """int64[B]: how many answers each query has. Raises what `answers` raises."""
        return self._places(side, anchors, relations)[1]

    def has(self, side: Side, anchors: np.ndarray, relations: np.ndarray, rows: np.ndarray, candidates: np.ndarray) -> np.ndarray:
        """bool[B, N]: which of the candidates in the row int64[B] of int64[C, N] are answers of each query, in no memory
        beside, however many answers there are. Raises what `answers` raises."""
        first, counts = self._places(side, anchors, relations)
        out = np.empty((len(counts), candidates.shape[1]), np.bool_)
        among(self._indices[side].ids, first, first + counts, rows, candidates, out)
        return out

    def _places(self, side: Side, anchors: np.ndarray, relations: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """int64[B] where the answers of each query begin, int64[B] how many they are."""
        anchors, relations = np.asarray(anchors, np.int64), np.asarray(relations, np.int64)
        _check(anchors, self.num_entities, "anchor")
        _check(relations, self.num_relations, "relation")
        keys, starts, _ = self._indices[side]
        wanted = anchors * self.num_relations + relations  # int64[B]
        row = np.searchsorted(keys, wanted)  # int64[B], up to and including G
        found = row < len(keys)
        found[found] = keys[row[found]] == wanted[found]
        if not (self._complete or found.all()):
            at = int(np.flatnonzero(~found)[0])
            raise ValueError(f"the filter was not built for anchor {anchors[at]}, relation {relations[at]}")
        first = np.where(found, starts[row], 0)
        return first, np.where(found, starts[np.minimum(row + 1, len(keys))] - first, 0)

    def relations(self, heads: np.ndarray, tails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Every relation that is known between B heads and tails, int[B], as `answers` has it: ids ascend, each once.

        Costs 24 bytes for each triple of these heads. Raises ValueError for ids out of range, and for an index of some queries.
        """
        if not self._complete:
            raise ValueError("the filter was built for some queries only")
        heads, tails = np.asarray(heads, np.int64), np.asarray(tails, np.int64)
        _check(heads, self.num_entities, "head")
        _check(tails, self.num_entities, "tail")
        keys, starts, ids = self._indices[Side.TAIL]
        unique, place = np.unique(heads, return_inverse=True)
        first, last = (starts[np.searchsorted(keys, (unique + n) * self.num_relations)] for n in (0, 1))  # answers of each head
        which = np.repeat(np.arange(len(unique)), last - first)
        at = np.repeat(first - np.cumsum(last - first) + (last - first), last - first) + np.arange(len(which))
        pairs = which * self.num_entities + ids[at]  # (head, tail) of each triple, its relations one after another
        order = np.argsort(pairs, kind="stable")
        wanted = place.reshape(-1) * self.num_entities + tails
        low, high = (np.searchsorted(pairs[order], wanted, side) for side in ("left", "right"))
        offsets = np.zeros(len(heads) + 1, np.int64)
        np.cumsum(high - low, out=offsets[1:])
        take = np.repeat(low - offsets[:-1], high - low) + np.arange(offsets[-1])
        query = np.searchsorted(starts, at[order[take]], "right") - 1
        return offsets, keys[query] % self.num_relations

    def holds(self, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray, missing: Side = Side.TAIL) -> np.ndarray:
        """bool[B]: whether each triple, int[B] ids, is known; asked by the query whose side `missing` is missing."""
        given, wanted = missing.pick(tails, heads), missing.pick(heads, tails)
        return self.has(missing, given, relations, np.arange(len(wanted)), np.asarray(wanted, np.int64)[:, None])[:, 0]


@strict
def among(ids, first, last, rows, candidates, out):  # type: ignore[no-untyped-def]
    """bool[G, N] `out`: which candidates in the row int64[G] of int64[C, N] are among the ascending ids[first:last] of each G:
    a binary search each."""
    for group in range(len(rows)):
        row = candidates[rows[group]]
        for column in range(len(row)):
            low, high = first[group], last[group]
            while low < high:
                middle = (low + high) // 2
                if ids[middle] < row[column]:
                    low = middle + 1
                else:
                    high = middle
            out[group, column] = low < last[group] and ids[low] == row[column]


def _check(ids: np.ndarray, limit: int, what: str) -> None:
    if len(ids) and (ids.min() < 0 or ids.max() >= limit):
        raise ValueError(f"{what} ids must be in 0..{limit - 1}, found {ids.min()}..{ids.max()}")


def _index(
    splits: Sequence[np.ndarray], questions: Sequence[np.ndarray], side: Side, num_entities: int, num_relations: int
) -> _Index:
    """What the triples of `splits` answer to the queries for `side` that those of `questions` make."""
    nothing = np.empty(0, np.int64)
    keys = distinct(np.concatenate([nothing, *(_keys(part, side, num_relations) for part in questions)]))
    sieve = np.zeros(SIEVE, bool)
    sieve[keys % SIEVE] = True
    found = [nothing]
    for split in splits:
        for start in range(0, len(split), ROWS):
            part = split[start : start + ROWS]
            wanted = _keys(part, side, num_relations)
            kept = np.flatnonzero(sieve[wanted % SIEVE])
            wanted = wanted[kept]
            row = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            hit = keys[row] == wanted
            # Both numbers are under 2^31, so one word holds the pair, and sorting words is quicker than sorting by two keys.
            found.append(row[hit] * num_entities + part[kept[hit], side.pick(0, 2)])
    pairs = np.concatenate(found)
    del found
    row, ids = np.divmod(distinct(pairs), num_entities)
    return _Index(keys, np.searchsorted(row, np.arange(len(keys) + 1)), ids.astype(np.int32))


def _keys(triples: np.ndarray, side: Side, num_relations: int) -> np.ndarray:
    """int64[T]: the query of each triple whose `side` is missing."""
    keys: np.ndarray = triples[:, side.other.pick(0, 2)].astype(np.int64) * num_relations
    keys += triples[:, 1]
    return keys
