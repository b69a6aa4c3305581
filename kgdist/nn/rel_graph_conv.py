"""Relational graph convolution: Schlichtkrull et al. 2018 (arXiv:1703.06103)."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch_geometric.utils import spmm

from kgdist.base.errors import UsageError, counted
from kgdist.base.integers import integer
from kgdist.graphs.in_memory import Graph
from kgdist.nn.csr import Edges, Rows, edges_of, rows_of
from kgdist.sampling.blocks import Block

REGULARIZERS = ("basis", "bdd")


class Pairs:
    """The different (relation, destination) among edges: what comes to a destination by one relation is summed before the
    relation's matrix is applied to it, once.

    So no row is made for each edge, and none for each relation and node: memory is that of the pairs, of which there are at most
    as many as edges (on FB15k-237 with inverse relations 0.28 times as many). Pairs lie by relation.
    """

    def __init__(self, edges: Edges, relations: torch.Tensor, num_rels: int) -> None:
        self.order = _sorted(relations, num_rels)  # edges of a destination lie side by side, and still do within each relation
        self.sources, destinations, relations = (each[self.order] for each in (edges.sources, edges.destinations, relations))
        new = torch.ones(len(relations), dtype=torch.bool, device=relations.device)
        new[1:] = (relations[1:] != relations[:-1]) | (destinations[1:] != destinations[:-1])
        first = torch.nonzero(new).flatten()
        self.destinations = destinations[first]
        self.starts = torch.cat([first, first.new_tensor([len(relations)])])
        self.counts = self.starts.diff()
        kinds = torch.arange(num_rels + 1, device=relations.device)
        self.bounds = torch.searchsorted(relations[first], kinds).tolist()  # relation r has pairs bounds[r]:bounds[r + 1]

    def __len__(self) -> int:
        return len(self.counts)

    def sums(self, x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """float32[pairs, F]: of the sources' rows [sources, F], times the weight of each edge, [E] in the order of `order`."""
        size = len(self), len(x)
        matrix = torch.sparse_csr_tensor(self.starts, self.sources, weights.detach(), size, check_invariants=False)
        made: torch.Tensor = spmm(matrix, x)
        if weights.requires_grad:
            places = torch.repeat_interleave(torch.arange(len(self), device=x.device), self.counts)
            made = Weighed.apply(made, weights, x.detach(), self.sources, places)  # type: ignore[no-untyped-call]
        return made


