"""The comparators against their formulas written out in float64, on friendly and on unfriendly numbers, compiled and in torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import comparators, euclid, jit
from kgdist.kernels.comparators import COMPARATORS, Comparator, gamma
from tests.formulas import crossed

NAMES = sorted(COMPARATORS)


@pytest.fixture(params=["numba", "torch"], autouse=True, scope="module")
def kernels(request: pytest.FixtureRequest) -> object:
    """Every test of this file runs with either twin."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "WANTED", request.param)
        yield request.param


@st.composite
def meetings(draw: st.DrawFn, most: int = 40) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q float32[C,P,Q], c float32[C,N,Q], upstream gradient float32[C,P,N]: equal rows, equal numbers, zeros, 1e15, 1e-20."""
    chunks, p, n, half = (draw(st.integers(1, top)) for top in (3, 9, 11, most))
    make = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    scales = torch.tensor(draw(st.sampled_from([[1.0], [1.0, 0.0], [1e15, 1.0], [1e-20, 1.0], [1e-20], [1e15], [1e-3, 30.0]])))

    def rows(count: int) -> torch.Tensor:
        values = torch.randn(chunks, count, 2 * half, generator=make)
        if draw(st.booleans()):
            values = (2 * values).round() / 2  # many ties
        return values * scales[torch.randint(len(scales), (chunks, count, 1), generator=make)]

    q, c = rows(p), rows(n)
    for row in draw(st.lists(st.integers(0, min(p, n) - 1), max_size=3)):
        c[:, row] = q[:, row]
        if draw(st.booleans()):
            c[:, row, 0] += 1e-5 * c[:, row, 0]  # almost the same row
    return q, c, torch.randn(chunks, p, n, generator=make)


def grown(q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """float64[C,P,N], what one score's terms may amount to."""
    return q.double().abs().sum(-1)[:, :, None] + c.double().abs().sum(-1)[:, None]


@pytest.mark.parametrize("name", NAMES)
@given(meetings())
@settings(max_examples=60)
def test_values_and_gradients_are_those_of_the_crossed(name: str, meeting: tuple[torch.Tensor, ...]) -> None:
    q, c, upstream = meeting
    single = [each.clone().requires_grad_() for each in (q, c)]
    double = [each.double().requires_grad_() for each in (q, c)]
    got, want = COMPARATORS[name].cross(*single), crossed(name, *double)
    got_grads, want_grads = torch.autograd.grad(got, single, upstream), torch.autograd.grad(want, double, upstream.double())
    assert got.dtype == torch.float32

    width = q.shape[-1]
    if name == "dot":
        terms = q.double().abs() @ c.double().abs().transpose(1, 2)
        allowed = gamma(width) * terms + 1e-37
    elif name == "l2":  # by the square, or by subtraction where the two are close
        size = q.double().square().sum(-1)[:, :, None] + c.double().square().sum(-1)[:, None]
        far = want.detach().square() > 2 * euclid.CLOSE * size
        allowed = torch.where(far, 2 * gamma(width + 6) * size / want.detach().abs().clamp_min(1e-15), size.sqrt() * 1e-6) + 2e-15
    else:
        allowed = gamma(width + 12) * want.detach().abs() + width * 1e-18
    assert ((got.double() - want).abs() <= allowed).all()

    slopes = upstream.double().abs()
    if name == "dot":
        bounds = [gamma(20) * (slopes @ c.double().abs()), gamma(20) * (slopes.transpose(1, 2) @ q.double().abs())]
    else:  # no slope is longer than 1
        loss = 4e-3 if name == "l2" else 2e-6
        bounds = [loss * slopes.sum(2, keepdim=True), loss * slopes.sum(1).unsqueeze(-1)]
    for got_grad, want_grad, bound in zip(got_grads, want_grads, bounds, strict=True):
        assert got_grad.isfinite().all()
        assert ((got_grad.double() - want_grad).abs() <= bound + 1e-37).all()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("p", "n"), [(37, 53), (1, 130), (130, 1)])
def test_wide_rows(name: str, p: int, n: int) -> None:
    torch.manual_seed(p)
    q, c, upstream = torch.randn(2, p, 400), torch.randn(2, n, 400), torch.randn(2, p, n)
    single = [each.clone().requires_grad_() for each in (q, c)]
    double = [each.double().requires_grad_() for each in (q, c)]
    got, want = COMPARATORS[name].cross(*single), crossed(name, *double)
    torch.testing.assert_close(got.double(), want, rtol=2e-6, atol=2e-5)
    got_grads, want_grads = torch.autograd.grad(got, single, upstream), torch.autograd.grad(want, double, upstream.double())
    for got_grad, want_grad in zip(got_grads, want_grads, strict=True):
        assert (got_grad - want_grad).abs().max() <= 5e-6 * want_grad.abs().max()


@pytest.mark.parametrize("name", ["dot", "l1", "l2"])
def test_rows_of_one_number(name: str) -> None:
    q, c = torch.tensor([[[1.0], [2.0], [-3.0]]]), torch.tensor([[[2.0], [5.0]]])
    torch.testing.assert_close(COMPARATORS[name].cross(q, c).double(), crossed(name, q.double(), c.double()))


