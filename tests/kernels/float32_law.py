"""The law of float32's precision: `python -m tests.kernels.float32_law` holds it in a process with an environment of its own.

A product of K terms is off by at most gamma_(K+1) of the sum of their sizes, however it is added up; a bfloat16 factor is off by
2^-9, a TF32 one by 2^-12, which the positive numbers here cannot hide.
"""

from __future__ import annotations

import itertools
import sys

import torch

from kgdist.kernels import gemm
from kgdist.kernels.comparators import COMPARATORS

SIZES = (1, 13, 37, 200)


def factors(*shape: int, seed: int = 0) -> torch.Tensor:
    """Positive numbers with all bits of a float32."""
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) + 0.5


def hold(found: torch.Tensor, true: torch.Tensor, terms: int) -> None:
    """Raises AssertionError unless `found` is `true`, sums of `terms` positive products, but for float32's roundings."""
    assert found.dtype == torch.float32 and found.shape == true.shape
    off, most = ((found.double() - true).abs() / true).max().item(), 1.01 * (terms + 2) * 2.0**-24
    assert off <= most, f"off by {off}, {most} allowed, {tuple(true.shape)} of {terms} terms"


def check(chunks: int, p: int, n: int, width: int, seed: int = 0) -> None:
    """Every product that kgdist asks for, of queries [chunks, p, width] and candidates [chunks, n, width]."""
    q, c, grad = (
        factors(chunks, p, width, seed=seed),
        factors(chunks, n, width, seed=seed + 1),
        factors(chunks, p, n, seed=seed + 2),
    )
    qd, cd, gd = q.double(), c.double(), grad.double()
    hold(gemm.multiply(q, c.mT), qd @ cd.mT, width)
    hold(gemm.multiply(grad, c, torch.empty(chunks, p, width)), gd @ cd, n)
    hold(gemm.multiply(grad[0].T, q[0]), gd[0].T @ qd[0], p)
    sums = c.clone()
    gemm.add(sums, grad.mT, q, 0.5)
    hold(sums, cd + 0.5 * (gd.mT @ qd), p + 1)
    hold(gemm.linear(q[0], c[0]), qd[0] @ cd[0].T, width)
    hold(gemm.linear(q[0], c[0], c[0, :, 0]), qd[0] @ cd[0].T + cd[0, :, 0], width + 1)
    dot = COMPARATORS["dot"]
    hold(dot.scores(q, c), qd @ cd.mT, width)
    assert ((dot.order(q[0], c[0]).double() - qd[0] @ cd[0].T).abs() <= dot.slack(q[0], c[0]).double()[:, None]).all()


def main() -> None:
    """All sizes, and those of a step; then the words given are run as Python, and all sizes again."""
    torch.set_num_threads(1)
    for word in ("", *sys.argv[1:]):
        if word == "autocast":
            torch.autocast("cpu", torch.bfloat16).__enter__()
        elif word:
            torch.set_float32_matmul_precision(word)
        for shape in (*itertools.product(SIZES, repeat=3), (512, 512, 512)):
            check(1 + (shape[0] < 100), *shape)
    print("kept")


if __name__ == "__main__":
    main()
