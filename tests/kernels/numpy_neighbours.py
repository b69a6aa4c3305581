"""Draws of neighbours, one number after the other: what `kgdist.kernels.neighbours` is held against, bit for bit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from tests.kernels.numpy_random import GOLDEN, MASK, _key, _mix

_NEIGHBOURS = 4


def _hash(key: int, counter: int) -> int:
    return int(_mix(np.array([((counter + 1) * GOLDEN + key) & MASK], np.uint64))[0])


def _below(hashed: int, n: int) -> int:
    return (hashed * n) >> 64  # the same high half, by whole numbers of any length


def node_key(seed: int, step: int, hop: int, number: int, node: int) -> int:
    """What the draws of one node are hashed with."""
    return _hash(_key(_NEIGHBOURS, seed, step, hop, number), node)


def floyd(key: int, count: int, fanout: int) -> list[int]:
    """`fanout` different numbers below `count`, ascending (Bentley, Floyd, CACM 1987)."""
    taken: set[int] = set()
    for counter, last in enumerate(range(count - fanout, count)):
        number = _below(_hash(key, counter), last + 1)
        taken.add(last if number in taken else number)
    return sorted(taken)


def again(key: int, count: int, fanout: int) -> list[int]:
    """`fanout` numbers below `count`, with replacement."""
    return [_below(_hash(key, counter), count) for counter in range(fanout)]


def _unit(hashed: int) -> Fraction:
    return Fraction(2 * (hashed >> 11) + 1, 1 << 54)


def exponential(hashed: int) -> float:
    """-log of a number between 0 and 1."""
    return -math.log(_unit(hashed))


def lightest(key: int, weights: list[float], fanout: int) -> list[int]:
    """The places of the smallest exponential / weight, ascending (Efraimidis, Spirakis, IPL 2006)."""
    keys = [exponential(_hash(key, counter)) / weight for counter, weight in enumerate(weights)]
    return sorted(sorted(range(len(keys)), key=lambda place: keys[place])[:fanout])


def by_weight(key: int, weights: list[float], fanout: int) -> list[int]:
    """`fanout` places by weight, with replacement."""
    sums = np.cumsum(np.array(weights, np.float64))
    drawn = [float((_hash(key, counter) >> 11) * 2.0**-53) * sums[-1] for counter in range(fanout)]
    return [int(np.searchsorted(sums, each, side="right")) for each in drawn]
