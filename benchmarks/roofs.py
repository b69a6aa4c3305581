"""What this machine can do at most, in the same run as the figures that are held against it: `python benchmarks/roofs.py`.

Roofs, not promises: matrix products in the shapes of a training step, a copy that streams through memory, and rows read at random
from a table far larger than the caches. They differ by a tenth from one hour to the next on a machine that others share.
"""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from time import perf_counter

import llvmlite.binding
import numpy as np
import torch

from kgdist.base.machine import processor
from kgdist.kernels import gemm
from kgdist.kernels.rows import gather_rows

CHUNKS, P, N, DIM = 5, 200, 200, 400  # a step: 1000 positives, 200 negatives for each
TABLE = 1 << 30  # bytes
GEMM_FLOPS = 2 * CHUNKS * P * N * DIM


@dataclass(frozen=True)
class Roofs:
    """Medians."""

    threads: int
    gemm: float  # GFLOP/s, float32, torch as it is
    products: float  # GFLOP/s, float32, by kgdist.kernels.gemm
    bfloat16: float  # GFLOP/s
    copy: float  # GB/s, bytes read and bytes written
    rows: float  # GB/s of rows of 1.6 KB, read at random from 1 GB and written, both counted; always one thread

    def lines(self) -> list[str]:
        """For a table in Markdown."""
        name = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        products = f"{self.gemm:.0f} | {self.products:.0f} | {self.bfloat16:.0f}"
        return [f"| {name} | {products} | {self.copy:.1f} | {self.rows:.1f} |"]


HEADER = [
    "| | GEMM, GFLOP/s | at best, float32 | bfloat16 | copy, GB/s | rows of 1.6 KB from 1 GB, GB/s |",
    "|---|---:|---:|---:|---:|---:|",
]


def seconds(call: Callable[[], object], rounds: int = 15) -> float:
    """Median of `rounds` calls, after two that are not counted."""
    found = []
    for _ in range(rounds + 2):
        started = perf_counter()
        call()
        found.append(perf_counter() - started)
    return statistics.median(found[2:])


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads within."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def big_table(size: int = TABLE) -> torch.Tensor:
    """float32[n, DIM] of `size` bytes, every page of it touched."""
    return torch.ones(size // (4 * DIM), DIM)


def draws(rows: int, count: int, size: int = 3000) -> list[torch.Tensor]:
    """`count` times `size` different rows at random, so that no call finds in a cache what the one before it read."""
    rng = np.random.default_rng(0)
    return [torch.from_numpy(rng.choice(rows, size, replace=False)) for _ in range(count)]


def _gflops(dtype: torch.dtype, product: Callable[..., torch.Tensor] = torch.bmm) -> float:
    q, c = torch.randn(CHUNKS, P, DIM).to(dtype), torch.randn(CHUNKS, N, DIM).to(dtype).transpose(1, 2)
    out = torch.empty(CHUNKS, P, N, dtype=dtype)
    return GEMM_FLOPS / seconds(lambda: product(q, c, out=out)) / 1e9


def measure(count: int, table: torch.Tensor) -> Roofs:
    """The roofs of `count` threads; `table` as made by `big_table`."""
    with threads(count):
        plain, half = _gflops(torch.float32), _gflops(torch.bfloat16)
        best = max(plain, _gflops(torch.float32, gemm.multiply))
        middle = len(table) // 2
        copy = seconds(lambda: table[:middle].copy_(table[-middle:]), 5)
    ids, out = iter(draws(len(table), 17)), torch.empty(3000, DIM)
    rows = seconds(lambda: gather_rows(table, next(ids), out))
    return Roofs(count, plain, best, half, 2 * middle * DIM * 4 / copy / 1e9, 2 * out.nbytes / rows / 1e9)


def machine() -> str:
    """The machine and the versions, in one line."""
    model, _ = processor()
    # LLVM chooses the width of vectors by the name that it knows the processor by.
    vectors = f"{torch.backends.cpu.get_cpu_capability()}, {llvmlite.binding.get_host_cpu_name()} to LLVM"
    versions = f"Python {platform.python_version()}, torch {torch.__version__.split('+')[0]}, NumPy {np.__version__}"
    if "numba" in sys.modules:
        versions += f", Numba {sys.modules['numba'].__version__}"
    return f"{os.cpu_count()} cores, {model}, {vectors}, {versions}"


def main() -> None:
    """Print the roofs of one thread and of all cores."""
    table = big_table()
    found = [measure(count, table) for count in dict.fromkeys((1, os.cpu_count() or 1))]
    print("\n".join([*HEADER, *(line for each in found for line in each.lines()), "", f"Machine: {machine()}."]))


if __name__ == "__main__":
    main()
