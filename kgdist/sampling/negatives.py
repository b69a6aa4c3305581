"""Candidates that positives are held against in training: chunked, uniform, and proportional to degree.

The B positives of a step fall into chunks of `size`; each chunk draws `size` entities uniformly, with replacement, and crosses
them with all of its positives, so a step touches about B entities for B * size comparisons (DGL-KE's joint sampling). Draws
follow from (seed, rank, step): there is no state to save.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kgdist.base.types import Batch, Side
from kgdist.data.batches import Positives
from kgdist.kernels.random import uniform_ids


@dataclass(frozen=True)
class ChunkedNegatives:
    """Draws the negatives of each step.

    Args:
        size: negatives per positive, and positives per chunk (`--neg_sample_size`).
        degree: put the chunk's own heads (or tails) before the drawn ones (`--neg_deg_sample`): an entity then stands as often as
            it has triples, and a positive meets up to 2 * size candidates.
        sort: order positives by relation first, for models that work relation by relation.
    """

    num_entities: int
    size: int
    degree: bool
    seed: int
    rank: int = 0
    sort: bool = False
    first: int = 0  # the lowest id that is drawn: the entities are first..first + num_entities
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
        if not self.degree:
            return Batch(heads, relations, tails, drawn, side, self.size, 0, weights, numbers, step)
        own = side.pick(heads, tails)
        # A short last chunk is filled up with its own entities again: they are masked wherever they are a positive's own.
        filled = np.resize(own[(chunks - 1) * self.size :], self.size)
        own = np.concatenate([own[: (chunks - 1) * self.size], filled]).reshape(chunks, self.size)
        both = np.concatenate([own, drawn], axis=1)
        return Batch(heads, relations, tails, both, side, self.size, self.size, weights, numbers, step)


def masked(batch: Batch) -> np.ndarray | None:
    """bool[B, N]: in-batch candidates that are the positive's own entity. None where there are no in-batch candidates."""
    if not batch.in_batch:
        return None
    true = batch.side.pick(batch.heads, batch.tails)
    chunk_of = np.arange(len(true)) // batch.chunk
    mask = np.zeros((len(true), batch.negatives.shape[1]), bool)
    mask[:, : batch.in_batch] = batch.negatives[chunk_of, : batch.in_batch] == true[:, None]
    return mask
