"""float32 products of matrices: by the fastest of torch's libraries that is told to keep float32's bits, else by NumPy.

torch multiplies float32 matrices by MKL on x86, which on some CPUs reaches half of what its other library, oneDNN, does; its
matmul asks oneDNN only when it may round factors to bfloat16, and then the CPU and the shapes decide whether it does. The one
call that means oneDNN and float32 is that of the linear layer. Both libraries can be allowed less for the whole process, by
torch's settings or by environment variables; then NumPy multiplies, which knows no such mode. So no shape, CPU or setting
decides a product's precision, and nothing is set here that another thread would see. `Products` is the choice between these
and products of factors in bfloat16, for what trains.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Callable

import numpy as np
import torch

from kgdist.base.machine import processor

LEAST = 1 << 20  # multiplications from which oneDNN's speed can make up for its call, 10 us dearer than torch's own
MODES = ("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE", "MKL_BLAS_COMPUTE_MODE")

Out = torch.Tensor | None  # where a result goes; None: into new memory
_Linear = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None, str, list[float], str], torch.Tensor]


@functools.cache
def _one_dnn() -> _Linear | None:
    """oneDNN's x w^T + bias; None where torch lacks it, and for other CPUs, where torch's own products are as fast."""
    if platform.machine() not in ("x86_64", "AMD64") or not torch.backends.mkldnn.is_available():
        return None
    try:
        product: _Linear = torch.ops.mkldnn._linear_pointwise.default
        product(torch.ones(2, 3), torch.ones(4, 3), torch.ones(4), "none", [], "")
    except (AttributeError, RuntimeError):
        return None
    return product


@functools.cache
def _mkl_is_slow() -> bool:
    """Whether this is one of the CPUs that MKL reaches half of oneDNN's speed on: AMD's, but for Zen 4, whose vectors it uses
    whole. There a batch costs 5 to 40 % less in one call of MKL than matrix by matrix, the more the smaller they are."""
    name, units = processor()
    return "AMD" in name and ("avx512f" not in units or "avx512_vp2intersect" in units)


@functools.cache
def _told_less() -> bool:
    """Whether the environment lets torch's libraries round factors. Asked once, for the libraries, too, read it once."""
    return any(os.environ.get(name, "").upper() not in ("", "STRICT", "STANDARD") for name in MODES)


def allowed() -> str | None:
    """What the user lets float32 products be: "highest", "high" or "medium"; None if told library by library."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None


def _sure() -> bool:
    """Whether torch's libraries keep all bits."""
    return allowed() == "highest" and not _told_less()


