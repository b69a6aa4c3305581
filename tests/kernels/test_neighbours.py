"""Drawing neighbours: the bits of plain NumPy, the right counts, and evenly or by weight."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import UsageError
from kgdist.graphs.structure import Answer, Draw, InEdges, Question
from kgdist.kernels import neighbours as loops
from kgdist.kernels.hashing import numbered, unique
from tests.kernels import numpy_neighbours as plain
from tests.kernels.test_random import chi_square

ETYPE = ("_N", "_E", "_N")
DRAW = Draw(1, 2, 3)


def star(degree: int, ids: bool = False, rows: int = 3) -> InEdges:
    """`degree` edges to each node; the source of an edge at place p is p, its id (where it has one of its own) counts down."""
    edges = rows * degree
    starts = np.arange(rows + 1, dtype=np.int64) * degree
    return InEdges(starts, np.arange(edges, dtype=np.int32), np.arange(edges)[::-1].copy() if ids else None)


def ask(
    edges: InEdges, nodes: list[int], fanout: int, draw: Draw = DRAW, weights: np.ndarray | None = None, **how: Any
) -> Answer:
    answer = edges.neighbours(Question(ETYPE, np.array(nodes), fanout, **how), draw, 5, weights)
    assert answer.counts.sum() == len(answer.ends) == len(answer.edges)
    return answer


# Rows that are the bits of a word, fan-outs that are kept in order, and what needs scratch: all sides of both bounds.
@pytest.mark.parametrize("degree", [1, 2, 9, 63, 64, 65, 66, 200])
@pytest.mark.parametrize("fanout", [0, 1, 2, 8, 62, 63, 64, 65, 150])
@pytest.mark.parametrize("ids", [False, True])
def test_a_draw_has_the_bits_of_plain_numpy(degree: int, fanout: int, ids: bool) -> None:
    edges = star(degree, ids)
    nodes = [2, 0, 0, 1]
    for replace, twin in ((False, plain.floyd), (True, plain.again)):
        answer = ask(edges, nodes, fanout, replace=replace)
        taken = fanout if replace else min(fanout, degree)
        assert answer.counts.tolist() == [taken] * 4
        want = [node * degree + place for node in nodes for place in twin(plain.node_key(1, 2, 3, 5, node), degree, taken)]
        assert answer.ends.tolist() == want
        assert answer.edges.tolist() == [len(edges.sources) - 1 - place if ids else place for place in want]


@given(st.integers(-(2**63), 2**64), st.integers(0, 2**62), st.integers(1, 90), st.integers(1, 90), st.data())
@settings(max_examples=60)
def test_draws_by_weight_are_those_of_plain_numpy(seed: int, step: int, degree: int, fanout: int, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([np.float32, np.float64]))
    weights = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.25, 1.0, 3.0, 1e-3]), min_size=degree, max_size=degree)), kind)
    edges = star(degree, rows=1)
    there = np.flatnonzero(weights).tolist()
    heavy = [float(weights[place]) for place in there]
    key = plain.node_key(seed, step, 0, 5, 0)
    answer = ask(edges, [0], fanout, Draw(seed, step), weights, prob="w")
    assert answer.ends.tolist() == [there[place] for place in plain.lightest(key, heavy, fanout)]
    answer = ask(edges, [0], fanout, Draw(seed, step), weights, prob="w", replace=True)
    assert answer.ends.tolist() == ([there[place] for place in plain.by_weight(key, heavy, fanout)] if there else [])


@pytest.mark.parametrize("kind", [np.bool_, np.uint8])
@pytest.mark.parametrize("fanout", [-1, 1, 5, 70, 100])
def test_a_mask_draws_evenly_from_what_it_allows(kind: type, fanout: int) -> None:
    degree = 150
    mask = np.random.default_rng(0).random(3 * degree) < 0.5
    edges = star(degree)
    there = [np.flatnonzero(mask[row * degree : (row + 1) * degree]) + row * degree for row in range(3)]
    answer = ask(edges, [1, 2], fanout, weights=mask.astype(kind), prob="m")
    want = []
    for node in (1, 2):
        count = len(there[node])
        taken = count if fanout < 0 else min(fanout, count)
        want += there[node][plain.floyd(plain.node_key(1, 2, 3, 5, node), count, taken)].tolist()
    assert answer.ends.tolist() == want


def test_weights_belong_to_edges_and_not_to_places() -> None:
    edges = star(10, ids=True, rows=1)
    weights = np.zeros(10, np.float32)
    weights[[2, 7]] = 1
    assert sorted(ask(edges, [0], 5, weights=weights, prob="w").edges.tolist()) == [2, 7]


@pytest.mark.parametrize("replace", [False, True])
def test_excluded_edges_are_left_out_before_drawing(replace: bool) -> None:
    edges = InEdges(np.array([0, 20]), np.arange(20, dtype=np.int32), first=100)
    left_out = np.array([100, 103, 119, 119, 5000])
    for fanout in (3, 16, 17, 30, -1):
        answer = ask(edges, [0], fanout, exclude=left_out, replace=replace)
        assert not set(answer.edges.tolist()) & set(left_out.tolist())
        assert len(answer.edges) == (17 if fanout < 0 else fanout if replace else min(fanout, 17))
    assert len(ask(edges, [0], 4, exclude=np.arange(100, 120), replace=replace).edges) == 0


@pytest.mark.parametrize("degree, fanout", [(7, 3), (64, 5), (100, 10), (100, 70)])
def test_all_edges_are_drawn_equally_often(degree: int, fanout: int) -> None:
    rows = 20_000
    edges = InEdges(np.arange(rows + 1) * degree, np.tile(np.arange(degree, dtype=np.int32), rows))
    counts = np.bincount(ask(edges, list(range(rows)), fanout).ends, minlength=degree)
    # Edges of one node are not drawn independently: counts vary less, by (degree - fanout) / (degree - 1).
    statistic = chi_square(counts) * (2 * (degree - 1)) ** 0.5 + degree - 1
    scaled = statistic / (1 - fanout / degree) * (degree - 1) / degree
    assert abs(scaled - (degree - 1)) < 4 * (2 * (degree - 1)) ** 0.5


@pytest.mark.parametrize("replace", [False, True])
def test_an_edge_is_drawn_as_often_as_its_weight_says(replace: bool) -> None:
    weights = np.array([1.0, 2.0, 3.0, 0.0, 4.0])
    edges = star(5, rows=1)
    drawn = [ask(edges, [0], 1, Draw(3, step), weights, prob="w", replace=replace).ends[0] for step in range(20_000)]
    counts = np.bincount(drawn, minlength=5)
    assert counts[3] == 0
    expected = weights / weights.sum() * len(drawn)
    there = expected > 0
    assert (((counts - expected) ** 2)[there] / expected[there]).sum() < 16.3  # chi-square of 3, 1 in 1,000


def test_the_logarithm_is_one() -> None:
    hashes = [*np.random.default_rng(1).integers(0, 2**64, 2000, np.uint64).tolist(), 0, 2**64 - 1, 2**63, 1 << 11]
    for hashed in hashes:
        assert loops._exponential(np.uint64(hashed)) == pytest.approx(plain.exponential(hashed), rel=1e-15, abs=2e-16)


@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_weights_that_are_none_are_refused(weight: float) -> None:
    weights = np.ones(12, np.float32)
    weights[7] = weight
    with pytest.raises(UsageError, match="edge 7: its 'w' is not a weight: give numbers >= 0"):
        ask(star(4), [0, 1], 2, weights=weights, prob="w")
    with pytest.raises(UsageError, match=r"one number each: 12 of them, not an array of \(11,\)"):
        ask(star(4), [0], 2, weights=weights[1:], prob="w")
    with pytest.raises(UsageError, match="not by int64"):
        ask(star(4), [0], 2, weights=np.ones(12, np.int64), prob="w")


@pytest.mark.parametrize("node", [9, 13, -1, 2**40])
def test_a_node_of_another_partition_is_refused(node: int) -> None:
    edges = InEdges(np.array([0, 2, 2, 5]), np.zeros(5, np.int32), low=10)
    for weights in (None, np.ones(5, bool)):
        with pytest.raises(UsageError, match=f"there is no node {node}: they are numbered 10 to 12"):
            ask(edges, [10, 12, node], 1, weights=weights, prob="m" if weights is not None else None)
    assert edges.degrees(np.array([12, 10, 11])).tolist() == [3, 2, 0]
    with pytest.raises(UsageError, match=f"there is no node {node}"):
        edges.degrees(np.array([node]))


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_files_stay_mapped_and_answer_alike(kind: type, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    starts = np.concatenate([[0], np.cumsum(rng.integers(0, 90, 40))])
    sources = rng.integers(0, 1000, starts[-1]).astype(kind)
    for name, array in (("starts", starts), ("sources", sources), ("weights", rng.random(len(sources)).astype(np.float32))):
        np.save(tmp_path / f"{name}.npy", array)
    mapped = {
        name: np.load(tmp_path / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("starts", "sources", "weights")
    }
    here = InEdges(starts, sources, first=7, low=500)
    there = InEdges(mapped["starts"], mapped["sources"], first=7, low=500)
    for weights in (None, mapped["weights"]):
        for replace in (False, True):
            how: dict[str, Any] = {"prob": "w", "replace": replace} if weights is not None else {"replace": replace}
            found = [ask(each, list(range(500, 540)), 10, weights=weights, **how) for each in (here, there)]
            for one, other in zip(*found, strict=True):
                np.testing.assert_array_equal(one, other)
            assert (found[0].ends == sources[found[0].edges - 7]).all()


@pytest.mark.parametrize(
    "starts, sources, ids",
    [
        (np.array([0, 2]), np.zeros(3, np.int32), None),
        (np.array([1, 3]), np.zeros(3, np.int32), None),
        (np.zeros(0, np.int64), np.zeros(0, np.int32), None),
        (np.array([0, 3]), np.zeros(3, np.int32), np.arange(2)),
        (np.array([0, 3]), np.zeros(3, np.int16), None),
        (np.array([0.0, 3.0]), np.zeros(3, np.int32), None),
    ],
)
def test_arrays_that_do_not_fit_are_no_in_edges(starts: np.ndarray, sources: np.ndarray, ids: np.ndarray | None) -> None:
    with pytest.raises((ValueError, TypeError)):
        InEdges(starts, sources, ids)


def test_edges_are_found_by_place() -> None:
    edges = InEdges(np.array([0, 2, 2, 5]), np.array([4, 3, 2, 1, 0], np.int32), first=100, low=10)
    sources, destinations = edges.find_edges(np.array([104, 100, 101, 102]))
    assert (sources.tolist(), destinations.tolist()) == ([0, 4, 3, 2], [12, 10, 10, 12])
    for bad in (99, 105):
        with pytest.raises(UsageError, match=f"there is no edge {bad}: they are numbered 100 to 104"):
            edges.find_edges(np.array([100, bad]))


@given(st.integers(1, 9), st.lists(st.integers(0, 8), max_size=40))
@settings(max_examples=50)
def test_compressing_is_a_stable_sort(rows: int, ends: list[int]) -> None:
    starts, places = np.zeros(rows + 1, np.int64), np.empty(len(ends), np.int64)
    bad = loops.compress(np.array(ends, np.int64), starts, places)
    if max(ends, default=0) >= rows:
        assert bad == next(place for place, end in enumerate(ends) if end >= rows)
    else:
        assert bad == -1
        assert places.tolist() == sorted(range(len(ends)), key=lambda place: ends[place])
        assert starts.tolist() == np.searchsorted(np.sort(ends), np.arange(rows + 1)).tolist()


@given(st.lists(st.lists(st.integers(0, 2**33 + 1) | st.integers(0, 20), max_size=20), min_size=1, max_size=4))
def test_groups_are_numbered_as_one(groups: list[list[int]]) -> None:
    found, places = numbered([np.array(group, np.int64) for group in groups])
    want, where = unique(np.array([each for group in groups for each in group], np.int64))
    assert found.tolist() == want.tolist()
    assert np.concatenate(places).tolist() == where.tolist()
