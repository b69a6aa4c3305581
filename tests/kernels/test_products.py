"""Matrix products in bfloat16 and what is built on them: as near to float32's as 8 bits allow, and never farther."""

from __future__ import annotations

import pytest
import torch

from kgdist.kernels.compare import COMPARATORS
from kgdist.kernels.products import BFLOAT16, FLOAT32


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 7, 5, 3), (5, 200, 200, 64)])
def test_products_are_off_by_the_rounding_of_factors_and_result(shape: tuple[int, int, int, int]) -> None:
    chunks, p, k, n = shape
    generator = torch.Generator().manual_seed(1)
    a, b = torch.randn(chunks, p, k, generator=generator), torch.randn(chunks, k, n, generator=generator)
    true = torch.bmm(a.double(), b.double())
    bound = 2.0**-7 * torch.bmm(a.double().abs(), b.double().abs()) + 2.0**-8 * true.abs()  # 2^-8 a factor, 2^-8 the result
    for out in (None, torch.full(true.shape, torch.nan)):
        found = BFLOAT16.multiply(a, b, out)
        assert found.dtype == torch.float32 and (out is None or found is out)
        assert ((found.double() - true).abs() <= bound).all()
        assert (FLOAT32.multiply(a, b, out).double() - true).abs().max() < 1e-4
    for products, share in ((BFLOAT16, 1.0), (FLOAT32, 1e-3)):
        rest = torch.ones_like(true, dtype=torch.float32)
        products.subtract(rest, a, b)
        assert ((rest.double() - (1 - true)).abs() <= share * bound + 1e-5).all()


@pytest.mark.parametrize("name", ["dot", "l2"])
def test_comparators_in_bfloat16_rank_in_float32(name: str) -> None:
    plain = COMPARATORS[name]
    rounded = plain.in_bfloat16()
    generator = torch.Generator().manual_seed(2)
    q, c = torch.randn(2, 30, 64, generator=generator), torch.randn(2, 40, 64, generator=generator)
    exact, found = plain.scores(q, c), rounded.scores(q, c)
    assert 0 < (exact - found).abs().max() < 0.3
    assert torch.equal(plain.order(q[0], c[0]), rounded.order(q[0], c[0]))
    assert plain.products is FLOAT32, "the shared comparator is as it was"
    grad = torch.randn(exact.shape, generator=generator)
    for mine, its in zip(rounded.slopes(q, c, found, grad), plain.slopes(q, c, exact, grad), strict=True):
        assert (mine - its).norm() < 0.02 * its.norm()


@pytest.mark.parametrize("name", ["l1", "modulus"])
def test_distances_without_products_have_no_such_form(name: str) -> None:
    with pytest.raises(ValueError, match="no matrix products"):
        COMPARATORS[name].in_bfloat16()
