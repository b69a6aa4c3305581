"""Different ids by first occurrence, against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kgdist.kernels.hashing import unique

IDS = st.one_of(st.integers(0, 5), st.integers(0, 2**62), st.integers(0, 99).map(lambda x: x << 40))  # equal low bits, too


@given(st.lists(IDS, max_size=300))
def test_ids_come_in_the_order_of_their_first_occurrence(numbers: list[int]) -> None:
    ids = np.array(numbers, np.int64)
    found, places = unique(ids)
    assert found.tolist() == list(dict.fromkeys(numbers))
    assert np.array_equal(found[places], ids)
    assert found.dtype == places.dtype == np.int64


def test_a_batch_of_one_entity_and_a_batch_without_repeats() -> None:
    found, places = unique(np.full(5000, 7))
    assert (found.tolist(), places.any()) == ([7], False)
    ids = np.random.default_rng(0).permutation(100_000)
    found, places = unique(ids)
    assert np.array_equal(found, ids)
    assert np.array_equal(places, np.arange(len(ids)))


def test_a_part_of_an_array_with_gaps() -> None:
    ids = np.array([[3, 9], [3, 1], [5, 9]])[:, 0]
    found, places = unique(ids)
    assert (found.tolist(), places.tolist()) == ([3, 5], [0, 0, 1])
