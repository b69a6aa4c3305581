"""Numbers without state: right range, uniform, the same whoever asks for which part of them, and the bits of plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels.random import normal_rows, shuffled, uniform_ids, uniform_rows
from tests.kernels import numpy_random

SEEDS = st.integers(-(2**63), 2**64)


def chi_square(counts: np.ndarray) -> float:
    """How many standard deviations the statistic is from what a uniform draw gives."""
    expected = counts.sum() / counts.size
    statistic = float(((counts - expected) ** 2 / expected).sum())
    return (statistic - (counts.size - 1)) / (2 * (counts.size - 1)) ** 0.5


def same_bits(call: Callable[..., np.ndarray], *arguments: Any) -> np.ndarray:
    """The result, after seeing that it has the bits that NumPy gives."""
    result = call(*arguments)
    want = getattr(numpy_random, call.__name__)(*arguments)
    np.testing.assert_array_equal(result, want)
    assert result.dtype == want.dtype
    return result


def test_every_small_shuffle_is_a_bijection() -> None:
    for n in range(1, 2001):
        assert (np.sort(shuffled(n % 7, 3, 0, n, n)) == np.arange(n)).all()


@given(SEEDS, st.integers(0, 1000), st.integers(1, 60_000), st.data())
@settings(max_examples=40)
def test_a_shuffle_is_a_bijection_and_parts_join_up(seed: int, epoch: int, n: int, data: st.DataObject) -> None:
    whole = same_bits(shuffled, seed, epoch, 0, n, n)
    assert whole.dtype == np.int64
    assert (np.sort(whole) == np.arange(n)).all()
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    np.testing.assert_array_equal(shuffled(seed, epoch, start, stop, n), whole[start:stop])


@given(SEEDS, st.integers(2**32 - 5, 2**62 - 1), st.data())
@settings(max_examples=30)
def test_huge_shuffles_stay_in_range_without_repeats(seed: int, n: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, n - 300))
    part = same_bits(shuffled, seed, 0, start, start + 300, n)
    assert part.min() >= 0
    assert part.max() < n
    assert len(set(part.tolist())) == 300


@pytest.mark.parametrize(("n", "epochs"), [(5, 4000), (9, 4000), (20, 4000), (150, 1000), (1023, 400), (1024, 400)])
def test_shuffles_are_even(n: int, epochs: int) -> None:
    orders = np.array([shuffled(11, epoch, 0, n, n) for epoch in range(epochs)])  # int64[epochs,n]
    places = np.zeros((n, n))
    for position in range(n):
        places[position] = np.bincount(orders[:, position], minlength=n)
    assert chi_square(places) < 5  # every item equally often at every place
    follows = np.zeros((n, n))
    np.add.at(follows, (orders[:, :-1].ravel(), orders[:, 1:].ravel()), 1)
    assert chi_square(follows[~np.eye(n, dtype=bool)]) < 5  # and equally often after every other


@pytest.mark.parametrize(("n", "epochs"), [(600, 400), (1024, 400), (20_000, 30)])
def test_steps_within_a_shuffle_are_even(n: int, epochs: int) -> None:
    """Also between positions one column of the network apart, which share a half: too few rounds show there first."""
    column = -(-n // round(n**0.5))
    near, apart = np.zeros(n, int), np.zeros(n, int)
    for epoch in range(epochs):
        order = shuffled(11, epoch, 0, n, n)
        near += np.bincount((order[1:] - order[:-1]) % n, minlength=n)
        apart += np.bincount((order[column:] - order[:-column]) % n, minlength=n)
    assert abs(chi_square(near[1:])) < 4.5
    assert abs(chi_square(apart[1:])) < 4.5


def test_shuffles_are_unlike_each_other_and_the_order_of_the_ids() -> None:
    assert len({tuple(shuffled(11, epoch, 0, 20, 20)) for epoch in range(2000)}) == 2000
    assert len({tuple(shuffled(seed, 0, 0, 20, 20)) for seed in range(2000)}) == 2000
    long = shuffled(5, 0, 0, 50_000, 50_000)
    assert abs(np.corrcoef(long, np.arange(50_000))[0, 1]) < 0.02


@given(SEEDS, SEEDS, st.integers(0, 2**40), st.integers(0, 300), st.one_of(st.integers(1, 50), st.integers(1, 2**63 - 1)))
@settings(max_examples=80)
def test_ids_are_in_range_and_do_not_depend_on_their_number(seed: int, stream: int, step: int, size: int, n: int) -> None:
    ids = same_bits(uniform_ids, seed, stream, step, size, n)
    assert ids.shape == (size,)
    assert ids.dtype == np.int64
    assert ((ids >= 0) & (ids < n)).all()
    np.testing.assert_array_equal(uniform_ids(seed, stream, step, size // 2, n), ids[: size // 2])


@pytest.mark.parametrize("n", [2, 7, 100, 1024])
def test_ids_are_uniform_within_a_step_and_over_steps(n: int) -> None:
    assert abs(chi_square(np.bincount(uniform_ids(1, 2, 3, 200_000, n), minlength=n))) < 4.5
    over = np.concatenate([uniform_ids(1, 2, step, 50, n) for step in range(4000)])
    assert abs(chi_square(np.bincount(over, minlength=n))) < 4.5
    firsts = np.array([uniform_ids(1, stream, 0, 1, n)[0] for stream in range(4000)])
    assert abs(chi_square(np.bincount(firsts, minlength=n))) < 4.5


def test_neighbouring_seeds_streams_and_steps_share_nothing() -> None:
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (-1, 0, 0), (1, 1, 0), (0, 1, 1)]
    draws = [uniform_ids(*key, 5000, 1 << 60) for key in keys]
    assert len(np.unique(np.concatenate(draws))) == 5000 * len(keys)
    assert np.abs(np.corrcoef(np.array(draws, float)) - np.eye(len(keys))).max() < 0.06


def test_two_draws_in_a_row_are_independent() -> None:
    ids = uniform_ids(4, 5, 6, 160_001, 16)
    assert abs(chi_square(np.bincount(ids[:-1] * 16 + ids[1:], minlength=256))) < 4.5


@pytest.mark.parametrize("rows", [uniform_rows, normal_rows])
@given(SEEDS, st.integers(0, 10), st.integers(0, 2**33), st.integers(0, 40), st.integers(1, 33), st.data())
@settings(max_examples=40)
def test_rows_do_not_depend_on_blocks(
    rows: Callable[..., np.ndarray], seed: int, stream: int, start: int, count: int, width: int, data: st.DataObject
) -> None:
    shape = (-0.25, 1.5) if rows is uniform_rows else (0.7,)
    whole = same_bits(rows, seed, stream, start, count, width, *shape)
    assert whole.shape == (count, width)
    assert whole.dtype == np.float32
    cut = data.draw(st.integers(0, count))
    parts = rows(seed, stream, start, cut, width, *shape), rows(seed, stream, start + cut, count - cut, width, *shape)
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_uniform_rows_are_uniform() -> None:
    values = uniform_rows(3, 1, 100, 1000, 200, -0.5, 1.5)
    assert values.min() >= -0.5
    assert values.max() <= 1.5
    assert abs(chi_square(np.histogram(values, 100, (-0.5, 1.5))[0])) < 4.5
    assert len(np.unique(values)) > 190_000


def test_normal_rows_are_normal() -> None:
    values = normal_rows(3, 1, 100, 1000, 200, 2.0).astype(float) / 2
    size = values.size
    assert abs(values.mean()) < 4.5 / size**0.5
    assert abs((values**2).mean() - 1) < 4.5 * (2 / size) ** 0.5
    assert abs((values**3).mean()) < 4.5 * (15 / size) ** 0.5
    assert abs((values**4).mean() - 3) < 4.5 * (96 / size) ** 0.5
    assert 4 < np.abs(values).max() < 6.7


@pytest.mark.parametrize("arguments", [(0, 1, 0), (2, 1, 5), (0, 6, 5), (-1, 2, 5), (0, 1, 1 << 62)])
def test_shuffles_that_cannot_be_are_refused(arguments: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="shuffle"):
        shuffled(0, 0, *arguments)


def test_ids_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="not 0"):
        uniform_ids(0, 0, 0, 1, 0)
