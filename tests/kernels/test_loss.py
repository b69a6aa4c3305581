"""The compiled losses against `kgdist.training.losses` in float64 with autograd, their exp and log against the C library."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import loss
from kgdist.training.losses import GENRES, batch_loss, hinge

F = np.float32


class Given(NamedTuple):
    """Arguments of a loss; numbers are small fractions of powers of two, so that offset, limit and temperature round nothing."""

    positive: np.ndarray
    scores: np.ndarray  # with rows of padding
    keep: np.ndarray
    weights: np.ndarray
    offset: float
    limit: float
    genre: str
    margin: float
    temperature: float


@st.composite
def cases(draw: st.DrawFn) -> Given:
    """Ties, kinks of the hinge, scores at and beyond the limit, masks (whole rows, too), weights of 0."""
    size, width, padding = draw(st.integers(1, 9)), draw(st.sampled_from([1, 2, 3, 8, 16, 17, 40, 200])), draw(st.integers(0, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scale, step = draw(st.sampled_from([(1, 64), (16, 8), (1, 1), (0, 1), (2**15, 1), (64, 1)]))

    def numbers(*shape: int) -> np.ndarray:
        return (np.round(rng.normal(0, scale, shape) * step) / step).astype(F)

    scores = numbers(size + padding, width)
    keep = (
        rng.random((size, width)) < draw(st.sampled_from([0.0, 0.3, 0.9])) if draw(st.booleans()) else np.empty((0, width), bool)
    )
    if len(keep) and draw(st.booleans()):
        keep[rng.integers(size)] = False
    weights = rng.choice([0.0, 0.3, 1.0, 25.0], size).astype(F) if draw(st.booleans()) else np.empty(0, F)
    genre = draw(st.sampled_from(GENRES))
    temperature = draw(st.sampled_from([-1.0, 0.0, 0.5, 1.0, 4.0]))
    return Given(
        numbers(size), scores, keep, weights, draw(st.sampled_from([0.0, 12.0, 19.5])),
        draw(st.sampled_from([math.inf, 20.0, 1.0])), genre, draw(st.sampled_from([0.0, 1.0, 8.0])), temperature,
    )  # fmt: skip


def run(case: Given, *, pairwise: bool) -> tuple[np.ndarray, np.ndarray, tuple[float, ...]]:
    """(gradients of both kinds of scores, sums); what is written was NaN before."""
    grad, grad_scores = np.full_like(case.positive, np.nan), np.full_like(case.scores, np.nan)
    rule = loss.Rule(F(case.offset), F(case.limit), hinge(case.genre), F(case.margin), F(case.temperature))
    given = case.positive, case.scores, case.keep, case.weights, rule, grad, grad_scores
    return grad, grad_scores, (loss.pairwise(*given),) if pairwise else loss.pointwise(*given)


def plain(case: Given, *, pairwise: bool) -> tuple[torch.Tensor, torch.Tensor, tuple[float, ...]]:
    """The same by `batch_loss`."""
    size = len(case.positive)
    leaves = [torch.from_numpy(each).double().requires_grad_() for each in (case.positive, case.scores[:size])]
    positive, negative = ((each + case.offset).clamp(-case.limit, case.limit) for each in leaves)
    found = batch_loss(
        positive, negative, genre=case.genre, margin=case.margin, pairwise=pairwise,
        temperature=case.temperature if case.temperature >= 0 else None,
        weights=torch.from_numpy(case.weights).double() if len(case.weights) else None,
        masked=torch.from_numpy(~case.keep) if len(case.keep) else None,
    )  # fmt: skip
    grads = torch.autograd.grad(found.total, leaves, allow_unused=True)
    sums = (found.total,) if pairwise else (found.positive, found.negative)
    return grads[0], grads[1], tuple(value.item() * size for value in sums)


@pytest.mark.parametrize("pairwise", [False, True])
@given(cases())
@settings(max_examples=300)
def test_values_and_gradients_are_those_of_the_plain_loss(pairwise: bool, case: Given) -> None:
    grad, grad_scores, sums = run(case, pairwise=pairwise)
    want_grad, want_scores, want_sums = plain(case, pairwise=pairwise)
    np.testing.assert_allclose(sums, want_sums, rtol=4e-6, atol=1e-30)
    size = len(case.positive)
    terms = np.abs(grad_scores[:size]).sum(1) if pairwise else 0  # a positive's gradient is a sum over its negatives
    assert (np.abs(grad - want_grad.numpy()) <= 3e-6 * np.abs(want_grad.numpy()) + 1e-6 * terms + 1e-35).all()
    np.testing.assert_allclose(grad_scores[:size], want_scores.numpy(), rtol=4e-6, atol=1e-35)
    assert not grad_scores[size:].any()


@pytest.mark.parametrize("bad", [math.nan, -math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("genre", ["Logsigmoid", "Hinge"])
@pytest.mark.parametrize("temperature", [-1.0, 1.0])
@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("masks", [False, True])
def test_broken_scores_show_in_the_loss(bad: float, genre: str, temperature: float, pairwise: bool, masks: bool) -> None:
    """Even where the formula's limit is a number: a score without end comes from rows that are lost."""
    for broken in [(1, None), (0, 0), (1, 17), (2, None), (2, 32)]:
        positive, scores = np.zeros(3, F), np.zeros((3, 33), F)
        (positive if broken[1] is None else scores)[broken[0] if broken[1] is None else broken] = bad
        keep = np.ones(scores.shape, bool) if masks else np.empty((0, 33), bool)
        case = Given(positive, scores, keep, np.empty(0, F), 0.0, math.inf, genre, 1.0, temperature)
        sums = run(case, pairwise=pairwise)[2]
        assert not math.isfinite(sum(sums)), (broken, sums)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_batch_of_broken_scores_shows_in_the_loss(bad: float) -> None:
    empty = np.empty(0, F)
    for sign in (1, -1):
        case = Given(
            np.zeros(2, F), np.full((2, 5), sign * bad, F), np.empty((0, 5), bool), empty, 0.0, math.inf, "BCE", 1.0, 1.0
        )
        assert not math.isfinite(sum(run(case, pairwise=False)[2]))


