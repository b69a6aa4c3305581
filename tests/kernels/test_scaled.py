"""Distances to scaled candidates, and rows made 1 long, against the plain formula in float64 with autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import scaled

F = np.float32


@given(st.integers(1, 9), st.integers(1, 11), st.integers(1, 70), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2**32))
@settings(max_examples=60)
def test_distances_and_their_gradients(p: int, n: int, width: int, relations: int, padding: int, seed: int) -> None:
    """For any shape, whatever lay in the memory that is filled; rows of padding are left alone."""
    rng = np.random.default_rng(seed)
    q, scales, c, grad = (
        rng.normal(size=shape).astype(F) for shape in ((p + padding, width), (relations, width), (n, width), (p, n))
    )
    index, out = rng.integers(relations, size=p), np.full((p + padding, n), np.nan, F)
    scaled.forward(q, scales, index, c, out)
    leaves = [torch.from_numpy(each).double().requires_grad_() for each in (q[:p], scales[index], c)]
    want = -(leaves[0][:, None] - leaves[1][:, None] * leaves[2]).abs().sum(-1)
    np.testing.assert_allclose(out[:p], want.detach(), rtol=1e-5, atol=1e-5)
    assert np.isnan(out[p:]).all()
    want.backward(torch.from_numpy(grad).double())
    found = [np.full(shape, np.nan, F) for shape in ((p, width), (p, width), (n, width))]
    scaled.backward(q, scales, index, c, grad, *found)
    for got, leaf in zip(found, leaves, strict=True):
        assert leaf.grad is not None
        np.testing.assert_allclose(got, leaf.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", [1.0, 1e-15, 1e15])
def test_rows_of_length_1(size: float) -> None:
    rng = np.random.default_rng(0)
    rows, upstream = (size * rng.normal(size=(9, 21))).astype(F), rng.normal(size=(9, 21)).astype(F)
    rows[4] = 0
    units, lengths, grads = np.full_like(rows, np.nan), np.empty(9, F), upstream.copy()
    scaled.unit(rows, units, lengths)
    scaled.unit_back(units, lengths, grads)
    leaf = torch.from_numpy(rows).double().requires_grad_()
    want = torch.nn.functional.normalize(leaf, dim=1)
    want.backward(torch.from_numpy(upstream).double())
    assert leaf.grad is not None
    np.testing.assert_allclose(units, want.detach(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(grads, leaf.grad, rtol=1e-4, atol=1e-5 / max(size, 1e-12))


def test_a_number_that_is_none_stays_one() -> None:
    for bad in (np.nan, np.inf):
        rows = np.ones((1, 4), F)
        rows[0, 2] = bad
        units, lengths = np.empty_like(rows), np.empty(1, F)
        scaled.unit(rows, units, lengths)
        assert np.isnan(units).any()
