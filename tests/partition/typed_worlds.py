"""Small graphs of one type or several, for the tests of their partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from kgdist.partition.typed_book import EdgeType

HOMOGENEOUS = ("_N", "_E", "_N")


class Data:
    """`.data`, by name."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}


class World:
    """What partition_graph asks of a graph, and nothing more."""

    def __init__(self, edges: dict[EdgeType, Any], num_nodes: dict[str, int]) -> None:
        self.count = num_nodes
        self.ends = {etype: tuple(np.asarray(side, np.int64) for side in ends) for etype, ends in edges.items()}
        self.nodes = {ntype: Data() for ntype in num_nodes}
        self.edges = {etype: Data() for etype in edges}

    @property
    def ntypes(self) -> list[str]:
        return list(self.count)

    @property
    def canonical_etypes(self) -> list[EdgeType]:
        return list(self.ends)

    def num_nodes(self, ntype: str | None = None) -> int:
        return sum(self.count.values()) if ntype is None else self.count[ntype]

    def num_edges(self, etype: Any = None) -> int:
        return sum(len(ends[0]) for ends in self.ends.values()) if etype is None else len(self.ends[etype][0])

    def edges_of(self, etype: Any = None) -> Any:
        return self.ends[etype if etype is not None else next(iter(self.ends))]


def homogeneous(sources: Any, destinations: Any, nodes: int) -> World:
    """One type of nodes, one of edges."""
    return World({HOMOGENEOUS: (sources, destinations)}, {"_N": nodes})


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Loops, repeated edges, types without nodes or edges, rare types; data of several dtypes and shapes."""
    if draw(st.booleans()):
        counts, etypes = {"_N": draw(st.integers(1, 14))}, [HOMOGENEOUS]
    else:
        counts = {ntype: draw(st.integers(0, 9)) for ntype in ("author", "paper", "venue")}
        counts["paper"] += not sum(counts.values())
        kinds = [
            ("author", "writes", "paper"),
            ("paper", "cites", "paper"),
            ("paper", "in", "venue"),
            ("venue", "writes", "author"),
        ]
        etypes = draw(st.lists(st.sampled_from(kinds), unique=True))
    edges: dict[EdgeType, Any] = {}
    for etype in etypes:
        source, destination = counts[etype[0]], counts[etype[2]]
        pairs = st.tuples(st.integers(0, max(0, source - 1)), st.integers(0, max(0, destination - 1)))
        found = draw(st.lists(pairs, max_size=40)) if source and destination else []
        edges[etype] = np.array(found, np.int64).reshape(-1, 2).T
    world = World(edges, counts)
    for ntype, count in counts.items():
        world.nodes[ntype].data["id"] = torch.arange(count, dtype=torch.int32)
        world.nodes[ntype].data["feat.1 of/two"] = torch.arange(6.0 * count, dtype=torch.bfloat16).reshape(count, 2, 3)
    for etype, ends in edges.items():
        world.edges[etype].data["w"] = torch.arange(ends.shape[1], dtype=torch.float64)
    return world


def communities(nodes: int = 400, degree: int = 8, groups: int = 8, mixing: float = 0.1, seed: int = 0) -> World:
    """Node v is of group v % groups and keeps most of its edges within it."""
    rng = np.random.default_rng(seed)
    sources = rng.integers(0, nodes, nodes * degree)
    away = rng.random(len(sources)) < mixing
    near = rng.integers(0, nodes // groups, len(sources)) * groups + sources % groups
    return homogeneous(sources, np.where(away, rng.integers(0, nodes, len(sources)), near), nodes)
