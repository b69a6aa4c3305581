"""Attention over relations and neighbours, after RelGNN (the Ray paper's second encoder)."""

from __future__ import annotations

import math

import torch
from torch_geometric.utils import softmax, spmm

from kgdist.base.errors import UsageError
from kgdist.base.integers import integer
from kgdist.graphs.in_memory import Graph
from kgdist.nn.csr import Edges, Rows, edges_of, rows_of
from kgdist.nn.rel_graph_conv import Weighed, relations_of
from kgdist.sampling.blocks import Block


class RelGNNConv(torch.nn.Module):
    """What comes from neighbours, t_v = sum over edges u -> v of relation r of a(u, r, v) (M x_u + N r), beside the node itself:

        a = softmax over the edges to v of LeakyReLU(p . W x_v + q . W x_u + s . r)
        x'_v = b W_0 x_v + (1 - b) t_v + bias,  (b, 1 - b) = softmax of (k . tanh(S W_0 x_v + c), k . tanh(S t_v + c))

    `layer(block, x, etypes, relations)` -> (float32[destinations, out_feat], float32[num_rels, out_feat]), the second of which
    are the relations for the next layer, relations U. In the first layer x_v are the node's attributes, so the second line is
    what mixes attributes and topology. Where no edge leads, x'_v = W_0 x_v + bias.

    The paper gives no formulas; these follow what it says of them. An edge costs a few numbers, not a row, but that the gradient
    of `a` makes two rows for each edge.

    Args:
        num_rels: how many relations there are, inverse ones included.

    Raises UsageError for relations that are not there, and rows that are not as many as nodes.
    """

    def __init__(self, in_feat: int, out_feat: int, num_rels: int, negative_slope: float = 0.2, bias: bool = True) -> None:
        super().__init__()
        self.num_rels, self.negative_slope = integer("num_rels", num_rels, 1), negative_slope
        self.W = torch.nn.Parameter(torch.empty(in_feat, out_feat))
        self.p, self.q = torch.nn.Parameter(torch.empty(out_feat)), torch.nn.Parameter(torch.empty(out_feat))
        self.s = torch.nn.Parameter(torch.empty(in_feat))
        self.M, self.N = torch.nn.Parameter(torch.empty(in_feat, out_feat)), torch.nn.Parameter(torch.empty(in_feat, out_feat))
        self.U, self.W_0 = torch.nn.Parameter(torch.empty(in_feat, out_feat)), torch.nn.Parameter(torch.empty(in_feat, out_feat))
        self.S = torch.nn.Linear(out_feat, out_feat)
        self.k = torch.nn.Parameter(torch.empty(out_feat))
        self.bias = torch.nn.Parameter(torch.empty(out_feat)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights anew."""
        bound = math.sqrt(6 / sum(self.W.shape))  # Glorot and Bengio 2010
        for matrix in (self.W, self.M, self.N, self.U, self.W_0):
            torch.nn.init.uniform_(matrix, -bound, bound)
        for vector in (self.p, self.q, self.s, self.k):
            torch.nn.init.normal_(vector, std=1 / math.sqrt(len(vector)))
        self.S.reset_parameters()
        if self.bias is not None:
            torch.nn.init.zeros_(self.bias)

    def forward(
        self, graph: Block | Graph, feat: Rows, etypes: torch.Tensor, relations: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`relations` float32[num_rels, in_feat]: see the class."""
        if relations.shape != (self.num_rels, self.W.shape[0]):
            raise UsageError(f"relations are float32{list(relations.shape)}: give {[self.num_rels, self.W.shape[0]]}")
        edges = edges_of(graph)
        sources, destinations = rows_of(edges, feat)
        kinds = edges.ordered(relations_of(edges, etypes, self.num_rels))
        logits = (destinations @ (self.W @ self.p))[edges.destinations]
        logits = logits + (sources @ (self.W @ self.q))[edges.sources] + (relations @ self.s)[kinds]
        logits = torch.nn.functional.leaky_relu(logits, self.negative_slope)
        share = softmax(logits, edges.destinations, num_nodes=edges.num_destinations)
        met = _summed(edges, share, edges.sources, sources) @ self.M + _summed(edges, share, kinds, relations) @ self.N
        own = destinations @ self.W_0
        weigh = torch.stack([torch.tanh(self.S(each)) @ self.k for each in (own, met)], dim=1).softmax(dim=1)
        weigh = torch.where((edges.in_degrees() > 0)[:, None], weigh, weigh.new_tensor([1.0, 0.0]))
        made = weigh[:, :1] * own + weigh[:, 1:] * met
        return made if self.bias is None else made + self.bias, relations @ self.U


def _summed(edges: Edges, weights: torch.Tensor, places: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """float32[destinations, F]: over the edges to each, their weight [E] times the row at their place [E], of [n, F]."""
    starts = torch.zeros(edges.num_destinations + 1, dtype=torch.int64, device=rows.device)
    torch.cumsum(edges.in_degrees(), 0, out=starts[1:])
    size = edges.num_destinations, len(rows)
    matrix = torch.sparse_csr_tensor(starts, places, weights.detach(), size, check_invariants=False)
    made: torch.Tensor = Weighed.apply(  # type: ignore[no-untyped-call]
        spmm(matrix, rows), weights, rows.detach(), places, edges.destinations
    )
    return made
