"""The running selection against sorting everything."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import jit
from kgdist.kernels.top import Top


@pytest.fixture(params=["numba", "torch"], autouse=True, scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of this file runs with either twin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", request.param)
        yield request.param


def sorted_best(true: np.ndarray, k: int, left_out: list[set[int]], bar: np.ndarray) -> list[list[tuple[float, int]]]:
    """Row by row the k best (score, id) by score, then id; those below `bar` may be missing."""
    found = []
    for p, line in enumerate(true):
        pairs = [(-score, i) for i, score in enumerate(line.tolist()) if i not in left_out[p] and score >= bar[p]]
        found.append([(-score, i) for score, i in sorted(pairs)[:k]])
    return found


def listed(top: Top) -> list[list[tuple[float, int]]]:
    counts, ids, scores = top.best()
    assert (ids[np.arange(ids.shape[1]) >= counts[:, None]] == -1).all()
    return [list(zip(scores[p, :n].tolist(), ids[p, :n].tolist(), strict=True)) for p, n in enumerate(counts)]


@given(
    st.integers(0, 6),
    st.integers(0, 700),
    st.integers(1, 60),
    st.integers(0, 2**32),
    st.sampled_from([1, 3, 50, 10**6]),
    st.sampled_from([0.0, 0.01, 2.0, np.inf]),
    st.booleans(),
)
@settings(max_examples=120)
def test_the_best_are_those_of_sorting_all(
    rows: int, width: int, k: int, seed: int, kinds: int, reach: float, ascending: bool
) -> None:
    rng = np.random.default_rng(seed)
    true = rng.integers(0, kinds, (rows, width)) / kinds
    if ascending:  # every candidate is better than those before it
        true = np.sort(true, axis=1)
    left_out = [set(rng.choice(800, rng.integers(0, 300), replace=False).tolist()) for _ in range(rows)]
    skipped = np.array([i for ids in left_out for i in sorted(ids)], np.int32)
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in left_out])]).astype(np.int64)
    error = min(reach, 5.0) * rng.uniform(-0.99, 0.99, true.shape)
    seen = (true + error).astype(np.float32)
    if np.isinf(reach):
        seen[rng.random(seen.shape) < 0.1] = rng.choice([np.nan, np.inf, -np.inf])
    top = Top(rows, k, lambda row, ids: true[row, ids])
    bar = rng.choice([-np.inf, 0.5, 1.5], rows)
    top.raise_bar(bar)
    cuts = np.sort(rng.integers(0, width + 1, 3)).tolist()
    for start, stop in zip([0, *cuts], [*cuts, width], strict=True):
        bounds = None if reach == 0 and kinds < 10 else torch.full((rows,), reach + 1e-6)
        top.add(torch.from_numpy(seen[:, start:stop]), start, bounds, offsets, skipped)
    assert [[pair for pair in line if pair[0] >= low] for line, low in zip(listed(top), bar, strict=True)] == sorted_best(
        true, k, left_out, bar
    )


def test_blocks_may_differ_in_how_sure_they_are() -> None:
    true = np.array([[0.0, 3.0, 2.0, 1.0]])
    top = Top(1, 1, lambda row, ids: true[row, ids])
    top.add(torch.tensor([[0.0, 3.0]]), 0, np.array([0.0]))
    top.add(torch.tensor([[2.4, 0.6]]), 2, np.array([0.5]))
    assert listed(top) == [[(3.0, 1)]]
    top.add(torch.tensor([[-5.0]]), 4, np.array([np.inf]))
    true = np.array([[0.0, 3.0, 2.0, 1.0, 4.0]])
    assert listed(top) == [[(4.0, 4)]]


def test_equal_scores_are_in_the_order_of_ids() -> None:
    top = Top(2, 5)
    for start in (0, 400, 800):
        top.add(torch.ones(2, 400), start)
    assert listed(top) == [[(1.0, i) for i in range(5)]] * 2


def test_what_does_not_fit_is_refused() -> None:
    top = Top(2, 1)
    with pytest.raises(ValueError, match="fit"):
        top.add(torch.zeros(3, 4), 0)
    with pytest.raises(ValueError, match="fit"):
        top.add(torch.zeros(2, 4), 0, None, np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="ascend"):
        top.add(torch.zeros(2, 4), 0, None, np.array([0, 1, 2]), np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="best"):
        Top(2, 0)
