"""Whatever the shapes, the CPU, the environment and the settings: products are float32's, torch's settings stay the user's.

Products in bfloat16, and what is built on them, are as near as 8 bits allow, and never farther.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.kernels import gemm
from kgdist.kernels.comparators import COMPARATORS
from kgdist.kernels.gemm import BFLOAT16, FLOAT32
from tests.kernels.float32_law import check
from tests.patience import patience

ROOT = Path(__file__).resolve().parents[2]
LONG = 600  # seconds; a process that imports torch and multiplies for a second or two


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """No test leaves another setting."""
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("slow", [False, True])
@given(st.integers(1, 3), st.integers(1, 512), st.integers(1, 512), st.integers(1, 512), st.integers(0, 2**32))
@settings(max_examples=20)
def test_products_have_all_the_bits_of_float32(slow: bool, chunks: int, p: int, n: int, width: int, seed: int) -> None:
    """Whichever library multiplies batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gemm, "_mkl_is_slow", lambda: slow)
        check(chunks, p, n, width, seed)


@pytest.mark.parametrize(
    ("name", "units", "slow"),
    [
        ("Intel(R) Xeon(R)", {"avx512f", "amx_bf16"}, False),
        ("AMD EPYC 9654", {"avx512f", "avx512_bf16"}, False),  # Zen 4
        ("AMD EPYC 9755", {"avx512f", "avx512_bf16", "avx512_vp2intersect"}, True),  # Zen 5
        ("AMD EPYC 7763", {"avx2"}, True),
    ],
)
def test_where_batches_are_taken_one_by_one(monkeypatch: pytest.MonkeyPatch, name: str, units: set[str], slow: bool) -> None:
    monkeypatch.setattr(gemm, "processor", lambda: (name, frozenset(units)))
    assert gemm._mkl_is_slow.__wrapped__() is slow


@pytest.mark.skipif(gemm._one_dnn() is None, reason="torch has no oneDNN here, or it is as fast")
@pytest.mark.parametrize(
    ("name", "units", "by_mkl"),
    [
        ("Intel(R) Xeon(R)", {"avx2", "avx512f"}, True),
        ("AMD EPYC 7763", {"avx2"}, True),  # Zen 3
        ("AMD EPYC 9654", {"avx2", "avx512f", "avx512_bf16"}, False),
        ("AMD EPYC 9755", {"avx2", "avx512f", "avx512_vp2intersect"}, False),
    ],
)
def test_whose_library_multiplies_tiles(monkeypatch: pytest.MonkeyPatch, name: str, units: set[str], by_mkl: bool) -> None:
    monkeypatch.setattr(gemm, "processor", lambda: (name, frozenset(units)))
    assert (type(gemm.trio(low=False)) is gemm.Trio) is by_mkl
    monkeypatch.setattr(gemm, "_sure", lambda: False)
    assert type(gemm.trio(low=False)) is not gemm.Trio  # NumPy, through the other


@pytest.mark.parametrize("setting", ["highest", "high", "medium"])
@given(st.integers(1, 70), st.integers(1, 70), st.integers(1, 70))
@settings(max_examples=15)
def test_they_have_them_under_every_setting_and_leave_it(setting: str, p: int, n: int, width: int) -> None:
    torch.set_float32_matmul_precision(setting)
    check(2, p, n, width)
    assert torch.get_float32_matmul_precision() == setting


def held(*words: str, **environment: str) -> str:
    """What oneDNN says of its work in a process that holds the law, in this environment and with these settings."""
    found = subprocess.run(
        [sys.executable, "-m", "tests.kernels.float32_law", *words],
        env=os.environ | {"ONEDNN_VERBOSE": "1"} | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=patience(LONG),
    )
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert "kept" in lines
    return "\n".join(line for line in lines if "exec" in line.split(","))


@pytest.mark.timeout(LONG)
@pytest.mark.parametrize("isa", ["SSE41", "AVX2", "AVX512_CORE_AMX"])
def test_they_have_them_with_every_instruction_set(isa: str) -> None:
    """What oneDNN says of its work does not hang on this CPU: there an allowance to round stands even where it does not round."""
    mkl = {"SSE41": "SSE4_2", "AVX2": "AVX2"}.get(isa, "AVX512")
    work = held(ONEDNN_MAX_CPU_ISA=isa, MKL_ENABLE_INSTRUCTIONS=mkl, OPENBLAS_CORETYPE="Haswell" if isa == "AVX2" else "")
    assert "fpmath" not in work and "bf16:" not in work
    assert work or gemm._one_dnn() is None


