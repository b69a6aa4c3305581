"""One file of triples divided into train, valid and test, so that train has every entity and every relation.

A random order, which the seed decides, says who is held out; the first triple of each entity and relation in it stays in train
(as in PyKEEN's splits with coverage, Ali et al. 2021). Triples that stand in the file twice count once. With families of
relations (`kgdist.data.leaks`) all triples that make one statement go to one split, so that no triple is held out whose inverse
is trained on.
Memory: about 40 bytes a triple, 60 with families.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kgdist.data.leaks import Families
from kgdist.kernels.random import shuffled


class Division(NamedTuple):
    """Which split each triple goes to."""

    split: np.ndarray  # int8[T]: 0 train, 1 valid, 2 test, -1 a repetition of an earlier triple
    wanted: tuple[int, int, int]  # triples of each split that the shares ask for

    @property
    def counts(self) -> tuple[int, int, int]:
        """Triples of each split."""
        train, valid, test = (int(np.count_nonzero(self.split == number)) for number in range(3))
        return train, valid, test

    @property
    def repeated(self) -> int:
        """Triples that stand there already."""
        return int(np.count_nonzero(self.split < 0))


def divide(triples: np.ndarray, shares: Sequence[float], seed: int, families: Families | None = None) -> Division:
    """Divide `triples` int32[T, 3] by the `shares` of train, valid and test; fewer are held out where train needs the others."""
    fresh = np.flatnonzero(_firsts(triples))
    order = fresh[np.argsort(shuffled(seed, 0, 0, len(fresh), max(1, len(fresh))))]
    mixed = triples[order]
    kept = np.zeros(len(order), bool)  # in train, whatever the shares say
    kept[_first_places(np.stack([mixed[:, 0], mixed[:, 2]], 1).reshape(-1)) // 2] = True
    kept[_first_places(mixed[:, 1])] = True
    group = np.arange(len(order)) if families is None else _groups(mixed, families)
    tied = np.zeros(int(group.max(initial=-1)) + 1, bool)
    tied[group[kept]] = True
    free = np.flatnonzero(~tied[group])
    free = free[np.argsort(group[free], kind="stable")]  # triples of a group together, groups in the order of their first
    valid, test = (round(len(order) * share) for share in shares[1:])
    split = np.full(len(triples), -1, np.int8)
    split[fresh] = 0
    _, starts = np.unique(group[free], return_index=True)
    ends = np.append(starts[1:], len(free))
    first = int(np.searchsorted(ends, valid, side="right"))  # whole groups that fit
    at = int(ends[first - 1]) if first else 0
    last = int(np.searchsorted(ends, at + test, side="right"))
    split[order[free[:at]]] = 1
    split[order[free[at : int(ends[last - 1]) if last > first else at]]] = 2
    return Division(split, (len(order) - valid - test, valid, test))


def _firsts(triples: np.ndarray) -> np.ndarray:
    """bool[T]: the first of each that are equal."""
    order = np.lexsort((triples[:, 2], triples[:, 1], triples[:, 0]))  # stable
    ordered = triples[order]
    fresh = np.ones(len(triples), bool)
    fresh[order[1:]] = (ordered[1:] != ordered[:-1]).any(1)
    return fresh


def _first_places(values: np.ndarray) -> np.ndarray:
    """int64[u]: where each different value comes first."""
    first = np.full(int(values.max(initial=-1)) + 1, -1, np.int64)
    first[values[::-1]] = np.arange(len(values) - 1, -1, -1)
    return first[first >= 0]


def _groups(triples: np.ndarray, families: Families) -> np.ndarray:
    """int64[T], equal for triples that make one statement; numbered in the order of their first ones."""
    pairs, family = families.statements(triples)
    order = np.lexsort((family, pairs))  # stable: the first of each statement comes first
    pairs, family = pairs[order], family[order]
    begins = np.ones(len(order), bool)
    begins[1:] = (pairs[1:] != pairs[:-1]) | (family[1:] != family[:-1])
    first = order[begins][np.cumsum(begins) - 1]  # of each, the place of the first triple of its statement
    group = np.empty(len(order), np.int64)
    group[order] = first
    return np.unique(group, return_inverse=True)[1]
