"""How a query meets candidates: the four comparators that every score function is built from.

A comparator turns queries and candidates of the same width Q into scores, larger = better, without the margin gamma, which
belongs to the model. It knows nothing of heads, relations or sides. `cross` trains, `pair` scores the positives, and `order`,
`slack` and `exact` rank: `order` is fast and nearly right, `slack` bounds how far it may be off, `exact` settles the candidates
within that distance. Dot and L2 are GEMMs; L1 and ComplexModulus are loops (`l1`, `modulus`), compiled for float32 on the CPU
and plain torch elsewhere.

Rounding bounds follow Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: a sum of n products, in any order and
with or without fused multiply-add, is off by at most gamma_n = n u / (1 - n u) times the sum of their absolute values, u = 2^-24.
"""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch.autograd.function import once_differentiable

from kgdist.kernels import euclid, gemm, l1, modulus, pairs
from kgdist.kernels.gemm import BFLOAT16, FLOAT32, Out, Products
from kgdist.kernels.jit import compiled, compiled_for

BUDGET = {"cpu": 1 << 20, "cuda": 1 << 26}  # elements of one block of differences in plain torch
PAIRS = 1 << 20  # floats of one slice of pairs that plain torch compares exactly
UNIT = 2.0**-24  # unit roundoff of float32
FLUSH = 2.0**-125  # more than one operation can lose when subnormal numbers are flushed to zero
LARGEST = float(torch.finfo(torch.float32).max)
SAFE = 1.001  # covers the rounding of the bound itself and of `exact`, both float64


def gamma(n: float) -> float:
    """Higham's gamma_n for float32; infinite when n is so large that no bound exists."""
    return n * UNIT / (1 - n * UNIT) if n * UNIT < 1 else math.inf


def _matmul_unit() -> float:
    """What a GEMM may lose per factor before it multiplies: nothing, unless the user allows torch TF32 or bfloat16 products."""
    return {"highest": 0.0, "high": 2.0**-11}.get(gemm.allowed() or "medium", 2.0**-8)


