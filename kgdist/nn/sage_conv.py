"""GraphSAGE: Hamilton, Ying and Leskovec 2017 (arXiv:1706.02216)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch_geometric import nn as pyg

from kgdist.base.errors import UsageError
from kgdist.graphs.in_memory import Graph
from kgdist.nn.csr import Rows, edges_of, rows_of
from kgdist.sampling.blocks import Block

AGGREGATORS = ("mean", "gcn", "pool")


class SAGEConv(torch.nn.Module):
    """The layer of GraphSAGE: W_self x_v + W_neigh a(x_u of all edges u -> v) + b. Where no edge leads, a is 0.

    `layer(block, x)` -> float32[destinations, out_feats]; `x` is float32[sources, in_feats], or a pair (sources, destinations).
    On a graph, sources and destinations are its nodes.

    Args:
        in_feats: features of a node, or a pair where sources and destinations have different ones.
        aggregator_type: a is "mean"; "pool", the largest of relu(W_pool x_u + b_pool), by feature; or "gcn", by which the
            result is W_neigh (x_v + sum of x_u) / (edges to v + 1) + b, and sources must have the features of destinations.
        feat_drop: dropout of what comes in.
        norm: called with the result, after `activation`.

    Raises UsageError for another aggregator, and for rows that are not as many as nodes.
    """

    def __init__(
        self,
        in_feats: int | tuple[int, int],
        out_feats: int,
        aggregator_type: str,
        feat_drop: float = 0.0,
        bias: bool = True,
        norm: Callable[[torch.Tensor], torch.Tensor] | None = None,
        activation: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        super().__init__()
        if aggregator_type not in AGGREGATORS:
            raise UsageError(f"aggregator_type={aggregator_type!r}: there are {', '.join(AGGREGATORS)}")
        sources, destinations = in_feats if isinstance(in_feats, tuple) else (in_feats, in_feats)
        if aggregator_type == "gcn" and sources != destinations:
            raise UsageError(f"aggregator 'gcn' adds sources to destinations: {sources} features and {destinations} do not fit")
        self.aggregator_type, self.norm, self.activation = aggregator_type, norm, activation
        self.feat_drop = torch.nn.Dropout(feat_drop)
        self.conv = pyg.SAGEConv(
            (sources, destinations),
            out_feats,
            aggr={"mean": "mean", "pool": "max", "gcn": "sum"}[aggregator_type],
            root_weight=aggregator_type != "gcn",
            project=aggregator_type == "pool",
            bias=bias,
        )

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        self.conv.reset_parameters()

    def forward(self, graph: Block | Graph, feat: Rows, edge_weight: torch.Tensor | None = None) -> torch.Tensor:
        """float32[destinations, out_feats]. `edge_weight` [E], in the order of the edges, multiplies what they carry; the mean
        still divides by how many there are."""
        edges = edges_of(graph)
        sources, destinations = rows_of(edges, feat)
        if isinstance(feat, tuple):
            sources, destinations = self.feat_drop(sources), self.feat_drop(destinations)
        else:
            sources = self.feat_drop(sources)
            destinations = sources[: edges.num_destinations]  # dropped where they are sources, too
        weights = _weights(edges.ordered(edge_weight) if edge_weight is not None else None, len(edges.sources), sources)
        if self.aggregator_type == "pool":
            if edge_weight is not None:
                raise UsageError("aggregator 'pool' takes the largest of each feature: leave edge_weight out")
            made = self.conv((sources, destinations), edges.edge_index(), size=(edges.num_sources, edges.num_destinations))
        elif self.aggregator_type == "mean":
            made = self.conv((sources, destinations), edges.matrix(weights))
        else:
            count = (edges.in_degrees() + 1).to(sources.dtype)
            summed = self.conv.propagate(edges.matrix(weights), x=(sources, destinations), size=None)
            made = self.conv.lin_l((summed + destinations) / count.unsqueeze(1))
        if self.activation is not None:
            made = self.activation(made)
        return made if self.norm is None else self.norm(made)


def _weights(given: torch.Tensor | None, count: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_ones(count) if given is None else given.to(like.dtype)