def test_a_limit_stops_infinity_and_not_nan() -> None:
    for bad, shows in ((math.inf, False), (math.nan, True)):
        case = Given(np.full(1, bad, F), np.zeros((1, 3), F), np.empty((0, 3), bool), np.empty(0, F), 0.0, 20.0, "BCE", 1.0, 1.0)
        assert math.isfinite(sum(run(case, pairwise=False)[2])) is not shows
        assert math.isfinite(sum(run(case, pairwise=True)[2])) is not shows


@pytest.mark.parametrize("pairwise", [False, True])
def test_no_positives_no_loss(pairwise: bool) -> None:
    case = Given(np.empty(0, F), np.ones((4, 3), F), np.empty((0, 3), bool), np.empty(0, F), 0.0, math.inf, "BCE", 1.0, 1.0)
    _, grad_scores, sums = run(case, pairwise=pairwise)
    assert not any(sums)
    assert not grad_scores.any()


def test_no_negatives() -> None:
    case = Given(np.ones(2, F), np.ones((2, 0), F), np.empty((0, 0), bool), np.empty(0, F), 0.0, math.inf, "BCE", 1.0, 1.0)
    grad, _, sums = run(case, pairwise=False)
    assert sums[1] == 0
    assert sums[0] == pytest.approx(2 * math.log1p(math.exp(-1)), rel=1e-6)
    assert (grad < 0).all()
    assert run(case, pairwise=True)[2] == (0.0,)


def test_the_exponential() -> None:
    x = np.concatenate([np.linspace(-87, 0, 6001), -np.logspace(-38, 1, 300), [-1e-45, -0.0]]).astype(F)
    got, true = np.array([loss._exp(each) for each in x]), np.exp(x.astype(float))
    assert np.abs(got / true - 1).max() < 3e-7
    assert loss._exp(F(0)) == 1
    for tiny in (-87.5, -104, -1e30, -math.inf):
        assert 0 <= loss._exp(F(tiny)) < 1.7e-38
    assert math.isnan(loss._exp(F(math.nan)))


def test_the_logarithm() -> None:
    e = np.concatenate([np.linspace(0, 1, 6001)[1:], np.logspace(-37, 0, 300)]).astype(F)
    got = np.array([loss._log1p(each) for each in e])
    assert np.abs(got / np.log1p(e.astype(float)) - 1).max() < 3e-7
    assert loss._log1p(F(0)) == 0
    assert math.isnan(loss._log1p(F(math.nan)))
