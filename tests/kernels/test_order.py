"""Ranking's side of the comparators: the order key, the bound on its error, and the exact key, against exact fractions."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import jit
from kgdist.kernels.comparators import COMPARATORS

NAMES = sorted(COMPARATORS)
SCALES = [1.0, 1e-20, 1e-38, 1e-42, 3e4, 1e15, 1e18]


@pytest.fixture(params=["numba", "torch"], autouse=True, scope="module")
def kernels(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test of this file runs with either twin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", request.param)
        yield request.param


def key(name: str, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float64[P,N] from float64 rows."""
    difference = q[:, None] - c[None]
    if name == "dot":
        return (q[:, None] * c[None]).sum(-1)
    if name == "l2":
        return -difference.square().sum(-1)
    if name == "l1":
        return -difference.abs().sum(-1)
    re, im = difference.chunk(2, -1)
    return -torch.hypot(re, im).sum(-1)


@st.composite
def crowds(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """q float32[P,Q], c float32[N,Q] whose sums cancel, whose rows nearly agree, or whose numbers differ wildly in size."""
    p, n, half = draw(st.integers(1, 6)), draw(st.integers(1, 9)), draw(st.integers(1, 70))
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    q = torch.randn(p, 2 * half, generator=make) * draw(st.sampled_from(SCALES))
    c = torch.randn(n, 2 * half, generator=make) * draw(st.sampled_from(SCALES))
    kind = draw(st.sampled_from(["plain", "near", "cancel", "spread", "same sign"]))
    if kind == "near":
        c = q[torch.randint(p, (n,), generator=make)] * (1 + torch.randn(n, 2 * half, generator=make) * 2.0**-22)
    elif kind == "cancel":  # the second half takes back what the first brought
        q[:, half:], c[:, half:] = q[:, :half], -c[:, :half] * (1 + 2.0**-20)
    elif kind == "spread":
        q, c = (x * 2.0 ** torch.randint(-12, 13, x.shape, generator=make) for x in (q, c))
    elif kind == "same sign":  # rounding errors add up
        q, c = q.abs() + 1 / 3, c.abs() + 1 / 7
    return q, c


@pytest.mark.parametrize("name", NAMES)
@given(crowds())
@settings(max_examples=150)
def test_the_order_key_is_never_further_off_than_it_says(name: str, crowd: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, c = crowd
    comparator = COMPARATORS[name]
    order, slack, want = comparator.order(q, c), comparator.slack(q, c), key(name, q.double(), c.double())
    assert order.shape == want.shape
    assert order.dtype == slack.dtype == torch.float32
    bounded = slack.isfinite()
    assert order[bounded].isfinite().all()
    assert ((order.double() - want).abs() <= slack.double()[:, None])[bounded].all()
    small = max(float(q.abs().max()), float(c.abs().max())) < 1e15
    assert bounded.all() or not small


@pytest.mark.parametrize("name", NAMES)
@given(crowds())
@settings(max_examples=40)
def test_a_bound_for_larger_candidates_holds_for_smaller_ones(name: str, crowd: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, c = crowd
    comparator = COMPARATORS[name]
    size = comparator.size(c)
    halves = c.double().abs().chunk(2, -1)
    want = {"l1": c.double().abs().sum(-1), "modulus": torch.hypot(*halves).sum(-1)}.get(name, c.double().norm(dim=-1))
    torch.testing.assert_close(size, want)
    assert (comparator.slack(q, c[:1]) <= comparator.bound(q.shape[1], comparator.size(q), size.max())).all()
    assert not comparator.size(torch.cat([c[:1] * torch.nan, c[:1] + torch.inf])).isfinite().any()


@pytest.mark.parametrize("name", NAMES)
def test_the_bound_is_worth_having(name: str) -> None:
    """At the usual width it leaves only a few in a thousand candidates undecided."""
    torch.manual_seed(0)
    q, c = torch.randn(20, 400), torch.randn(3000, 400)
    order, slack = COMPARATORS[name].order(q, c), COMPARATORS[name].slack(q, c)
    near = ((order - order[:, :1]).abs() <= 2 * slack[:, None]).float().mean()
    assert near < 5e-3


@pytest.mark.parametrize("name", NAMES)
def test_overflow_leaves_no_bound(name: str) -> None:
    q, c = torch.full((2, 8), 2e38), torch.full((3, 8), -2e38)
    q[1] = 1e-3
    c[:] = c if name == "l1" else c * 1e-3
    slack = COMPARATORS[name].slack(q, c)
    assert slack[0].isinf()


def test_fewer_bits_in_matrix_products_widen_the_bound() -> None:
    torch.manual_seed(0)
    q, c = torch.randn(4, 64), torch.randn(5, 64)
    try:
        for name in ("dot", "l2"):
            torch.set_float32_matmul_precision("highest")
            tight = COMPARATORS[name].slack(q, c)
            torch.set_float32_matmul_precision("medium")
            wide = COMPARATORS[name].slack(q, c)
            order = COMPARATORS[name].order(q.bfloat16().float(), c.bfloat16().float())  # what such a product sees
            assert (wide > 100 * tight).all()
            assert ((order.double() - key(name, q.double(), c.double())).abs() <= wide.double()[:, None]).all()
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("name", NAMES)
@given(crowds())
@settings(max_examples=40)
def test_equal_rows_have_equal_bits_wherever_they_stand(name: str, crowd: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, c = crowd
    comparator = COMPARATORS[name]
    alone = [float(comparator.exact(q[i : i + 1], c[j : j + 1])[0]) for i in range(len(q)) for j in range(len(c))]
    left, right = q.repeat_interleave(len(c), 0), c.repeat(len(q), 1)
    together = comparator.exact(left, right)
    assert together.dtype == torch.float64
    assert together.tolist() == alone
    assert comparator.exact(left.flip(0), right.flip(0)).flip(0).tolist() == alone
    wide = torch.cat([torch.zeros(1, left.shape[1]), left])[1:]  # another place in memory
    assert comparator.exact(wide, right).tolist() == alone
    some = torch.randperm(len(alone))[: len(alone) // 2 + 1].numpy()
    assert comparator.exact_pairs(q, c, some // len(c), some % len(c)).tolist() == [alone[pair] for pair in some]
    views = torch.stack([left, left], 1)[:, 0], torch.stack([right, right], 2)[:, :, 1]
    assert comparator.exact(*views).tolist() == alone


@pytest.mark.parametrize("name", ["dot", "l2", "l1"])
@given(st.integers(0, 2**32), st.integers(1, 90))
@settings(max_examples=30)
def test_the_exact_key_is_exact_to_float64(name: str, seed: int, width: int) -> None:
    make = torch.Generator().manual_seed(seed)
    q, c = torch.randn(3, width, generator=make), torch.randn(3, width, generator=make)
    for row, got in enumerate(COMPARATORS[name].exact(q, c).tolist()):
        terms = []
        for x, y in zip(map(Fraction, q[row].tolist()), map(Fraction, c[row].tolist()), strict=True):
            terms.append({"dot": x * y, "l2": -((x - y) ** 2), "l1": -abs(x - y)}[name])
        assert abs(Fraction(got) - sum(terms)) <= Fraction(2 * width + 4, 2**53) * sum(map(abs, terms))


def test_no_candidates() -> None:
    for comparator in COMPARATORS.values():
        q, none = torch.randn(3, 4), torch.zeros(0, 4)
        assert comparator.order(q, none).shape == (3, 0)
        assert comparator.slack(q, none).isfinite().all()
        assert comparator.exact(none, none).shape == (0,)
