# mypy: disable-error-code="no-untyped-def"
"""Which queries come next, where every entity is a candidate: (head, relation, ?) and (?, relation, tail) with their answers.

All triples that share what a query gives are answers of one query, whose scores, and whose part of a softmax, have to be computed
once: FB15k's 966,284 examples are 273,710 queries. A step visits some queries, of one side or with inverse relations of both,
each with a few of its answers; an epoch visits every answer once. Which queries a step visits, and which answers come together,
follow from (seed, epoch) as a permutation that is computed, not stored. Memory: 4 bytes a triple and side, and 16 a query.
"""

from __future__ import annotations

from typing import NamedTuple

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


class _Part(NamedTuple):
    """The queries of one side that a step takes."""

    side: Side
    visits: np.ndarray  # int64[P]
    numbers: np.ndarray  # int64[B], triples, one visit after another
    offsets: np.ndarray  # int64[P + 1], where each visit begins


class Queries:
    """The queries of each step.

    Args:
        answers: of a query taken at once, at most; 0: all.
        batch_size: visits of a step; the last step of an epoch, or of a side in it, may have fewer.
        known: exclude, for each visit, the answers of its query that others have (`--mask_known`).
        inverses: relations have inverses, so a step takes queries of both sides, as Lacroix et al. 2018 do: those for a head
            as (tail, inverse of the relation, ?).
    """

    def __init__(
        self, triples: Triples, batch_size: int, *, answers: int, seed: int, known: bool = False, inverses: bool = False
    ) -> None:
        self.data, self.batch_size, self.seed, self.known, self.inverses = triples, batch_size, seed, known, inverses
        self.asked = {side: _Asked(triples.array, side, answers) for side in SIDES}
        self.steps = {side: -(-len(asked) // batch_size) for side, asked in self.asked.items()}
        self.steps_per_epoch = -(-self.visits // batch_size) if inverses else sum(self.steps.values())

    @property
    def visits(self) -> int:
        """Of an epoch, both sides."""
        return sum(map(len, self.asked.values()))

    def batch(self, step: int) -> Batch:
        """The queries of step 0, 1, ..."""
        epoch, number = divmod(step, self.steps_per_epoch)
        parts = [self._part(side, visits, epoch) for side, visits in self._visits(epoch, number)]
        numbers = np.concatenate([part.numbers for part in parts])
        offsets = np.append(0, np.concatenate([np.diff(part.offsets) for part in parts])).cumsum()
        heads, relations, tails = self.data.array[numbers].astype(np.int64).T.copy()
        side, inverse = parts[0].side, None
        if self.inverses:
            inverse = np.repeat([part.side is Side.HEAD for part in parts], [len(part.numbers) for part in parts])
            side = Side.TAIL
            heads, tails = np.where(inverse, tails, heads), np.where(inverse, heads, tails)
        weights = self.data.weights[numbers] if self.data.weights is not None else None
        excluded = Excluded.joined([self._others(part) for part in parts]) if self.known else None
        none = np.empty((1, 0), np.int64)
        return Batch(
            heads, relations, tails, none, side, len(numbers), 0, weights, numbers, step,
            queries=offsets, excluded=excluded, inverse=inverse,
        )  # fmt: skip

    def _visits(self, epoch: int, number: int) -> list[tuple[Side, np.ndarray]]:
        """int64[.] of each side of step `number` of an epoch; of one side alone they take turns, as often as they have steps."""
        if self.inverses:
            visits, first = self._shuffled(epoch, number, 0, self.visits), len(self.asked[Side.TAIL])
            return [(Side.TAIL, visits[visits < first]), (Side.HEAD, visits[visits >= first] - first)]
        tails, every = self.steps[Side.TAIL], self.steps_per_epoch
        before = number * tails // every
        side = Side.TAIL if (number + 1) * tails // every > before else Side.HEAD
        return [(side, self._shuffled(epoch, side.pick(number - before, before), side.pick(0, 1), len(self.asked[side])))]

    def _shuffled(self, epoch: int, number: int, code: int, visits: int) -> np.ndarray:
        """int64[.], those of the step's turn `number` among an epoch's `visits`."""
        start = number * self.batch_size
        return shuffled(2 * self.seed + code, epoch, start, min(start + self.batch_size, visits), visits)

    def _part(self, side: Side, visits: np.ndarray, epoch: int) -> _Part:
        """What `visits` of one side take."""
        return _Part(side, visits, *self.asked[side].triples(visits, group_key(self.seed, epoch, side.pick(0, 1))))

    def _others(self, part: _Part) -> Excluded:
        """For each visit the answers of its query that are none of its own."""
        asked, column = self.asked[part.side], part.side.pick(0, 2)
        queries = np.searchsorted(asked.visits, part.visits, "right") - 1
        once, lists = np.unique(queries, return_inverse=True)
        counts = np.diff(asked.starts)[once]
        places = np.repeat(asked.starts[once] - np.cumsum(counts) + counts, counts) + np.arange(counts.sum())
        rows = (np.repeat(np.arange(len(each), dtype=np.int64) << 32, each) for each in (counts, np.diff(part.offsets)))
        known = Rows.of(next(rows) | self.data.array[asked.order[places], column], len(once))
        own = Rows.of(next(rows) | self.data.array[part.numbers, column], len(part.visits))
        return Excluded(lists, *known, *own)
