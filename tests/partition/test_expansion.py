"""What a partition needs of others, beside a search by sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.partition import expansion, graph
from kgdist.partition.expansion import EdgeSizes, Expansion, Reach, needs
from tests.partition.worlds import communities, graphs

Needed = tuple[list[list[int]], list[int]]  # entities by hop, numbers of support triples


def found(made: Expansion, part: int) -> Needed:
    support = [piece.start + np.flatnonzero(needs(piece, part)) for piece in made]
    return [each.tolist() for each in made.entities(part)], np.concatenate(support).tolist()


def searched(triples: np.ndarray, core: set[int], hops: int, inverse: bool) -> Needed:
    """By breadth: edges into what was reached last."""
    rows = triples.tolist()
    reached = {end for number in core for end in rows[number][::2]}
    levels, taken, last = [sorted(reached)], set(core), set(reached)
    for _ in range(hops):
        met = set()
        for number, (head, _, tail) in enumerate(rows):
            if tail in last:
                taken.add(number)
                met.add(head)
            if inverse and head in last:
                taken.add(number)
                met.add(tail)
        last = met - reached
        reached |= last
        levels.append(sorted(last))
    return levels, sorted(taken - core)


@given(graphs(), st.integers(1, 4), st.integers(0, 3), st.booleans(), st.randoms(use_true_random=False))
def test_all_edges_within_the_hops_are_there(world, parts, hops, inverse, random) -> None:  # type: ignore[no-untyped-def]
    entities, _, triples = world
    assigned = np.array([random.randrange(parts) for _ in triples], np.uint8)
    made = Expansion(triples, assigned, entities, parts, Reach(hops, (), inverse, 0))
    everything = Expansion(triples, assigned, entities, parts, Reach(hops, (10**6,) * hops, inverse, 0))
    counts = EdgeSizes.of(made)
    for part in range(parts):
        expected = searched(triples, set(np.flatnonzero(assigned == part).tolist()), hops, inverse)
        assert found(made, part) == expected
        assert found(everything, part) == expected  # a fan-out that no entity reaches
        assert counts.support[part] == len(expected[1]) and counts.vertices[part] == [len(each) for each in expected[0]]
    assert counts.core == np.bincount(assigned, minlength=parts).tolist()


@given(graphs(), st.integers(1, 3), st.lists(st.sampled_from([-1, 1, 2, 3]), min_size=1, max_size=3), st.booleans())
def test_each_entity_draws_once_and_no_more_than_the_fanout(world, parts, fanout, inverse) -> None:  # type: ignore[no-untyped-def]
    entities, _, triples = world
    hops = len(fanout)
    assigned = (np.arange(len(triples)) % parts).astype(np.uint8)
    made = Expansion(triples, assigned, entities, parts, Reach(hops, tuple(fanout), inverse, 7))
    full = Expansion(triples, assigned, entities, parts, Reach(hops, (), inverse, 7))
    rows = triples.tolist()
    for part in range(parts):
        core = set(np.flatnonzero(assigned == part).tolist())
        levels, support = found(made, part)
        reached, asked = {}, dict[int, int]()
        for hop, level in enumerate(levels):
            reached |= dict.fromkeys(level, hop)
            for entity in level if hop < hops else ():
                asked[entity] = fanout[-1 - hop]
        assert set(support) <= set(found(full, part)[1]) | core
        there = set(support) | core
        for entity, count in asked.items():  # as many edges as it draws are there, at least
            into = [number for number, row in enumerate(rows) if row[2] == entity or (inverse and row[0] == entity)]
            edges = sum((rows[n][2] == entity) + (inverse and rows[n][0] == entity) for n in into)
            here = sum((rows[n][2] == entity) + (inverse and rows[n][0] == entity) for n in into if n in there)
            assert here >= (edges if count < 0 else min(count, edges))
        most = sum(count if count >= 0 else len(rows) * 2 for count in asked.values())
        assert len(support) <= most
        for number in support:  # nobody is there who is not reached
            assert {rows[number][0], rows[number][2]} <= set(reached)


def test_draws_follow_from_the_seed_and_are_the_same_for_all_partitions() -> None:
    triples = communities(degree=20)
    assigned = np.zeros(len(triples), np.uint8)
    assigned[::3] = 1

    def of(seed: int) -> list[Needed]:
        made = Expansion(triples, assigned, 400, 2, Reach(1, (4,), False, seed))
        return [found(made, part) for part in range(2)]

    assert of(3) == of(3) and of(3) != of(4)
    first, second = (set(support) for _, support in of(3))
    drawn = (first | set(np.flatnonzero(assigned == 0))) & (second | set(np.flatnonzero(assigned == 1)))
    for tail in range(400):  # both partitions reach all entities: they have drawn the same four edges into each
        assert len([number for number in drawn if triples[number, 2] == tail]) == min(4, (triples[:, 2] == tail).sum())


@pytest.mark.parametrize("fanout", [(), (2, 3)])
def test_pieces_do_not_matter(monkeypatch: pytest.MonkeyPatch, fanout: tuple[int, ...]) -> None:
    triples = communities(entities=80)
    assigned = (np.arange(len(triples)) // 40 % 3).astype(np.uint8)

    def of() -> list[Needed]:
        made = Expansion(triples, assigned, 80, 3, Reach(2, fanout, True, 0))
        return [found(made, part) for part in range(3)]

    whole = of()
    monkeypatch.setattr(graph, "PIECE", 33)
    monkeypatch.setattr(expansion, "PIECE", 33)
    assert of() == whole


def test_the_last_fanout_is_next_to_the_core() -> None:
    assert [Reach(2, (25, 10), True, 0).at(hop) for hop in range(2)] == [10, 25]
    assert Reach(2, (), True, 0).at(1) == -1


def test_the_table_says_what_there_is_and_warns() -> None:
    sizes = EdgeSizes([6, 4], [3, 0], [[5, 2, 0], [4, 0, 0]], 1.5)
    assert sizes.shares == [0.9, 0.4] and sizes.to_json()["expansion"] == 1.3 and sizes.to_json()["balance"] == 1.2
    assert sizes.table().splitlines() == [
        "partition  core triples  support  of all  core entities  hop 1  hop 2",
        "        0             6        3  90.0 %              5      2      0",
        "        1             4        0  40.0 %              4      0      0",
        "replication: an entity is a core entity of 1.500 partitions on average",
        "expansion: partitions have 1.30 times the triples of the graph; largest partition / average: 1.200 of core triples",
    ]
    (warning,) = sizes.warnings()
    assert warning.startswith("partition 0 has 90 % of all triples")
    assert not EdgeSizes([10], [0], [[5]], 1.0).warnings()
    assert "nothing to train" in EdgeSizes([1, 0], [0, 0], [[2], [0]], 1.0).warnings()[0]
