"""Projected candidates: groups cover a sorted batch once, chunk by chunk; values and gradients are those of the formula."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba")
from kgdist.kernels import projected


@given(st.lists(st.integers(0, 4), min_size=1, max_size=30), st.integers(1, 9))
def test_groups_cover_the_batch_by_chunk_and_relation(relations: list[int], chunk: int) -> None:
    index = np.unique(np.sort(relations), return_inverse=True)[1]
    found = projected.groups(index, chunk)
    rows = [(row // chunk, int(index[row])) for row in range(len(index))]
    assert [(part.chunk, part.relation) for part in found for _ in range(part.start, part.stop)] == rows
    assert len({(part.chunk, part.relation) for part in found}) == len(found)


def test_a_batch_that_is_not_sorted_is_refused() -> None:
    with pytest.raises(ValueError, match="sorted by relation"):
        projected.groups(np.array([0, 1, 0]), 2)


@given(st.integers(1, 12), st.integers(1, 5), st.integers(1, 7), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None)
def test_values_and_gradients_are_those_of_the_formula(size: int, chunk: int, n: int, d: int, r: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    index = np.sort(np.random.default_rng(seed).integers(0, 3, size))
    index = np.unique(index, return_inverse=True)[1]
    chunks, kinds = -(-size // chunk), int(index.max()) + 1
    queries, candidates = torch.randn(size, r, generator=generator), torch.randn(chunks, n, d, generator=generator)
    matrices, weight = torch.randn(kinds, d, r, generator=generator), torch.randn(size, n, generator=generator)
    parts = projected.groups(index, chunk)
    seen, out = torch.empty(len(parts), n, r), torch.empty(chunks * chunk, n)
    projected.scores(parts, queries, candidates, matrices, seen, out)

    leaves = [each.double().requires_grad_() for each in (queries, candidates, matrices)]
    rows = torch.arange(size) // chunk
    projections = torch.einsum("bnd,bdr->bnr", leaves[1][rows], leaves[2][torch.from_numpy(index)])
    want = -(leaves[0][:, None] - projections).abs().sum(-1)
    torch.testing.assert_close(out[:size].double(), want.detach(), rtol=1e-4, atol=1e-4)

    grads = [torch.full_like(each, torch.nan) for each in (queries, candidates, matrices)]  # all of it is overwritten
    padded = torch.zeros(chunks * chunk, n)
    padded[:size] = weight
    projected.slopes(parts, queries, candidates, matrices, seen, padded, *grads)
    (want * weight.double()).sum().backward()
    for grad, leaf in zip(grads, leaves, strict=True):
        assert leaf.grad is not None
        torch.testing.assert_close(grad.double(), leaf.grad, rtol=1e-3, atol=1e-3)
