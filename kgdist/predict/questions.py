"""What is asked: questions, made of queries (an entity, a relation, and which end is missing), and their K best answers so far.

Ids only. Queries are not kept but computed from their number, for there may be as many as there are pairs of lists.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from kgdist.base.types import Side


class Queries(NamedTuple):
    """Some queries, those that miss their tail first."""

    headless: np.ndarray  # bool[P], which miss their head
    anchors: np.ndarray  # int64[P], the given ends
    relations: np.ndarray  # int64[P]
    questions: np.ndarray  # int64[P], to which each belongs

    def sides(self) -> list[tuple[Side, slice]]:
        """The ends that are missing, and which queries miss each."""
        cut = len(self.headless) - int(np.count_nonzero(self.headless))
        parts = (Side.TAIL, slice(0, cut)), (Side.HEAD, slice(cut, len(self.headless)))
        return [(side, part) for side, part in parts if part.start < part.stop]


class Asked(Protocol):
    """Queries numbered by side and relation, so that neighbours share theirs."""

    @property
    def questions(self) -> int:
        """How many; they are numbered from 0."""

    def __len__(self) -> int: ...

    def take(self, start: int, stop: int) -> Queries: ...


@dataclass(frozen=True)
class Pairwise:
    """One question for each (anchor, relation): both int64[B]. `headless` bool[B]: which miss their head."""

    headless: np.ndarray
    anchors: np.ndarray
    relations: np.ndarray

    @cached_property
    def _order(self) -> np.ndarray:
        return np.lexsort((self.relations, self.headless))

    @property
    def questions(self) -> int:
        """As many as queries."""
        return len(self.anchors)

    def __len__(self) -> int:
        return len(self.anchors)

    def take(self, start: int, stop: int) -> Queries:
        rows = self._order[start:stop]
        return Queries(self.headless[rows], self.anchors[rows], self.relations[rows], rows)


@dataclass(frozen=True)
class Combined:
    """Every anchor with every relation: int64[A], int64[R]; a question for each `by` "anchor" or "relation", or one for "all"."""

    side: Side
    anchors: np.ndarray
    relations: np.ndarray
    by: str

    @property
    def questions(self) -> int:
        return {"anchor": len(self.anchors), "relation": len(self.relations), "all": 1}[self.by]

    def __len__(self) -> int:
        return len(self.anchors) * len(self.relations)

    def take(self, start: int, stop: int) -> Queries:
        relation, anchor = np.divmod(np.arange(start, stop), len(self.anchors))
        question = {"anchor": anchor, "relation": relation, "all": np.zeros_like(anchor)}[self.by]
        headless = np.full(len(anchor), self.side is Side.HEAD)
        return Queries(headless, self.anchors[anchor], self.relations[relation], question)


class Best:
    """The `k` best triples of each question so far; equal ones by head, relation, tail. Memory: 32 bytes each."""

    def __init__(self, questions: int, k: int) -> None:
        self.k, shape = k, (questions, k)
        self.keys = np.full(shape, -np.inf)  # float64
        self.heads, self.relations, self.tails = (np.full(shape, -1) for _ in range(3))  # int64, -1: none
        self._lock = threading.Lock()

    def bar(self, questions: np.ndarray) -> np.ndarray:
        """float64[P]: what an answer must reach to be of interest to its question, int64[P]."""
        bar: np.ndarray = self.keys[questions, -1]
        return bar

    def merge(self, queries: Queries, ids: np.ndarray, keys: np.ndarray) -> None:
        """Take in what was found: entities int64[P,K] (-1: none) that complete the queries, with order keys float64[P,K]."""
        row, place = np.nonzero(ids >= 0)
        given, found, headless = queries.anchors[row], ids[row, place], queries.headless[row]
        ends = np.where(headless, found, given), np.where(headless, given, found)
        new = (queries.questions[row], keys[row, place], ends[0], queries.relations[row], ends[1])
        with self._lock:
            touched = np.unique(new[0])
            had, at = np.nonzero(self.heads[touched] >= 0)
            old = (touched[had], *(each[touched[had], at] for each in (self.keys, self.heads, self.relations, self.tails)))
            question, key, head, relation, tail = (np.concatenate(each) for each in zip(old, new, strict=True))
            order = np.lexsort((tail, relation, head, -key, question))
            question = question[order]
            first = np.searchsorted(question, question)
            within = np.arange(len(question)) - first
            kept = within < self.k
            where, rows = (question[kept], within[kept]), order[kept]
            for target, values in zip(
                (self.keys, self.heads, self.relations, self.tails), (key, head, relation, tail), strict=True
            ):
                target[where] = values[rows]
