"""Queries with a candidate of their own, compiled, against the comparators' formulas in float64 with autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels.comparators import COMPARATORS, gamma
from kgdist.kernels.pairs import KINDS, Pairs
from tests.formulas import crossed

F = np.float32
NAMES = sorted(KINDS)


@st.composite
def meetings(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """float32[B,Q] queries, float32[U,Q] rows, int64[B] rows used (often again), float32[B] upstream; some pairs are equal."""
    size, rows = draw(st.integers(0, 20)), draw(st.integers(1, 9))
    half = draw(st.one_of(st.integers(1, 40), st.sampled_from([64, 100, 256])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scales = np.array(draw(st.sampled_from([[1.0], [1.0, 0.0], [1e15, 1.0], [1e-20, 1.0], [1e-20]])))

    def numbers(count: int) -> np.ndarray:
        found = rng.normal(0, 1, (count, 2 * half))
        found = np.round(2 * found) / 2 if draw(st.booleans()) else found
        return (found * rng.choice(scales, (count, 1))).astype(F)

    q, entities, places = numbers(size), numbers(rows), rng.integers(rows, size=size)
    equal = rng.random(size) < draw(st.sampled_from([0.0, 0.3]))
    q[equal] = entities[places[equal]]
    return q, entities, places, rng.normal(0, 1, size).astype(F)


@pytest.mark.parametrize("name", NAMES)
@given(meetings(), st.booleans())
@settings(max_examples=80)
def test_values_and_gradients_are_those_of_the_formula(name: str, meeting: tuple[np.ndarray, ...], odd: bool) -> None:
    q, entities, places, upstream = meeting
    if odd and name != "modulus":
        q, entities = np.ascontiguousarray(q[:, :-1]), np.ascontiguousarray(entities[:, :-1])
    width = q.shape[1]
    got = np.full(len(q), np.nan, F)
    Pairs(name, q, entities, places).forward(got)
    rng = np.random.default_rng(width)
    before_q, before = rng.normal(0, 1, q.shape).astype(F), rng.normal(0, 1, entities.shape).astype(F)
    grad_q, grad = before_q.copy(), before.copy()
    Pairs(name, q, entities, places).backward(got, upstream, grad_q, grad)

    leaves = [torch.from_numpy(each).double().requires_grad_() for each in (q, entities)]
    chosen = leaves[1][torch.from_numpy(places)]
    want = crossed(name, leaves[0][:, None], chosen[:, None]).view(-1)
    want_q, want_grad = torch.autograd.grad(want, leaves, torch.from_numpy(upstream).double())
    terms = np.abs(q.astype(float) * entities[places]).sum(1) if name == "dot" else np.abs(want.detach().numpy())
    assert (np.abs(got - want.detach().numpy()) <= gamma(width + 12) * terms + width * 1e-18 + 2e-15).all()

    assert np.isfinite(grad_q).all() and np.isfinite(grad).all()
    slopes = np.abs(upstream.astype(float))[:, None] * np.ones(q.shape)
    bound_q, bound = slopes.copy(), np.zeros(entities.shape)
    if name == "dot":
        bound_q = slopes * np.abs(entities[places])
        slopes = slopes * np.abs(q)
    np.add.at(bound, places, slopes)
    assert (np.abs(grad_q - before_q - want_q.numpy()) <= 4e-6 * (bound_q + np.abs(before_q)) + 1e-37).all()
    assert (np.abs(grad - before - want_grad.numpy()) <= 4e-6 * (bound + np.abs(before)) + 1e-37).all()


@pytest.mark.parametrize("name", NAMES)
def test_a_zero_distance_pushes_nowhere(name: str) -> None:
    rows, places = np.ones((2, 34), F), np.array([1, 0, 1])
    q, scores = rows[places].copy(), np.empty(3, F)
    Pairs(name, q, rows, places).forward(scores)
    grad_q, grad = np.zeros_like(q), np.zeros_like(rows)
    Pairs(name, q, rows, places).backward(scores, np.ones(3, F), grad_q, grad)
    if name != "dot":
        assert np.abs(scores).max() <= 1e-15
        assert not grad_q.any() and not grad.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_numbers_are_not_hidden(name: str, bad: float) -> None:
    q, rows, scores = np.ones((3, 40), F), np.zeros((3, 40), F), np.zeros(3, F)
    q[1, 37] = bad
    with np.errstate(invalid="ignore"):
        Pairs(name, q, rows, np.arange(3)).forward(scores)
    assert np.isfinite(scores).tolist() == [True, False, True]


@pytest.mark.parametrize("name", NAMES)
def test_a_pair_is_the_comparators_pair(name: str) -> None:
    """The loops and `Comparator.pair`, which scores positives in the other step, are one function."""
    generator = torch.Generator().manual_seed(0)
    q, rows = torch.randn(50, 400, generator=generator), torch.randn(30, 400, generator=generator)
    places = torch.randint(30, (50,), generator=generator)
    scores = np.empty(50, F)
    Pairs(name, q.numpy(), rows.numpy(), places.numpy()).forward(scores)
    torch.testing.assert_close(torch.from_numpy(scores), COMPARATORS[name].pair(q, rows[places]), rtol=2e-6, atol=3e-5)
