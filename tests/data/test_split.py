"""Dividing triples: every entity and relation is trained on, nothing is lost, and no statement is on both sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.data.leaks import Families, find, portions
from kgdist.data.split import divide

TRIPLES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3), st.integers(0, 9)), min_size=1, max_size=120)


@settings(max_examples=80, deadline=None)
@given(TRIPLES, st.integers(0, 99), st.sampled_from([(0.8, 0.1, 0.1), (0.5, 0.3, 0.2), (0.9, 0.0, 0.1), (0.1, 0.45, 0.45)]))
def test_train_has_every_entity_and_relation_and_nothing_is_lost(
    rows: list[tuple[int, int, int]], seed: int, shares: tuple[float, float, float]
) -> None:
    triples = np.array(rows, np.int32)
    found = divide(triples, shares, seed)
    parts = [triples[found.split == number] for number in range(3)]
    sets = [set(map(tuple, part.tolist())) for part in parts]
    assert sum(map(len, sets)) == sum(map(len, parts)) == len(set(rows)) == len(set().union(*sets))
    assert found.repeated == len(rows) - len(set(rows)) and found.counts == tuple(map(len, parts))
    assert set(triples[:, [0, 2]].flat) == set(parts[0][:, [0, 2]].flat) and set(triples[:, 1]) == set(parts[0][:, 1])
    assert all(have <= wanted for have, wanted in zip(found.counts[1:], found.wanted[1:], strict=True))
    assert (divide(triples, shares, seed).split == found.split).all()


@settings(max_examples=60, deadline=None)
@given(TRIPLES, st.integers(0, 99))
def test_statements_stay_on_one_side(rows: list[tuple[int, int, int]], seed: int) -> None:
    rows = rows + [(tail, 4, head) for head, relation, tail in rows if relation == 0]  # 4 is the inverse of 0
    triples = np.array(rows, np.int32)
    links = find(portions([triples]), 5)
    families = Families.of(links, 5)
    found = divide(triples, (0.6, 0.2, 0.2), seed, families)
    pairs, family = families.statements(triples)
    sides: dict[tuple[int, int], set[int]] = {}
    for pair, relation, split in zip(pairs.tolist(), family.tolist(), found.split.tolist(), strict=True):
        if split >= 0:
            sides.setdefault((pair, relation), set()).add(split)
    assert all(len(each) == 1 for each in sides.values())
    assert set(triples[:, [0, 2]].flat) == set(triples[found.split == 0][:, [0, 2]].flat)


@pytest.mark.parametrize("seed", [0, 1])
def test_shares_are_met_where_train_can_spare_them(seed: int) -> None:
    rng = np.random.default_rng(seed)
    triples = np.unique(np.stack([rng.integers(0, 50, 3000), rng.integers(0, 5, 3000), rng.integers(0, 50, 3000)], 1), axis=0)
    found = divide(triples.astype(np.int32), (0.8, 0.1, 0.1), seed)
    assert found.counts == found.wanted and abs(found.counts[1] - 0.1 * len(triples)) < 1
    other = divide(triples.astype(np.int32), (0.8, 0.1, 0.1), seed + 7)
    assert (other.split != found.split).any()
