# mypy: disable-error-code="no-untyped-def"
"""Which queries come next, where every entity is a candidate: (head, relation, ?) and (?, relation, tail) with their answers.

All triples that share what a query gives are answers of one query, whose scores, and whose part of a softmax, have to be computed
once: FB15k's 966,284 examples are 273,710 queries. A step visits some queries of one side, each with a few of its answers; an
epoch visits every answer once. Which queries a step visits, and which answers come together, follow from (seed, epoch) as a
permutation that is computed, not stored. Memory: 4 bytes a triple and side, and 16 a query.
"""

from __future__ import annotations

import numpy as np

from kgdist.base.types import Batch, Excluded, Side
from kgdist.data.dataset import Triples
from kgdist.data.domains import Rows
from kgdist.kernels.jit import strict
from kgdist.kernels.random import GOLDEN, below, group_key, mix, shuffled

SIDES = (Side.TAIL, Side.HEAD)
_GOLDEN, _ONE, _TWO = np.uint64(GOLDEN), np.uint64(1), np.uint64(2)


@strict
def _members(queries, parts, starts, order, size, key, offsets, out):
    """Writes the triples of part `parts[i]` of query `queries[i]` to out[offsets[i] : offsets[i + 1]].

    The answers of a query are taken in the order of a * j + b modulo their number n, a prime to n: each once, and other ones
    together in each epoch.
    """
    for i in range(len(queries)):
        first, n = starts[queries[i]], starts[queries[i] + 1] - starts[queries[i]]
        a, b, begin = np.int64(1), np.int64(0), parts[i] * size
        if n > offsets[i + 1] - offsets[i]:
            base = (np.uint64(queries[i]) + _ONE) * _GOLDEN + key
            b, a = np.int64(below(mix(base), np.uint64(n))), 1 + np.int64(below(mix(base + _TWO), np.uint64(n)))
            while True:
                x, y = a, n
                while y:
                    x, y = y, x % y
                if x == 1:
                    break
                a += 1
        for j in range(offsets[i + 1] - offsets[i]):
            out[offsets[i] + j] = order[first + (a * (begin + j) + b) % n]


class _Asked:
    """The queries of one side, in compressed rows; G of them."""

    def __init__(self, triples: np.ndarray, side: Side, answers: int) -> None:
        anchors, relations = triples[:, side.pick(2, 0)], triples[:, 1]
        self.order = np.lexsort((relations, anchors)).astype(np.int32)  # int32[T], triples query by query
        fresh = np.diff(anchors[self.order], prepend=-1) | np.diff(relations[self.order], prepend=-1)
        self.starts = np.append(np.flatnonzero(fresh), len(triples))  # int64[G + 1]
        counts = np.diff(self.starts)
        self.size = answers or int(counts.max(initial=1))  # of a visit, at most
        self.visits = np.zeros(len(self.starts), np.int64)  # int64[G + 1], the number of the first visit of each query
        np.cumsum(-(-counts // self.size), out=self.visits[1:])

    def __len__(self) -> int:
        """Visits of an epoch."""
        return int(self.visits[-1])

    def triples(self, visits: np.ndarray, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
        """int64[B] the triples of `visits` int64[P], one visit after another, and int64[P + 1] where each begins."""
        queries = np.searchsorted(self.visits, visits, "right") - 1
        parts, counts = visits - self.visits[queries], np.diff(self.starts)[queries]
        offsets = np.zeros(len(visits) + 1, np.int64)
        np.cumsum(np.minimum(counts - parts * self.size, self.size), out=offsets[1:])
        found = np.empty(offsets[-1], np.int64)
        _members(queries, parts, self.starts, self.order, self.size, key, offsets, found)
        return found, offsets


class Queries:
    """The queries of each step.

    Args:
        answers: of a query taken at once, at most; 0: all.
        batch_size: visits of a step; the last step of a side in an epoch may have fewer.
        known: exclude, for each visit, the answers of its query that others have (`--mask_known`).
    """

    def __init__(self, triples: Triples, batch_size: int, *, answers: int, seed: int, known: bool = False) -> None:
        self.data, self.batch_size, self.seed, self.known = triples, batch_size, seed, known
        self.asked = {side: _Asked(triples.array, side, answers) for side in SIDES}
        self.steps = {side: -(-len(asked) // batch_size) for side, asked in self.asked.items()}
        self.steps_per_epoch = sum(self.steps.values())

    @property
    def visits(self) -> int:
        """Of an epoch, both sides."""
        return sum(map(len, self.asked.values()))

    def batch(self, step: int) -> Batch:
        """The queries of step 0, 1, ...; the two sides take turns, as often as they have steps."""
        epoch, number = divmod(step, self.steps_per_epoch)
        tails, every = self.steps[Side.TAIL], self.steps_per_epoch
        before = number * tails // every
        side = Side.TAIL if (number + 1) * tails // every > before else Side.HEAD
        at, asked, code = side.pick(number - before, before), self.asked[side], side.pick(0, 1)
        start = at * self.batch_size
        stop = min(start + self.batch_size, len(asked))
        visits = shuffled(2 * self.seed + code, epoch, start, stop, len(asked))
        numbers, offsets = asked.triples(visits, group_key(self.seed, epoch, code))
        heads, relations, tails_ = self.data.array[numbers].astype(np.int64).T.copy()
        weights = self.data.weights[numbers] if self.data.weights is not None else None
        excluded = self._others(asked, visits, numbers, offsets, side) if self.known else None
        none = np.empty((1, 0), np.int64)
        return Batch(
            heads, relations, tails_, none, side, len(numbers), 0, weights, numbers, step, queries=offsets, excluded=excluded
        )

    def _others(self, asked: _Asked, visits: np.ndarray, numbers: np.ndarray, offsets: np.ndarray, side: Side) -> Excluded:
        """For each visit the answers of its query that are none of its own."""
        column = side.pick(0, 2)
        queries = np.searchsorted(asked.visits, visits, "right") - 1
        once, lists = np.unique(queries, return_inverse=True)
        counts = np.diff(asked.starts)[once]
        places = np.repeat(asked.starts[once] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        rows = (np.repeat(np.arange(len(each), dtype=np.int64) << 32, each) for each in (counts, np.diff(offsets)))
        known = Rows.of(next(rows) | self.data.array[asked.order[places], column], len(once))
        own = Rows.of(next(rows) | self.data.array[numbers, column], len(visits))
        return Excluded(lists, *known, *own)
