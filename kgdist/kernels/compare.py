"""How a query meets candidates: the four comparators that every score function is built from.

A comparator turns queries and candidates of the same width Q into scores, larger = better, without the margin gamma, which
belongs to the model. It knows nothing of heads, relations or sides. `cross` trains, `pair` scores the positives, and `order`,
`slack` and `exact` rank: `order` is fast and nearly right, `slack` bounds how far it may be off, `exact` settles the candidates
within that distance. Dot and L2 are GEMMs; L1 and ComplexModulus are Numba kernels on float32 CPU tensors and torch (`blocked`)
elsewhere.

Rounding bounds follow Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: a sum of n products, in any order and
with or without fused multiply-add, is off by at most gamma_n = n u / (1 - n u) times the sum of their absolute values, u = 2^-24.
"""

from __future__ import annotations

import abc
import math

import torch

from kgdist.kernels import blocked, choice, euclid

UNIT = 2.0**-24  # unit roundoff of float32
FLUSH = 2.0**-125  # more than one operation can lose when subnormal numbers are flushed to zero
LARGEST = float(torch.finfo(torch.float32).max)
SAFE = 1.001  # covers the rounding of the bound itself and of `exact`, both float64


def gamma(n: float) -> float:
    """Higham's gamma_n for float32; infinite when n is so large that no bound exists."""
    return n * UNIT / (1 - n * UNIT) if n * UNIT < 1 else math.inf


def _matmul_unit() -> float:
    """What a GEMM may lose per factor before it multiplies: nothing, unless the user allows torch TF32 or bfloat16 products."""
    return {"highest": 0.0, "high": 2.0**-11}.get(torch.get_float32_matmul_precision(), 2.0**-8)


def _up(bound: torch.Tensor, size: torch.Tensor, limit: float = LARGEST) -> torch.Tensor:
    """float64[P] -> float32[P], never smaller; infinite where `size`, the largest number on the way, is NaN or may overflow."""
    rounded = (bound * SAFE).float()
    above = torch.nextafter(rounded, torch.full_like(rounded, math.inf))
    return torch.where(size * SAFE < limit, above, math.inf)


def _norms(rows: torch.Tensor, order: int) -> torch.Tensor:
    """float[B,Q] -> float64[B]."""
    norms: torch.Tensor = torch.linalg.vector_norm(rows.detach(), order, dim=-1, dtype=torch.float64)
    return norms


def _largest(rows: torch.Tensor, order: int) -> torch.Tensor:
    """float[N,Q] -> float64 scalar: the largest norm, 0 when there are no rows."""
    return _norms(rows, order).max() if len(rows) else torch.zeros((), dtype=torch.float64, device=rows.device)


def _fold(terms: torch.Tensor) -> torch.Tensor:
    """float64[B,Q] -> float64[B]: sums of rows by halving, so that a row's bits do not depend on the rows around it."""
    while terms.shape[1] > 1:
        half = (terms.shape[1] + 1) // 2
        head = terms[:, :half].clone()
        head[:, : terms.shape[1] - half] += terms[:, half:]
        terms = head
    return terms[:, 0] if terms.shape[1] else terms.sum(1)


def _distances(name: str, q: torch.Tensor, c: torch.Tensor, length: blocked.Length, slope: blocked.Slope) -> torch.Tensor:
    """`cross` of the comparators that have kernels: compiled or in blocks. Raises ValueError for shapes that disagree."""
    if not (q.ndim == c.ndim == 3 and q.shape[0] == c.shape[0] and q.shape[2] == c.shape[2]):
        raise ValueError(f"queries {tuple(q.shape)} and candidates {tuple(c.shape)}: need [C,P,Q] and [C,N,Q]")
    if name == "modulus" and q.shape[2] % 2:
        raise ValueError(f"complex rows hold real and imaginary halves; width {q.shape[2]} is odd")
    if choice.numba_for(q, c):
        from kgdist.kernels.tiled import Tiled

        return Tiled.apply(q, c, name)  # type: ignore[no-any-return, no-untyped-call]
    return blocked.Blocked.apply(q, c, length, slope)  # type: ignore[no-any-return, no-untyped-call]


