"""k-cores, against their definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.tuning.kcore import core_numbers, core_sizes

ENTITIES = 8
graphs = st.lists(st.tuples(st.integers(0, ENTITIES - 1), st.integers(0, 2), st.integers(0, ENTITIES - 1)), max_size=40)


def core(triples: list[tuple[int, int, int]], k: int) -> list[tuple[int, int, int]]:
    """The triples of the k-core: one entity after another goes, in any order."""
    while True:
        ends = [end for head, _, tail in triples for end in (head, tail)]
        few = next((end for end in ends if ends.count(end) < k), None)
        if few is None:
            return triples
        triples = [each for each in triples if few not in (each[0], each[2])]


@settings(deadline=None)
@given(graphs, st.integers(0, 40))
def test_cores_are_the_largest_of_their_kind(triples: list[tuple[int, int, int]], least: int) -> None:
    array = np.array(triples, np.int32).reshape(-1, 3)
    cores = core_numbers(array, ENTITIES)
    sizes = core_sizes(array, cores)
    assert cores.dtype == np.int32 and len(sizes) == cores.max() + 1
    for k in range(int(cores.max()) + 2):
        wanted = core(triples, k)
        assert [each for each in triples if cores[each[0]] >= k and cores[each[2]] >= k] == wanted
        assert k == len(sizes) or sizes[k] == len(wanted)
        if k:
            assert set(np.flatnonzero(cores >= k)) == {end for head, _, tail in wanted for end in (head, tail)}
    assert not core(triples, int(cores.max()) + 1)
    last = next(k for k in range(len(sizes)) if sizes[k] <= least or k == len(sizes) - 1)
    assert core_numbers(array, ENTITIES, least).tolist() == np.minimum(cores, last).tolist()


def test_a_long_chain_takes_no_pass_for_each_of_its_ends() -> None:
    count, order = 200_000, np.random.default_rng(0).permutation(200_000)  # two passes, where there were 100,000
    chain = np.stack([order, np.zeros_like(order), order + 1], axis=1).astype(np.int32)
    ring = np.array([(count, 0, count + 1), (count + 1, 0, count + 2), (count + 2, 0, count)], np.int32)
    cores = core_numbers(np.concatenate([chain, ring]), count + 3)
    assert (cores[:count] == 1).all() and (cores[count:] == 2).all()


def test_the_files_of_a_data_set_are_read_as_they_are() -> None:
    array = np.array([(0, 0, 1), (1, 0, 2), (2, 0, 0), (2, 0, 3), (3, 0, 3)], np.int32)
    array.flags.writeable = False
    assert core_numbers(array, 5).tolist() == [2, 2, 2, 2, 0]
    assert core_numbers(array[:0], 2).tolist() == [0, 0] and core_sizes(array[:0], np.zeros(2, np.int32)).tolist() == [0]
