# mypy: disable-error-code="no-untyped-def"
"""Queries against every entity: the value of a softmax or of binary losses, and its gradients, tile by tile.

Threads own ranges of the entities. Each takes the queries through its range twice: once for scores and what is summed over all
entities, and, when the sums of all threads are together, once for the gradients of its entities. So no two threads write a row,
and nothing depends on which is faster. Between the two, scores are kept, of as many queries as fit in `KEPT`; never of all.

For dot products three matrix products are all that must be paid: exponentials are taken once, against the true entity's score
instead of the largest one, which is not known yet, and kept in the scores' place; the sum they are to be divided by is then
divided out of the queries. Other comparators have their exponentials taken again. With products in bfloat16, scores are kept in
it, too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from kgdist.base.types import Excluded
from kgdist.kernels import gemm
from kgdist.kernels.comparators import Comparator, Dot
from kgdist.kernels.dropout import Dropout
from kgdist.kernels.gemm import BFLOAT16
from kgdist.kernels.jit import disjoint, inlined, strict
from kgdist.kernels.loss import _softplus, _within, exponential
from kgdist.kernels.shares import Crew, part

KEPT = 192 << 20  # bytes of scores kept at a time
TILE = 4 << 20  # bytes of scores looked at together, which stay in a core's cache
LEAST, MOST = 256, 4096  # entities of a tile
FAR = 60.0  # a score may be this much above the true one's: e^60, times numbers of entities and rows, is far from overflow
NONE = -(2.0**100)  # the score of who does not count, a number that bfloat16 has: its exponential is next to nothing
_ZERO, _ONE, _FAR = np.float32(0), np.float32(1), np.float32(FAR)
_NONE = np.float32(NONE)
NONE16 = np.uint16(_NONE.view(np.uint32) >> 16)  # the same as bfloat16's bits
_B16, _HALF16, _BIT = np.uint32(16), np.uint32(0x7FFF), np.uint32(1)


@inlined
def _wide(bits):
    """bfloat16 -> float32."""
    return np.uint32(np.uint32(bits) << _B16).view(np.float32)


@inlined
def _narrow(value):
    """float32 -> bfloat16, to the nearest."""
    bits = np.float32(value).view(np.uint32)
    return np.uint16((bits + _HALF16 + ((bits >> _B16) & _BIT)) >> _B16)


@inlined
def _exponential(s, true):
    """e^(s - true), where s is at most FAR above."""
    return exponential(min(s - true, _FAR))


@inlined
def _softmax_weight(raw, counts, true, limit):
    """What a score adds to its row's sum, and what it becomes."""
    e = _exponential(_within(raw, limit), true) if counts else _ZERO
    return e, e if abs(raw) <= limit else _ZERO


@inlined
def _binary_weight(raw, counts, limit):
    """The same: the loss of a false triple, and its slope."""
    s = _within(raw, limit)
    value, slope = _softplus(s if counts else _ZERO)
    kept = _ONE if counts else _ZERO
    return kept * value, slope if abs(raw) <= limit else _ZERO


@strict
def _leave_out(lists, starts, entities, own_starts, own, first, value, out):
    """See `leave_out`."""
    for i in range(len(lists)):
        line, place, end = out[i], starts[lists[i]], starts[lists[i] + 1]
        kept, last = own_starts[i], own_starts[i + 1]
        high = end
        while place < high:  # the first that is no less than `first`
            middle = (place + high) // 2
            if entities[middle] < first:
                place = middle + 1
            else:
                high = middle
        while kept < last and own[kept] < first:
            kept += 1
        while place < end and entities[place] < first + len(line):
            if kept < last and own[kept] == entities[place]:
                kept += 1
            else:
                line[entities[place] - first] = value
            place += 1


def leave_out(excluded: Excluded, first: int, value: np.generic, out: np.ndarray) -> None:
    """Set [P,N] `out`, of all queries and the N entities from `first` on, to `value` where an entity does not count."""
    _leave_out(excluded.lists, excluded.starts, excluded.entities, excluded.own_starts, excluded.own, first, value, out)


@disjoint
def _weights(softmax, scores, true, sums):
    """float32[P,N] scores into what is multiplied with entities; adds to the sums of rows."""
    for i in range(len(scores)):
        line, against, total = scores[i], true[i], _ZERO
        if softmax:
            for j in range(len(line)):
                e = _exponential(line[j], against)
                total += e
                line[j] = e
        else:
            for j in range(len(line)):
                value, slope = _softplus(line[j])
                total += value
                line[j] = slope
        sums[i] += np.float64(total)


