"""The most similar embeddings against sorting all scores: five functions, ties, zero rows, blocks, threads, huge values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as hnp

from kgdist.kernels import jit
from kgdist.predict.similar import MEASURES, SimilarPairs, SimilarSearch

# Small whole numbers: products and sums are exact, so ties are ties.
TABLES = hnp.arrays(np.int8, st.tuples(st.integers(1, 14), st.integers(1, 5)), elements=st.integers(-2, 2))


def oracle(name: str, table: np.ndarray) -> np.ndarray:
    """float64[n,n]: all scores."""
    x = table.astype(np.float64)
    dot, squares = x @ x.T, np.square(x).sum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: np.ndarray = {
            "dot": lambda: dot,
            "cosine": lambda: np.nan_to_num(dot / np.sqrt(np.outer(squares, squares))),
            "ext_jaccard": lambda: np.nan_to_num(dot / (squares[:, None] + squares - dot)),
            "l1": lambda: -np.abs(x[:, None] - x).sum(2),
            "l2": lambda: -np.sqrt(np.square(x[:, None] - x).sum(2)),
        }[name]()
    return found


def first(scores: np.ndarray, allowed: list[tuple[int, int]], k: int) -> list[tuple[int, int, float]]:
    """The k best of the allowed pairs, equal ones by id."""
    return sorted(((a, b, float(scores[a, b])) for a, b in allowed), key=lambda each: (-each[2], each[0], each[1]))[:k]


def listed(found: SimilarPairs) -> list[tuple[int, int, float]]:
    return list(zip(*(part.tolist() for part in found), strict=True))


def search(name: str, table: np.ndarray, **how: int) -> SimilarSearch:
    return SimilarSearch(MEASURES[name](torch.from_numpy(table.astype(np.float32))), **how)


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(sorted(MEASURES)), table=TABLES, k=st.integers(1, 30))
def test_the_answers_are_those_of_sorting_all_scores(data: st.DataObject, name: str, table: np.ndarray, k: int) -> None:
    n = len(table)
    ids = st.none() | st.lists(st.integers(0, n - 1), min_size=1, max_size=8).map(np.array)
    left, right = data.draw(ids), data.draw(ids)
    how = data.draw(st.sampled_from([{}, {"left_block": 2, "right_block": 3}, {"left_block": 3, "right_block": 1, "threads": 2}]))
    looking, scores = search(name, table, **how), oracle(name, table)
    lefts, rights = (list(range(n)) if each is None else each.tolist() for each in (left, right))
    others = left is None or right is None

    pairs = [(a, b) for a in sorted(set(lefts)) for b in sorted(set(rights)) if not (others and a == b)]
    once = [(a, b) for a, b in pairs if a < b] if left is right is None else pairs
    assert listed(looking.best(left, right, k)) == first(scores, once, k)

    each = [answer for a in lefts for answer in first(scores, [pair for pair in dict.fromkeys(pairs) if pair[0] == a], k)]
    assert [answer for found in looking.best_of_each(left, right, k) for answer in listed(found)] == each


@given(data=st.data(), name=st.sampled_from(sorted(MEASURES)), table=TABLES, k=st.integers(1, 9))
def test_pairs_side_by_side(data: st.DataObject, name: str, table: np.ndarray, k: int) -> None:
    pair = st.tuples(*(st.integers(0, len(table) - 1) for _ in range(2)))
    pairs = data.draw(st.lists(pair, min_size=1, max_size=12))
    left, right = (np.array(side) for side in zip(*pairs, strict=True))
    assert listed(search(name, table).best_of(left, right, k)) == first(oracle(name, table), pairs, k)


@pytest.mark.parametrize("name", sorted(MEASURES))
@pytest.mark.parametrize("scale", [1e-38, 1e-31, 1e-3, 1.0, 1e18, 1e31])
def test_the_bound_holds_and_the_best_are_found_at_any_scale(name: str, scale: float) -> None:
    rng = np.random.default_rng(3)
    table = (rng.normal(size=(300, 33)) * scale * rng.choice([1.0, 1e-3], size=(300, 1))).astype(np.float32)
    table[7] = 0
    table[11] = table[12]
    measure = MEASURES[name](torch.from_numpy(table))
    seen = measure.seen(slice(0, 300))
    keys, reach = measure.compare(seen, seen)
    rows, columns = (each.reshape(-1) for each in np.indices((300, 300)))
    exact = measure.exact(rows, columns).reshape(300, 300)
    off = np.abs(keys.double().numpy() - exact)
    assert (np.isnan(off) | (off <= reach.numpy()[:, None])).all()
    assert np.isfinite(exact).all()
    np.testing.assert_allclose(measure.score_of(exact), oracle(name, table), rtol=1e-9, atol=1e-9 * scale)
    found = SimilarSearch(measure, left_block=64, right_block=100).best(None, None, 25)
    upper = np.where(np.triu(np.ones((300, 300), bool), 1), measure.score_of(exact), -np.inf)
    order = np.lexsort((columns, rows, -upper.reshape(-1)))[:25]
    assert listed(found) == listed(SimilarPairs(rows[order], columns[order], upper.reshape(-1)[order]))


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_tensors_that_no_compiled_loop_takes_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    table = np.random.default_rng(0).normal(size=(60, 8))
    compiled = search(name, table).best(None, None, 40)
    monkeypatch.setattr(jit, "WANTED", "torch")
    plain = search(name, table, left_block=16, right_block=16).best(None, None, 40)
    assert np.array_equal(compiled.left, plain.left) and np.array_equal(compiled.right, plain.right)
    np.testing.assert_allclose(compiled.scores, plain.scores, rtol=1e-12)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_named(bad: float) -> None:
    table = np.ones((5000, 3))
    table[4567, 1] = bad
    with pytest.raises(ValueError, match="row 4567 holds NaN or infinity"):
        search("cosine", table)


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_in_a_thread_ends_the_search(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    looking = search("dot", np.eye(50), threads=threads, left_block=2)

    def failing(*args: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(looking.measure, "compare", failing)
    with pytest.raises(MemoryError):
        looking.best(None, None, 3)


def test_answers_come_in_blocks_that_can_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    looking = search("l2", np.arange(100)[:, None], threads=2, left_block=5)
    blocks = looking.best_of_each(None, None, 1)
    assert next(blocks).left.tolist() == [0, 1, 2, 3, 4]
    blocks.close()
    compared: list[int] = []
    whole: Callable[..., Any] = looking.measure.compare
    monkeypatch.setattr(looking.measure, "compare", lambda *pair: (compared.append(1), whole(*pair))[1])
    blocks = looking.best_of_each(None, None, 1)
    next(blocks)
    assert len(compared) < 20  # twice the threads are worked on ahead
    blocks.close()
