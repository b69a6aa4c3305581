"""Graph attention: Veličković et al. 2018 (arXiv:1710.10903)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_geometric import nn as pyg

from kgdist.graphs.in_memory import Graph
from kgdist.nn.csr import Rows, edges_of, refuse_lonely, rows_of
from kgdist.sampling.blocks import Block


class GATConv(torch.nn.Module):
    """The layer of graph attention: sum over edges u -> v of a(u, v) W x_u, + b, in each head, where a(u, v) is the softmax over
    the edges to v of LeakyReLU(l . W x_u + r . W x_v). Loops are not added (`kgdist.add_self_loop`).

    `layer(block, x)` -> float32[destinations, num_heads, out_feats]; `x` is float32[sources, in_feats], or a pair (sources,
    destinations). On a graph, sources and destinations are its nodes.

    Args:
        in_feats: features of a node, or a pair, by which sources and destinations have a W each.
        feat_drop: dropout of what comes in.
        attn_drop: dropout of a.
        negative_slope: of LeakyReLU.
        residual: W_res x_v is added; x_v itself where it has num_heads * out_feats numbers.
        allow_zero_in_degree: let be destinations that no edge leads to, whose sum is 0.

    Raises UsageError for nodes without edges unless allowed, and for rows that are not as many as nodes.
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        num_heads: int,
        feat_drop: float = 0.0,
        attn_drop: float = 0.0,
        negative_slope: float = 0.2,
        residual: bool = False,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
        allow_zero_in_degree: bool = False,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_heads, self.out_feats = num_heads, out_feats
        self.activation, self.allow_zero_in_degree = activation, allow_zero_in_degree
        self.feat_drop = torch.nn.Dropout(feat_drop)
        incoming = in_feats[1] if isinstance(in_feats, tuple) else in_feats
        total = num_heads * out_feats
        self.residual = residual
        self.res_fc = torch.nn.Linear(incoming, total, bias=False) if residual and incoming != total else None
        self.conv = pyg.GATConv(
            in_feats,
            out_feats,
            heads=num_heads,
            negative_slope=negative_slope,
            dropout=attn_drop,
            add_self_loops=False,
            bias=bias,
        )

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.conv.reset_parameters()
        if self.res_fc is not None:
            self.res_fc.reset_parameters()

    def forward(
        self, graph: Block | Graph, feat: Rows, get_attention: bool = False
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """float32[destinations, num_heads, out_feats]; with `get_attention` also a float32[E, num_heads, 1], by edge."""
        edges = edges_of(graph)
        if not self.allow_zero_in_degree:
            refuse_lonely(edges, "GATConv")
        sources, destinations = rows_of(edges, feat)
        if isinstance(feat, tuple):
            sources, destinations = self.feat_drop(sources), self.feat_drop(destinations)
        else:
            sources = self.feat_drop(sources)
            destinations = sources[: edges.num_destinations]  # dropped where they are sources, too
        size = (edges.num_sources, edges.num_destinations)
        found, (_, attention) = self.conv((sources, destinations), edges.edge_index(), size=size, return_attention_weights=True)
        made: torch.Tensor = found.view(-1, self.num_heads, self.out_feats)
        if self.residual:
            kept = destinations if self.res_fc is None else self.res_fc(destinations)
            made = made + kept.view(-1, self.num_heads, self.out_feats)
        if self.activation is not None:
            made = self.activation(made)
        if not get_attention:
            return made
        if edges.order is not None:
            attention = torch.empty_like(attention).index_copy(0, edges.order, attention)
        return made, attention.unsqueeze(-1)
