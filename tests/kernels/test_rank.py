"""The ranking pass against one comparison at a time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import jit
from kgdist.kernels.rank import Near, rank_block

INF, NAN = float("inf"), float("nan")


@pytest.fixture(params=["numba", "torch"], autouse=True, scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of this file runs with either twin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", request.param)
        yield request.param


Block = tuple[np.ndarray, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """scores, start, low, high, offsets, known: with ties, NaN, infinities, crossed thresholds and repeated known ids."""
    queries, width, start = draw(st.integers(0, 7)), draw(st.integers(0, 300)), draw(st.integers(0, 50))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = rng.integers(-5, 6, (queries, width)).astype(np.float32)
    odd = draw(st.sampled_from([0.0, 0.1]))
    scores = np.where(rng.random(scores.shape) < odd, rng.choice([NAN, INF, -INF], scores.shape), scores).astype(np.float32)
    low = rng.choice([-INF, -6, -3, 0, 2, 7, INF, NAN] if odd else [-3, 0, 2], queries).astype(np.float32)
    high = (low + rng.integers(-1, 4, queries)).astype(np.float32)
    known = [np.sort(rng.integers(0, 400, rng.integers(0, 60))) for _ in range(queries)]
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids in known])]).astype(np.int64)
    return scores, start, low, high, offsets, np.concatenate([*known, np.zeros(0)]).astype(np.int32)


@given(blocks())
@settings(max_examples=150)
def test_counts_and_pairs_are_those_of_one_by_one(block: Block) -> None:
    scores, start, low, high, offsets, known = block
    greater, pairs = np.full(len(scores), 10), []
    for p, line in enumerate(scores):
        left_out = set(known[offsets[p] : offsets[p + 1]].tolist())
        for k, score in enumerate(line):
            if start + k in left_out:
                continue
            if score > high[p]:
                greater[p] += 1
            elif not score < low[p]:
                pairs.append((p, start + k))
    counts, near = torch.full((len(scores),), 10), Near(2)
    tensors = [torch.from_numpy(each) for each in (scores, low, high)]
    rank_block(tensors[0], start, *tensors[1:], offsets, known, counts, near)
    assert counts.tolist() == greater.tolist()
    assert list(zip(near.rows.tolist(), near.candidates.tolist(), strict=True)) == pairs
    np.testing.assert_array_equal(tensors[0].numpy(), scores)  # left as they were


@given(blocks(), st.integers(0, 300))
@settings(max_examples=40)
def test_blocks_add_up(block: Block, cut: int) -> None:
    scores, start, low, high, offsets, known = block
    cut = min(cut, scores.shape[1])
    limits = torch.from_numpy(low), torch.from_numpy(high)
    whole, parts = (torch.zeros(len(scores), dtype=torch.int64) for _ in range(2))
    one, two = Near(), Near(1)
    rank_block(torch.from_numpy(scores), start, *limits, offsets, known, whole, one)
    rank_block(torch.from_numpy(scores[:, :cut]), start, *limits, offsets, known, parts, two)  # a view that is not contiguous
    rank_block(torch.from_numpy(scores[:, cut:]), start + cut, *limits, offsets, known, parts, two)
    assert whole.tolist() == parts.tolist()
    found = [sorted(zip(near.rows.tolist(), near.candidates.tolist(), strict=True)) for near in (one, two)]
    assert found[0] == found[1]


def test_nan_is_too_close_to_call() -> None:
    counts, near = torch.zeros(2, dtype=torch.int64), Near()
    scores = torch.tensor([[NAN, 1.0, 5.0], [0.0, 1.0, 5.0]])
    limit = torch.tensor([2.0, NAN])
    rank_block(scores, 0, limit, limit, np.array([0, 0, 0]), np.zeros(0, np.int64), counts, near)
    assert counts.tolist() == [1, 0]
    assert list(zip(near.rows, near.candidates, strict=True)) == [(0, 0), (1, 0), (1, 1), (1, 2)]


def test_the_list_grows_and_is_used_again() -> None:
    scores, limit = torch.zeros(50, 400), torch.zeros(50)
    counts, near = torch.zeros(50, dtype=torch.int64), Near(1)
    for _ in range(2):
        near.clear()
        rank_block(scores, 7, limit, limit, np.arange(51), np.full(50, 8), counts, near)
        assert len(near) == 50 * 399
        assert (near.rows == np.repeat(np.arange(50), 399)).all()
        assert 8 not in near.candidates
        assert not counts.any()


def test_what_does_not_fit_is_refused() -> None:
    counts, limit = torch.zeros(2, dtype=torch.int64), torch.zeros(2)
    offsets, known = np.array([0, 1, 2]), np.array([3, 4])
    with pytest.raises(ValueError, match="do not fit"):
        rank_block(torch.zeros(2, 3), 0, limit[:1], limit, offsets, known, counts, Near())
    with pytest.raises(ValueError, match="ascend"):
        rank_block(torch.zeros(2, 3), 0, limit, limit, np.array([0, 2, 3]), known, counts, Near())
    with pytest.raises(ValueError, match="ascend"):
        rank_block(torch.zeros(2, 3), 0, limit, limit, np.array([0, 2, 1]), known, counts, Near())
    with pytest.raises(ValueError, match="int64"):
        rank_block(torch.zeros(2, 3), 0, limit, limit, offsets, known, counts.int(), Near())
