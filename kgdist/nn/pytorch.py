"""The layers under the name that DGL gives their folder: `import kgdist.nn.pytorch as dglnn`."""

from kgdist.nn import GATConv, GraphConv, HeteroGraphConv, RelGraphConv, SAGEConv

__all__ = ["GATConv", "GraphConv", "HeteroGraphConv", "RelGraphConv", "SAGEConv"]