def _up(bound: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
    """float64[P] -> float32[P], never smaller; infinite where `size`, the largest number on the way, is NaN or may overflow."""
    rounded = (bound * SAFE).float()
    above = torch.nextafter(rounded, torch.full_like(rounded, math.inf))
    return torch.where(size * SAFE < LARGEST, above, math.inf)


def largest(sizes: torch.Tensor) -> torch.Tensor:
    """float64[N] -> float64 scalar, 0 when there are none."""
    return sizes.max() if len(sizes) else sizes.new_zeros(())


def _fold(terms: torch.Tensor) -> torch.Tensor:
    """float64[B,Q] -> float64[B]: sums of rows by halving, so that a row's bits do not depend on the rows around it."""
    while terms.shape[1] > 1:
        half = (terms.shape[1] + 1) // 2
        head = terms[:, :half].clone()
        head[:, : terms.shape[1] - half] += terms[:, half:]
        terms = head
    return terms[:, 0] if terms.shape[1] else terms.sum(1)


class _Cross(torch.autograd.Function):
    """`scores` and `slopes` of a comparator as one differentiable function."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, c: torch.Tensor, comparator: Comparator) -> torch.Tensor:
        out = comparator.scores(q, c)
        ctx.save_for_backward(q, c, out)
        ctx.comparator = comparator
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        q, c, out = ctx.saved_tensors
        return *ctx.comparator.slopes(q, c, out, grad), None


def _check(q: torch.Tensor, c: torch.Tensor) -> None:
    if not (q.ndim == c.ndim == 3 and q.shape[0] == c.shape[0] and q.shape[2] == c.shape[2]):
        raise ValueError(f"queries {tuple(q.shape)} and candidates {tuple(c.shape)}: need [C,P,Q] and [C,N,Q]")


class Comparator(abc.ABC):
    """One way to compare. Stateless; use the instances in `COMPARATORS`."""

    name: str
    products: Products | None = None  # how it multiplies matrices, if it does

    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float[C,P,Q], float[C,N,Q] -> float[C,P,N]: every query of a chunk with every candidate of it. Differentiable once.

        Raises ValueError for shapes that disagree.
        """
        _check(q, c)
        return _Cross.apply(q, c, self)  # type: ignore[no-any-return, no-untyped-call]

    @abc.abstractmethod
    def scores(self, q: torch.Tensor, c: torch.Tensor, out: Out = None) -> torch.Tensor:
        """The values of `cross`, without gradient; written to `out` float[C,P,N] (contiguous) if given."""

    @abc.abstractmethod
    def slopes(
        self, q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradients of q and c, given `scores` and their gradient, both float[C,P,N].

        Written to `out_q` float[C,P,Q] and `out_c` float[C,N,Q] (contiguous) if given. `grad` may be overwritten if they are.
        """

    @abc.abstractmethod
    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float[B,Q], float[B,Q] -> float[B]: each query with its own candidate. Differentiable."""

    @torch.no_grad()
    def order(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float32[P,Q], float32[N,Q] -> float32[P,N]: a strictly increasing function of the score, without gradient."""
        return self.cross(q.unsqueeze(0), c.unsqueeze(0)).squeeze(0)

    def slack(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float32[P,Q], float32[N,Q] -> float32[P]: bound on |`order` - the same in exact arithmetic| over all rows of `c`.

        Infinite where `order` may overflow.
        """
        return self.bound(q.shape[-1], self.size(q), largest(self.size(c)))

    @torch.no_grad()
    def size(self, rows: torch.Tensor) -> torch.Tensor:
        """float32[B,Q] -> float64[B]: the norm of each row that `bound` counts in; not finite for a row that is not."""
        return self.exact(rows, torch.zeros_like(rows)).neg_()

    @abc.abstractmethod
    def bound(self, width: int, nq: torch.Tensor, nc: torch.Tensor) -> torch.Tensor:
        """`slack` for rows of `width` numbers, of sizes `nq` float64[P] and at most `nc` (a float64 scalar)."""

    @torch.no_grad()
    def exact(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float32[B,Q], float32[B,Q] -> float64[B]: what `order` approximates, row by row.

        Equal rows give equal bits wherever they stand in whatever batch, so that ties are ties. (CPU and GPU may differ.)
        """
        each = np.arange(len(q))
        return self.exact_pairs(q, c, each, each)

    @torch.no_grad()
    def exact_pairs(self, q: torch.Tensor, c: torch.Tensor, left: np.ndarray, right: np.ndarray) -> torch.Tensor:
        """float[P,Q], float[N,Q] -> float64[B]: `exact` of the rows `left` int64[B] of q and `right` int64[B] of c."""
        if q.is_cpu and compiled():
            return pairs.exact(self.name, q, c, left, right)
        keys, step = [torch.empty(0, dtype=torch.float64, device=q.device)], max(1, PAIRS // max(1, q.shape[-1]))
        for start in range(0, len(left), step):
            here = [torch.from_numpy(each[start : start + step]).to(q.device) for each in (left, right)]
            keys.append(_fold(self._terms(q[here[0]].double(), c[here[1]].double())))
        return torch.cat(keys)

    def score_of(self, keys: np.ndarray) -> np.ndarray:
        """float64[...] -> float64[...]: the scores that order keys stand for, as `pair` gives them but for rounding."""
        return keys

    @abc.abstractmethod
    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float64[B,Q], float64[B,Q] -> float64[B,*]: the terms whose sum is the order key."""

    def in_bfloat16(self) -> Comparator:
        """The same, but what trains multiplies in bfloat16. Raises ValueError where there is nothing to multiply."""
        if self.products is None:
            raise ValueError(f"the comparator {self.name} has no matrix products")
        rounded = copy.copy(self)
        rounded.products = BFLOAT16
        return rounded

    def __repr__(self) -> str:
        return f"<comparator {self.name}>"


class Dot(Comparator):
    """q . c."""

    name = "dot"
    products: Products = FLOAT32

    def scores(self, q: torch.Tensor, c: torch.Tensor, out: Out = None) -> torch.Tensor:
        return self.products.multiply(q, c.transpose(1, 2), out)

    def slopes(
        self, q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.products.multiply(grad, c, out_q), self.products.multiply(grad.transpose(1, 2), q, out_c)

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q * c).sum(-1)

    @torch.no_grad()
    def order(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return gemm.linear(q, c)

    @torch.no_grad()
    def size(self, rows: torch.Tensor) -> torch.Tensor:
        """|row|_2."""
        return self.exact(rows, rows).sqrt_()

    def bound(self, width: int, nq: torch.Tensor, nc: torch.Tensor) -> torch.Tensor:
        """gamma_Q |q| max|c|, by Cauchy-Schwarz on sum |q_k c_k|; plus what rounded factors and flushed subnormals may lose."""
        unit, size = _matmul_unit(), nq * nc
        rounding = (gamma(width) * (1 + unit) ** 2 + unit * (2 + unit)) * size
        return _up(rounding + FLUSH * width * (1 + nq + nc), size)

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return q * c


class L2(Comparator):
    """-||q - c||_2, through |q|^2 + |c|^2 - 2 q.c; ranked by the square."""

    name = "l2"
    products: Products = FLOAT32

    def scores(self, q: torch.Tensor, c: torch.Tensor, out: Out = None) -> torch.Tensor:
        return euclid.scores(q, c, out, self.products)

    def slopes(
        self, q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return euclid.slopes(q, c, scores, grad, out_q, out_c, self.products)

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).square().sum(-1).clamp_min(euclid.NOTHING).sqrt().neg()

    @torch.no_grad()
    def order(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """-||q - c||^2; within rounding it may come out slightly positive."""
        return gemm.linear(2 * q, c, c.square().sum(-1).neg_()).sub_(q.square().sum(-1).unsqueeze(1))

    @torch.no_grad()
    def size(self, rows: torch.Tensor) -> torch.Tensor:
        """|row|_2."""
        return super().size(rows).sqrt_()

    def bound(self, width: int, nq: torch.Tensor, nc: torch.Tensor) -> torch.Tensor:
        """gamma_(Q+3) (|q| + max|c|)^2: Q roundings in each of |q|^2, |c|^2 and q.c, and three in adding them up."""
        unit = _matmul_unit()
        rounding = gamma(width + 3) * (nq + nc).square() + (gamma(width + 3) + 1) * unit * (2 + unit) * 2 * nq * nc
        return _up(rounding + 4 * FLUSH * width * (1 + nq + nc), (nq + nc).square())

    def score_of(self, keys: np.ndarray) -> np.ndarray:
        """The key is minus the square."""
        scores: np.ndarray = -np.sqrt(-np.minimum(keys, 0.0))
        return scores

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).square_().neg_()


class _Lengths(Comparator):
    """Minus a sum over dims of some length of the difference: by compiled loops, or in plain torch for GPUs and float64.

    torch takes the candidates a few at a time, forward and again backward, so that no [C,P,N,Q] array of differences exists.
    """

    loops: ModuleType  # forward and backward compiled, length and slope in torch

    def scores(self, q: torch.Tensor, c: torch.Tensor, out: Out = None) -> torch.Tensor:
        if out is None:
            out = q.new_empty(q.shape[0], q.shape[1], c.shape[1])
        if not compiled_for(q, c):
            for part in _blocks(q, c):
                out[:, :, part] = self.loops.length(q.unsqueeze(2) - c[:, None, part]).neg_()
        elif out.numel():
            for each in zip(*_arrays(q, c), out.numpy(), strict=True):
                self.loops.forward(*each)
        return out

    def slopes(
        self, q: torch.Tensor, c: torch.Tensor, scores: torch.Tensor, grad: torch.Tensor, out_q: Out = None, out_c: Out = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not compiled_for(q, c):
            grad_q = torch.zeros_like(q) if out_q is None else out_q.zero_()
            grad_c = torch.empty_like(c) if out_c is None else out_c
            for part in _blocks(q, c):
                pushes = self.loops.slope(q.unsqueeze(2) - c[:, None, part]).mul_(grad[:, :, part].unsqueeze(-1))
                grad_q -= pushes.sum(2)
                grad_c[:, part] = pushes.sum(1)
            return grad_q, grad_c
        (chunks, p, width), n = q.shape, c.shape[1]
        # The loops want whole pairs of queries and fours of candidates; they write in place where there are no others.
        grad_q = out_q.zero_() if out_q is not None and p % 2 == 0 else q.new_zeros(chunks, -(-p // 2) * 2, width)
        grad_c = out_c.zero_() if out_c is not None and n % 4 == 0 else c.new_zeros(chunks, -(-n // 4) * 4, width)
        if grad.numel():
            for each in zip(*_arrays(q, c, grad), grad_q.numpy(), grad_c.numpy(), strict=True):
                self.loops.backward(*each)
        return _only(grad_q, p, out_q), _only(grad_c, n, out_c)


def _blocks(q: torch.Tensor, c: torch.Tensor) -> Iterator[slice]:
    """Candidates whose differences from all queries are at most so many numbers."""
    n, step = c.shape[1], max(1, BUDGET.get(q.device.type, BUDGET["cuda"]) // max(1, q.numel()))
    return (slice(start, min(n, start + step)) for start in range(0, n, step))


def _arrays(*tensors: torch.Tensor) -> list[np.ndarray]:
    return [each.detach().contiguous().numpy() for each in tensors]


def _only(grads: torch.Tensor, rows: int, out: Out) -> torch.Tensor:
    """The first `rows` of each chunk, in `out` if that is asked for."""
    if out is None:
        return grads[:, :rows]
    return out if grads is out else out.copy_(grads[:, :rows])


class L1(_Lengths):
    """-sum_k |q_k - c_k|."""

    name = "l1"
    loops = l1

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).abs().sum(-1).neg()

    def bound(self, width: int, nq: torch.Tensor, nc: torch.Tensor) -> torch.Tensor:
        """gamma_Q (|q|_1 + max|c|_1): one rounding per difference, Q - 1 in their sum, which the triangle inequality bounds."""
        return _up(gamma(width) * (nq + nc) + 4 * FLUSH * width, nq + nc)

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).abs_().neg_()


class ComplexModulus(_Lengths):
    """-sum_k |q_k - c_k| over K complex numbers; a row is K real parts, then K imaginary parts (RotatE, arXiv:1902.10197)."""

    name = "modulus"
    loops = modulus

    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        if q.shape[-1] % 2:
            raise ValueError(f"complex rows hold real and imaginary halves; width {q.shape[-1]} is odd")
        return super().cross(q, c)

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return modulus.length(q - c).neg()

    def bound(self, width: int, nq: torch.Tensor, nc: torch.Tensor) -> torch.Tensor:
        """gamma_(K+12) (|q| + |c|, summed moduli, |c| the largest), plus 2^-59 K.

        A modulus takes two differences, two squares and a sum (4 roundings of its square, 2 of its root), a reciprocal root good
        to 8 (an estimate and a Newton step, or better) and a product; then K - 1 sums. Squares under 2^-120 are cut short.
        """
        half = width // 2
        return _up(gamma(half + 12) * (nq + nc) + 2.0**-59 * half, (nq + nc).square())

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        re, im = (q - c).chunk(2, -1)
        return re.square().add_(im.square()).sqrt_().neg_()


DOT, L2_NORM, L1_NORM, MODULUS = Dot(), L2(), L1(), ComplexModulus()
COMPARATORS: dict[str, Comparator] = {each.name: each for each in (DOT, L2_NORM, L1_NORM, MODULUS)}
