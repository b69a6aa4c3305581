"""Small partitioned graphs, and the same in plain lists: what a distributed graph must say of them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.standalone import Standalone
from kgdist.distributed.storage import OpenedGraph, Spec
from kgdist.graphs.structure import InEdges

Etype = tuple[str, str, str]


@dataclass(repr=False)
class World:
    """A graph in new ids. Per type: bounds of the partitions, the original id of each new one; sources and destinations of edges
    by id; features by type and name, by new id."""

    parts: int
    nodes: dict[str, np.ndarray]
    edges: dict[Etype, np.ndarray]
    originals: dict[str, np.ndarray]
    ends: dict[Etype, tuple[np.ndarray, np.ndarray]]
    node_features: dict[str, dict[str, np.ndarray]] = field(default_factory=dict)
    edge_features: dict[Etype, dict[str, np.ndarray]] = field(default_factory=dict)

    def hold(self, name: str, storage: Standalone) -> None:
        """Open it in a process that holds all partitions."""
        nodes = {each: PartitionPolicy(name, "node", each, bounds) for each, bounds in self.nodes.items()}
        edges = {each: PartitionPolicy(name, "edge", ":".join(each), bounds) for each, bounds in self.edges.items()}
        specs = []
        for policies, features in ((nodes, self.node_features), (edges, self.edge_features)):
            specs.append(
                {
                    each: {
                        key: Spec(f"{name}~{policy.policy_str}~{key}", policy, torch.from_numpy(rows).dtype, rows.shape[1:])
                        for key, rows in features.get(each, {}).items()  # type: ignore[call-overload]
                    }
                    for each, policy in policies.items()  # type: ignore[attr-defined]
                }
            )
            for each, named in specs[-1].items():
                for key, spec in named.items():
                    whole = torch.from_numpy(features[each][key].copy())  # type: ignore[index]
                    storage.adopt(spec, whole.split(np.diff(spec.policy.bounds).tolist()))
        storage.hold(name, OpenedGraph(nodes, edges, *specs, book=None), [Part(self, part) for part in range(self.parts)])


class Part:
    """One partition of a world."""

    def __init__(self, world: World, part: int) -> None:
        self.world, self.part = world, part
        self.canonical_etypes = list(world.edges)

    def own_edges(self, etype: Etype) -> InEdges:
        bounds, nodes = self.world.edges[etype], self.world.nodes[etype[2]]
        sources, destinations = (ends[bounds[self.part] : bounds[self.part + 1]] for ends in self.world.ends[etype])
        first, last = nodes[self.part], nodes[self.part + 1]
        starts = np.searchsorted(destinations, np.arange(first, last + 1))
        return InEdges(starts.astype(np.int64), sources.astype(np.int32), None, int(bounds[self.part]), int(first))

    def originals(self, kind: str, type_name: str) -> np.ndarray:
        assert kind == "node"
        bounds = self.world.nodes[type_name]
        return self.world.originals[type_name][bounds[self.part] : bounds[self.part + 1]]


def world(parts: int, nodes: dict[str, int], edges: dict[Etype, int], seed: int = 0) -> World:
    """So many nodes and edges of each type, at random, the same graph for any number of partitions but for the ids."""
    rng = np.random.default_rng(seed)
    ends = {each: tuple(rng.integers(0, nodes[each[end]], count) for end in (0, 2)) for each, count in edges.items()}
    weights = {each: rng.random(count).astype(np.float32) for each, count in edges.items()}
    owner = {each: rng.integers(0, parts, count) for each, count in nodes.items()}
    originals = {each: np.argsort(owner[each], kind="stable") for each in nodes}
    new = {each: np.argsort(originals[each]) for each in nodes}
    made = World(
        parts,
        {each: np.searchsorted(np.sort(owner[each]), np.arange(parts + 1)).astype(np.int64) for each in nodes},
        {},
        originals,
        {},
        {each: {"x": np.stack([originals[each], originals[each] ** 2], 1).astype(np.float32)} for each in nodes},
    )
    for each in edges:
        sources, destinations = new[each[0]][ends[each][0]], new[each[2]][ends[each][1]]
        order = np.argsort(destinations, kind="stable")
        made.ends[each] = sources[order], destinations[order]
        made.edges[each] = np.searchsorted(destinations[order], made.nodes[each[2]]).astype(np.int64)
        made.edge_features[each] = {"w": weights[each][order]}
    return made