class Comparator(abc.ABC):
    """One way to compare. Stateless; use the instances in `COMPARATORS`."""

    name: str

    @abc.abstractmethod
    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float[C,P,Q], float[C,N,Q] -> float[C,P,N]: every query of a chunk with every candidate of it. Differentiable once."""

    @abc.abstractmethod
    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float[B,Q], float[B,Q] -> float[B]: each query with its own candidate. Differentiable."""

    @torch.no_grad()
    def order(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float32[P,Q], float32[N,Q] -> float32[P,N]: a strictly increasing function of the score, without gradient."""
        return self.cross(q.unsqueeze(0), c.unsqueeze(0)).squeeze(0)

    @abc.abstractmethod
    def slack(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float32[P,Q], float32[N,Q] -> float32[P]: bound on |`order` - the same in exact arithmetic| over all rows of `c`.

        Infinite where `order` may overflow.
        """

    @torch.no_grad()
    def exact(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float32[B,Q], float32[B,Q] -> float64[B]: what `order` approximates, row by row.

        Equal rows give equal bits wherever they stand in whatever batch, so that ties are ties. (CPU and GPU may differ.)
        """
        if choice.numba_for(q, c):
            from kgdist.kernels import exact

            return exact.rows(self.name, q, c)
        return _fold(self._terms(q.double(), c.double()))

    @abc.abstractmethod
    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """float64[B,Q], float64[B,Q] -> float64[B,*]: the terms whose sum is the order key."""

    def __repr__(self) -> str:
        return f"<comparator {self.name}>"


class Dot(Comparator):
    """q . c."""

    name = "dot"

    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return torch.bmm(q, c.transpose(1, 2))

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q * c).sum(-1)

    @torch.no_grad()
    def order(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return q @ c.T

    def slack(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """gamma_Q |q| max|c|, by Cauchy-Schwarz on sum |q_k c_k|; plus what rounded factors and flushed subnormals may lose."""
        width, unit = q.shape[-1], _matmul_unit()
        size = _norms(q, 2) * _largest(c, 2)
        rounding = (gamma(width) * (1 + unit) ** 2 + unit * (2 + unit)) * size
        return _up(rounding + FLUSH * width * (1 + _norms(q, 2) + _largest(c, 2)), size)

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return q * c


class L2(Comparator):
    """-||q - c||_2, through |q|^2 + |c|^2 - 2 q.c; ranked by the square."""

    name = "l2"

    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return euclid.Euclid.apply(q, c)  # type: ignore[no-any-return, no-untyped-call]

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).square().sum(-1).clamp_min(euclid.NOTHING).sqrt().neg()

    @torch.no_grad()
    def order(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """-||q - c||^2; within rounding it may come out slightly positive."""
        squares = (q.square().sum(-1).unsqueeze(1) + c.square().sum(-1)).neg_()
        return squares.addmm_(q, c.T, alpha=2)

    def slack(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """gamma_(Q+3) (|q| + max|c|)^2: Q roundings in each of |q|^2, |c|^2 and q.c, and three in adding them up."""
        width, unit = q.shape[-1], _matmul_unit()
        nq, nc = _norms(q, 2), _largest(c, 2)
        rounding = gamma(width + 3) * (nq + nc).square() + (gamma(width + 3) + 1) * unit * (2 + unit) * 2 * nq * nc
        return _up(rounding + 4 * FLUSH * width * (1 + nq + nc), (nq + nc).square())

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).square_().neg_()


class L1(Comparator):
    """-sum_k |q_k - c_k|."""

    name = "l1"

    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return _distances(self.name, q, c, blocked.absolute, blocked.absolute_slope)

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).abs().sum(-1).neg()

    def slack(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """gamma_Q (|q|_1 + max|c|_1): one rounding per difference, Q - 1 in their sum, which the triangle inequality bounds."""
        width = q.shape[-1]
        size = _norms(q, 1) + _largest(c, 1)
        return _up(gamma(width) * size + 4 * FLUSH * width, size)

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return (q - c).abs_().neg_()


class ComplexModulus(Comparator):
    """-sum_k |q_k - c_k| over K complex numbers; a row is K real parts, then K imaginary parts (RotatE, arXiv:1902.10197)."""

    name = "modulus"

    def cross(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return _distances(self.name, q, c, blocked.modulus, blocked.modulus_slope)

    def pair(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        return blocked.modulus(q - c).neg()

    def slack(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """gamma_(K+12) (|q| + |c|, summed moduli, |c| the largest), plus 2^-59 K.

        A modulus takes two differences, two squares and a sum (4 roundings of its square, 2 of its root), a reciprocal root good
        to 8 (an estimate and a Newton step, or better) and a product; then K - 1 sums. Squares under 2^-120 are cut short.
        """
        half = q.shape[-1] // 2
        nq = blocked.modulus(q.detach().double())
        nc = blocked.modulus(c.detach().double()).max() if len(c) else nq.new_zeros(())
        return _up(gamma(half + 12) * (nq + nc) + 2.0**-59 * half, (nq + nc).square())

    def _terms(self, q: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        re, im = (q - c).chunk(2, -1)
        return re.square().add_(im.square()).sqrt_().neg_()


DOT, L2_NORM, L1_NORM, MODULUS = Dot(), L2(), L1(), ComplexModulus()
COMPARATORS: dict[str, Comparator] = {each.name: each for each in (DOT, L2_NORM, L1_NORM, MODULUS)}
