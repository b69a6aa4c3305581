"""Layers of graph networks on blocks and graphs: DGL's constructors and calls, PyG's arithmetic (the extra kgdist[gnn]).

    import kgdist.nn as dglnn

    layer = dglnn.SAGEConv(64, 256, "mean")
    hidden = layer(block, rows)          # float32[sources, 64] -> float32[destinations, 256]

attribute_embedding.py  attributes as what an entity begins with
comp_graph_conv.py  composition of entities and relations
csr.py             edges as a compressed matrix, rows as (sources, destinations)
gat_conv.py        graph attention
graph_conv.py      graph convolution
hetero_conv.py     a layer for each type of edges
pyg.py             our graphs for PyG's loaders
pytorch.py         the same names, where DGL has them too
rel_gnn_conv.py    attention over relations and neighbours
rel_graph_conv.py  relational graph convolution
sage_conv.py       GraphSAGE

Each name below is imported when it is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import UsageError

if TYPE_CHECKING:
    from kgdist.nn.attribute_embedding import AttributeEmbedding
    from kgdist.nn.comp_graph_conv import CompGraphConv
    from kgdist.nn.gat_conv import GATConv
    from kgdist.nn.graph_conv import GraphConv
    from kgdist.nn.hetero_conv import HeteroGraphConv
    from kgdist.nn.pyg import PyGFeatureStore, PyGGraphStore, PyGNeighborSampler, pyg_stores, with_edge_data
    from kgdist.nn.rel_gnn_conv import RelGNNConv
    from kgdist.nn.rel_graph_conv import RelGraphConv
    from kgdist.nn.sage_conv import SAGEConv

__all__ = [
    "AttributeEmbedding",
    "CompGraphConv",
    "GATConv",
    "GraphConv",
    "HeteroGraphConv",
    "PyGFeatureStore",
    "PyGGraphStore",
    "PyGNeighborSampler",
    "RelGNNConv",
    "RelGraphConv",
    "SAGEConv",
    "pyg_stores",
    "with_edge_data",
]


def _here(_: ModuleType) -> ModuleType:
    """This package: a file of it that has been imported is one of its names."""
    return sys.modules[__name__]


_HOMES: dict[str, Callable[[], ModuleType]] = {
    "AttributeEmbedding": lambda: import_module("kgdist.nn.attribute_embedding"),
    "CompGraphConv": lambda: import_module("kgdist.nn.comp_graph_conv"),
    "GATConv": lambda: import_module("kgdist.nn.gat_conv"),
    "GraphConv": lambda: import_module("kgdist.nn.graph_conv"),
    "HeteroGraphConv": lambda: import_module("kgdist.nn.hetero_conv"),
    "RelGNNConv": lambda: import_module("kgdist.nn.rel_gnn_conv"),
    "RelGraphConv": lambda: import_module("kgdist.nn.rel_graph_conv"),
    "SAGEConv": lambda: import_module("kgdist.nn.sage_conv"),
    "PyGFeatureStore": lambda: import_module("kgdist.nn.pyg"),
    "PyGGraphStore": lambda: import_module("kgdist.nn.pyg"),
    "PyGNeighborSampler": lambda: import_module("kgdist.nn.pyg"),
    "pyg_stores": lambda: import_module("kgdist.nn.pyg"),
    "with_edge_data": lambda: import_module("kgdist.nn.pyg"),
    "pytorch": lambda: _here(import_module("kgdist.nn.pytorch")),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kgdist.nn' has no attribute {name!r}")
    try:
        home = _HOMES[name]()
    except ImportError as error:
        raise UsageError(f"kgdist.nn needs a package that is not there ({error}); pip install 'kgdist[gnn]'") from error
    value = globals()[name] = getattr(home, name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
