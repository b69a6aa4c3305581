"""The compiled L1 and modulus kernels as differentiable functions of CPU tensors in float32. Their torch twin is `blocked`."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from kgdist.kernels import l1, modulus

KERNELS = {"l1": l1, "modulus": modulus}


class Tiled(torch.autograd.Function):
    """float32[C,P,Q], float32[C,N,Q] -> float32[C,P,N], minus the distance that `name` says."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, c: torch.Tensor, name: str) -> torch.Tensor:
        q, c = q.contiguous(), c.contiguous()
        ctx.save_for_backward(q, c)
        ctx.kernels = KERNELS[name]
        out = q.new_empty(q.shape[0], q.shape[1], c.shape[1])
        if out.numel():
            for one_q, one_c, one_out in zip(q.numpy(), c.numpy(), out.numpy(), strict=True):
                ctx.kernels.forward(one_q, one_c, one_out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        q, c = ctx.saved_tensors
        (chunks, p, width), n = q.shape, c.shape[1]
        grad_q, grad_c = q.new_zeros(chunks, -(-p // 2) * 2, width), c.new_zeros(chunks, -(-n // 4) * 4, width)
        if grad.numel():
            arrays = (each.numpy() for each in (q, c, grad.contiguous(), grad_q, grad_c))
            for each in zip(*arrays, strict=True):
                ctx.kernels.backward(*each)
        return grad_q[:, :p], grad_c[:, :n], None
