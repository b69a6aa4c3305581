"""Which GEMM ranking and a training step run: torch's default, a faster one of the same precision, or one in bfloat16.

torch multiplies float32 matrices by MKL on x86, which on some CPUs reaches half of what its other library, oneDNN, does. Its
matmul asks oneDNN only when it is allowed bfloat16 products ("medium"), which rounds to bfloat16 only where the CPU has units
for mixed products. So `products` looks once, on numbers that bfloat16 cannot hold, whether "medium" keeps all bits here.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import threading
from collections.abc import Callable, Iterator

import torch

_SETTING = threading.Lock()
_inside = 0  # threads that use "medium" now
_before = "highest"  # what the first of them found


@functools.cache
def _one_dnn() -> Callable[..., torch.Tensor] | None:
    """oneDNN's product, which keeps to the precision that torch is allowed; None where torch lacks it, or for other CPUs."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return None
    try:
        product = torch.ops.mkldnn._linear_pointwise
        product(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4), "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return product  # type: ignore[no-any-return]


@torch.no_grad()
def linear(q: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """q c^T + bias, without gradient: float[P,Q], float[N,Q], float[N] -> float[P,N].

    By oneDNN on x86 CPUs, which at full precision is twice as fast as MKL on some and as fast on others; it costs a copy of `c`.
    """
    on_cpu = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in (q, c))
    product = _one_dnn() if on_cpu and q.numel() and c.numel() else None
    if product is None:
        return q @ c.T if bias is None else torch.addmm(bias, q, c.T)
    return product(q.contiguous(), c.contiguous(), bias, "none", [], "")


def allowed() -> str | None:
    """What the user lets float32 products be: "highest", "high" or "medium"; None if told library by library."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


@contextlib.contextmanager
def _medium() -> Iterator[None]:
    """Allow torch bfloat16 products until the last thread is out of here: the setting is the process's."""
    global _inside, _before
    with _SETTING:
        if _inside == 0:
            _before = torch.get_float32_matmul_precision()
            torch.set_float32_matmul_precision("medium")
        _inside += 1
    try:
        yield
    finally:
        with _SETTING:
            _inside -= 1
            if _inside == 0:
                torch.set_float32_matmul_precision(_before)


def _error(size: int, width: int) -> float:
    """Largest relative error of an inner product of positive numbers, in the shapes of a step."""
    generator = torch.Generator().manual_seed(0)
    q = torch.rand(2, size, width, generator=generator) + 0.5
    c = torch.rand(2, size, width, generator=generator) + 0.5
    worst = 0.0
    for a, b in ((q, c.transpose(1, 2)), (q.transpose(1, 2), c)):
        true = torch.bmm(a.double(), b.double())
        worst = max(worst, ((torch.bmm(a, b).double() - true).abs() / true).max().item())
    return worst


@functools.cache
def keeps_precision(size: int, width: int) -> bool:
    """Whether "medium" products of these sizes have float32's precision on this CPU: true, or bfloat16's 2^-9, which shows."""
    if allowed() is None:  # it could not be put back
        return False
    with _medium():
        return _error(size, width) < 1e-5


@contextlib.contextmanager
def products(size: int, width: int) -> Iterator[None]:
    """Within, float32 products on the CPU of [., size, width] matrices are as fast as they get at full precision."""
    with _medium() if keeps_precision(size, width) else contextlib.nullcontext():
        yield
