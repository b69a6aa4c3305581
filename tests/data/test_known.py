"""KnownTriples against a dictionary of sets."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.data.known import KnownTriples

ENTITIES, RELATIONS = 7, 3
BIG = 2**31 - 1  # far beyond what one machine word can hold for a triple


def split(rows: list[tuple[int, int, int]]) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 3)


def oracle(splits: list[np.ndarray], side: Side) -> dict[tuple[int, int], set[int]]:
    known = defaultdict(set)
    for head, relation, tail in np.concatenate([split([]), *splits]).tolist():
        known[side.pick(tail, head), relation].add(side.pick(head, tail))
    return known


entity, relation = st.integers(0, ENTITIES - 1), st.integers(0, RELATIONS - 1)
triples = st.lists(st.tuples(entity, relation, entity), max_size=60)


@given(splits=st.lists(triples.map(split), max_size=3), scale=st.sampled_from([1, BIG // ENTITIES]), seed=st.integers(0, 99))
def test_answers_are_those_of_the_oracle(splits: list[np.ndarray], scale: int, seed: int) -> None:
    """`scale` spreads the entity ids over the int32 range: nothing may depend on ids being small."""
    splits = [part * np.array([scale, 1, scale], np.int32) for part in splits]
    entities = ENTITIES * scale
    known = KnownTriples.build(splits, entities, RELATIONS)
    rng = np.random.default_rng(seed)
    anchors, relations = rng.integers(0, ENTITIES, 40) * scale, rng.integers(0, RELATIONS, 40)
    for side in Side:
        expected = oracle(splits, side)
        offsets, ids = known.answers(side, anchors, relations)
        assert offsets.dtype == np.int64 and ids.dtype == np.int32 and offsets[0] == 0 and offsets[-1] == len(ids)
        for b, query in enumerate(zip(anchors.tolist(), relations.tolist(), strict=True)):
            assert ids[offsets[b] : offsets[b + 1]].tolist() == sorted(expected[query])


@given(splits=st.lists(triples.map(split), max_size=3), scale=st.sampled_from([1, BIG // ENTITIES]), seed=st.integers(0, 99))
def test_relations_are_those_of_all_triples_between(splits: list[np.ndarray], scale: int, seed: int) -> None:
    wide = np.array([scale, 1, scale], np.int32)
    known = KnownTriples.build([part * wide for part in splits], ENTITIES * scale, RELATIONS)
    heads, tails = np.random.default_rng(seed).integers(0, ENTITIES, (2, 40))
    offsets, ids = known.relations(heads * scale, tails * scale)
    facts = set(map(tuple, np.concatenate([split([]), *splits]).tolist()))
    relations = np.arange(40) % RELATIONS
    wanted = [fact in facts for fact in zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)]
    assert all(known.holds(heads * scale, relations, tails * scale, side).tolist() == wanted for side in Side)
    assert offsets[0] == 0 and offsets[-1] == len(ids)
    for b, (head, tail) in enumerate(zip(heads.tolist(), tails.tolist(), strict=True)):
        assert ids[offsets[b] : offsets[b + 1]].tolist() == [r for r in range(RELATIONS) if (head, r, tail) in facts]


def test_relations_of_pairs_need_all_that_is_known() -> None:
    facts = split([(0, 1, 2), (0, 0, 2)])
    known = KnownTriples.build([facts], ENTITIES, RELATIONS)
    with pytest.raises(ValueError, match="tail ids must be in 0..6, found 9..9"):
        known.relations(np.array([0]), np.array([9]))
    with pytest.raises(ValueError, match="built for some queries only"):
        KnownTriples.build([facts], ENTITIES, RELATIONS, facts).relations(np.array([0]), np.array([2]))


@given(splits=st.lists(triples.map(split), max_size=3), asked=triples.map(split), scale=st.sampled_from([1, BIG // ENTITIES]))
def test_a_filter_for_some_queries_answers_these_as_the_whole_one_and_no_others(
    splits: list[np.ndarray], asked: np.ndarray, scale: int
) -> None:
    wide = np.array([scale, 1, scale], np.int32)
    splits, asked = [part * wide for part in splits], asked * wide
    whole = KnownTriples.build(splits, ENTITIES * scale, RELATIONS)
    some = KnownTriples.build(splits, ENTITIES * scale, RELATIONS, asked)
    for side in Side:
        anchors = side.other.pick(asked[:, 0], asked[:, 2])
        for one, other in zip(whole.answers(side, anchors, asked[:, 1]), some.answers(side, anchors, asked[:, 1]), strict=True):
            np.testing.assert_array_equal(one, other)
        queries = set(zip(anchors.tolist(), asked[:, 1].tolist(), strict=True))
        for anchor in range(0, ENTITIES * scale, scale):
            if (anchor, 0) not in queries:
                with pytest.raises(ValueError, match=f"not built for anchor {anchor}, relation 0"):
                    some.answers(side, np.array([anchor]), np.array([0]))


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_it_is_built_by_pieces(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    part = np.stack([rng.integers(0, n, 200) for n in (9, 2, 9)], axis=1).astype(np.int32)
    expected = KnownTriples.build([part], 9, 2)
    monkeypatch.setattr("kgdist.data.known.ROWS", rows)
    monkeypatch.setattr("kgdist.data.known.SIEVE", 4)  # which lets others through
    for asked in (None, part[:9]):
        known = KnownTriples.build([part], 9, 2, asked)
        for side in Side:
            query = side.other.pick(part[:9, 0], part[:9, 2]), part[:9, 1]
            for one, other in zip(expected.answers(side, *query), known.answers(side, *query), strict=True):
                np.testing.assert_array_equal(one, other)


def test_large_entity_counts_change_nothing() -> None:
    rng = np.random.default_rng(0)
    part = np.stack([rng.integers(0, n, 5000) for n in (50, 4, 50)], axis=1).astype(np.int32)
    small = KnownTriples.build([part], 50, 4)
    large = KnownTriples.build([part], BIG, 4)
    anchors, relations = np.repeat(np.arange(50), 4), np.tile(np.arange(4), 50)
    for side in Side:
        for one, other in zip(small.answers(side, anchors, relations), large.answers(side, anchors, relations), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_query_of_no_rows_and_a_graph_of_no_triples() -> None:
    empty = KnownTriples.build([], 5, 2)
    offsets, ids = empty.answers(Side.HEAD, np.array([0, 4]), np.array([1, 1]))
    assert offsets.tolist() == [0, 0, 0] and ids.tolist() == []
    offsets, ids = empty.answers(Side.TAIL, np.array([], np.int64), np.array([], np.int64))
    assert offsets.tolist() == [0] and ids.tolist() == []


@pytest.mark.parametrize("rows", [[(0, 0, 5)], [(5, 0, 0)], [(0, 2, 0)], [(-1, 0, 0)]])
def test_ids_out_of_range_are_refused_when_built(rows: list[tuple[int, int, int]]) -> None:
    with pytest.raises(ValueError, match=r"ids must be in"):
        KnownTriples.build([split(rows)], 5, 2)
    with pytest.raises(ValueError, match=r"ids must be in"):
        KnownTriples.build([], 5, 2, asked=split(rows))


@pytest.mark.parametrize(("anchor", "relation"), [(5, 0), (-1, 0), (0, 2), (0, -1)])
def test_ids_out_of_range_are_refused_when_asked(anchor: int, relation: int) -> None:
    """Relation 2 of entity 0 would otherwise be read as relation 0 of entity 1."""
    known = KnownTriples.build([split([(0, 0, 1), (1, 0, 2)])], 5, 2)
    with pytest.raises(ValueError, match=r"ids must be in"):
        known.answers(Side.TAIL, np.array([anchor]), np.array([relation]))


def test_a_split_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[T, 3\]"):
        KnownTriples.build([np.zeros((4, 2), np.int32)], 5, 2)
