"""Rows times the matrix of their relation against the plain products in float64 with autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels.bilinear import Matrices

F = np.float32


@pytest.mark.parametrize("transpose", [False, True])
@given(st.integers(0, 2**32), st.integers(1, 20), st.integers(1, 8), st.integers(1, 6), st.booleans())
@settings(max_examples=80)
def test_values_and_gradients_are_those_of_the_product(
    transpose: bool, seed: int, size: int, rows: int, relations: int, fresh: bool
) -> None:
    """D is not R; relations with one triple, with many and with none; rows used again."""
    rng = np.random.default_rng(seed)
    d, r = (int(width) for width in rng.choice([1, 2, 3, 4, 5, 7, 16, 33, 64], 2))
    width, out_width = (r, d) if transpose else (d, r)
    index = rng.permutation(np.append(np.arange(relations), rng.integers(relations, size=size))) if fresh else rng.integers(
        relations, size=size
    )  # fmt: skip
    places, matrices = rng.integers(rows, size=len(index)), rng.normal(0, 1, (relations, d, r)).astype(F)
    entities, upstream = rng.normal(0, 1, (rows, width)).astype(F), rng.normal(0, 1, (len(index), out_width)).astype(F)
    which = rng.permutation(relations)
    subject, got = Matrices(matrices[np.argsort(which)], index, which), np.full((len(index), out_width), np.nan, F)
    subject.forward(entities, places, got, transpose=transpose)
    before, before_matrices = rng.normal(0, 1, entities.shape).astype(F), rng.normal(0, 1, matrices.shape).astype(F)
    grad, grad_matrices = before.copy(), np.full_like(matrices, np.nan) if fresh else before_matrices.copy()
    for part in (slice(0, relations // 2), slice(relations // 2, relations)):
        subject.backward(entities, places, upstream, grad, grad_matrices, transpose=transpose, fresh=fresh, part=part)

    leaves = [torch.from_numpy(each).double().requires_grad_() for each in (entities, matrices)]
    chosen = leaves[1][torch.from_numpy(index)]
    want = torch.einsum("bij,bj->bi" if transpose else "bij,bi->bj", chosen, leaves[0][torch.from_numpy(places)])
    want_grad, want_matrices = torch.autograd.grad(want, leaves, torch.from_numpy(upstream).double())
    np.testing.assert_allclose(got, want.detach().numpy(), rtol=1e-5, atol=1e-6 * (d + r))
    np.testing.assert_allclose(grad, want_grad.numpy() + before, rtol=1e-5, atol=1e-6 * (d + r) * len(index))
    expected = want_matrices.numpy() + (0 if fresh else before_matrices)
    np.testing.assert_allclose(grad_matrices, expected, rtol=1e-5, atol=1e-5 * len(index))


@pytest.mark.parametrize("transpose", [False, True])
def test_broken_rows_show_in_their_own_products_alone(transpose: bool) -> None:
    entities, matrices = np.ones((3, 5), F), np.ones((2, 5, 5), F)
    entities[1, 3] = np.nan
    matrices[1, 2, 4] = np.nan
    out = np.zeros((4, 5), F)
    Matrices(matrices, np.array([0, 0, 0, 1])).forward(entities, np.array([0, 1, 2, 0]), out, transpose=transpose)
    assert np.isnan(out).any(1).tolist() == [False, True, False, True]


def test_no_triples() -> None:
    """Nothing is added anywhere."""
    subject, grad = Matrices(np.ones((2, 3, 3), F), np.empty(0, np.int64)), np.ones((2, 3), F)
    out, grad_matrices = np.empty((0, 3), F), np.ones((2, 3, 3), F)
    subject.forward(grad, np.empty(0, np.int64), out)
    subject.backward(np.ones((2, 3), F), np.empty(0, np.int64), out, grad, grad_matrices)
    assert (grad == 1).all() and (grad_matrices == 1).all()