@pytest.mark.timeout(LONG)
def test_no_environment_lets_them_lose_any() -> None:
    """Each of these alone would: to a library that knows it."""
    allowed = {"ONEDNN_DEFAULT_FPMATH_MODE": "any", "DNNL_DEFAULT_FPMATH_MODE": "BF16", "MKL_BLAS_COMPUTE_MODE": "FLOAT_TO_BF16"}
    assert "fpmath" not in held(**allowed)


@pytest.mark.timeout(LONG)
def test_no_setting_of_torch_lets_them_lose_any() -> None:
    assert "fpmath" not in held("high", "medium", "autocast")


@pytest.mark.parametrize("library", ["as it comes", "torch", "NumPy"])
@given(st.integers(0, 40), st.integers(0, 90), st.integers(0, 130), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=60)
def test_a_product_for_ranking_is_off_by_no_more_than_its_roundings(
    library: str, p: int, n: int, width: int, biased: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, c = torch.randn(p, 2 * width, generator=generator)[:, ::2], torch.randn(width, n, generator=generator).T  # not contiguous
    bias = torch.randn(n, generator=generator) if biased else None
    with pytest.MonkeyPatch.context() as patch:
        if library == "torch":
            patch.setattr(gemm, "_one_dnn", lambda: None)
        elif library == "NumPy":
            patch.setattr(gemm, "_told_less", lambda: True)
        got = gemm.linear(q, c, bias)
    want = q.double() @ c.double().T + (0 if bias is None else bias.double())
    terms = q.double().abs() @ c.double().abs().T + (0 if bias is None else bias.double().abs())
    assert got.shape == want.shape and got.dtype == torch.float32
    assert ((got.double() - want).abs() <= (width + 1) * 2.0**-24 * 1.001 * terms + 1e-37).all()


@pytest.mark.parametrize("least", [0, 1 << 40])
def test_a_product_is_the_same_by_either_library_of_torch(least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gemm, "LEAST", least)
    for chunks, p, n, width in ((1, 1, 1, 1), (3, 37, 1, 5), (2, 5, 60, 130)):
        check(chunks, p, n, width)


def test_precision_that_is_set_by_library_is_left_alone() -> None:
    """torch has two ways to say it, and one that was used for a library alone cannot be read in the other's words."""
    code = """
import torch
torch.backends.mkldnn.matmul.fp32_precision = "bf16"
from kgdist.kernels import gemm
from kgdist.kernels.comparators import COMPARATORS
from tests.kernels.float32_law import check
from tests.patience import patience
assert gemm.allowed() is None
check(2, 30, 40, 50)
assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
q = torch.rand(5, 8)
print((COMPARATORS["dot"].slack(q, q) > 2.0**-9 * (q * q).sum(1)).all().item())
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=patience(LONG), check=True, cwd=ROOT
    )
    assert found.stdout == "True\n"


def test_no_other_file_multiplies_float32_or_sets_how() -> None:
    """torch's own products and settings are named in one file, and in the one whose products are asked to be bfloat16."""
    named = re.compile(
        r"torch\.(mm|bmm|addmm|baddbmm|matmul|einsum)\(|\.(addmm_|baddbmm_)\(|set_float32_matmul_precision|fp32_precision"
    )
    found = {path.name for path in (ROOT / "kgdist").rglob("*.py") if named.search(path.read_text(encoding="utf-8"))}
    assert found == {"gemm.py"}


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


@pytest.mark.parametrize(
    ("name", "flags", "fast"),
    [
        ("AMD EPYC 9B14", "avx512f avx512_bf16", True),
        ("Intel(R) Xeon(R) Processor", "avx512f avx512_bf16", False),
        ("Intel(R) Xeon(R) Processor", "avx512f avx512_bf16 amx_tile amx_bf16", True),
        ("AMD EPYC 7B13", "avx2", False),
        ("Neoverse-V1", "asimd bf16", True),
    ],
)
def test_bfloat16_is_advised_by_what_the_processor_has(
    monkeypatch: pytest.MonkeyPatch, name: str, flags: str, fast: bool
) -> None:
    monkeypatch.setattr(gemm, "processor", lambda: (name, frozenset(flags.split())))
    assert gemm.fast_on_this_cpu() is fast
