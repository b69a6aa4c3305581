"""Gradients by use gathered by row, against dictionaries of float64 rows: the sums, the regularisation and the mean squares; the
penalty, compiled and in torch, against autograd of its formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import jit
from kgdist.kernels.gradients import EACH, ONCE, Penalty
from kgdist.kernels.hashing import unique

F = np.float32
PENALTIES = st.tuples(st.sampled_from([0.0, 1e-9, 0.01, 2.0]), st.integers(1, 4))


class Sums:
    """What the loops are to find. Each use adds its gradient, with the term's, to its row, and its mean square to the row's."""

    def __init__(self, coef: float, p: int) -> None:
        self.coef, self.p = coef, p
        self.value = 0.0
        self.grads: dict[int, np.ndarray] = {}
        self.squares: dict[int, float] = {}

    def use(self, row: int, value: np.ndarray, grad: np.ndarray, times: float = 1.0) -> None:
        """float32[D] of a row and its gradient."""
        x = value.astype(float)
        grad = grad + times * self.coef * self.p * np.sign(x) * np.abs(x) ** (self.p - 1)
        self.value += times * self.coef * (np.abs(x) ** self.p).sum()
        self.grads[row] = self.grads.get(row, 0.0) + grad
        self.squares[row] = self.squares.get(row, 0.0) + (grad**2).sum() / max(1, len(grad))

    def check(self, value: float, grads: np.ndarray, squares: np.ndarray) -> None:
        """Raises AssertionError."""
        assert value == pytest.approx(self.value, rel=1e-5)
        for row, want in self.grads.items():
            np.testing.assert_allclose(grads[row], want, rtol=3e-6, atol=3e-6 * (1 + np.abs(want).max(initial=0)))
            np.testing.assert_allclose(squares[row], self.squares[row], rtol=1e-5, atol=1e-37)


def numbers(rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    """float32[count, width], with zeros of both signs."""
    return (rng.normal(0, 1, (count, width)) * rng.choice([1.0, 0.0, -1.0], (count, width))).astype(F)


SEEDS, WIDTHS = st.integers(0, 2**32), st.one_of(st.integers(0, 40), st.sampled_from([64, 400, 512]))


@given(SEEDS, st.integers(0, 12), WIDTHS, PENALTIES, st.booleans(), st.booleans())
@settings(max_examples=80)
def test_rows_with_their_number_of_uses(
    seed: int, count: int, width: int, penalty: tuple[float, int], counted: bool, placed: bool
) -> None:
    rng, (coef, p) = np.random.default_rng(seed), penalty
    values, grads, squares = numbers(rng, count, width), numbers(rng, count, width), np.full(count, np.nan, F)
    counts = rng.integers(0, 5, count).astype(F)
    want = Sums(coef, p)
    for u in range(count):
        want.use(u, values[u], grads[u], counts[u] if counted else 1.0)
    places = rng.permutation(count) if placed else EACH
    table = values[np.argsort(places)] if placed else values  # table[places] is values
    found = Penalty(coef, p).rows(table, grads, squares, places=places, counts=counts if counted else ONCE)
    want.check(found, grads, squares)


@given(SEEDS, st.integers(0, 30), st.integers(1, 6), WIDTHS, PENALTIES)
@settings(max_examples=80)
def test_uses_gathered_by_row(seed: int, count: int, rows: int, width: int, penalty: tuple[float, int]) -> None:
    rng, (coef, p) = np.random.default_rng(seed), penalty
    values, places, grads = numbers(rng, rows, width), rng.integers(rows, size=count), numbers(rng, count, width)
    out, squares = np.zeros((rows, width), F), np.zeros(rows, F)
    want = Sums(coef, p)
    for u, row in enumerate(places.tolist()):
        want.use(row, values[row], grads[u])
    found = Penalty(coef, p).gather(values, places, grads, out, squares)
    want.check(found, out, squares)
    for row in set(range(rows)) - set(places.tolist()):
        assert not out[row].any() and squares[row] == 0


@given(SEEDS, st.integers(1, 8), st.integers(0, 30), st.sampled_from([1, 3, 12, 10**6]), WIDTHS, PENALTIES)
@settings(max_examples=120)
def test_draws_settled_where_they_lie(
    seed: int, first: int, count: int, entities: int, width: int, penalty: tuple[float, int]
) -> None:  # fmt: skip
    """Draws that are positives, draws drawn before, all the same, all different."""
    rng, (coef, p) = np.random.default_rng(seed), penalty
    draws = rng.integers(entities, size=count)
    table = {entity: numbers(rng, 1, width)[0] for entity in sorted(set(draws.tolist()))}
    values = np.stack([table[entity] for entity in draws.tolist()]) if count else np.empty((0, width), F)
    ids, places = unique(np.concatenate([np.arange(first), draws]))
    grads, squares = numbers(rng, first + count, width), np.full(len(ids), np.nan, F)
    squares[:first] = rng.random(first)
    want = Sums(coef, p)
    for row in range(first):
        want.grads[row], want.squares[row] = grads[row].astype(float), float(squares[row])
    for u, row in enumerate(places[first:].tolist()):
        want.use(row, values[u], grads[first + u])
    found = Penalty(coef, p).settle(values, places[first:], first, grads, squares)
    want.check(found, grads, squares)
    assert len(want.grads) == len(ids)


@pytest.mark.parametrize("p", [1, 2, 3, 4])
def test_zeros_have_no_slope_and_nan_shows(p: int) -> None:
    values, grads, squares = np.zeros((1, 20), F), np.zeros((1, 20), F), np.zeros(1, F)
    assert Penalty(1.0, p).rows(values, grads, squares) == 0
    assert not grads.any() and not squares.any()
    values[0, 11] = np.nan
    assert np.isnan(Penalty(1.0, p).rows(values, grads, squares))


@pytest.mark.parametrize("kernels", ["numba", "torch"])
@given(
    u=st.integers(0, 6), d=st.integers(1, 40), p=st.integers(0, 5), coef=st.sampled_from([0.0, 1e-9, 0.5]), counted=st.booleans()
)
def test_gradient_value_and_squares(kernels: str, u: int, d: int, p: int, coef: float, counted: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", kernels)
        generator = torch.Generator().manual_seed(u * 100 + d)
        rows, before = torch.randn(u, d, generator=generator), torch.randn(u, d, generator=generator)
        rows[:, ::3] = 0  # where |x| has no slope
        counts = torch.arange(u).float() if counted else None
        grads = before.clone()
        squares, value = Penalty(coef, p).add(rows, grads, counts)
    leaf = rows.double().requires_grad_()
    uses = counts.double() if counts is not None else torch.ones(u).double()
    term = (leaf.abs().pow(p).sum(1) * uses).sum() * coef if p else leaf.sum() * 0
    term.backward()
    assert leaf.grad is not None
    torch.testing.assert_close(grads.double(), before.double() + leaf.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(squares, grads.square().mean(1), rtol=1e-4, atol=1e-6)
    assert value == pytest.approx(term.item(), rel=1e-3, abs=1e-6)
