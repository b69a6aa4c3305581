"""The penalty against autograd of its formula in float64, and the compiled loop against the torch twin."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.kernels import choice
from kgdist.kernels.penalty import Penalty


@pytest.mark.parametrize("kernels", ["numba", "torch"])
@given(
    u=st.integers(0, 6), d=st.integers(1, 40), p=st.integers(0, 5), coef=st.sampled_from([0.0, 1e-9, 0.5]), counted=st.booleans()
)
def test_gradient_value_and_squares(kernels: str, u: int, d: int, p: int, coef: float, counted: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choice, "WANTED", kernels)
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