@pytest.mark.parametrize("name", NAMES)
@given(meetings())
@settings(max_examples=30)
def test_results_may_be_asked_for_in_memory_that_is_there(name: str, meeting: tuple[torch.Tensor, ...]) -> None:
    """Whatever lay there before."""
    q, c, upstream = meeting
    comparator = COMPARATORS[name]
    scores = comparator.scores(q, c)
    out = torch.full_like(scores, float("nan"))
    assert comparator.scores(q, c, out) is out
    assert torch.equal(out, scores)
    want = comparator.slopes(q, c, scores, upstream.clone())
    given_q, given_c = torch.full_like(q, float("nan")), torch.full_like(c, float("nan"))
    got = comparator.slopes(q, c, scores, upstream.clone(), given_q, given_c)
    for got_grad, want_grad, place in zip(got, want, (given_q, given_c), strict=True):
        assert got_grad is place
        assert torch.equal(got_grad, want_grad)


@pytest.mark.parametrize("name", NAMES)
def test_float64_stays_float64(name: str) -> None:
    torch.manual_seed(0)
    q, c = torch.randn(2, 3, 6).double().requires_grad_(), torch.randn(2, 5, 6).double().requires_grad_()
    comparator = COMPARATORS[name]
    torch.testing.assert_close(comparator.cross(q, c), crossed(name, q, c), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(comparator.cross, (q, c))
    assert torch.autograd.gradcheck(comparator.pair, (q[0], c[0, :3]))


@pytest.mark.parametrize("name", NAMES)
@given(meetings())
@settings(max_examples=30)
def test_a_pair_scores_as_it_does_in_the_crowd(name: str, meeting: tuple[torch.Tensor, ...]) -> None:
    q, c, _ = meeting
    p, n, width = q.shape[1], c.shape[1], q.shape[2]
    comparator = COMPARATORS[name]
    left = q[0].repeat_interleave(n, 0).requires_grad_()
    pairs = comparator.pair(left, c[0].repeat(p, 1))
    crowd = comparator.cross(q[:1], c[:1])[0].double()
    if name == "l2":
        allowed = torch.where(crowd.abs() > 0.05 * grown(q, c)[0], 1e-4, 2e-3) * (crowd.abs() + 1e-3 * grown(q, c)[0]) + 2e-15
    elif name == "dot":
        allowed = 2 * gamma(width) * (q[0].double().abs() @ c[0].double().abs().T) + 1e-37
    else:
        allowed = 2 * gamma(width + 12) * grown(q, c)[0] + 1e-16
    assert ((pairs.view(p, n).double() - crowd).abs() <= allowed).all()
    assert torch.autograd.grad(pairs.sum(), left)[0].isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_equal_rows_have_a_gradient_of_zero(name: str) -> None:
    torch.manual_seed(1)
    rows = torch.randn(1, 1, 34).expand(1, 9, 34).contiguous()
    q, c = rows.clone().requires_grad_(), rows.clone().requires_grad_()
    score = COMPARATORS[name].cross(q, c)
    left, right = torch.autograd.grad(score.sum(), (q, c))
    if name != "dot":
        assert score.abs().max() <= 1e-15
        assert not left.any()
        assert not right.any()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_nothing_meets_nothing(name: str, shape: tuple[int, int, int]) -> None:
    chunks, p, n = shape
    q, c = torch.randn(chunks, p, 6, requires_grad=True), torch.randn(chunks, n, 6, requires_grad=True)
    score = COMPARATORS[name].cross(q, c)
    assert score.shape == shape
    left, right = torch.autograd.grad(score.sum(), (q, c))
    assert not left.any()
    assert not right.any()


@pytest.mark.parametrize("name", NAMES)
def test_views_and_expanded_gradients(name: str) -> None:
    """Strides other than the usual ones must not be misread."""
    torch.manual_seed(2)
    wide = torch.randn(2, 8, 7, requires_grad=True)
    c = torch.randn(2, 5, 16)[:, :, ::2]
    q = wide.transpose(1, 2)
    (got,) = torch.autograd.grad(COMPARATORS[name].cross(q, c).sum(), wide)
    double = wide.detach().double().requires_grad_()
    (want,) = torch.autograd.grad(crossed(name, double.transpose(1, 2), c.double()).sum(), double)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_broken_numbers_are_not_hidden(name: str, bad: float) -> None:
    q, c = torch.ones(1, 5, 8), torch.zeros(1, 6, 8)
    q[0, 3, 2] = bad
    score = COMPARATORS[name].cross(q, c)
    assert not score[0, 3].isfinite().any()
    assert score[0, :3].isfinite().all()


@pytest.mark.parametrize("name", ["l1", "modulus"])
def test_shapes_that_disagree_are_refused(name: str) -> None:
    comparator = COMPARATORS[name]
    with pytest.raises(ValueError, match="need"):
        comparator.cross(torch.zeros(2, 3, 4), torch.zeros(2, 3, 6))
    with pytest.raises(ValueError, match="need"):
        comparator.cross(torch.zeros(2, 3, 4), torch.zeros(1, 3, 4))
    if name == "modulus":
        with pytest.raises(ValueError, match="odd"):
            comparator.cross(torch.zeros(2, 3, 5), torch.zeros(2, 3, 5))


@pytest.mark.parametrize("comparator", COMPARATORS.values(), ids=repr)
def test_no_array_of_all_differences(comparator: Comparator, kernels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither pass asks for memory beyond inputs, scores and one block."""
    monkeypatch.setitem(comparators.BUDGET, "cpu", 1 << 14)
    q, c = torch.randn(1, 64, 128, requires_grad=True), torch.randn(1, 96, 128, requires_grad=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        comparator.cross(q, c).sum().backward()
    largest = max(event.cpu_memory_usage for event in profile.events())
    assert 0 < largest < 64 * 96 * 128 * 4 / 4
