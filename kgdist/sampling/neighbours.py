"""Neighbours drawn from a graph in memory or on many machines: the edges of one hop, as a graph (a frontier), and as a block.

Everything random is said by a seed, so that the same call gives the same edges wherever the graph lies. Edges that are excluded
are left out before anything is drawn, so that a node still draws as many as there are (DGL draws first, and then leaves out).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.integers import integer
from kgdist.graphs.ids import as_array, as_ids, by_type
from kgdist.graphs.in_memory import Graph, frontier
from kgdist.graphs.schema import Schema, check_graph
from kgdist.graphs.structure import EID, NOTHING, Answer, Draw, EType, Neighbourhood, Question, check_ids
from kgdist.kernels import neighbours as loops
from kgdist.kernels.hashing import numbered
from kgdist.kernels.random import neighbour_key
from kgdist.sampling.blocks import Block, assemble, check_once

Fanout = int | Mapping[Any, int]  # how many edges a node draws, of each type; a dictionary names every edge type


def schema_of(g: Neighbourhood) -> Schema:
    """The types of a graph. Raises UsageError for what is none."""
    if isinstance(g, Graph):
        return g.schema
    check_graph(g, "neighbours")
    return Schema(g.ntypes, g.canonical_etypes)


def fanouts(fanout: Fanout, schema: Schema) -> dict[EType, int]:
    """The fan-out of each edge type. Raises UsageError for a type that a dictionary lacks, and for no number from -1 on."""
    given = fanout if isinstance(fanout, Mapping) else dict.fromkeys(schema.etypes, fanout)
    found = {schema.etype(etype): integer("fanout (-1: all)", count, -1) for etype, count in given.items()}
    if missing := [etype for etype in schema.etypes if etype not in found]:
        raise UsageError(f"the fan-out of edges of type {':'.join(missing[0])} is not said: name every type, with 0 for none")
    return found


def excluded(edges: Any, g: Neighbourhood, schema: Schema) -> dict[EType, np.ndarray]:
    """Ids int64[x] of edges that are not to be drawn, by type, of what a user gives. Raises UsageError for one that is none."""
    if edges is None:
        return {}
    given = edges if isinstance(edges, Mapping) else {schema.etype(None): edges}
    found = {schema.etype(etype): as_ids(ids, "edges to leave out").astype(np.int64, copy=False) for etype, ids in given.items()}
    for etype, ids in found.items():
        check_ids("edge", ids, g.num_edges(etype), kind=f" of type {':'.join(etype)} to leave out")
    return found


def drawn(
    g: Neighbourhood,
    schema: Schema,
    seeds: Mapping[str, np.ndarray],
    counts: Mapping[EType, int],
    draw: Draw,
    *,
    prob: str | None = None,
    replace: bool = False,
    exclude: Mapping[EType, np.ndarray] | None = None,
    out: bool = False,
) -> dict[EType, Answer]:
    """What seeds int64[n] of each type draw, along every edge type that has some of them and a fan-out."""
    end = 0 if out else 2
    asked = [etype for etype in schema.etypes if counts[etype] != 0 and len(seeds.get(etype[end], NOTHING))]
    exclude = exclude or {}
    questions = [Question(etype, seeds[etype[end]], counts[etype], replace, prob, out, exclude.get(etype)) for etype in asked]
    return dict(zip(asked, g.neighbours(questions, draw), strict=True))


def sample_neighbors(
    g: Neighbourhood,
    nodes: Any,
    fanout: Fanout,
    edge_dir: str = "in",
    prob: str | None = None,
    exclude_edges: Any = None,
    replace: bool = False,
    *,
    seed: int | None = None,
) -> Graph:
    """A graph of all nodes and of the edges that `nodes` draw; `edata[EID]` are the edges' ids in `g`. Node data stays behind.

    Args:
        nodes: ids, or a dictionary of node type to ids. One that stands twice draws twice the same.
        fanout: how many edges a node draws, of each type; nodes with no more give all of them. -1: all. A dictionary says it for
            every edge type.
        edge_dir: "in", edges that lead to the nodes, or "out", those that leave them.
        prob: an edge feature: floats are weights (0 is never drawn), bool or uint8 say which edges may be drawn.
        exclude_edges: ids, or a dictionary of edge type to ids, that are left out before drawing.
        replace: an edge may be drawn several times; a node with edges then has exactly `fanout`.
        seed: equal ones draw equally; where none is given, torch's generator says it.

    Raises UsageError for ids and types that are not there.
    """
    if edge_dir not in ("in", "out"):
        raise UsageError(f"edge_dir={edge_dir!r}: edges lead 'in' or 'out'")
    schema = schema_of(g)
    seeds = by_type(nodes, schema)
    draw = Draw(seed_of(seed))
    out = edge_dir == "out"
    answers = drawn(
        g,
        schema,
        seeds,
        fanouts(fanout, schema),
        draw,
        prob=prob,
        replace=replace,
        exclude=excluded(exclude_edges, g, schema),
        out=out,
    )
    return frontier(g, {etype: (seeds[etype[0 if out else 2]], answer) for etype, answer in answers.items()}, out)


def sample_etype_neighbors(
    g: Any,
    nodes: Any,
    fanout: Any,
    edge_dir: str = "in",
    prob: str | None = None,
    exclude_edges: Any = None,
    replace: bool = False,
    *,
    etype: str = "etype",
    seed: int | None = None,
) -> Graph:
    """As `sample_neighbors`, so many edges of each kind. In a graph of several edge types these are the kinds; in one of a single
    type they are a column of edge data, such as the relations of `Graph.from_triples`.

    Args:
        fanout: of every kind, or by kind; -1: all.
        etype: the name of the column, whole numbers from 0.
        replace: with edge types only.

    By a column, all edges of the nodes are looked at, wherever the graph lies. Raises UsageError for a kind whose fan-out is not
    said, and for `replace` by a column.
    """
    seed = seed_of(seed)
    if len(g.canonical_etypes) > 1:
        return sample_neighbors(g, nodes, fanout, edge_dir, prob, exclude_edges, replace, seed=seed)
    if replace:
        raise UsageError(f"replace=True: edges whose kinds are a column ({etype!r}) are drawn without replacement")
    whole = sample_neighbors(g, nodes, -1, edge_dir, prob, exclude_edges, seed=seed)
    only = whole.schema.etype(None)
    data, ids = g.edges[only].data, whole.edges[only].data[EID]
    if etype not in data:
        raise UsageError(f"edges have no data {etype!r} that says their kinds")
    kinds = as_ids(data[etype][ids], etype)
    weights = as_array(data[prob][ids]) if prob is not None else NOTHING
    if prob is not None and weights.dtype.kind != "f":
        weights = NOTHING  # a mask: what is left has one weight
    keys = np.empty(len(ids))
    loops.lots(ids.numpy(), weights, neighbour_key(seed, 0, 0, 0), keys)
    asking = whole.edges_of()[0 if edge_dir == "out" else 1]
    order = np.lexsort((keys, kinds, asking))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(asking[order]) != 0) | (np.diff(kinds[order]) != 0)
    rank = np.arange(len(order)) - np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    allowed = np.array([_of_kind(fanout, int(kind)) for kind in np.unique(kinds)], np.int64)
    limit = allowed[np.unique(kinds, return_inverse=True)[1].reshape(-1)[order]] if len(order) else NOTHING
    kept = np.sort(order[(limit < 0) | (rank < limit)])
    part = whole.edge_subgraph(kept, relabel_nodes=False)
    part.edges[only].data[EID] = ids[torch.from_numpy(kept)]
    return part


def _of_kind(fanout: Any, kind: int) -> int:
    if not isinstance(fanout, Mapping) and np.ndim(fanout) == 0:
        return integer("fanout (-1: all)", fanout, -1)
    if kind not in (fanout if isinstance(fanout, Mapping) else range(len(fanout))):
        raise UsageError(f"the fan-out of edges of kind {kind} is not said: name every kind, with 0 for none")
    return integer("fanout (-1: all)", fanout[kind], -1)


def in_subgraph(g: Neighbourhood, nodes: Any) -> Graph:
    """All edges that lead to these nodes, as a graph of all nodes; `edata[EID]` are their ids in `g`."""
    return sample_neighbors(g, nodes, -1, seed=0)


_generator: list[torch.Generator] = []  # of who has called `seed`


def seed(value: int) -> None:
    """Whatever is drawn in this process from here on without a seed of its own follows from `value`, and no longer from torch's
    generator, which is left as it is. Raises OptionError for what is no integer."""
    _generator[:] = [torch.Generator().manual_seed(integer("seed", value, -(1 << 63), (1 << 63) - 1))]


def fresh_seed() -> int:
    """A seed that torch's generator says, so that `torch.manual_seed` settles everything; or that of `seed`, once called."""
    return int(torch.randint(1 << 62, (), generator=_generator[0] if _generator else None))