def _ours(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the product is to have float32's precision whatever is set; on a GPU torch's settings count."""
    return a.dtype is torch.float32 and b.dtype is torch.float32 and a.is_cpu and b.is_cpu


@torch.no_grad()
def linear(q: torch.Tensor, c: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """q c^T + bias, without gradient: float[P,Q], float[N,Q], float[N] -> float[P,N]. Costs a copy of what is not contiguous."""
    if _ours(q, c):
        if not _sure():
            found = torch.from_numpy(np.matmul(q.numpy(), c.T.numpy()))
            return found if bias is None else found.add_(bias)
        product = _one_dnn()
        if product is not None and q.numel() and c.numel():
            bias = None if bias is None else bias.contiguous()  # of another one it would take the wrong numbers
            return product(q.contiguous(), c.contiguous(), bias, "none", [], "")
    out = q.new_empty(len(q), len(c))  # torch.autocast leaves alone what has a place to go to
    return torch.mm(q, c.T, out=out) if bias is None else torch.addmm(bias, q, c.T, out=out)


def multiply(a: torch.Tensor, b: torch.Tensor, out: Out = None) -> torch.Tensor:
    """a b, without gradient: float[I,K], float[K,J] -> float[I,J], or with C in front, a batch; written to `out` if given."""
    product = None
    if _ours(a, b):
        if not _sure():
            found = _by_numpy(a, b)
            return found if out is None else out.copy_(found)
        product = _worth(a, b)
    if product is not None and out is None and a.ndim == 2:
        return product(a, b.T, None, "none", [], "")
    if out is None:
        out = a.new_empty(*a.shape[:-1], b.shape[-1])
    if product is not None:
        for place, left, right in _each(out, a, b):
            place.copy_(product(left, right.T, None, "none", [], ""))
        return out
    return torch.bmm(a, b, out=out) if a.ndim == 3 else torch.mm(a, b, out=out)


def add(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scale: float = 1.0) -> None:
    """out += scale a b, shapes as in `multiply`."""
    if _ours(a, b):
        if not _sure():
            out.add_(_by_numpy(a, b), alpha=scale)
            return
        if (product := _worth(a, b)) is not None:
            for place, left, right in _each(out, a, b):
                place.add_(product(left, right.T, None, "none", [], ""), alpha=scale)
            return
    (torch.baddbmm if a.ndim == 3 else torch.addmm)(out, a, b, alpha=scale, out=out)


def _worth(a: torch.Tensor, b: torch.Tensor) -> _Linear | None:
    """oneDNN's product, if the matrices are large enough for it; it has none of batches, so these are taken one by one only where
    that pays."""
    large = a.shape[-2] * a.shape[-1] * b.shape[-1] >= LEAST
    return _one_dnn() if large and (a.ndim == 2 or _mkl_is_slow()) else None


def _each(*batches: torch.Tensor) -> list[tuple[torch.Tensor, ...]]:
    """The matrices of each product."""
    return [batches] if batches[0].ndim == 2 else list(zip(*(each.unbind(0) for each in batches), strict=True))


def _by_numpy(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.matmul(a.detach().numpy(), b.detach().numpy()))


class Products:
    """Batched products in one dtype: float[C,I,K] and float[C,K,J]."""

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: Out = None) -> torch.Tensor:
        """a b."""
        return multiply(a, b, out)

    def subtract(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        """out -= a b."""
        add(out, a, b, -1.0)


class Bfloat16Products(Products):
    """The same with factors rounded to bfloat16; results are float32, rounded to bfloat16 by torch on the way.

    bfloat16 keeps 8 bits: CPUs with units for it (AVX-512 BF16, AMX) multiply two to four times as fast.
    """

    def multiply(self, a: torch.Tensor, b: torch.Tensor, out: Out = None) -> torch.Tensor:
        product = torch.bmm(a.bfloat16(), b.bfloat16())
        return product.to(a.dtype) if out is None else out.copy_(product)

    def subtract(self, out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        out -= torch.bmm(a.bfloat16(), b.bfloat16())


FLOAT32, BFLOAT16 = Products(), Bfloat16Products()


class Trio:
    """The three products between queries float32[P,Q] and a tile of entities float32[N,Q], by torch's own library (MKL), which is
    the fastest on Intel's CPUs and on AMD's without AVX-512; without gradient. Queries are made ready once for many tiles, and
    tiles as they come."""

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Queries, or entities, as the methods want them."""
        return rows

    def turned(self, rows: torch.Tensor) -> torch.Tensor:
        """Queries as `entities` wants them."""
        return rows

    def scores(self, queries: torch.Tensor, entities: torch.Tensor) -> torch.Tensor:
        """[P,N], each query times each entity."""
        return torch.mm(queries, entities.T)

    def add_queries(self, out: torch.Tensor, weights: torch.Tensor, entities: torch.Tensor) -> None:
        """out float32[P,Q] += weights [P,N] entities."""
        torch.addmm(out, weights, entities, out=out)

    def entities(self, out: torch.Tensor, weights: torch.Tensor, turned: torch.Tensor, *, fresh: bool) -> None:
        """out float32[N,Q] = weights^T queries, or += where not `fresh`."""
        if fresh:
            torch.mm(weights.T, turned, out=out)
        else:
            torch.addmm(out, weights.T, turned, out=out)


class _OneDnnTrio(Trio):
    """By oneDNN, which is slow where its first factor does not lie in memory as it is read; how the second one lies is the same
    to it, so queries are turned for the gradient of entities, not the many weights."""

    def turned(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.T.contiguous()

    def scores(self, queries: torch.Tensor, entities: torch.Tensor) -> torch.Tensor:
        return linear(queries, entities)

    def add_queries(self, out: torch.Tensor, weights: torch.Tensor, entities: torch.Tensor) -> None:
        out += multiply(weights, entities)

    def entities(self, out: torch.Tensor, weights: torch.Tensor, turned: torch.Tensor, *, fresh: bool) -> None:
        product = multiply(turned, weights).T
        if fresh:
            out.copy_(product)
        else:
            out += product


class _Bfloat16Trio(_OneDnnTrio):
    """With factors, scores and products rounded to bfloat16. Queries turned: the other way round it takes twice as long."""

    def rows(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.bfloat16()

    def turned(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.bfloat16().T.contiguous()

    def scores(self, queries: torch.Tensor, entities: torch.Tensor) -> torch.Tensor:
        return torch.mm(queries, entities.T)

    def add_queries(self, out: torch.Tensor, weights: torch.Tensor, entities: torch.Tensor) -> None:
        out += torch.mm(weights, entities)

    def entities(self, out: torch.Tensor, weights: torch.Tensor, turned: torch.Tensor, *, fresh: bool) -> None:
        product = torch.mm(turned, weights).T
        if fresh:
            out.copy_(product)
        else:
            out += product


def trio(*, low: bool) -> Trio:
    """The fastest on this CPU, in bfloat16 if `low`. It follows from what the CPU says of itself, not from a measurement: that
    could end otherwise in another run, which would then round otherwise."""
    if low:
        return _Bfloat16Trio()
    name, units = processor()
    by_mkl = _one_dnn() is None or "Intel" in name or ("avx2" in units and "avx512f" not in units)
    return Trio() if _sure() and by_mkl else _OneDnnTrio()


def fast_on_this_cpu() -> bool:
    """Whether the CPU multiplies bfloat16 faster than float32: by tiles (AMX), or by AVX-512 where that is AMD's, twice as fast.
    Intel's AVX-512 takes one product of bfloat16 in the time of two of float32: .55 to .65 of its rate, measured."""
    name, flags = processor()
    if not flags:  # no Linux
        return True
    return bool({"amx_bf16", "bf16"} & flags) or ("avx512_bf16" in flags and "Intel" not in name)
