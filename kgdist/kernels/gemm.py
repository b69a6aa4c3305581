"""Which GEMM a training step runs: torch's default, a faster one of the same precision, or one in bfloat16.

torch multiplies float32 matrices by MKL on x86, which on some CPUs reaches half of what its other library, oneDNN, does. oneDNN
is only asked for float32 when torch is allowed bfloat16 products ("medium"), and rounds to bfloat16 only where the CPU has units
for mixed products. So `products` looks once, on numbers that bfloat16 cannot hold, whether "medium" keeps all bits here.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator

import torch

_LOOKING = threading.Lock()


@contextlib.contextmanager
def _precision(name: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    if name == before:
        yield
        return
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


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
def measured(size: int, width: int) -> bool:
    """`keeps_precision`, for one thread at a time."""
    with _precision("medium"):
        return _error(size, width) < 1e-5


def keeps_precision(size: int, width: int) -> bool:
    """Whether "medium" products of these sizes have float32's precision on this CPU: true, or bfloat16's 2^-9, which shows.

    torch's setting is that of the process: a thread that put it back while another measures would let that one measure the
    wrong products, so they take turns.
    """
    with _LOOKING:
        return measured(size, width)


@contextlib.contextmanager
def products(size: int, width: int) -> Iterator[None]:
    """Within, float32 products on the CPU of [., size, width] matrices are as fast as they get at full precision."""
    with _precision("medium") if keeps_precision(size, width) else contextlib.nullcontext():
        yield
