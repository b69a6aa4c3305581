"""What needs no model: ranks of the true entities when answers are ordered by how frequent they are, and by what train implies.

A model is worth its training as far as it is better than these. The first orders the candidates of (h, r, ?) by the number of
training triples in which they are a tail of r, those of (?, r, t) by how often they are a head of it. The second puts before them
what relations of train that are the inverse of r, or its duplicate, say of the same question (Toutanova and Chen 2015, Observed
versus Latent Features; Dettmers et al. 2018, section 3): a test triple whose inverse is in train is no prediction.

Candidates, filter and ties are those of the model's ranks. No table of all scores exists: an entity that is in no triple of a
relation is counted, not listed.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from kgdist.base.integers import distinct
from kgdist.data.known import KnownTriples
from kgdist.data.leaks import SHARE, find, portions
from kgdist.data.statistics import whole_relations
from kgdist.evaluation.candidates import Pool, Skip, locate, not_rivals
from kgdist.evaluation.ranks import SIDES, Ranks

QUERIES = 4096  # looked up together
FIRST = 1 << 40  # what is implied stands before every frequency


def baseline_ranks(
    ranks: Ranks,
    train: np.ndarray,
    *,
    num_entities: int,
    num_relations: int,
    known: KnownTriples | None,
    pool: Pool | None = None,
    implied: KnownTriples | None = None,
) -> Ranks:
    """The queries of `ranks`, which are those of `evaluate` under the same `known` and `pool`, ranked by frequency in `train`.

    `implied`: answers that stand before all others, of each query of `ranks`.
    """
    pool = pool or Pool()
    found = replace(ranks, greater=np.zeros_like(ranks.greater), equal=np.zeros_like(ranks.equal))
    left = np.zeros(num_relations, bool)  # relations that are asked about and not done
    left[ranks.relation] = True
    for triples in chain(whole_relations(train, num_relations, "frequencies"), [train[:0]]):  # at last those that train lacks
        own = triples[left[triples[:, 1]]]
        here = np.bincount(own[:, 1], minlength=num_relations) > 0 if len(triples) else left.copy()
        for code in range(2):
            counts = _Counts.of(own, 2 * code, num_entities, num_relations)
            rows = np.flatnonzero((ranks.side == code) & here[ranks.relation])
            _rank(found, rows, counts, known, pool, implied)
        left &= ~here
    return found


def implied(
    train: np.ndarray, *, num_entities: int, num_relations: int, asked: np.ndarray, part: float = 1.0
) -> KnownTriples | None:
    """What train says of the queries of `asked` int32[T,3] by another relation: of two that are linked (`kgdist.data.leaks`) each
    triple of one is one of the other, turned round where they are inverse. None where no relations are linked.

    `part` of the graph is in train: of the pairs that two relations share there, train lacks as many as of all, so that it takes
    as much less for a link.

    Links are looked for among the first portion of the pairs of entities, which are drawn by a hash: 8 million triples show what
    hundreds of millions do, and one pass over train gathers them."""
    links = find(islice(portions([train]), 1), num_relations, part * SHARE)
    if not links:
        return None
    linked = np.zeros(num_relations, bool)
    linked[[relation for link in links for relation in link[:2]]] = True
    own = train[linked[train[:, 1]]]
    own = own[np.argsort(own[:, 1], kind="stable")]  # by relation, for there may be thousands
    ends = np.searchsorted(own[:, 1], np.arange(num_relations + 1))
    rows = []
    for link in links:
        for relation, other in {(link.first, link.second), (link.second, link.first)}:
            told = own[ends[relation] : ends[relation + 1], :: -1 if link.inverse else 1].copy()
            told[:, 1] = other
            rows.append(told)
    return KnownTriples.build([np.concatenate(rows)], num_entities, num_relations, asked=asked)


class _Counts(NamedTuple):
    """How often entities stand at one end of relations: A pairs of a relation and an entity that there are."""

    num_entities: int
    pairs: np.ndarray  # int64[A], relation * num_entities + entity, ascending
    times: np.ndarray  # int64[A]
    order: np.ndarray  # int64[A], relation * most + times, ascending
    most: int  # more than any of `times`
    ends: np.ndarray  # int64[R + 1], where the pairs of each relation begin

    @classmethod
    def of(cls, triples: np.ndarray, column: int, num_entities: int, num_relations: int) -> _Counts:
        """Of the entities in `column` of int32[T,3]."""
        keys = triples[:, 1].astype(np.int64) * num_entities + triples[:, column]
        keys.sort()
        first = np.flatnonzero(np.diff(keys, prepend=-1))
        pairs, times = keys[first], np.diff(first, append=len(keys))
        most = int(times.max(initial=0)) + 1
        order = pairs // num_entities * most + times
        order.sort()
        ends = np.searchsorted(pairs, np.arange(num_relations + 1) * num_entities)
        return cls(num_entities, pairs, times, order, most, ends)

    def frequency(self, relations: np.ndarray, entities: np.ndarray) -> np.ndarray:
        """int64[n] of int[n] each."""
        wanted = relations.astype(np.int64) * self.num_entities + entities
        if not len(self.pairs):
            return np.zeros(wanted.shape, np.int64)
        place = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        return np.where(self.pairs[place] == wanted, self.times[place], 0)

    def above(self, relations: np.ndarray, score: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """How many entities of all are more frequent than `score` int64[n], and how many are as frequent: int64[n] each."""
        bound = relations.astype(np.int64) * self.most + np.minimum(score, self.most - 1)
        low, high = (np.searchsorted(self.order, bound, side) for side in ("left", "right"))
        there = self.ends[relations + 1] - self.ends[relations]
        equal = np.where(score == 0, self.num_entities - there, np.where(score < self.most, high - low, 0))
        return self.ends[relations + 1] - high, equal


def _rank(
    found: Ranks, rows: np.ndarray, counts: _Counts, known: KnownTriples | None, pool: Pool, implied: KnownTriples | None
) -> None:
    """Fill in the queries `rows`, all of one side; `counts` are those of that side."""
    if not len(rows):
        return
    side = SIDES[found.side[rows[0]]]
    batches = rows % (len(found) // 2) // pool.batch
    cuts = np.arange(QUERIES, len(rows), QUERIES) if pool.sampled < 0 else np.flatnonzero(np.diff(batches)) + 1
    for part in np.split(rows, cuts):
        head, relation, tail = found.head[part], found.relation[part], found.tail[part]
        anchors, true = side.other.pick(head, tail), side.pick(head, tail)
        skip = not_rivals(known, side, anchors, relation, true)
        given = Skip(np.zeros(len(part) + 1, np.int64), np.zeros(0, np.int32))
        if implied is not None:
            given = Skip(*implied.answers(side, anchors, relation))
        score = counts.frequency(relation, true)
        score[given.rows[given.positions == true[given.rows]]] += FIRST
        if pool.sampled < 0:
            greater, equal = _among_all(counts, relation, score, skip, given)
        else:
            batch = int(part[0]) % (len(found) // 2) // pool.batch
            everyone = np.arange(batch * pool.batch, min((batch + 1) * pool.batch, len(found) // 2))
            own = side.pick(found.head, found.tail)[everyone]
            greater, equal = _among(
                np.sort(pool.ids(counts.num_entities, batch, side, own)), counts, relation, score, skip, given
            )
        found.greater[part], found.equal[part] = greater, equal


def _among_all(
    counts: _Counts, relation: np.ndarray, score: np.ndarray, skip: Skip, given: Skip
) -> tuple[np.ndarray, np.ndarray]:
    """(greater, equal) int64[P]: first as if all took part by their frequency, then those of whom it is not so are corrected."""
    greater, equal = counts.above(relation, score)
    out, told = (distinct(part.rows.astype(np.int64) * counts.num_entities + part.positions) for part in (skip, given))
    if len(out):
        told = told[out[np.minimum(np.searchsorted(out, told), len(out) - 1)] != told]
    for pairs, sign, more in ((np.concatenate([out, told]), -1, 0), (told, 1, FIRST)):
        row, entity = np.divmod(pairs, counts.num_entities)
        value = counts.frequency(relation[row], entity) + more
        greater += sign * np.bincount(row[value > score[row]], minlength=len(score))
        equal += sign * np.bincount(row[value == score[row]], minlength=len(score))
    return greater, equal


def _among(
    ids: np.ndarray, counts: _Counts, relation: np.ndarray, score: np.ndarray, skip: Skip, given: Skip
) -> tuple[np.ndarray, np.ndarray]:
    """The same among the entities `ids` int[n], ascending, of which one may take part several times."""
    value = counts.frequency(relation[:, None], ids[None, :])
    told, out = locate(ids, given), locate(ids, skip)
    value[told.rows, told.positions] += FIRST
    value[out.rows, out.positions] = -1
    return (value > score[:, None]).sum(1), (value == score[:, None]).sum(1)
