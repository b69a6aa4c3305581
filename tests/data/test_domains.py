"""Domains and ranges of relations against sets; the types of entities, from files; what triples weigh, counted one by one."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import DataError
from kgdist.base.types import Batch, Side
from kgdist.data import domains as domains_module
from kgdist.data.dataset import Triples
from kgdist.data.domains import Domains, Rows
from kgdist.data.entity_types import read_types
from kgdist.data.vocabulary import Vocabulary
from kgdist.data.weighing import Weighing

ENTITIES, RELATIONS, TYPES = 9, 4, 3
IDS = st.integers(0, ENTITIES - 1)
GRAPHS = st.lists(st.tuples(IDS, st.integers(0, RELATIONS - 1), IDS), min_size=1, max_size=30)
SIDES = {Side.HEAD: 0, Side.TAIL: 2}


def rows_of(domains: Domains, side: Side) -> list[list[int]]:
    return [domains.entities(side, relation).tolist() for relation in range(RELATIONS)]


KINDS = st.sets(st.tuples(IDS, st.integers(0, TYPES - 1)), min_size=1)


@given(graph=GRAPHS, types=KINDS, allowed=st.sets(IDS))
def test_they_are_the_sets(graph: list[tuple[int, int, int]], types: set[tuple[int, int]], allowed: set[int]) -> None:
    domains = Domains.of(np.array(graph, np.int32), RELATIONS)
    mask = np.isin(np.arange(ENTITIES), list(allowed))
    for side, column in SIDES.items():
        own = [{triple[column] for triple in graph if triple[1] == relation} for relation in range(RELATIONS)]
        assert rows_of(domains, side) == [sorted(each) for each in own]
        kinds = [{kind for entity, kind in types if entity in each} for each in own]
        of_types = [sorted({entity for entity, kind in types if kind in each}) for each in kinds]
        typed = domains.typed(np.array(sorted(types), np.int32), ENTITIES)
        assert rows_of(typed, side) == of_types
        within = typed.within(mask)
        assert rows_of(within, side) == [[entity for entity in each if entity in allowed] for each in of_types]
        assert within.sizes(side).tolist() == [len(each) for each in rows_of(within, side)]


@given(
    graph=GRAPHS, types=KINDS, kind=st.sampled_from(["own", "typed", "allowed"]), allowed=st.sets(IDS),
    candidates=st.lists(st.lists(IDS, min_size=3, max_size=3), min_size=2, max_size=2),
)  # fmt: skip
def test_membership_and_picks(
    graph: list[tuple[int, int, int]],
    types: set[tuple[int, int]],
    kind: str,
    allowed: set[int],
    candidates: list[list[int]],
) -> None:
    domains = Domains.of(np.array(graph, np.int32), RELATIONS)
    if kind != "own":
        domains = domains.typed(np.array(sorted(types), np.int32), ENTITIES)
    if kind == "allowed":
        domains = domains.within(np.isin(np.arange(ENTITIES), list(allowed)))
    relations, rows = np.arange(RELATIONS), np.arange(RELATIONS) % 2
    for side in SIDES:
        found = domains.has(side, relations, rows, np.array(candidates))
        for relation, row in zip(relations, rows, strict=True):
            inside = set(domains.entities(side, relation).tolist())
            assert found[relation].tolist() == [candidate in inside for candidate in candidates[row]]
            numbers = np.arange(len(inside))
            picked = domains.pick(side, np.full(len(inside), relation), numbers)
            assert picked.dtype == np.int64 and sorted(picked.tolist()) == sorted(inside)


@given(rows=st.lists(st.sets(st.integers(0, 4)), min_size=1, max_size=8), at_once=st.sampled_from([1, 3, 100]))
def test_rows(rows: list[set[int]], at_once: int) -> None:
    pairs = [(row << 32) + each for row, ids in enumerate(rows) for each in ids]
    other = [{0, 2}, {1}, set(), {0, 1, 2}, {2}]
    made = Rows.of(np.array(pairs, np.int64), len(rows))
    through = Rows.of(np.array([(row << 32) + each for row, ids in enumerate(other) for each in ids], np.int64), len(other))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(domains_module, "AT_ONCE", at_once)
        found = made.through(through)
    wanted = [sorted(set().union(*(other[each] for each in ids))) for ids in rows]
    assert [found.row(row).tolist() for row in range(len(rows))] == wanted and found.ids.dtype == np.int32
    turned = made.turned(5)
    assert [turned.row(each).tolist() for each in range(5)] == [
        [row for row, ids in enumerate(rows) if each in ids] for each in range(5)
    ]
    alike = made.alike().tolist()
    assert [[a == b for b in rows] for a in rows] == [[a == b for b in alike] for a in alike]
    assert set(alike) == set(range(max(alike) + 1))


def test_types_are_read_as_pairs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, entities = tmp_path / "types.tsv", Vocabulary.from_names(["a", "b", "c"])
    file.write_text("b\tcity\na\tcity\nc\tman\nz\tman\na\tman\na\tcity\n")
    assert read_types(file, entities).tolist() == [[0, 0], [0, 1], [1, 0], [2, 1]]
    assert "1 of its 6 lines are of entities that the graph does not have" in caplog.text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a\tcity\nb\n", ":2: expected `entity<TAB>type`, found 'b'"),
        ("a\tcity\nb\tcity\tman\n", ":2: expected `entity<TAB>type`, found 'b\\tcity\\tman'"),
        ("a\tcity\nb\t\n", ":2: the type is empty"),
        ("a\tcity\nc\tcity\n", ": has no line for 1 of 3 entities, the first is 'b'; add their types"),
        ("", ": is empty, expected lines of `entity<TAB>type`"),
    ],
)
def test_what_is_wrong_with_types_is_one_line(text: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "types.tsv"
    file.write_text(text)
    with pytest.raises(DataError) as caught:
        read_types(file, Vocabulary.from_names(["a", "b", "c"]))
    assert str(caught.value).startswith(f"{file}{problem}")


@given(
    graph=GRAPHS,
    weighted=st.booleans(),
    side=st.sampled_from([*Side, None]),
    pick=st.lists(st.integers(0, 29), min_size=1, max_size=8),
)
def test_weights_are_as_their_authors_count(
    graph: list[tuple[int, int, int]], weighted: bool, side: Side | None, pick: list[int]
) -> None:
    """`side` None: of both, those for heads turned round."""
    numbers = np.array(pick) % len(graph)
    array = np.array(graph, np.int32)
    given_weights = (1 + np.arange(len(graph))).astype(np.float32) if weighted else None
    heads, relations, tails = array[numbers].astype(np.int64).T
    own = given_weights[numbers] if given_weights is not None else None
    asked = [side or (Side.HEAD if pick[i] % 2 else Side.TAIL) for i in range(len(numbers))]
    answers = [each.pick(h, t) for each, h, t in zip(asked, heads.tolist(), tails.tolist(), strict=True)]
    inverse = None
    if side is None:
        inverse = np.array([each is Side.HEAD for each in asked])
        heads, tails = np.where(inverse, tails, heads), np.where(inverse, heads, tails)
    none = np.zeros((1, 1), np.int64)
    batch = Batch(heads, relations, tails, none, side or Side.TAIL, 8, weights=own, numbers=numbers, inverse=inverse)
    count: Counter[tuple[object, ...]] = Counter()
    for h, r, t in graph:  # as in the data loader of RotatE's authors: the first counts 4
        for query in ((h, r), (t, -r - 1)):
            count[query] = count[query] + 1 if count[query] else 4
    rare = np.array([(1 / (count[h, r] + count[t, -r - 1])) ** 0.5 for h, r, t in array[numbers].tolist()])
    sides = []
    for r, each in zip(relations.tolist(), asked, strict=True):
        triples = [triple for triple in graph if triple[1] == r]
        tph = len(triples) / len({h for h, _, _ in triples})
        hpt = len(triples) / len({t for _, _, t in triples})
        sides.append(2 * each.pick(tph, hpt) / (tph + hpt))
    plain = np.ones(len(numbers)) if own is None else own
    ends = Counter(end for h, _, t in graph for end in (h, t))  # as in the code of DURA's authors
    frequent = np.array([0.1 + 0.9 * ends[e] / max(ends.values()) for e in answers])
    for bernoulli, subsampling, answer in ((False, True, 1.0), (True, False, 1.0), (True, True, 0.1), (False, False, 0.1)):
        words = {"bernoulli": bernoulli, "subsampling": subsampling, "answer": answer}
        found = Weighing(Triples(array, given_weights), RELATIONS, **words)(batch).weights
        wanted = plain * (rare / rare.mean() if subsampling else 1) * (sides if bernoulli else 1)
        wanted = wanted * (frequent / frequent.mean() if answer < 1 else 1)
        assert found is not None and found.dtype == np.float32
        np.testing.assert_allclose(found, wanted, rtol=1e-5)
