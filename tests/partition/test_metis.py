"""The graph that METIS gets, and what never reaches it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings

from kgdist.base.errors import OptionError
from kgdist.partition import metis
from kgdist.partition.graph import Adjacency, adjacency, degrees
from tests.partition.worlds import communities, graphs


@settings(max_examples=50)
@given(graphs())
def test_the_adjacency_is_that_of_a_matrix(graph: tuple[int, int, np.ndarray]) -> None:
    entities, relations, triples = graph
    found = degrees(triples, entities, relations)
    matrix, incoming = np.zeros((entities, entities), int), np.zeros(entities, int)
    for head, _, tail in triples:
        incoming[tail] += 1
        if head != tail:
            matrix[head, tail] += 1
            matrix[tail, head] += 1
    rows = adjacency(triples, found)
    assert rows.fault() is None
    assert found.incoming.tolist() == incoming.tolist() and found.ends.tolist() == matrix.sum(axis=0).tolist()
    for v in range(entities):
        own = slice(rows.starts[v], rows.starts[v + 1])
        assert dict(zip(rows.neighbours[own].tolist(), rows.weights[own].tolist(), strict=True)) == {
            u: int(weight) for u, weight in enumerate(matrix[v]) if weight
        }


def of(rows: list[list[int]], weights: list[int] | None = None, starts: list[int] | None = None) -> Adjacency:
    ends = np.cumsum([0, *map(len, rows)])
    flat = np.array([u for row in rows for u in row], np.int64)
    return Adjacency(np.array(starts or ends, np.int64), flat, np.array(weights or [1] * len(flat), np.int64))


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (of([[1], []]), "symmetric"),
        (of([[1], [0]], weights=[1, 2]), "symmetric"),
        (of([[1, 2], [0], [1]]), "symmetric"),
        (of([[2], [0]]), "do not exist"),
        (of([[-1], [0]]), "do not exist"),
        (of([[1 << 40], [0]]), "do not exist"),
        (of([[0], [0]]), "loop"),
        (of([[1], [0]], weights=[0, 0]), "weight"),
        (of([[1], [0]], weights=[-1, -1]), "weight"),
        (of([[1], [0]], starts=[0, 3, 2]), "rows"),
        (of([[1], [0]], starts=[0, 1, 9]), "rows"),
        (of([[1], [0]], starts=[1, 1, 2]), "rows"),
        (of([[1], [0]], starts=[0, -5, 2]), "rows"),
        (of([[1], [0]], weights=[1]), "rows"),
    ],
)
def test_what_would_crash_metis_never_reaches_it(graph: Adjacency, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metis, "library", lambda: pytest.fail("METIS was asked"))
    n = len(graph.starts) - 1
    with pytest.raises(ValueError, match=reason):
        metis.divide(graph, np.ones((n, 1), np.int64), 2, tolerance=(1.03,), seed=0)


@pytest.mark.parametrize(
    ("loads", "parts"),
    [
        (np.ones((3, 1), np.int64), 2),
        (np.ones((2, 2), np.int64), 2),
        (-np.ones((2, 1), np.int64), 2),
        (np.ones((2, 1), np.int64), 3),
    ],
)
def test_loads_and_parts_that_cannot_be_are_refused(loads: np.ndarray, parts: int) -> None:
    with pytest.raises(ValueError, match="loads of shape"):
        metis.divide(of([[1], [0]]), loads, parts, tolerance=(1.03,), seed=0)


@pytest.mark.parametrize("halving", [False, True])
def test_several_loads_are_even_at_once(halving: bool) -> None:
    triples = communities(entities=800)
    found = degrees(triples, 800, 5)
    rare = (np.arange(800) % 16 == 0).astype(np.int64)
    loads = np.stack([np.ones(800, np.int64), found.incoming, rare], axis=1)
    parts = metis.divide(adjacency(triples, found), loads, 4, tolerance=(1.1, 1.1, 1.1), seed=3, halving=halving)
    for column in loads.T:
        held = np.bincount(parts, weights=column, minlength=4)
        assert held.max() <= 1.2 * held.mean()


def test_a_load_of_zeros_is_no_constraint() -> None:
    loads = np.stack([np.ones(4, np.int64), np.zeros(4, np.int64)], axis=1)
    graph = of([[1], [0], [3], [2]])
    parts = metis.divide(graph, loads, 2, tolerance=(1.0, 1.0), seed=0)
    assert parts[0] == parts[1] != parts[2] == parts[3]
    assert not metis.divide(graph, np.zeros((4, 1), np.int64), 2, tolerance=(1.0,), seed=0).any()


def test_integers_are_as_wide_as_the_library_says() -> None:
    assert metis.library().integer in (np.dtype(np.int64), np.dtype(np.int32))


def test_without_pymetis_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    metis.library.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "pymetis", None)
    with pytest.raises(OptionError, match=r"^--method: metis needs the package pymetis .*--method streaming$"):
        metis.library()
    metis.library.cache_clear()


def test_a_graph_beyond_integers_of_32_bits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = metis.library()
    monkeypatch.setattr(narrow, "integer", np.dtype(np.int32))
    with pytest.raises(OptionError, match=r"32 bits.*--method streaming"):
        metis.divide(of([[1], [0]]), np.full((2, 1), 1 << 31, np.int64), 2, tolerance=(1.03,), seed=0)