@disjoint
def _weights16(softmax, scores, true, sums):
    """The same of bfloat16 as uint16."""
    for i in range(len(scores)):
        line, against, total = scores[i], true[i], _ZERO
        if softmax:
            for j in range(len(line)):
                e = _exponential(_wide(line[j]), against)
                total += e
                line[j] = _narrow(e)
        else:
            for j in range(len(line)):
                value, slope = _softplus(_wide(line[j]))
                total += value
                line[j] = _narrow(slope)
        sums[i] += np.float64(total)


@disjoint
def _look(softmax, scores, true, offset, limit, sums, plain):
    """The sums of `_weights`, of scores with offset and limit, and those of the scores themselves, which stay as they are."""
    for i in range(len(scores)):
        line, against, total, linear = scores[i], true[i], _ZERO, _ZERO
        for j in range(len(line)):
            linear += _within(line[j] + offset, limit) if line[j] != _NONE else _ZERO
        if softmax:
            for j in range(len(line)):
                total += _softmax_weight(line[j] + offset, line[j] != _NONE, against, limit)[0]
        else:
            for j in range(len(line)):
                total += _binary_weight(line[j] + offset, line[j] != _NONE, limit)[0]
        sums[i] += np.float64(total)
        plain[i] += np.float64(linear)


@disjoint
def _slopes(softmax, scores, true, offset, limit, factors, spread, out):
    """Gradients of float32[P,N] scores: factors times their weights, less `spread`."""
    for i in range(len(scores)):
        line, against, to, factor, less = scores[i], true[i], out[i], factors[i], spread[i]
        if softmax:
            for j in range(len(line)):
                raw, counts = line[j] + offset, line[j] != _NONE
                weight = factor * _softmax_weight(raw, counts, against, limit)[1]
                to[j] = weight - less if counts and abs(raw) <= limit else _ZERO
        else:
            for j in range(len(line)):
                raw, counts = line[j] + offset, line[j] != _NONE
                weight = factor * _binary_weight(raw, counts, limit)[1]
                to[j] = weight - less if counts and abs(raw) <= limit else _ZERO


@dataclass(frozen=True)
class Rule:
    """How scores against all become a loss.

    With `softmax`, log sum exp(s); else the sum of log(1 + exp(s)). Less the mean of all scores (softmax), or their sum over the
    number of entities, times `smoothing`. Scores have the `offset` added and are clamped to +- `limit`.
    """

    softmax: bool
    offset: float
    limit: float
    smoothing: float


@dataclass(frozen=True)
class Asked:
    """Queries of one step.

    `true` is the score of a true entity of each, with offset, within the limit: any number near to the largest would do.
    """

    rows: torch.Tensor  # float32[G,Q]
    true: np.ndarray  # float32[G]
    weights: np.ndarray  # float32[G], what the loss of each is multiplied by
    excluded: Excluded | None = None


