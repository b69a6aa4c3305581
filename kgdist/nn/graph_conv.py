"""Graph convolution: Kipf and Welling 2017 (arXiv:1609.02907)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_geometric import nn as pyg
from torch_geometric.utils import spmm

from kgdist.base.errors import UsageError
from kgdist.graphs.in_memory import Graph
from kgdist.nn.csr import Edges, Rows, edges_of, refuse_lonely, rows_of
from kgdist.sampling.blocks import Block

NORMS = ("both", "right", "left", "none")


class GraphConv(torch.nn.Module):
    """The layer of graph convolution: sum over edges u -> v of c(u, v) W x_u, + b. Loops are not added (`kgdist.add_self_loop`).

    `layer(block, x)` -> float32[destinations, out_feats]; `x` is float32[sources, in_feats], or a pair, of which destinations are
    not looked at. On a graph, sources and destinations are its nodes.

    Args:
        norm: c is 1 / sqrt(edges from u * edges to v) by "both", 1 / edges to v by "right", 1 / edges from u by "left", 1 by
            "none"; edges count as they are in the block.
        weight: without it there is no W.
        allow_zero_in_degree: let be destinations that no edge leads to, whose sum is 0.

    Raises UsageError for another norm, nodes without edges unless allowed, and rows that are not as many as nodes.
    """

    def __init__(
        self,
        in_feats: int,
        out_feats: int,
        norm: str = "both",
        weight: bool = True,
        bias: bool = True,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
    ) -> None:
        super().__init__()
        if norm not in NORMS:
            raise UsageError(f"norm={norm!r}: there are {', '.join(NORMS)}")
        if not weight and in_feats != out_feats:
            raise UsageError(f"without a weight {in_feats} features stay as many: out_feats={out_feats} cannot be")
        self.norm, self.activation, self.allow_zero_in_degree = norm, activation, allow_zero_in_degree
        self.conv = pyg.GCNConv(in_feats, out_feats, normalize=False, bias=bias) if weight else None
        self.bias = None if weight or not bias else torch.nn.Parameter(torch.zeros(out_feats))

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        if self.conv is not None:
            self.conv.reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(self, graph: Block | Graph, feat: Rows, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """float32[destinations, out_feats]. `edge_weight` [E], in the order of the edges, multiplies c."""
        edges = edges_of(graph)
        if not self.allow_zero_in_degree:
            refuse_lonely(edges, "GraphConv")
        sources, _ = rows_of(edges, feat)
        weights = self._scale(edges, sources.dtype)
        if edge_weight is not None:
            weights = weights * edges.ordered(edge_weight).to(sources.dtype)
        matrix = edges.matrix(weights)
        if self.conv is None:
            made = spmm(matrix, sources)
            made = made if self.bias is None else made + self.bias
        else:
            made = self.conv(sources, matrix)
        return made if self.activation is None else self.activation(made)

    def _scale(self, edges: Edges, dtype: torch.dtype) -> torch.Tensor:
        """[E], the c of each edge."""
        scale = torch.ones(len(edges.sources), dtype=dtype, device=edges.sources.device)
        power = -0.5 if self.norm == "both" else -1.0
        if self.norm in ("both", "left"):
            scale = scale * edges.out_degrees().to(dtype).pow(power)[edges.sources]
        if self.norm in ("both", "right"):
            scale = scale * edges.in_degrees().to(dtype).pow(power)[edges.destinations]
        return scale
