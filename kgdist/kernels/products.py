"""Batched matrix products in float32, or with factors rounded to bfloat16; results are float32 either way.

bfloat16 keeps 8 bits: CPUs with units for it (AVX-512 BF16, AMX) multiply two to four times as fast. torch rounds the result as
well.
"""

from __future__ import annotations

import torch

from kgdist.kernels import gemm

Out = torch.Tensor | None  # where a result goes; None: into new memory


class Products:
    """float32 products of float32[C,I,K] and float32[C,K,J], or of any one dtype."""

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: Out = None) -> torch.Tensor:
        """a b."""
        return gemm.multiply(a, b, out)

    def subtract(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """out -= a b."""
        gemm.add(out, a, b, -1.0)


class Bfloat16Products(Products):
    """The same with factors in bfloat16."""

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: Out = None) -> torch.Tensor:
        """See Products."""
        product = torch.bmm(a.bfloat16(), b.bfloat16())
        return product.to(a.dtype) if out is None else out.copy_(product)

    def subtract(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """See Products."""
        out -= torch.bmm(a.bfloat16(), b.bfloat16())


FLOAT32, BFLOAT16 = Products(), Bfloat16Products()


def fast_on_this_cpu() -> bool:
    """Whether the CPU multiplies bfloat16 faster than float32."""
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe()) if probe is not None else True