def kept_bytes(entities: int, queries: int, *, low: bool) -> int:
    """Of the scores that are kept at a time, in bfloat16 if `low`."""
    row = entities * (2 if low else 4)
    return row * max(1, min(queries, KEPT // row))


class Everybody:
    """All entities as candidates of a step's queries, for comparators that take them as they are.

    Args:
        threads: that share the entities.
        dropout: of which entities are seen.
    """

    def __init__(self, comparator: Comparator, rule: Rule, *, threads: int, dropout: Dropout) -> None:
        self.comparator, self.rule, self.threads, self.dropout = comparator, rule, threads, dropout
        self.crew = Crew(threads)
        self.low = comparator.products is BFLOAT16
        self.trio = gemm.trio(low=self.low)
        self.linear = isinstance(comparator, Dot) and not (rule.smoothing or rule.offset) and rule.limit == math.inf

    def __call__(self, table: torch.Tensor, asked: Asked, step: int, grad_rows: torch.Tensor, grad_table: torch.Tensor) -> float:
        """The loss of G queries against all of float32[E,D]; fills its gradients, float32[G,Q] and float32[E,D]."""
        entities, size = len(table), len(asked.rows)
        ranges = [range(entities)[part(entities, number, self.threads)] for number in range(self.threads)]
        at_once = max(1, min(size, KEPT // (entities * (2 if self.low and self.linear else 4))))
        slabs = [slice(start, min(start + at_once, size)) for start in range(0, size, at_once)]
        total, kind = 0.0, _Linear if self.linear else _Elementwise
        for slab in slabs:
            some = _cut(asked, slab)
            work: list[_Range] = [kind(self, table, some, step, each) for each in ranges]
            self.crew(lambda number, work=work: work[number].sums())  # type: ignore[misc]
            if self.rule.softmax and not np.all(sum(one.totals for one in work) < math.exp(FAR - 1)):
                # One is too far above the true entity, which a training hardly meets: once more, against the largest of all.
                self.crew(lambda number, work=work: work[number].largest())  # type: ignore[misc]
                tops = np.max([one.tops for one in work], axis=0)
                some = Asked(some.rows, np.maximum(some.true, tops), some.weights, some.excluded)
                work = [kind(self, table, some, step, each) for each in ranges]
                self.crew(lambda number, work=work: work[number].sums())  # type: ignore[misc]
            found = _together(self.rule, some, work, entities)
            total += found.value
            where = found, grad_table, slab is slabs[0], slab is slabs[-1]
            self.crew(lambda number, work=work, where=where: work[number].gradients(*where))  # type: ignore[misc]
            grad_rows[slab] = work[0].grad_rows
            for one in work[1:]:
                grad_rows[slab] += one.grad_rows
        return total


def _cut(asked: Asked, slab: slice) -> Asked:
    """Some of the queries."""
    excluded = asked.excluded.part(slab) if asked.excluded is not None else None
    return Asked(asked.rows[slab], asked.true[slab], asked.weights[slab], excluded)


@dataclass(frozen=True)
class _Found:
    """What the sums of all ranges come to."""

    value: float
    factors: np.ndarray  # float32[P]: a score's gradient is its weight times this,
    spread: np.ndarray  # float32[P], less this


def _together(rule: Rule, asked: Asked, work: list[_Range], entities: int) -> _Found:
    """What all ranges have found."""
    sums, plain = sum(one.totals for one in work), sum(one.plain for one in work)
    count = np.full(len(asked.true), float(entities))
    if asked.excluded is not None:
        count -= asked.excluded.counts()
    weights = asked.weights.astype(np.float64)
    spread = weights * rule.smoothing / (count if rule.softmax else entities)
    with np.errstate(divide="ignore", invalid="ignore"):
        values = np.log(sums) + asked.true if rule.softmax else sums
        factors = weights / sums if rule.softmax else weights
    value = float((weights * values - spread * plain).sum())
    return _Found(value, factors.astype(np.float32), spread.astype(np.float32))


class _Range:
    """Some queries and a range of entities, which one thread takes through both passes."""

    def __init__(self, whole: Everybody, table: torch.Tensor, asked: Asked, step: int, entities: range) -> None:
        self.whole, self.rule, self.table, self.asked, self.step = whole, whole.rule, table, asked, step
        size = len(asked.rows)
        self.totals, self.plain = np.zeros(size), np.zeros(size)
        self.tops = np.full(size, NONE, np.float32)
        width = min(MOST, max(LEAST, TILE // (4 * size) // 16 * 16))
        self.tiles = [(start, min(start + width, entities.stop)) for start in range(entities.start, entities.stop, width)]
        self.kept: list[torch.Tensor] = []
        self.grad_rows = torch.zeros_like(asked.rows)
        self.numbers = np.float32(self.rule.offset), np.float32(self.rule.limit)

    def sums(self) -> None:
        """The first pass: what scores come to in all."""
        raise NotImplementedError

    def gradients(self, found: _Found, grad_table: torch.Tensor, first: bool, last: bool) -> None:
        """The second pass, of the `first` queries of a step, or of more, and of the `last`."""
        raise NotImplementedError

    def seen(self, start: int, stop: int) -> torch.Tensor:
        """Rows of a tile, after dropout."""
        rows = self.table[start:stop]
        if self.whole.dropout:
            rows = rows.clone()
            self.whole.dropout.apply(rows.numpy(), np.arange(start, stop), self.step)
        return rows

    def scores(self, number: int, seen: torch.Tensor) -> torch.Tensor:
        """[P,N], of a tile, as the comparator gives them; `NONE` for who does not count."""
        raise NotImplementedError

    def exclude(self, number: int, scores: torch.Tensor) -> torch.Tensor:
        """The same, but for the scores that do not count."""
        if self.asked.excluded is not None:
            low = scores.dtype is torch.bfloat16
            table, value = (scores.view(torch.uint16).numpy(), NONE16) if low else (scores.numpy(), _NONE)
            leave_out(self.asked.excluded, self.tiles[number][0], value, table)
        return scores

    def largest(self) -> None:
        """The largest score of each query among these entities, as exponentials are taken of it."""
        for number, (start, stop) in enumerate(self.tiles):
            scores = self.scores(number, self.seen(start, stop)).float() + self.rule.offset
            tops = scores.max(1).values.clamp_max(self.rule.limit).numpy()
            self.tops = np.maximum(self.tops, tops)

    def settle(self, grads: torch.Tensor, start: int, stop: int) -> None:
        """Gradients of rows as they are seen into those of rows as they are, when all queries have been here."""
        if self.whole.dropout:
            self.whole.dropout.apply(grads.numpy(), np.arange(start, stop), self.step)


class _Linear(_Range):
    """For dot products: what is kept are weights, with which both gradients are products."""

    def __init__(self, whole: Everybody, table: torch.Tensor, asked: Asked, step: int, entities: range) -> None:
        super().__init__(whole, table, asked, step, entities)
        self.rows = whole.trio.rows(asked.rows)

    def seen(self, start: int, stop: int) -> torch.Tensor:
        return self.whole.trio.rows(super().seen(start, stop))

    def scores(self, number: int, seen: torch.Tensor) -> torch.Tensor:
        return self.exclude(number, self.whole.trio.scores(self.rows, seen))

    def sums(self) -> None:
        for number, (start, stop) in enumerate(self.tiles):
            seen = self.seen(start, stop)
            scores = self.scores(number, seen)
            low = scores.dtype is torch.bfloat16
            loop, array = (_weights16, scores.view(torch.uint16).numpy()) if low else (_weights, scores.numpy())
            loop(self.rule.softmax, array, self.asked.true, self.totals)
            self.kept.append(scores)
            self.whole.trio.add_queries(self.grad_rows, scores, seen)

    def gradients(self, found: _Found, grad_table: torch.Tensor, first: bool, last: bool) -> None:
        factors = torch.from_numpy(found.factors).unsqueeze(1)
        self.grad_rows *= factors
        turned = self.whole.trio.turned(self.asked.rows * factors)
        for (start, stop), weights in zip(self.tiles, self.kept, strict=True):
            grads = grad_table[start:stop]
            self.whole.trio.entities(grads, weights, turned, fresh=first)
            if last:
                self.settle(grads, start, stop)
        self.kept.clear()


class _Elementwise(_Range):
    """For any comparator: what is kept are scores."""

    def scores(self, number: int, seen: torch.Tensor) -> torch.Tensor:
        scores = self.whole.comparator.scores(self.asked.rows.unsqueeze(0), seen.unsqueeze(0))
        return self.exclude(number, scores.squeeze(0))

    def sums(self) -> None:
        for number, (start, stop) in enumerate(self.tiles):
            scores = self.scores(number, self.seen(start, stop))
            _look(self.rule.softmax, scores.numpy(), self.asked.true, *self.numbers, self.totals, self.plain)
            self.kept.append(scores)

    def gradients(self, found: _Found, grad_table: torch.Tensor, first: bool, last: bool) -> None:
        rows = self.asked.rows.unsqueeze(0)
        for (start, stop), scores in zip(self.tiles, self.kept, strict=True):
            slopes = torch.empty_like(scores)
            given = self.rule.softmax, scores.numpy(), self.asked.true, *self.numbers
            _slopes(*given, found.factors, found.spread, slopes.numpy())
            seen = self.seen(start, stop).unsqueeze(0)
            grad_q, grad_c = self.whole.comparator.slopes(rows, seen, scores.unsqueeze(0), slopes.unsqueeze(0))
            self.grad_rows += grad_q[0]
            grads = grad_table[start:stop]
            grads.copy_(grad_c[0]) if first else grads.add_(grad_c[0])
            if last:
                self.settle(grads, start, stop)
        self.kept.clear()