class Weighed(torch.autograd.Function):
    """Sums as they are; and the gradient of the weights they were made with, which torch's product has not where an edge comes
    twice. Makes a row for each edge."""

    @staticmethod
    def forward(
        context: Any, sums: torch.Tensor, weights: torch.Tensor, x: torch.Tensor, sources: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        context.save_for_backward(x, sources, places)
        return sums.view_as(sums)

    @staticmethod
    def backward(context: Any, grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
        x, sources, places = context.saved_tensors
        return grads, (grads[places] * x[sources]).sum(1), None, None, None


def _sorted(relations: torch.Tensor, num_rels: int) -> torch.Tensor:
    """int64[E]: the edges by relation, those of one in their order."""
    if relations.is_cpu and num_rels <= 1 << 16:  # NumPy sorts 16 bits by their digits: 2 ms for 272,115 edges, torch takes 19
        return torch.from_numpy(np.argsort(relations.numpy().astype(np.uint16), kind="stable"))
    return torch.argsort(relations, stable=True)


class _ByRelation(torch.autograd.Function):
    """Rows [pairs, in] times the matrix [blocks, in / blocks, out / blocks] of their relation, summed by destination."""

    @staticmethod
    def forward(
        context: Any, sums: torch.Tensor, matrices: torch.Tensor, bounds: list[int], to: torch.Tensor, count: int
    ) -> torch.Tensor:
        context.save_for_backward(sums, matrices, to)
        context.bounds = bounds
        blocks, _, width = matrices.shape[1:]
        made = sums.new_zeros(count, blocks * width)
        for relation, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                rows = _apart(sums[start:stop], blocks)
                made.index_add_(0, to[start:stop], _together(rows @ matrices[relation]))
        return made

    @staticmethod
    def backward(context: Any, grads: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None, None]:
        sums, matrices, to = context.saved_tensors
        blocks = matrices.shape[1]
        of_sums, of_matrices = torch.empty_like(sums), torch.zeros_like(matrices)
        for relation, (start, stop) in enumerate(pairwise(context.bounds)):
            if start < stop:
                come = _apart(grads[to[start:stop]], blocks)
                of_sums[start:stop] = _together(come @ matrices[relation].mT)
                of_matrices[relation] = _apart(sums[start:stop], blocks).mT @ come
        return of_sums, of_matrices, None, None, None


def _apart(rows: torch.Tensor, blocks: int) -> torch.Tensor:
    """[n, F] as [blocks, n, F / blocks]."""
    return rows.view(len(rows), blocks, -1).transpose(0, 1)


def _together(rows: torch.Tensor) -> torch.Tensor:
    """[blocks, n, F] as [n, blocks F]."""
    return rows.transpose(0, 1).reshape(rows.shape[1], -1)


class RelGraphConv(torch.nn.Module):
    """The layer of R-GCN: sum over edges u -> v of relation r of c W_r x_u, + W_0 x_v + b, then `activation` and dropout.

    `layer(block, x, etypes)` -> float32[destinations, out_feat]; `x` is float32[sources, in_feat], or a pair of these and the
    destinations' rows, `etypes` int[E] the relation of each edge, in their order. On a graph, sources and destinations are its
    nodes.

    What a destination gets by one relation is summed first: an edge costs in_feat additions, a (destination, relation) pair
    in_feat * out_feat multiplications, and memory is that of the pairs. `make bench-encoders` compares it with PyG's layers.

    Args:
        num_rels: how many relations there are.
        regularizer: "basis": W_r = sum of a_rb V_b over `num_bases` matrices; "bdd": W_r has `num_bases` blocks along its
            diagonal, and nothing else; None: all matrices are free.
        num_bases: None: as many as relations by "basis"; "bdd" needs it, and it divides in_feat and out_feat.
        self_loop: whether there is W_0.
        layer_norm: torch's LayerNorm of the sum, before b and W_0 are added.

    Raises UsageError for another regularizer, blocks that do not divide the features, relations that are not there, and rows that
    are not as many as nodes.
    """

    def __init__(
        self,
        in_feat: int,
        out_feat: int,
        num_rels: int,
        regularizer: str | None = None,
        num_bases: int | None = None,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        self_loop: bool = True,
        dropout: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.num_rels = integer("num_rels", num_rels, 1)
        if regularizer is not None and regularizer not in REGULARIZERS:
            raise UsageError(f"regularizer={regularizer!r}: there are {', '.join(REGULARIZERS)}, and None")
        bases = num_rels if num_bases is None and regularizer == "basis" else num_bases
        if regularizer is not None:
            bases = integer("num_bases", bases, 1)
        blocks = bases if regularizer == "bdd" and bases is not None else 1
        if in_feat % blocks or out_feat % blocks:
            raise UsageError(f"num_bases={blocks}: of {in_feat} and {out_feat} features no equal blocks can be made")
        self.regularizer, self.activation = regularizer, activation
        shape = (blocks, in_feat // blocks, out_feat // blocks)
        self.W = torch.nn.Parameter(torch.empty(bases if regularizer == "basis" and bases is not None else num_rels, *shape))
        self.coeff = torch.nn.Parameter(torch.empty(num_rels, len(self.W))) if regularizer == "basis" else None
        self.loop_weight = torch.nn.Parameter(torch.empty(in_feat, out_feat)) if self_loop else None
        self.h_bias = torch.nn.Parameter(torch.empty(out_feat)) if bias else None
        self.layer_norm = torch.nn.LayerNorm(out_feat) if layer_norm else None
        self.dropout = torch.nn.Dropout(dropout)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        bound = 1 / math.sqrt(self.W.shape[2])
        torch.nn.init.uniform_(self.W, -bound, bound)
        for weight in (self.coeff, self.loop_weight):
            if weight is not None:
                torch.nn.init.xavier_uniform_(weight, gain=torch.nn.init.calculate_gain("relu"))
        if self.h_bias is not None:
            torch.nn.init.zeros_(self.h_bias)
        if self.layer_norm is not None:
            self.layer_norm.reset_parameters()

    def matrices(self) -> torch.Tensor:
        """float32[num_rels, blocks, in_feat / blocks, out_feat / blocks]: the matrix of each relation, or its blocks."""
        return self.W if self.coeff is None else (self.coeff @ self.W.flatten(1)).view(-1, *self.W.shape[1:])

    def forward(
        self, graph: Block | Graph, feat: Rows, etypes: torch.Tensor, norm: torch.Tensor | str | None = None
    ) -> torch.Tensor:
        """float32[destinations, out_feat]. `norm` is c: a number for each edge, [E] or [E, 1], in their order; "mean": 1 over how
        many edges of its relation lead to the destination, as in the paper; None: 1."""
        edges = edges_of(graph)
        sources, destinations = rows_of(edges, feat)
        pairs = Pairs(edges, edges.ordered(relations_of(edges, etypes, self.num_rels)), self.num_rels)
        made: torch.Tensor = _ByRelation.apply(  # type: ignore[no-untyped-call]
            pairs.sums(sources, _weights(edges, pairs, norm, sources.dtype)),
            self.matrices(),
            pairs.bounds,
            pairs.destinations,
            edges.num_destinations,
        )
        if self.layer_norm is not None:
            made = self.layer_norm(made)
        if self.h_bias is not None:
            made = made + self.h_bias
        if self.loop_weight is not None:
            made = made + destinations @ self.loop_weight
        found: torch.Tensor = self.dropout(made if self.activation is None else self.activation(made))
        return found


def relations_of(edges: Edges, etypes: torch.Tensor, num_rels: int) -> torch.Tensor:
    """int64[E]: the relation of each edge, as it is given. Raises UsageError for what is none, and for one that is not there."""
    kinds = torch.as_tensor(etypes)
    if kinds.shape != (len(edges.sources),) or kinds.is_floating_point() or kinds.dtype == torch.bool:
        what = f"{str(kinds.dtype).removeprefix('torch.')}{list(kinds.shape)}"
        raise UsageError(f"etypes are the relation of each of {counted(len(edges.sources), 'edge')}, an int, not {what}")
    if len(kinds) and not 0 <= int(kinds.min()) <= int(kinds.max()) < num_rels:
        raise UsageError(f"relations {int(kinds.min())} to {int(kinds.max())}: there are {num_rels}, numbered from 0")
    return kinds.long()


def _weights(edges: Edges, pairs: Pairs, norm: torch.Tensor | str | None, dtype: torch.dtype) -> torch.Tensor:
    """[E] in the order of the pairs."""
    if norm is None:
        return torch.ones(len(pairs.sources), dtype=dtype, device=pairs.sources.device)
    if isinstance(norm, str):
        if norm != "mean":
            raise UsageError(f"norm={norm!r}: give 'mean', a number for each edge, or None")
        return torch.repeat_interleave(pairs.counts.to(dtype).reciprocal(), pairs.counts)
    if norm.shape not in ((len(pairs.sources),), (len(pairs.sources), 1)):
        what = f"norm is of the shape {list(norm.shape)}"
        raise UsageError(f"{what}: give a number for each of {counted(len(pairs.sources), 'edge')}")
    return edges.ordered(norm.flatten())[pairs.order].to(dtype)
