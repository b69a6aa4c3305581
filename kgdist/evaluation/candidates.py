"""Whom the true entity of a query is ranked against, and which of them do not count.

Candidates stand at positions 0..n-1 of a list that all queries of a group share: every entity, or a sample. A `Skip` holds, per
query, the positions that are no rivals: the true entity itself and, in the filtered protocol, all other known answers. Nothing
here computes a score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch

from kgdist.base.errors import EvaluationError, OptionError
from kgdist.base.types import Side
from kgdist.data.known import KnownTriples
from kgdist.kernels.comparators import Comparator, largest
from kgdist.kvstore.tables import Tables

Project = Callable[[torch.Tensor], torch.Tensor]  # float32[N, D] -> float32[N, Q]


class Skip(NamedTuple):
    """Per query the positions that do not count, in compressed rows."""

    offsets: np.ndarray  # int64[P + 1]
    positions: np.ndarray  # int32 or int64[sum], ascending within a query; before `locate`, entity ids

    @property
    def counts(self) -> np.ndarray:
        """int64[P]."""
        return np.diff(self.offsets)

    @property
    def rows(self) -> np.ndarray:
        """The query of each position, int64[sum]."""
        return np.repeat(np.arange(len(self.offsets) - 1), self.counts)


class Candidates(Protocol):
    """A list of entities, read in blocks."""

    largest: torch.Tensor | None
    """The largest `Comparator.size` among their rows, a float64 scalar; None where each block has to be asked."""

    def __len__(self) -> int: ...

    def blocks(self, size: int) -> Iterator[tuple[int, torch.Tensor]]:
        """Each of them once: the first position of a block, and its rows, float32[at most size, D]. In any order."""

    def locate(self, entities: Skip) -> Skip:
        """Positions instead of entity ids; an entity may stand at none, or at several."""


class AllEntities:
    """Every entity, at the position of its id; raises KgdistError at once when a row is not finite.

    `comparator` is the one that will rank the rows as they are; None when a model projects them first. They are read from entity
    `first` on and round to it again: many that read the same tables, each from another place, do not all ask one machine.
    """

    def __init__(
        self, tables: Tables, num_entities: int, block: int, comparator: Comparator | None = None, first: int = 0
    ) -> None:
        self.tables = tables
        self.num_entities = num_entities
        self.largest: torch.Tensor | None = None
        self._first = first
        sizes = []
        for start, rows in self.blocks(block):
            require_finite("entity", rows, np.arange(start, start + len(rows)))
            if comparator is not None:
                sizes.append(largest(comparator.size(rows)))
        if comparator is not None:
            self.largest = largest(torch.stack(sizes))

    def __len__(self) -> int:
        return self.num_entities

    def blocks(self, size: int) -> Iterator[tuple[int, torch.Tensor]]:
        parts = (self._first, self.num_entities), (0, self._first)
        spans = [(start, min(start + size, stop)) for begin, stop in parts for start in range(begin, stop, size)]
        return zip((start for start, _ in spans), self.tables.blocks("entity", spans), strict=True)

    def locate(self, entities: Skip) -> Skip:
        return entities


class Sample:
    """Some entities, `ids` int64[n], or rows of another table; one that is listed twice counts twice."""

    largest: torch.Tensor | None = None

    def __init__(self, tables: Tables, ids: np.ndarray, table: str = "entity") -> None:
        self.tables, self.table = tables, table
        self.ids = np.sort(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def blocks(self, size: int) -> Iterator[tuple[int, torch.Tensor]]:
        """See Candidates; raises KgdistError when a row is not finite."""
        for start in range(0, len(self.ids), size):
            yield start, pull_rows(self.tables, self.table, self.ids[start : start + size])

    def locate(self, entities: Skip) -> Skip:
        return locate(self.ids, entities)


@dataclass(frozen=True)
class Pool:
    """Which candidates an evaluation takes."""

    sampled: int = -1  # entities drawn for every batch and side, without repetition; -1: all entities
    in_batch: bool = False  # and that end of the batch's own triples, as often as it occurs (DGL-KE's degree sampling)
    batch: int = 8  # consecutive triples that share a draw
    seed: int = 0
    first: int = 0  # the number of the first batch: of a share of the triples, so that all shares draw what the whole would

    def check(self, num_entities: int) -> None:
        """Raises OptionError when the graph is too small."""
        if self.sampled > num_entities:
            message = f"cannot draw {self.sampled} different entities from {num_entities}; use -1 to rank against all"
            raise OptionError("--neg_sample_size_eval", message)

    def draw(self, tables: Tables, num_entities: int, batch: int, side: Side, own: np.ndarray) -> Sample:
        """The candidates of batch number `batch`, whose true entities are `own`; the same for the same seed, batch and side."""
        return Sample(tables, self.ids(num_entities, batch, side, own))

    def ids(self, num_entities: int, batch: int, side: Side, own: np.ndarray) -> np.ndarray:
        """Whom `draw` draws, int[n], in no order."""
        rng = np.random.default_rng((self.seed, self.first + batch, side.pick(0, 1)))
        ids = rng.choice(num_entities, self.sampled, replace=False, shuffle=False)
        return np.concatenate([ids, own]) if self.in_batch else ids


def not_rivals(known: KnownTriples | None, side: Side, anchors: np.ndarray, relations: np.ndarray, true: np.ndarray) -> Skip:
    """The entities that are not ranked against `true` int64[P]: itself, and what is `known` to complete the query."""
    if known is None:
        return Skip(np.arange(len(true) + 1), true)
    found = Skip(*known.answers(side, anchors, relations))
    rows = found.rows
    listed = np.zeros(len(true), bool)
    listed[rows[found.positions == true[rows]]] = True
    missing = np.flatnonzero(~listed)  # a triple that is in none of the known splits
    if not len(missing):
        return found
    before = rows * known.num_entities + found.positions  # ascending: by query, then by id
    where = np.searchsorted(before, missing * known.num_entities + true[missing])
    return Skip(found.offsets + np.concatenate([[0], np.cumsum(~listed)]), np.insert(found.positions, where, true[missing]))


def locate(ids: np.ndarray, entities: Skip) -> Skip:
    """Where `entities` stand in the list `ids` int[n], ascending, in which one may stand several times."""
    first = np.searchsorted(ids, entities.positions, "left")
    counts = np.searchsorted(ids, entities.positions, "right") - first  # how often each is listed
    ends = np.concatenate([[0], np.cumsum(counts)])
    positions = np.repeat(first - ends[:-1], counts) + np.arange(ends[-1])
    return Skip(ends[entities.offsets], positions)


def stack(parts: list[Skip]) -> Skip:
    """The queries of all parts, one after another."""
    counts = np.concatenate([part.counts for part in parts])
    return Skip(np.concatenate([[0], np.cumsum(counts)]), np.concatenate([part.positions for part in parts]))


def pull_rows(tables: Tables, name: str, ids: np.ndarray) -> torch.Tensor:
    """Rows `ids` int[B], repeated where they repeat: float32[B, width]. Raises KgdistError when one is not finite."""
    unique, index = np.unique(ids, return_inverse=True)
    rows = tables.pull(name, torch.from_numpy(unique.astype(np.int64)))
    require_finite(name, rows, unique)
    return rows if len(unique) == len(ids) and (unique == ids).all() else rows[torch.from_numpy(index).to(rows.device)]


def all_finite(rows: torch.Tensor) -> bool:
    """Whether there is neither NaN nor infinity; mostly one sum, since a sum with such a term is never finite."""
    return bool(torch.isfinite(rows.sum())) or bool(torch.isfinite(rows).all())


def require_finite(name: str, rows: torch.Tensor, ids: np.ndarray) -> None:
    """Raise EvaluationError naming the first row of `rows` float32[B, width] that holds NaN or infinity."""
    if not all_finite(rows):
        bad = int(torch.nonzero(~torch.isfinite(rows).all(1))[0, 0])
        raise EvaluationError(
            f"table {name}, row {ids[bad]}: holds NaN or infinity, so nothing can be ranked; the training diverged: "
            "train again with a smaller --lr, or go back to an earlier checkpoint"
        )
