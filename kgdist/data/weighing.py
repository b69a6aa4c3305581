"""What triples weigh in the loss by how often what they consist of occurs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kgdist.base.types import Batch, Side
from kgdist.data.dataset import Triples
from kgdist.data.domains import Domains

BEFORE = 3  # is added to how often a query occurs: RotatE's authors count from 4


class Weighing:
    """Multiplies the weights of a batch.

    Subsampling, of a triple: 1 / sqrt(c(h, r) + c(r, t)), c how often that is in the split and 3 more, divided by the mean of the
    batch, as the authors of RotatE do (Sun et al. 2019, after word2vec of Mikolov et al. 2013). 4 bytes a triple.

    Bernoulli, of a side of a relation: where a head is asked for 2 tph / (tph + hpt), and where a tail is 2 hpt / (tph + hpt), of
    tails per head and heads per tail: both are asked for as often, and count as often as TransH replaces that end (Wang et al.
    2014). 8 bytes a relation.

    Answers, of the entity that is asked for: w + (1 - w) n / N, n how often it is a head or tail in the split and N the most that
    any is, divided by the mean of the batch, w what one that hardly occurs weighs; as the authors of DURA do (Zhang et al. 2020,
    their code with `-weight`: w = .1). 4 bytes an entity, and for a moment 24 a triple.
    """

    def __init__(self, triples: Triples, relations: int, *, bernoulli: bool, subsampling: bool, answer: float = 1.0) -> None:
        self._rare = _rareness(triples.array, relations) if subsampling else None
        self._answers: np.ndarray | None = None
        if answer < 1:
            counts = np.bincount(triples.array[:, [0, 2]].reshape(-1))
            self._answers = (answer + (1 - answer) * counts / max(1, counts.max(initial=0))).astype(np.float32)
        self._sides: dict[Side, np.ndarray] = {}
        if bernoulli:
            domains = Domains.of(triples.array, relations)
            heads, tails = domains.sizes(Side.HEAD), domains.sizes(Side.TAIL)
            both = np.maximum(heads + tails, 1)  # tph = T / heads, hpt = T / tails
            self._sides = {
                side: (2 * count / both).astype(np.float32) for side, count in ((Side.HEAD, tails), (Side.TAIL, heads))
            }

    def __call__(self, batch: Batch) -> Batch:
        """The same batch, with weights."""
        weights = np.ones(len(batch), np.float32) if batch.weights is None else batch.weights
        if self._rare is not None:
            rare = self._rare[batch.numbers]
            weights = weights * (rare / rare.mean())
        if self._answers is not None:
            frequent = self._answers[batch.side.pick(batch.heads, batch.tails)]
            weights = weights * (frequent / frequent.mean())
        if self._sides:
            by_side = self._sides[batch.side][batch.relations]
            if batch.inverse is not None:
                by_side = np.where(batch.inverse, self._sides[batch.side.other][batch.relations], by_side)
            weights = weights * by_side
        return replace(batch, weights=weights)


def _rareness(triples: np.ndarray, relations: int) -> np.ndarray:
    """float32[T]. Takes 32 bytes a triple, for a moment."""
    sums = np.full(len(triples), 2 * BEFORE, np.int64)
    for column in (0, 2):
        queries = triples[:, column].astype(np.int64) * relations + triples[:, 1]
        _, places, counts = np.unique(queries, return_inverse=True, return_counts=True)
        sums += counts[places.reshape(-1)]
    return (1 / np.sqrt(sums)).astype(np.float32)
