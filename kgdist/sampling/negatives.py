"""Candidates that positives are held against in training: chunked, uniform, and proportional to degree.

The B positives of a step fall into chunks of `size`; each chunk draws `size` entities uniformly, with replacement, and crosses
them with all of its positives, so a step touches about B entities for B * size comparisons (DGL-KE's joint sampling). Draws
follow from (seed, rank, step): there is no state to save.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kgdist.base.types import Batch, Side
from kgdist.data.batches import Positives
from kgdist.data.known import KnownTriples
from kgdist.kernels.random import uniform_ids


@dataclass(frozen=True)
class Standing:
    """How many entities a candidate stands for: the inverse of how often a chunk is expected to have it.

    An entity comes N / n times among N drawn ones, and (P - 1) f times among the P positives' own, f its share of the triples at
    that end. So a sum over candidates, each as often as it stands for one, is expected to be that over all entities, however they
    came (the balance heuristic of Veach and Guibas 1995, as the correction of a sampled softmax, Bengio and Senecal 2008).

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
            expected += (batch.in_batch - 1) * self.shares[batch.side][batch.negatives]
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

    def batch(self, step: int, positives: Positives) -> Batch:
        """`positives` with candidates; even steps replace tails and odd steps heads (DGL-KE counts from 1: odd tails)."""
        heads, relations, tails, weights, numbers = positives
        if self.sort:
            order = np.argsort(relations, kind="stable")
            heads, relations, tails = heads[order], relations[order], tails[order]
            weights = weights[order] if weights is not None else None
            numbers = numbers[order] if numbers is not None else None
        side = Side.TAIL if step % 2 == 0 else Side.HEAD
        chunks = -(-len(heads) // self.size)
        drawn = uniform_ids(self.seed, self.rank, step, chunks * self.size, self.num_entities).reshape(chunks, self.size)
        if self.first:
            drawn += self.first
        if self.among is not None:
            drawn = self.among[drawn]
        in_batch, candidates = 0, drawn
        if self.degree:
            own = side.pick(heads, tails)
            # A short last chunk is filled up with its own entities again: they are masked wherever they are a positive's own.
            filled = np.resize(own[(chunks - 1) * self.size :], self.size)
            own = np.concatenate([own[: (chunks - 1) * self.size], filled]).reshape(chunks, self.size)
            in_batch, candidates = self.size, np.concatenate([own, drawn], axis=1)
        batch = Batch(heads, relations, tails, candidates, side, self.size, in_batch, weights, numbers, step)
        stands = self.standing.counts(batch) if self.standing is not None else None
        return replace(batch, masked=self._masked(batch), stands=stands)

    def _masked(self, batch: Batch) -> np.ndarray | None:
        """bool[B,N]: candidates that are the positive's own entity, where that counts, or known to be true. None where none can
        be."""
        everywhere = self.standing is not None or self.known is not None
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
    offsets, ids = known.answers(batch.side, batch.side.pick(batch.tails, batch.heads), batch.relations)
    for chunk, candidates in enumerate(batch.negatives):
        first, last = (min(n * batch.chunk, len(batch)) for n in (chunk, chunk + 1))
        order = np.argsort(candidates, kind="stable")
        answers = ids[offsets[first] : offsets[last]]
        rows = np.repeat(np.arange(first, last), np.diff(offsets[first : last + 1]))
        begin, end = (np.searchsorted(candidates[order], answers, where) for where in ("left", "right"))
        counts = end - begin  # how often each answer is a candidate
        starts = np.cumsum(counts) - counts
        places = np.repeat(begin - starts, counts) + np.arange(counts.sum())
        mask[np.repeat(rows, counts), order[places]] = True
