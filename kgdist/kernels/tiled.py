"""The compiled L1 and modulus kernels on CPU tensors in float32. Their torch twin is `blocked`."""

from __future__ import annotations

import torch

from kgdist.kernels import l1, modulus
from kgdist.kernels.products import Out

KERNELS = {"l1": l1, "modulus": modulus}


def scores(name: str, q: torch.Tensor, c: torch.Tensor, out: Out = None) -> torch.Tensor:
    """float32[C,P,Q], float32[C,N,Q] -> float32[C,P,N], minus the distance that `name` says."""
    q, c = q.detach().contiguous(), c.detach().contiguous()
    if out is None:
        out = q.new_empty(q.shape[0], q.shape[1], c.shape[1])
    if out.numel():
        for one_q, one_c, one_out in zip(q.numpy(), c.numpy(), out.numpy(), strict=True):
            KERNELS[name].forward(one_q, one_c, one_out)
    return out


def slopes(
    name: str, q: torch.Tensor, c: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of q and c, given that of `scores` float32[C,P,N]."""
    (chunks, p, width), n = q.shape, c.shape[1]
    # The kernels want whole pairs of queries and fours of candidates; they write in place where there are no others.
    grad_q = out_q.zero_() if out_q is not None and p % 2 == 0 else q.new_zeros(chunks, -(-p // 2) * 2, width)
    grad_c = out_c.zero_() if out_c is not None and n % 4 == 0 else c.new_zeros(chunks, -(-n // 4) * 4, width)
    if grad.numel():
        arrays = (each.detach().contiguous().numpy() for each in (q, c, grad))
        for each in zip(*arrays, grad_q.numpy(), grad_c.numpy(), strict=True):
            KERNELS[name].backward(*each)
    return _only(grad_q, p, out_q), _only(grad_c, n, out_c)


def _only(grads: torch.Tensor, rows: int, out: Out) -> torch.Tensor:
    """The first `rows` of each chunk, in `out` if that is asked for."""
    if out is None:
        return grads[:, :rows]
    return out if grads is out else out.copy_(grads[:, :rows])
