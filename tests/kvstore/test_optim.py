"""Row optimisers against their formulas in plain loops, and the schedules."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.kernels import jit
from kgdist.kernels.rows import merge_rows
from kgdist.kvstore.optim import OPTIMIZERS, Schedule, rule_of

IDS = torch.tensor([4, 1, 2])


def updated(name: str, steps: int) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    """Rows before, rows after `steps` random gradients on IDS, and the gradients."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 5, generator=generator)
    before, rule = rows.clone(), OPTIMIZERS[name]()
    state = {key: torch.zeros(6, width) for key, width in rule.widths(5).items()}
    grads = [torch.randn(3, 5, generator=generator) for _ in range(steps)]
    for grad in grads:
        rule.apply(rows, state, IDS, grad.clone(), 0.1)
    return before, rows, grads


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_without_a_gradient_stay_as_they_are(name: str) -> None:
    before, after, _ = updated(name, 3)
    assert torch.equal(before[[0, 3, 5]], after[[0, 3, 5]])
    assert not torch.equal(before[IDS], after[IDS])


def test_adagrad_row_is_the_references_formula() -> None:
    before, after, grads = updated("adagrad_row", 3)
    expected, total = before[IDS].double(), torch.zeros(3).double()
    for grad in grads:
        total += grad.double().square().mean(1)
        expected -= 0.1 * grad.double() / (total.sqrt() + 1e-10)[:, None]
    torch.testing.assert_close(after[IDS].double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["adagrad", "sgd", "adam"])
def test_dense_torch_optimisers_agree_on_the_rows_touched(name: str) -> None:
    before, after, grads = updated(name, 4)
    leaf = before[IDS].clone().requires_grad_()
    make = {
        "adagrad": lambda: torch.optim.Adagrad([leaf], lr=0.1, eps=1e-10),
        "sgd": lambda: torch.optim.SGD([leaf], lr=0.1),
        "adam": lambda: torch.optim.Adam([leaf], lr=0.1),
    }
    optimizer = make[name]()
    for grad in grads:
        leaf.grad = grad.clone()
        optimizer.step()
    torch.testing.assert_close(after[IDS], leaf.detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("settings", [{}, {"eps": 1e-2}, {"eps": 1.0}])
@pytest.mark.parametrize("name", ["adagrad", "adam"])
def test_settings_are_those_of_torch(name: str, settings: dict[str, float]) -> None:
    random = torch.Generator().manual_seed(0)
    rows, rule = torch.randn(6, 5, generator=random), rule_of(name, settings)
    state = {key: torch.zeros(6, width) for key, width in rule.widths(5).items()}
    leaf = rows[IDS].clone().requires_grad_()
    make: dict[str, type[torch.optim.Optimizer]] = {"adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    optimizer = make[name]([leaf], **{"lr": 0.1, "eps": {"adagrad": 1e-10, "adam": 1e-8}[name], **settings})
    for _ in range(6):
        leaf.grad = torch.randn(3, 5, generator=random)
        rule.apply(rows, state, IDS, leaf.grad.clone(), 0.1)
        optimizer.step()
    torch.testing.assert_close(rows[IDS], leaf.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_compiled_and_plain_are_the_same_rule(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [updated(name, 5)[1]]
    monkeypatch.setattr(jit, "WANTED", "torch")
    found.append(updated(name, 5)[1])
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)  # torch has powers of the betas in float32


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_row_that_is_not_there_is_refused_and_nothing_is_changed(name: str) -> None:
    rule, rows = OPTIMIZERS[name](), torch.ones(6, 5)
    state = {key: torch.zeros(6, width) for key, width in rule.widths(5).items()}
    with pytest.raises(IndexError, match="in a table of 6 rows"):
        rule.apply(rows, state, torch.tensor([0, 6]), torch.ones(2, 5), 0.1)
    assert (rows == 1).all() and not any(part.any() for part in state.values())


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 5), st.booleans())
def test_gradients_of_one_row_are_merged(ids: list[int], width: int, mean: bool) -> None:
    rows, grads = np.array(ids, np.int64), np.random.default_rng(0).standard_normal((len(ids), width)).astype(np.float32)
    found, merged = merge_rows(rows, grads, mean=mean)
    assert found.tolist() == list(dict.fromkeys(ids)) and merged.dtype == np.float32
    for row, grad in zip(found, merged, strict=True):
        own = grads[rows == row]
        np.testing.assert_allclose(grad, own.mean(0) if mean else own.sum(0), rtol=1e-5, atol=1e-6)


def test_schedules() -> None:
    assert [Schedule("constant", 0.5, 100).at(step) for step in (0, 50, 99)] == [0.5] * 3
    assert Schedule("linear", 1.0, 100).at(25) == pytest.approx(0.75)
    assert Schedule("cosine", 1.0, 100).at(25) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))
    assert [Schedule("step", 1.0, 100).at(step) for step in (49, 50, 99)] == [1.0, 0.1, 0.1]
    assert Schedule("plateau", 0.5, 100, factor=0.1).at(70, lowered=2) == pytest.approx(0.005)
    assert Schedule("constant", 0.5, 100, factor=0.1).at(70, lowered=2) == 0.5
    assert Schedule("constant", 1.0, 100, warmup=3).at(0) == pytest.approx(0.25)
    assert Schedule("constant", 1.0, 100, warmup=3).at(3) == 1.0
    with pytest.raises(ValueError, match="unknown schedule"):
        Schedule("sudden", 1.0, 1).at(0)
