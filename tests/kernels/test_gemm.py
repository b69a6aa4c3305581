"""Whatever GEMM ranking or a step gets, products are float32's and torch's setting is the user's again afterwards."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import gemm


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """No test leaves another setting."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@given(st.integers(1, 3), st.integers(1, 70), st.integers(1, 70), st.integers(0, 2**32))
@settings(max_examples=40)
def test_products_have_all_the_bits_of_float32(chunks: int, size: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, c = (torch.rand(chunks, size, width, generator=generator) + 0.5 for _ in range(2))
    with gemm.products(size, width):
        left = q.transpose(1, 2)
        found = [torch.bmm(q, c.transpose(1, 2)), torch.bmm(left, c), left.baddbmm(left, c @ c.mT)]
    doubles = q.double(), c.double()
    want = [
        doubles[0] @ doubles[1].mT,
        doubles[0].mT @ doubles[1],
        doubles[0].mT + doubles[0].mT @ (doubles[1] @ doubles[1].mT),
    ]
    for got, true in zip(found, want, strict=True):
        assert ((got.double() - true).abs() / true).max() < 1e-5  # bfloat16 would be off by 2e-3


@pytest.mark.parametrize("library", ["as it comes", "none"])
@given(st.integers(0, 40), st.integers(0, 90), st.integers(0, 130), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_product_for_ranking_is_off_by_no_more_than_its_roundings(
    library: str, p: int, n: int, width: int, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, c = torch.randn(p, 2 * width, generator=generator)[:, ::2], torch.randn(width, n, generator=generator).T  # not contiguous
    bias = torch.randn(n, generator=generator) if biased else None
    with pytest.MonkeyPatch.context() as patch:
        if library == "none":
            patch.setattr(gemm, "_one_dnn", lambda: None)
        got = gemm.linear(q, c, bias)
    want = q.double() @ c.double().T + (0 if bias is None else bias.double())
    terms = q.double().abs() @ c.double().abs().T + (0 if bias is None else bias.double().abs())
    assert got.shape == want.shape and got.dtype == torch.float32
    assert ((got.double() - want).abs() <= (width + 1) * 2.0**-24 * 1.001 * terms + 1e-37).all()


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
def test_the_users_setting_comes_back(setting: str) -> None:
    torch.set_float32_matmul_precision(setting)
    with gemm.products(20, 30):
        pass
    assert torch.get_float32_matmul_precision() == setting
    with pytest.raises(ZeroDivisionError), gemm.products(20, 30):
        raise ZeroDivisionError
    assert torch.get_float32_matmul_precision() == setting
    with gemm.products(20, 30), gemm.products(40, 10):
        pass
    assert torch.get_float32_matmul_precision() == setting


def test_all_threads_learn_the_same() -> None:
    """The setting is the process's: a thread that looks while another has just put it back would look at the wrong products."""
    gemm.keeps_precision.cache_clear()
    want = gemm.keeps_precision(50, 60)
    found: list[bool] = []
    for _ in range(20):
        gemm.keeps_precision.cache_clear()
        threads = [threading.Thread(target=lambda: found.append(gemm.keeps_precision(50, 60))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert found == [want] * 60


def test_precision_that_is_set_by_library_is_left_alone() -> None:
    """torch has two ways to say it, and one that was used for a library alone cannot be read in the other's words."""
    code = """
import torch
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
from kgdist.kernels import gemm
from kgdist.kernels.compare import COMPARATORS
assert gemm.allowed() is None and not gemm.keeps_precision(5, 8)
with gemm.products(5, 8):
    pass
assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
q = torch.rand(5, 8)
print((COMPARATORS["dot"].slack(q, q) > 2.0**-9 * (q * q).sum(1)).all().item())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert found.stdout == "True\n"
