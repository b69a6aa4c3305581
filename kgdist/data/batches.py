"""Which positives come next. Every process has its own share of each epoch; nothing is kept between steps.

An epoch is a pseudo-random permutation of the triples that is computed, not stored (`kernels.random.shuffled`), so that a step's
positives follow from (seed, rank, step) alone: O(1) memory however large the graph, and a resumed run continues exactly.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kgdist.data.dataset import Triples
from kgdist.kernels.random import shuffled


class Positives(NamedTuple):
    """Triples of one step."""

    heads: np.ndarray  # int64[B]
    relations: np.ndarray  # int64[B]
    tails: np.ndarray  # int64[B]
    weights: np.ndarray | None  # float32[B]
    numbers: np.ndarray | None = None  # int64[B], which triples of the split they are


def size_at(triples: int, batch_size: int, step: int) -> int:
    """Positives of step 0, 1, ... of a process that has so many triples: the last batch of an epoch may be shorter."""
    return min(batch_size, triples - step % -(-triples // batch_size) * batch_size)


class Batches:
    """The positives of process `rank` of `world`, `batch_size` at a time; the last batch of an epoch may be shorter.

    Args:
        owned: int64[n] numbers of the triples this process may use, instead of its slice of the epoch (relation partitioning).
    Raises ValueError when the process has no triples.
    """

    def __init__(
        self, triples: Triples, batch_size: int, *, seed: int, rank: int = 0, world: int = 1, owned: np.ndarray | None = None
    ) -> None:
        self.triples = triples
        self.batch_size = batch_size
        self.owned = owned
        if owned is None:
            # One permutation of all triples an epoch; the processes take disjoint slices of it, new ones each epoch.
            self.seed, self.domain = seed, len(triples)
            self.first, self.last = rank * len(triples) // world, (rank + 1) * len(triples) // world
        else:
            self.seed, self.domain = seed + rank, len(owned)
            self.first, self.last = 0, len(owned)
        if self.first == self.last:
            raise ValueError(f"process {rank} of {world} has no triples")
        self.steps_per_epoch = -(-(self.last - self.first) // batch_size)

    def at(self, step: int) -> Positives:
        """The positives of step 0, 1, ..."""
        epoch, number = divmod(step, self.steps_per_epoch)
        start = self.first + number * self.batch_size
        stop = start + size_at(self.last - self.first, self.batch_size, step)
        positions = shuffled(self.seed, epoch, start, stop, self.domain)
        if self.owned is not None:
            positions = self.owned[positions]
        rows = self.triples.array[positions].astype(np.int64)  # int64[B, 3]
        weights = self.triples.weights[positions] if self.triples.weights is not None else None
        return Positives(rows[:, 0], rows[:, 1], rows[:, 2], weights, positions)


def relation_shares(relations: np.ndarray, world: int) -> list[np.ndarray]:
    """Numbers of the triples of each process when a relation's triples stay together (`--rel_part`).

    Relations go, largest first, to the process with the fewest triples so far; one with more than its fair share of all triples
    is split evenly over all processes, as DGL-KE does, for it would otherwise leave the others idle. int32[T] -> world x
    int64[.].
    """
    order = np.argsort(relations, kind="stable")
    _, starts, counts = np.unique(relations[order], return_index=True, return_counts=True)
    shares: list[list[np.ndarray]] = [[] for _ in range(world)]
    sizes = np.zeros(world, np.int64)
    for i in np.argsort(-counts, kind="stable"):
        members = order[starts[i] : starts[i] + counts[i]]
        if counts[i] > len(relations) / world:
            pieces = np.array_split(members, world)
        else:
            pieces = [members[:0]] * world
            pieces[int(np.argmin(sizes))] = members
        for rank, piece in enumerate(pieces):
            shares[rank].append(piece)
            sizes[rank] += len(piece)
    return [np.concatenate(share) if share else np.empty(0, np.int64) for share in shares]