def seed_of(given: int | None) -> int:
    """The seed that a caller gives, or a fresh one. Raises OptionError for what is no integer."""
    return fresh_seed() if given is None else integer("seed", given)


def to_block(g: Graph, dst_nodes: Any = None) -> Block:
    """The block of a graph's edges: destinations are `dst_nodes`, sources these and then others as they first occur.

    Args:
        g: mostly a frontier. Where it has `edata[EID]`, these become the block's, and its own numbers of edges otherwise.
        dst_nodes: ids, or a dictionary of node type to ids, each once; where not given, all nodes that edges lead to, as they
            first occur.

    Raises UsageError for nodes that repeat, and for edges that lead to other nodes.
    """
    check_graph(g, "edges_of", "edge_subgraph")
    schema = g.schema
    ends = {etype: g.edges_of(etype) for etype in schema.etypes}
    own = by_type(dst_nodes, schema) if dst_nodes is not None else {}
    src_nodes: dict[str, torch.Tensor] = {}
    sources: dict[EType, np.ndarray] = {}
    destinations: dict[EType, np.ndarray] = {}
    for ntype in schema.ntypes:
        arriving = [etype for etype in schema.etypes if etype[2] == ntype]
        leaving = [etype for etype in schema.etypes if etype[0] == ntype]
        seeds = own.get(ntype, NOTHING)
        nodes, (first, *found) = numbered([seeds, *(ends[etype][1] for etype in arriving)])
        check_once(seeds, first)
        if dst_nodes is None:
            own[ntype] = nodes
        elif len(nodes) > len(seeds):
            raise UsageError(f"an edge leads to node {nodes[len(seeds)]}, which is not among dst_nodes")
        destinations.update(zip(arriving, found, strict=True))
        nodes, (_, *found) = numbered([own.get(ntype, NOTHING), *(ends[etype][0] for etype in leaving)])
        src_nodes[ntype] = torch.from_numpy(nodes)
        sources.update(zip(leaving, found, strict=True))
    ids = {etype: g.edges[etype].data.get(EID) for etype in schema.etypes}
    return Block(
        schema,
        src_nodes,
        {ntype: len(own.get(ntype, NOTHING)) for ntype in schema.ntypes},
        {etype: (torch.from_numpy(sources[etype]), torch.from_numpy(destinations[etype])) for etype in schema.etypes},
        {etype: torch.arange(g.num_edges(etype)) if (carried := ids[etype]) is None else carried for etype in schema.etypes},
    )


def hop(
    g: Neighbourhood, schema: Schema, seeds: Mapping[str, np.ndarray], counts: Mapping[EType, int], draw: Draw, **how: Any
) -> Block:
    """The block of what seeds draw: `to_block` of `sample_neighbors`, and no graph between them."""
    return assemble(schema, seeds, drawn(g, schema, seeds, counts, draw, **how))
