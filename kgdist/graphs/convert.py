"""Graphs of SciPy, NetworkX and PyG as ours, and ours as theirs. None of these packages is needed, but by who has its graphs.

Edges keep their order, and so their ids: of a sparse matrix, row by row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.graphs.ids import as_array
from kgdist.graphs.in_memory import Graph, graph, heterograph
from kgdist.graphs.schema import NODES
from kgdist.graphs.structure import EType


def from_scipy(matrix: Any, eweight_name: str | None = None) -> Graph:
    """The edges from i to j of a square sparse matrix's stored entries [i, j], with their values as edge data of that name."""
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UsageError(f"the matrix of a graph has a row and a column for each node: not the shape {matrix.shape}")
    entries = matrix.tocoo()
    made = graph((entries.row, entries.col), num_nodes=matrix.shape[0])
    if eweight_name is not None:
        made.edata[eweight_name] = entries.data
    return made


def to_scipy(g: Graph, etype: Any = None) -> Any:
    """The sparse matrix whose entry [i, j] counts the edges of a type from i to j: scipy.sparse.coo_array int64."""
    import scipy.sparse

    kind = g.to_canonical_etype(etype)
    sources, destinations = g.edges_of(kind)
    shape = g.num_nodes(kind[0]), g.num_nodes(kind[2])
    return scipy.sparse.coo_array((np.ones(len(sources), np.int64), (sources, destinations)), shape=shape)


def from_networkx(nx_graph: Any, node_attrs: Any = (), edge_attrs: Any = ()) -> Graph:
    """A graph of NetworkX, its nodes numbered in their order there; an edge without direction becomes one each way.

    Args:
        node_attrs, edge_attrs: names of attributes, numbers or rows of them that all have, to be taken along.
    """
    numbers = {node: number for number, node in enumerate(nx_graph)}
    directed = nx_graph if nx_graph.is_directed() else nx_graph.to_directed()
    edges = list(directed.edges(data=True))
    ends = [[numbers[edge[side]] for edge in edges] for side in (0, 1)]
    made = graph((ends[0], ends[1]), num_nodes=len(numbers))
    for frame, names, rows in (
        (made.ndata, node_attrs, [data for _, data in nx_graph.nodes(data=True)]),
        (made.edata, edge_attrs, [data for _, _, data in edges]),
    ):
        for name in names:
            lacking = next((number for number, row in enumerate(rows) if name not in row), None)
            if lacking is not None:
                raise UsageError(f"attribute {name!r}: number {lacking} of {len(rows)} lacks it")
            frame[name] = torch.from_numpy(np.array([as_array(row[name]) for row in rows]))
    return made


def to_networkx(g: Graph) -> Any:
    """A networkx.MultiDiGraph of a graph of one type, with the edges' ids as keys; data as attributes."""
    import networkx

    made = networkx.MultiDiGraph()
    node_data = {name: column.tolist() for name, column in g.ndata.items()}
    edge_data = {name: column.tolist() for name, column in g.edata.items()}
    nodes = range(g.num_nodes(g.schema.ntype(None)))
    made.add_nodes_from((node, {name: column[node] for name, column in node_data.items()}) for node in nodes)
    sources, destinations = g.edges_of()
    made.add_edges_from(
        (source, destination, edge, {name: column[edge] for name, column in edge_data.items()})
        for edge, (source, destination) in enumerate(zip(sources.tolist(), destinations.tolist(), strict=True))
    )
    return made


def from_pyg(data: Any) -> Graph:
    """A graph of a `Data` or `HeteroData`, with all tensors that have a row for each node or edge, under their names."""
    if hasattr(data, "edge_types"):
        edges: dict[EType, Any] = {tuple(etype): data[etype].edge_index for etype in data.edge_types}
        made = heterograph(edges, {ntype: int(data[ntype].num_nodes or 0) for ntype in data.node_types})
        stores = [(made.nodes[ntype].data, data[ntype]) for ntype in data.node_types]
        stores += [(made.edges[etype].data, data[etype]) for etype in edges]
        for frame, store in stores:
            for name, value in store.items():
                if name != "edge_index" and isinstance(value, torch.Tensor) and value.dim() and len(value) == frame.rows:
                    frame[name] = value
        return made
    made = graph(data.edge_index, num_nodes=int(data.num_nodes))
    for name, value in data.items():
        if name != "edge_index" and isinstance(value, torch.Tensor) and value.dim():
            if data.is_node_attr(name):
                made.ndata[name] = value
            elif data.is_edge_attr(name):
                made.edata[name] = value
    return made


def to_pyg(g: Graph) -> Any:
    """A torch_geometric `Data` of a graph of one type, or a `HeteroData`; data under their names, edges by id."""
    from torch_geometric.data import Data, HeteroData

    if g.is_homogeneous and g.ntypes == [NODES]:
        index = torch.stack(g.edges())
        return Data(edge_index=index, num_nodes=g.num_nodes(), **dict(g.ndata), **dict(g.edata))
    made = HeteroData()
    for ntype in g.ntypes:
        made[ntype].num_nodes = g.num_nodes(ntype)
        for name, column in g.nodes[ntype].data.items():
            made[ntype][name] = column
    for etype in g.canonical_etypes:
        made[etype].edge_index = torch.stack(g.edges(etype))
        for name, column in g.edges[etype].data.items():
            made[etype][name] = column
    return made
