"""Composition of entities and relations: CompGCN, Vashishth et al. 2020 (arXiv:1911.03082)."""

from __future__ import annotations

import math

import torch

from kgdist.base.errors import UsageError
from kgdist.base.integers import integer
from kgdist.graphs.in_memory import Graph
from kgdist.nn.csr import Rows, edges_of, rows_of
from kgdist.nn.rel_graph_conv import Pairs, relations_of
from kgdist.sampling.blocks import Block

COMPOSITIONS = ("sub", "mul", "ccorr")


class CompGraphConv(torch.nn.Module):
    """The layer of CompGCN: (sum over edges u -> v of relation r of W_dir (x_u * r) / edges to v + W_loop (x_v * l)) / 2 + b.

    `layer(block, x, etypes, relations)` -> (float32[destinations, out_feat], float32[num_rels, out_feat]), the second of which
    are the relations for the next layer, relations W_rel. `x` is float32[sources, in_feat], or a pair of these and the
    destinations' rows, `etypes` int[E] the relation of each edge, in their order. W_dir is one matrix for relations below
    num_rels / 2, and another for those from there on, their inverses (where there are any); l is a relation of the layer's own.

    All compositions are linear in x_u, so what comes to a destination by one relation is summed before it is composed, once for
    each pair of (relation, destination): no row is made for each edge.

    Args:
        num_rels: how many relations there are, inverse ones included.
        comp_fn: "sub", x_u - r; "mul", by component; "ccorr", circular correlation.
        inverse: whether the second half of the relations are inverses of the first; else all have the same matrix.

    Raises UsageError for another composition, relations that are not there, and rows that are not as many as nodes.
    """

    def __init__(
        self, in_feat: int, out_feat: int, num_rels: int, comp_fn: str = "mul", bias: bool = True, inverse: bool = True
    ) -> None:
        super().__init__()
        self.num_rels = integer("num_rels", num_rels, 1)
        if comp_fn not in COMPOSITIONS:
            raise UsageError(f"comp_fn={comp_fn!r}: there are {', '.join(COMPOSITIONS)}")
        self.comp_fn = comp_fn
        self.W = torch.nn.Parameter(torch.empty(1 + inverse, in_feat, out_feat))  # of relations, and of their inverses
        self.W_loop = torch.nn.Parameter(torch.empty(in_feat, out_feat))
        self.W_rel = torch.nn.Parameter(torch.empty(in_feat, out_feat))
        self.loop_rel = torch.nn.Parameter(torch.empty(1, in_feat))
        self.bias = torch.nn.Parameter(torch.empty(out_feat)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        bound = math.sqrt(6 / sum(self.W_loop.shape))  # Glorot and Bengio 2010
        for weight in (self.W, self.W_loop, self.W_rel):
            torch.nn.init.uniform_(weight, -bound, bound)
        torch.nn.init.ones_(self.loop_rel) if self.comp_fn == "mul" else torch.nn.init.normal_(self.loop_rel, std=0.1)
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self, graph: Block | Graph, feat: Rows, etypes: torch.Tensor, relations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`relations` float32[num_rels, in_feat]: see the class."""
        if relations.shape != (self.num_rels, self.W.shape[1]):
            raise UsageError(f"relations are float32{list(relations.shape)}: give {[self.num_rels, self.W.shape[1]]}")
        edges = edges_of(graph)
        sources, destinations = rows_of(edges, feat)
        pairs = Pairs(edges, edges.ordered(relations_of(edges, etypes, self.num_rels)), self.num_rels)
        kinds = torch.repeat_interleave(
            torch.arange(self.num_rels, device=sources.device), torch.tensor(pairs.bounds, device=sources.device).diff()
        )
        share = edges.in_degrees().to(sources.dtype).reciprocal()[pairs.destinations]  # of pairs there are edges
        sums = pairs.sums(sources, torch.ones(len(pairs.sources), dtype=sources.dtype, device=sources.device))
        counts = pairs.counts.to(sources.dtype)[:, None]
        composed = self._composed(sums, relations[kinds], counts) * share[:, None]
        half = pairs.bounds[(self.num_rels + 1) // 2 if len(self.W) > 1 else self.num_rels]
        made = destinations.new_zeros(edges.num_destinations, self.W.shape[2])
        for matrix, part in zip(self.W, (slice(None, half), slice(half, None)), strict=False):
            met = composed.new_zeros(edges.num_destinations, composed.shape[1])
            made = made + met.index_add(0, pairs.destinations[part], composed[part]) @ matrix
        one = destinations.new_ones(len(destinations), 1)
        own = self._composed(destinations, self.loop_rel.expand(len(destinations), -1), one)
        made = (made + own @ self.W_loop) / 2
        return made if self.bias is None else made + self.bias, relations @ self.W_rel

    def _composed(self, sums: torch.Tensor, relations: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Sums of so many rows, each composed with the relation: [n, F], [n, F], [n, 1] -> [n, F]."""
        if self.comp_fn == "sub":
            return sums - counts * relations
        if self.comp_fn == "mul":
            return sums * relations
        if not len(sums):  # MKL transforms no empty array
            return sums
        product = torch.fft.rfft(sums).conj() * torch.fft.rfft(relations)
        found: torch.Tensor = torch.fft.irfft(product, n=sums.shape[1])
        return found
