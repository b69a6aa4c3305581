"""Rows times the matrix of their relation, and distances to what a relation projects, against the formulas in float64 with
autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels.matrices import Matrices, Projections, chunk_groups

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
    subject, got = (
        Matrices(matrices[np.argsort(which)], index, which, transpose=transpose),
        np.full((len(index), out_width), np.nan, F),
    )
    subject.forward(entities, places, got)
    before, before_matrices = rng.normal(0, 1, entities.shape).astype(F), rng.normal(0, 1, matrices.shape).astype(F)
    grad, grad_matrices = before.copy(), np.full_like(matrices, np.nan) if fresh else before_matrices.copy()
    for part in (slice(0, relations // 2), slice(relations // 2, relations)):
        subject.backward(entities, places, upstream, grad, grad_matrices, fresh=fresh, part=part)

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
    Matrices(matrices, np.array([0, 0, 0, 1]), transpose=transpose).forward(entities, np.array([0, 1, 2, 0]), out)
    assert np.isnan(out).any(1).tolist() == [False, True, False, True]


def test_no_triples() -> None:
    """Nothing is added anywhere."""
    subject, grad = Matrices(np.ones((2, 3, 3), F), np.empty(0, np.int64)), np.ones((2, 3), F)
    out, grad_matrices = np.empty((0, 3), F), np.ones((2, 3, 3), F)
    subject.forward(grad, np.empty(0, np.int64), out)
    subject.backward(np.ones((2, 3), F), np.empty(0, np.int64), out, grad, grad_matrices)
    assert (grad == 1).all() and (grad_matrices == 1).all()


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 9))
def test_groups_cover_the_batch_by_chunk_and_relation(relations: list[int], chunk: int) -> None:
    index = np.unique(np.sort(relations), return_inverse=True)[1]
    found = chunk_groups(index, chunk)
    rows = [(row // chunk, int(index[row])) for row in range(len(index))]
    assert [(part.chunk, part.relation) for part in found for _ in range(part.start, part.stop)] == rows
    assert len({(part.chunk, part.relation) for part in found}) == len(found)


def test_a_batch_that_is_not_sorted_is_refused() -> None:
    with pytest.raises(ValueError, match="sorted by relation"):
        chunk_groups(np.array([0, 1, 0]), 2)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 7), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_distances_to_projected_candidates(size: int, chunk: int, n: int, d: int, r: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    index = np.sort(np.random.default_rng(seed).integers(0, 3, size))
    index = np.unique(index, return_inverse=True)[1]
    chunks, kinds = -(-size // chunk), int(index.max()) + 1
    queries, candidates = torch.randn(size, r, generator=generator), torch.randn(chunks, n, d, generator=generator)
    matrices, weight = torch.randn(kinds, d, r, generator=generator), torch.randn(size, n, generator=generator)
    parts = chunk_groups(index, chunk)
    out = torch.empty(chunks * chunk, n)
    subject = Projections(parts, queries, candidates, matrices, torch.empty(len(parts), n, r))
    subject.forward(out)

    leaves = [each.double().requires_grad_() for each in (queries, candidates, matrices)]
    rows = torch.arange(size) // chunk
    projections = torch.einsum("bnd,bdr->bnr", leaves[1][rows], leaves[2][torch.from_numpy(index)])
    want = -(leaves[0][:, None] - projections).abs().sum(-1)
    torch.testing.assert_close(out[:size].double(), want.detach(), rtol=1e-4, atol=1e-4)

    grads = [torch.full_like(each, torch.nan) for each in (queries, candidates, matrices)]  # all of it is overwritten
    padded = torch.zeros(chunks * chunk, n)
    padded[:size] = weight
    subject.backward(padded, *grads)
    (want * weight.double()).sum().backward()
    for grad, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(grad.double(), leaf.grad, rtol=1e-3, atol=1e-3)
