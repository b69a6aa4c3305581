"""Graphs made of graphs: with loops, without them, with edges both ways, of one type, of some nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError, counted
from kgdist.base.integers import distinct
from kgdist.graphs.ids import as_array, by_type
from kgdist.graphs.in_memory import Ends, Graph, graph
from kgdist.graphs.structure import EID, ETYPE, NID, NOTHING, NTYPE, EType, check_ids


def add_self_loop(g: Graph, fill_data: float = 1.0, etype: Any = None) -> Graph:
    """The graph with one more edge from each node to itself, after the others; `edata` of these is `fill_data`, data stays.

    A node that has a loop gets another: see `remove_self_loop`. Raises UsageError for edges between nodes of two types.
    """
    etype = _within(g, etype)
    sources, destinations = g.edges_of(etype)
    loops = np.arange(g.num_nodes(etype[0]))
    ends = np.concatenate([sources, loops]), np.concatenate([destinations, loops])
    data = {
        name: torch.cat([column, column.new_full((len(loops), *column.shape[1:]), fill_data)])
        for name, column in g.edges[etype].data.items()
    }
    return _with_edges(g, {etype: ends}, {etype: data})


def remove_self_loop(g: Graph, etype: Any = None) -> Graph:
    """The graph without edges from a node to itself; data stays. Raises UsageError for edges between nodes of two types."""
    etype = _within(g, etype)
    sources, destinations = g.edges_of(etype)
    kept = np.flatnonzero(sources != destinations)
    data = {name: column[torch.from_numpy(kept)] for name, column in g.edges[etype].data.items()}
    return _with_edges(g, {etype: (sources[kept], destinations[kept])}, {etype: data})


def add_reverse_edges(g: Graph, copy_ndata: bool = True, copy_edata: bool = False, exclude_self: bool = True) -> Graph:
    """The graph with every edge the other way round too, after the others and in their order: of E edges without loops, edge e
    has the reverse e + E, and `reverse_eids` for a loader of edges is `torch.arange(2 * E).roll(E)`.

    Args:
        copy_edata: the data of an edge is its reverse's, too; otherwise edges have none.
        exclude_self: loops have no reverse.

    Raises UsageError for edges between nodes of two types.
    """
    ends, data = {}, {}
    for etype in g.canonical_etypes:
        sources, destinations = g.edges_of(_within(g, etype))
        turned = np.flatnonzero(sources != destinations) if exclude_self else np.arange(len(sources))
        ends[etype] = np.concatenate([sources, destinations[turned]]), np.concatenate([destinations, sources[turned]])
        twice = torch.from_numpy(np.concatenate([np.arange(len(sources)), turned]))
        data[etype] = {name: column[twice] for name, column in g.edges[etype].data.items()} if copy_edata else {}
    return _with_edges(g, ends, data, copy_ndata)


def to_bidirected(g: Graph, copy_ndata: bool = False) -> Graph:
    """The graph with every edge both ways and none twice, sorted by source and then by destination; edges have no data.

    Raises UsageError for edges between nodes of two types.
    """
    ends: dict[EType, Ends] = {}
    for etype in g.canonical_etypes:
        sources, destinations = g.edges_of(_within(g, etype))
        both = np.concatenate([sources, destinations]), np.concatenate([destinations, sources])
        count = max(g.num_nodes(etype[0]), 1)
        pairs = distinct(both[0] * count + both[1])  # fits 8 bytes up to three thousand million nodes
        ends[etype] = pairs // count, pairs % count
    return _with_edges(g, ends, {etype: {} for etype in ends}, copy_ndata)


def to_homogeneous(
    g: Graph,
    ndata: Sequence[str] | None = None,
    edata: Sequence[str] | None = None,
    store_type: bool = True,
    return_count: bool = False,
) -> Graph | tuple[Graph, list[int], list[int]]:
    """The graph with one type of nodes and one of edges: those of each type follow those of the types before it.

    `ndata[NTYPE]` and `edata[ETYPE]` int64 are the places of their types in `g.ntypes` and `g.canonical_etypes`, `ndata[NID]` and
    `edata[EID]` int64 their ids within them.

    Args:
        ndata, edata: names of the data that come along, which all types have, of one dtype and shape of a row.
        store_type: whether NTYPE and ETYPE are there.
        return_count: return (graph, number of nodes of each type, number of edges of each type).

    Raises UsageError for data that a type has not, or has of another dtype or shape.
    """
    nodes, edges = [g.num_nodes(each) for each in g.ntypes], [g.num_edges(each) for each in g.canonical_etypes]
    first = dict(zip(g.ntypes, np.cumsum([0, *nodes]).tolist(), strict=False))
    sides = [(np.zeros(0, np.int64),) * 2]
    for etype in g.canonical_etypes:
        sources, destinations = g.edges_of(etype)
        sides.append((sources + first[etype[0]], destinations + first[etype[2]]))
    made = graph(tuple(map(np.concatenate, zip(*sides, strict=True))), num_nodes=sum(nodes))
    for target, names, frames, counts, key, number in (
        (made.ndata, ndata, [g.nodes[each].data for each in g.ntypes], nodes, NID, NTYPE),
        (made.edata, edata, [g.edges[each].data for each in g.canonical_etypes], edges, EID, ETYPE),
    ):
        for name in names or ():
            target[name] = _end_to_end(name, [frame[name] for frame in frames])
        target[key] = torch.cat([torch.arange(0), *map(torch.arange, counts)])
        if store_type:
            target[number] = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts, dtype=torch.int64))
    return (made, nodes, edges) if return_count else made


def node_subgraph(g: Graph, nodes: Any, *, relabel_nodes: bool = True, store_ids: bool = True) -> Graph:
    """These nodes and all edges between them, in the order of their ids; data comes along.

    Args:
        nodes: ids, each once, or a mask; a dictionary by type where there are several. The first becomes node 0 of its type.
        relabel_nodes: otherwise all nodes stay, with their ids.
        store_ids: `ndata[NID]`, where nodes have new ids, and `edata[EID]` are the ids in `g`.

    Raises UsageError for ids that are not there, or that repeat.
    """
    given = nodes if isinstance(nodes, Mapping) else {None: nodes}
    wanted = by_type(
        {g.schema.ntype(each): _chosen(ids, g.num_nodes(g.schema.ntype(each))) for each, ids in given.items()}, g.schema
    )
    number = {ntype: np.full(g.num_nodes(ntype), -1) for ntype in g.ntypes}
    kept = {ntype: wanted.get(ntype, NOTHING) for ntype in g.ntypes}
    for ntype, ids in kept.items():
        check_ids("node", ids, g.num_nodes(ntype), kind=f" of type {ntype}")
        number[ntype][ids] = np.arange(len(ids))
        if len(ids) != np.count_nonzero(number[ntype] >= 0):
            raise UsageError(f"a node of type {ntype} stands more than once among the nodes of a subgraph: give each once")
    edges, ends = {}, {}
    for etype in g.canonical_etypes:
        u, v = g.edges_of(etype)
        new = number[etype[0]][u], number[etype[2]][v]
        among = np.flatnonzero((new[0] >= 0) & (new[1] >= 0))
        edges[etype] = torch.from_numpy(among)
        ends[etype] = (new[0][among], new[1][among]) if relabel_nodes else (u[among], v[among])
    part = Graph(ends, {ntype: len(kept[ntype]) if relabel_nodes else g.num_nodes(ntype) for ntype in g.ntypes})
    for ntype in g.ntypes:
        at = torch.from_numpy(kept[ntype])
        data = part.nodes[ntype].data
        data.update({name: column[at] if relabel_nodes else column for name, column in g.nodes[ntype].data.items()})
        if relabel_nodes and store_ids:
            data[NID] = at
    for etype, at in edges.items():
        part.edges[etype].data.update({name: column[at] for name, column in g.edges[etype].data.items()})
        if store_ids:
            part.edges[etype].data[EID] = at
    return part


def _chosen(ids: Any, count: int) -> Any:
    """Ids, of a mask where it is one."""
    mask = as_array(ids)
    if mask.dtype != np.bool_:
        return ids
    if mask.shape != (count,):
        raise UsageError(f"a mask of the shape {mask.shape}, but there are {counted(count, 'node')}")
    return np.flatnonzero(mask)


def _end_to_end(name: str, columns: Sequence[torch.Tensor]) -> torch.Tensor:
    kinds = {(each.dtype, tuple(each.shape[1:])) for each in columns}
    if len(kinds) > 1:
        raise UsageError(
            f"{name!r} is of several dtypes or shapes ({', '.join(map(str, kinds))}): leave it out, or make them one"
        )
    return torch.cat(list(columns))


def _within(g: Graph, etype: Any) -> EType:
    """An edge type whose ends are of one type."""
    found = g.to_canonical_etype(etype)
    if found[0] != found[2]:
        raise UsageError(f"edges of type {':'.join(found)} lead to nodes of another type: there are no loops, and no way back")
    return found


def _with_edges(
    g: Graph, ends: Mapping[EType, Ends], data: Mapping[EType, Mapping[str, torch.Tensor]], copy_ndata: bool = True
) -> Graph:
    """The graph with other edges, and other data of these, where they are given."""
    edges = {etype: ends[etype] if etype in ends else g.edges_of(etype) for etype in g.canonical_etypes}
    made = Graph(edges, {ntype: g.num_nodes(ntype) for ntype in g.ntypes})
    if copy_ndata:
        for ntype in g.ntypes:
            made.nodes[ntype].data.update(g.nodes[ntype].data)
    for etype in g.canonical_etypes:
        made.edges[etype].data.update(data.get(etype, g.edges[etype].data))
    return made
