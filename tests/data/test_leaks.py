"""Linked relations and what they answer, against the definitions taken word for word."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.data import leaks
from kgdist.data.leaks import LEAST, NEARLY, SHARE, Families, Link, find, implied, overlap, portions, sample
from kgdist.data.suspects import repeated

RELATIONS = 4
TRIPLE = st.tuples(st.integers(0, 3), st.integers(0, RELATIONS - 1), st.integers(0, 3))
SPLITS = st.lists(st.lists(TRIPLE, max_size=40), min_size=1, max_size=3)
Triple = tuple[int, int, int]


def arrays(splits: list[list[Triple]]) -> list[np.ndarray]:
    return [np.array(split, np.int32).reshape(-1, 3) for split in splits]


def plain_links(splits: list[list[Triple]], share: float = SHARE) -> set[Link]:
    """Every two relations, both ways round, by sets of pairs."""
    pairs: list[set[tuple[int, int]]] = [set() for _ in range(RELATIONS)]
    for head, relation, tail in itertools.chain(*splits):
        pairs[relation].add((head, tail))
    found = set()
    for first in range(RELATIONS):
        for second in range(first, RELATIONS):
            for inverse in (False, True):
                other = {(pair[1], pair[0]) if inverse else pair for pair in pairs[second]}
                both = pairs[first] & other
                counted = {pair for pair in both if first != second or pair[0] != pair[1]}  # a loop mirrors itself
                if (first == second and not inverse) or len(counted) < LEAST:
                    continue
                shares = len(both) / len(pairs[first]), len(both) / len(pairs[second])
                if min(shares) >= share:
                    found.add(Link(first, second, inverse, len(both), shares))
    return found


@settings(max_examples=60)
@given(SPLITS, st.sampled_from([7, 1 << 20]))
def test_links_are_those_of_the_definition(splits: list[list[Triple]], at_once: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "AT_ONCE", at_once)
        patch.setattr(leaks, "PIECE", 5)
        assert set(find(portions(arrays(splits)), RELATIONS)) == plain_links(splits)


@settings(max_examples=60)
@given(SPLITS)
def test_what_is_implied_is_what_the_closest_other_relation_repeats(splits: list[list[Triple]]) -> None:
    closest = [0.0] * RELATIONS
    for link in plain_links(splits, NEARLY):
        if link.first != link.second:
            for relation, share in zip(link[:2], link.shares, strict=True):
                closest[relation] = max(closest[relation], share)
    shares = [closest[relation] for _, relation, _ in itertools.chain(*splits)]
    assert implied(arrays(splits), RELATIONS) == pytest.approx(sum(shares) / max(1, len(shares)))


def other_forms(links: list[Link], triple: Triple) -> set[Triple]:
    """All triples that say the same, link by link."""
    found, new = {triple}, [triple]
    while new:
        head, relation, tail = new.pop()
        for link in links:
            for here, there in ((link.first, link.second), (link.second, link.first)):
                said = (tail, there, head) if link.inverse else (head, there, tail)
                if here == relation and said not in found:
                    found.add(said)
                    new.append(said)
    return found


LINKS = st.lists(
    st.builds(Link, st.integers(0, 3), st.integers(0, 3), st.booleans(), st.just(9), st.just((1.0, 1.0))).filter(
        lambda link: link.inverse or link.first != link.second
    ),
    max_size=4,
)


@settings(max_examples=60)
@given(SPLITS, LINKS, st.sampled_from([7, 1 << 20]))
def test_overlaps_are_those_of_the_definition(splits: list[list[Triple]], links: list[Link], at_once: int) -> None:
    families = Families.of(links, RELATIONS)
    assert families.linked.tolist() == [any(relation in link[:2] for link in links) for relation in range(RELATIONS)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaks, "AT_ONCE", at_once)
        found = overlap(portions(arrays(splits)), families, len(splits))
    assert found.triples.tolist() == [len(split) for split in splits]
    assert found.repeats.tolist() == [len(split) - len(set(split)) for split in splits]
    train = set(splits[0])
    known = [[triple in train and place > 0 for triple in split] for place, split in enumerate(splits)]
    assert found.known.tolist() == [sum(each) for each in known]
    answered = [
        [bool(place and not there and other_forms(links, triple) & train) for triple, there in zip(split, both, strict=True)]
        for place, (split, both) in enumerate(zip(splits, known, strict=True))
    ]
    assert found.answered.tolist() == [sum(each) for each in answered]


def test_a_sample_finds_what_the_whole_holds() -> None:
    """60,000 triples of relation 0, their inverses in relation 1, as many of others; of test, a third repeats train."""
    draw = np.random.default_rng(0)
    ends = draw.integers(0, 5000, (60_000, 2))
    zero = np.stack([ends[:, 0], np.zeros(len(ends), int), ends[:, 1]], 1)
    other = np.stack([draw.integers(0, 5000, len(ends)), draw.integers(2, 9, len(ends)), draw.integers(0, 5000, len(ends))], 1)
    train = np.concatenate([zero, np.stack([ends[:, 1], np.ones(len(ends), int), ends[:, 0]], 1)[6000:], other]).astype(np.int32)
    test = np.concatenate([np.stack([ends[:6000, 1], np.ones(6000, int), ends[:6000, 0]], 1), other[:3000]]).astype(np.int32)
    some, asked = sample([train, test])
    assert len(some.triples) < 20_000 and len(asked.triples) < 20_000
    links = find([some], 9)
    assert [link[:3] for link in links] == [(0, 1, True)]
    found = overlap([asked], Families.of(links, 9), 2)
    assert found.known[1] / found.triples[1] == pytest.approx(1 / 3, abs=0.03)
    assert found.answered[1] / found.triples[1] == pytest.approx(2 / 3, abs=0.03)
    assert implied([train, test], 9) == pytest.approx(120_000 / 183_000, abs=0.03)
    everything = sample([train[:100], test[:10]])
    assert [len(part.triples) for part in everything] == [110, 110]


def test_the_numbers_of_a_portion_say_where_its_triples_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leaks, "AT_ONCE", 20)
    monkeypatch.setattr(leaks, "PIECE", 11)
    splits = [np.random.default_rng(place).integers(0, 9, (50, 3), np.int32) for place in range(2)]
    parts = list(portions(splits))
    whole, numbers = np.concatenate(splits), np.concatenate([part.number for part in parts])
    assert len(parts) == 5 and sorted(numbers) == list(range(100))
    assert all((whole[part.number] == part.triples).all() and ((part.number >= 50) == part.split).all() for part in parts)


@given(st.lists(st.tuples(*[st.integers(0, 3) | st.sampled_from([2**31 - 1, 2**31 - 2])] * 3), max_size=60))
def test_repeated_triples_are_counted(triples: list[Triple]) -> None:
    assert repeated(np.array(triples, np.int32).reshape(-1, 3)) == len(triples) - len(set(triples))
