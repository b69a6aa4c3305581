"""Candidates that positives are held against in training: chunked, uniform, of a relation's own entities, proportional to degree.

The B positives of a step fall into chunks of `size`; each chunk draws `size` entities uniformly, with replacement, and crosses
them with all of its positives, so a step touches about B entities for B * size comparisons (DGL-KE's joint sampling). Draws
follow from (seed, rank, step): there is no state to save.

Typed, the positives stand by relation, and the draws of a chunk are dealt to its relations as positives are, and each relation
draws among its own entities. As ever all positives of the chunk meet all of them: what another relation has drawn is a negative
as one drawn among all would be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kgdist.base.types import Batch, Side
from kgdist.data.batches import Positives
from kgdist.data.domains import Domains
from kgdist.data.known import KnownTriples
from kgdist.kernels.random import uniform_ids

MANY = 1 << 62  # random numbers, of which remainders are as good as even


@dataclass(frozen=True)
class Standing:
    """How many entities a candidate stands for: the inverse of how often a chunk is expected to have it.

    An entity comes N / n times among N drawn ones, and (P - 1) f times among the P positives' own, f its share of the triples at
    that end, if the chunk is a random sample of them; one that p positives fill by repetition has each P / p times. So a sum over
    candidates, each as often as it stands for one, is expected to be that over all entities, however they came (the balance
    heuristic of Veach and Guibas 1995, as the correction of a sampled softmax, Bengio and Senecal 2008).

    Args:
        num_entities: n.
        shares: of each side float32[entities], f; None: no candidates are taken from positives.
    """

    num_entities: int
    shares: dict[Side, np.ndarray] | None = None

    @classmethod
    def of(cls, triples: np.ndarray, num_entities: int, *, degree: bool) -> Standing:
        """Counted from int[T,3] triples. 8 bytes an entity with `degree`, else none."""
        if not degree:
            return cls(num_entities)
        columns = ((Side.HEAD, 0), (Side.TAIL, 2))
        counts = {side: np.bincount(triples[:, column], minlength=num_entities) for side, column in columns}
        return cls(num_entities, {side: (count / len(triples)).astype(np.float32) for side, count in counts.items()})

    def counts(self, batch: Batch) -> np.ndarray:
        """float32[C,N]."""
        drawn = batch.negatives.shape[1] - batch.in_batch
        expected = np.full(batch.negatives.shape, drawn / self.num_entities, np.float32)
        if batch.in_batch and self.shares is not None:
            positives = np.full((len(expected), 1), batch.chunk, np.float32)
            positives[-1] = len(batch.heads) - (len(expected) - 1) * batch.chunk
            expected += (batch.in_batch - batch.in_batch / positives) * self.shares[batch.side][batch.negatives]
        return 1 / expected


class Groups(NamedTuple):
    """The positives of a chunk that have one relation, G such groups of all chunks: who draws typed negatives."""

    domains: Domains
    side: Side
    starts: np.ndarray  # int64[G], the first positive of each
    chunks: np.ndarray  # int64[G], ascending
    relations: np.ndarray  # int64[G]
    draws: np.ndarray  # int64[G], those of a chunk add up to `size`
    sizes: np.ndarray  # int64[G], entities that it draws among: those of its relation, or all where that has but one
    free: np.ndarray  # bool[G], whether they are all

    @classmethod
    def of(cls, domains: Domains, side: Side, relations: np.ndarray, size: int, entities: int) -> Groups:
        """Of int64[B] relations, in order, in chunks of `size`, each of which draws as many of `entities`."""
        places = np.arange(len(relations))
        starts = np.flatnonzero((np.diff(relations, prepend=-1) != 0) | (places % size == 0))
        ends = np.append(starts[1:], len(relations))
        chunks = starts // size
        lasts = np.minimum((chunks + 1) * size, len(relations)) - chunks * size  # positives of the chunk
        begin, end = ((bounds - chunks * size) * size // lasts for bounds in (starts, ends))
        sizes = domains.sizes(side)[relations[starts]]
        free = sizes < 2
        return cls(domains, side, starts, chunks, relations[starts], end - begin, np.where(free, entities, sizes), free)

    def drawn(self, numbers: np.ndarray, pool: np.ndarray | None, first: int) -> np.ndarray:
        """int64[C, size]: entities by random numbers int64[C, size]. All there are: int64[.] `pool`, or from `first`."""
        flat, found = numbers.reshape(-1), np.empty(numbers.size, np.int64)
        group = np.repeat(np.arange(len(self.draws)), self.draws)
        number, free = flat % self.sizes[group], self.free[group]
        found[free] = number[free] + first if pool is None else pool[number[free]]
        found[~free] = self.domains.pick(self.side, self.relations[group[~free]], number[~free])
        return found.reshape(numbers.shape)

    def stands(self, candidates: np.ndarray) -> np.ndarray:
        """float32[C, N]: how many each candidate stands for, of the entities that relations of its chunk have: see `Standing`."""
        members = self.domains.has(self.side, self.relations, self.chunks, candidates) | self.free[:, None]
        often = members * (self.draws / self.sizes).astype(np.float32)[:, None]
        expected: np.ndarray = np.add.reduceat(often, np.flatnonzero(np.diff(self.chunks, prepend=-1)))
        return 1 / expected


@dataclass(frozen=True)
class ChunkedNegatives:
    """Draws the negatives of each step.

    Args:
        size: negatives per positive, and positives per chunk (`--neg_sample_size`).
        degree: put the chunk's own heads (or tails) before the drawn ones (`--neg_deg_sample`): an entity then stands as often as
            it has triples, and a positive meets up to 2 * size candidates.
        sort: order positives by relation first, for models that work relation by relation.
        standing: of a softmax, in which candidates stand for all entities, and a positive's own never counts.
        known: triples whose entities do not count (`--mask_known`).
        domains: typed: the entities of each relation, among which its negatives are drawn; one that has fewer than two takes all
            entities. A positive's own never counts.
    """

    num_entities: int
    size: int
    degree: bool
    seed: int
    rank: int = 0
    sort: bool = False
    first: int = 0  # the lowest id that is drawn: the entities are first..first + num_entities
    standing: Standing | None = None
    known: KnownTriples | None = None
    among: np.ndarray | None = None  # int64[num_entities], the ids that are drawn, where they are no such range
    domains: Domains | None = None

    def batch(self, step: int, positives: Positives) -> Batch:
        """`positives` with candidates; even steps replace tails and odd steps heads (DGL-KE counts from 1: odd tails)."""
        heads, relations, tails, weights, numbers = positives
        if self.sort or self.domains is not None:
            order = np.argsort(relations, kind="stable")
            heads, relations, tails = heads[order], relations[order], tails[order]
            weights = weights[order] if weights is not None else None
            numbers = numbers[order] if numbers is not None else None
        side = Side.TAIL if step % 2 == 0 else Side.HEAD
        chunks = -(-len(heads) // self.size)
        groups, most = None, self.num_entities
        if self.domains is not None:
            groups, most = Groups.of(self.domains, side, relations, self.size, self.num_entities), MANY
        drawn = uniform_ids(self.seed, self.rank, step, chunks * self.size, most).reshape(chunks, self.size)
        if groups is not None:
            drawn = groups.drawn(drawn, self.among, self.first)
        elif self.among is not None:
            drawn = self.among[drawn]
        elif self.first:
            drawn += self.first
        in_batch, candidates = 0, drawn
        if self.degree:
            own = side.pick(heads, tails)
            # A short last chunk is filled up with its own entities again: they are masked wherever they are a positive's own.
            filled = np.resize(own[(chunks - 1) * self.size :], self.size)
            own = np.concatenate([own[: (chunks - 1) * self.size], filled]).reshape(chunks, self.size)
            in_batch, candidates = self.size, np.concatenate([own, drawn], axis=1)
        batch = Batch(heads, relations, tails, candidates, side, self.size, in_batch, weights, numbers, step)
        stands = None
        if self.standing is not None:
            stands = self.standing.counts(batch) if groups is None else groups.stands(candidates)
        return replace(batch, masked=self._masked(batch), stands=stands)

    def _masked(self, batch: Batch) -> np.ndarray | None:
        """bool[B,N]: candidates that are the positive's own entity, where that counts, or known to be true. None where none can
        be."""
        everywhere = self.standing is not None or self.known is not None or self.domains is not None
        if not (batch.in_batch or everywhere):
            return None
        true = batch.side.pick(batch.heads, batch.tails)
        chunk_of = np.arange(len(true)) // batch.chunk
        mask = np.zeros((len(true), batch.negatives.shape[1]), bool)
        last = mask.shape[1] if everywhere else batch.in_batch
        mask[:, :last] = batch.negatives[chunk_of, :last] == true[:, None]
        if self.known is not None:
            _mask_known(mask, batch, self.known)
        return mask


def _mask_known(mask: np.ndarray, batch: Batch, known: KnownTriples) -> None:
    """Set bool[B,N] where a candidate is a known answer of the positive's query."""
    anchors, relations = batch.side.pick(batch.tails, batch.heads), batch.relations
    # Whichever are fewer are looked up: a hub has a hundred thousand answers, and stands in a batch again and again.
    many = known.counts(batch.side, anchors, relations) > mask.shape[1]
    (hubs,), (others,) = np.nonzero(many), np.nonzero(~many)
    if len(hubs):
        mask[hubs] |= known.has(batch.side, anchors[hubs], relations[hubs], hubs // batch.chunk, batch.negatives)
    offsets, ids = known.answers(batch.side, anchors[others], relations[others])
    for chunk, candidates in enumerate(batch.negatives):
        first, last = np.searchsorted(others, (chunk * batch.chunk, (chunk + 1) * batch.chunk))
        order = np.argsort(candidates, kind="stable")
        answers = ids[offsets[first] : offsets[last]]
        rows = np.repeat(others[first:last], np.diff(offsets[first : last + 1]))
        begin, end = (np.searchsorted(candidates[order], answers, where) for where in ("left", "right"))
        counts = end - begin  # how often each answer is a candidate
        starts = np.cumsum(counts) - counts
        places = np.repeat(begin - starts, counts) + np.arange(counts.sum())
        mask[np.repeat(rows, counts), order[places]] = True
