"""Losses against plain loops over their definitions."""

from __future__ import annotations

import math

import pytest
import torch

from kgdist.training.losses import GENRES, batch_loss


def plain(genre: str, margin: float, score: float, label: int) -> float:
    if genre == "Hinge":
        return max(0.0, margin - label * score)
    return math.log1p(math.exp(-label * score))


def scores() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(4, generator=generator).double(), torch.randn(4, 3, generator=generator).double()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("temperature", [None, 0.5])
@pytest.mark.parametrize("genre", GENRES)
def test_pointwise_is_the_mean_of_both_parts(genre: str, temperature: float | None, weighted: bool) -> None:
    positive, negative = scores()
    weights = torch.tensor([1.0, 2.0, 0.5, 1.0]).double() if weighted else torch.ones(4).double()
    expected_positive = expected_negative = 0.0
    for i in range(4):
        expected_positive += weights[i].item() * plain(genre, 1.5, positive[i].item(), 1) / 4
        row = negative[i].tolist()
        exponents = [math.exp((temperature or 0.0) * s) for s in row]
        share = [e / sum(exponents) for e in exponents]
        expected_negative += weights[i].item() * sum(w * plain(genre, 1.5, s, -1) for w, s in zip(share, row, strict=True)) / 4
    loss = batch_loss(positive, negative, genre=genre, margin=1.5, temperature=temperature, weights=weights if weighted else None)
    assert loss.positive.item() == pytest.approx(expected_positive)
    assert loss.negative.item() == pytest.approx(expected_negative)
    assert loss.total.item() == pytest.approx((expected_positive + expected_negative) / 2)


@pytest.mark.parametrize("genre", ["Hinge", "Logistic"])
def test_pairwise_is_the_loss_of_the_difference(genre: str) -> None:
    positive, negative = scores()
    expected = sum(plain(genre, 2.0, (positive[i] - negative[i, j]).item(), 1) for i in range(4) for j in range(3)) / 12
    assert batch_loss(positive, negative, genre=genre, margin=2.0, pairwise=True).total.item() == pytest.approx(expected)


@pytest.mark.parametrize("pairwise", [False, True])
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_masked_negatives_do_not_exist(temperature: float | None, pairwise: bool) -> None:
    if pairwise and temperature:
        pytest.skip("weights belong to point-wise losses")
    positive, negative = scores()
    padded = torch.cat([negative, torch.full((4, 2), 50.0).double()], 1)
    mask = torch.zeros(4, 5, dtype=torch.bool)
    mask[:, 3:] = True
    kwargs = {"genre": "Logistic", "temperature": temperature, "pairwise": pairwise}
    full = batch_loss(positive, padded.requires_grad_(), masked=mask, **kwargs)
    assert full.total.item() == pytest.approx(batch_loss(positive, negative, **kwargs).total.item())
    full.total.backward()
    assert padded.grad is not None and not padded.grad[:, 3:].any()


def test_a_row_with_no_negatives_left_counts_nothing() -> None:
    positive, negative = scores()
    mask = torch.ones(4, 3, dtype=torch.bool)
    for temperature in (None, 1.0):
        assert batch_loss(positive, negative, temperature=temperature, masked=mask).negative.item() == 0.0


@pytest.mark.parametrize("genre", GENRES)
def test_extreme_scores_stay_finite(genre: str) -> None:
    positive = torch.tensor([1e4, -1e4, 0.0], requires_grad=True)
    negative = torch.tensor([[1e4], [-1e4], [0.0]], requires_grad=True)
    loss = batch_loss(positive, negative, genre=genre, temperature=1.0)
    loss.total.backward()
    assert loss.total.isfinite() and positive.grad is not None and bool(positive.grad.isfinite().all())


def test_self_adversarial_weights_carry_no_gradient() -> None:
    positive, negative = scores()
    negative.requires_grad_()
    batch_loss(positive, negative, temperature=1.0).total.backward()
    shares = torch.softmax(negative.detach(), 1)
    assert negative.grad is not None
    torch.testing.assert_close(negative.grad, shares * torch.sigmoid(negative.detach()) / 4 / 2)


def test_unknown_genre_is_refused() -> None:
    with pytest.raises(ValueError, match="known: Hinge, Logsigmoid"):
        batch_loss(*scores(), genre="Square")
