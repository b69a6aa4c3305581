"""The nouns of kgdist, and the letters its shapes are written in.

    B  positives in a batch          P  positives in a chunk        C  chunks in a batch, C = ceil(B / P)
    N  candidates per chunk          D  entity dim                  R  relation dim
    Q  query dim (D, but R for TransR)                              K  complex pairs, D = 2K
    U  unique entities of a batch    V  unique relations of a batch
    T  triples of a split

A triple is (head, relation, tail), always in this order, ids counted from 0.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import torch

T = TypeVar("T")


class Side(enum.Enum):
    """The missing end of a triple: the one that candidates are tried for."""

    HEAD = "head"
    TAIL = "tail"

    def pick(self, head: T, tail: T) -> T:
        """`head` for HEAD, `tail` for TAIL."""
        return head if self is Side.HEAD else tail

    @property
    def other(self) -> Side:
        """The end that is given."""
        return self.pick(Side.TAIL, Side.HEAD)


@dataclass(frozen=True)
class Excluded:
    """Which entities do not count for G queries: those of a list, but for the query's own answers.

    Queries that ask the same share a list: a hub's answers are there once, however often a step visits it.
    """

    lists: np.ndarray  # int64[G], the list of each query
    starts: np.ndarray  # int64[lists + 1], where each begins in `entities`
    entities: np.ndarray  # int32[X], ascending within a list, each once
    own_starts: np.ndarray  # int64[G + 1], where the answers of each query begin in `own`
    own: np.ndarray  # int32[A], ascending within a query, each once; all of them are in its list

    @staticmethod
    def joined(parts: list[Excluded]) -> Excluded:
        """The same for the queries of all `parts`, one part after another."""
        whole = parts[0]
        for part in parts[1:]:
            whole = Excluded(
                np.append(whole.lists, part.lists + len(whole.starts) - 1),
                np.append(whole.starts, part.starts[1:] + whole.starts[-1]),
                np.append(whole.entities, part.entities),
                np.append(whole.own_starts, part.own_starts[1:] + whole.own_starts[-1]),
                np.append(whole.own, part.own),
            )
        return whole

    def part(self, queries: slice) -> Excluded:
        """The same for some of the queries, which follow one another."""
        starts = self.own_starts[queries.start : queries.stop + 1]
        return replace(self, lists=self.lists[queries], own_starts=starts)

    def counts(self) -> np.ndarray:
        """int64[G]: how many do not count."""
        counts: np.ndarray = np.diff(self.starts)[self.lists] - np.diff(self.own_starts)
        return counts


@dataclass(frozen=True)
class Batch:
    """Positives and the candidates they are held against.

    Positives fall into C chunks of P in order (the last may be shorter); every positive of chunk c meets all of `negatives[c]`.
    Where every entity is a candidate there are no negatives: positives then stand query by query, and all of a query share it.
    """

    heads: np.ndarray  # int64[B]
    relations: np.ndarray  # int64[B]
    tails: np.ndarray  # int64[B]
    negatives: np.ndarray  # int64[C, N], entity ids
    side: Side  # the end that `negatives` replace
    chunk: int  # P
    in_batch: int = 0  # the first columns of `negatives` that are entities of the chunk's own positives
    weights: np.ndarray | None = None  # float32[B], one per positive
    numbers: np.ndarray | None = None  # int64[B], which triples of the split the positives are
    step: int = 0  # of its process
    masked: np.ndarray | None = None  # bool[B, N], candidates that do not count for a positive
    stands: np.ndarray | None = None  # float32[C, N], how many entities each candidate stands for
    queries: np.ndarray | None = None  # int64[G + 1], where the positives of each query begin; every entity is a candidate
    excluded: Excluded | None = None  # where every entity is a candidate: those that do not count
    inverse: np.ndarray | None = None  # bool[B], positives of the inverse relation, whose ends stand as that has them: (t, r, h)

    def __len__(self) -> int:
        return len(self.heads)


@dataclass(frozen=True)
class RelationRows:
    """The relation parameters of a batch: one row per unique relation, and which row each triple uses."""

    rows: dict[str, torch.Tensor]  # table name -> float32[V, width]
    index: torch.Tensor  # int64[B], into the rows
    uses: dict[str, torch.Tensor] = field(
        default_factory=dict
    )  # float32[B, width] where a row per triple is there already (to collect gradients by use)

    def per_triple(self, name: str) -> torch.Tensor:
        """The row of each triple: float32[B, width]."""
        return self.uses[name] if name in self.uses else self.rows[name].index_select(0, self.index)

    def apart(self, triples: list[int]) -> list[RelationRows]:
        """The relations of some triples, each by itself: one row, of the triple's own use where there is one."""
        where, alone = self.index.new_tensor(triples), self.index.new_zeros(1)
        found = {}
        for name, rows in self.rows.items():
            given = (self.uses[name], where) if name in self.uses else (rows, self.index[where])
            found[name] = torch.split(given[0].index_select(0, given[1]), 1)
        return [RelationRows({name: rows[i] for name, rows in found.items()}, alone) for i in range(len(triples))]
