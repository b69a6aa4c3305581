"""Our graphs for PyG's loaders, in memory or on machines: any model of PyG trains on them unchanged.

    from torch_geometric.loader import NodeLoader

    loader = NodeLoader(pyg_stores(g), PyGNeighborSampler(g, [10, 10]), input_nodes=train_ids, batch_size=1024, shuffle=True)
    for batch in loader:                            # Data, or HeteroData of a graph of several types
        out = model(batch.x, batch.edge_index)[: batch.batch_size]

Features have the names of `g.ndata` (`batch.feat` for `g.ndata["feat"]`); PyG's models and loaders expect nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, FeatureStore, GraphStore, HeteroData, TensorAttr
from torch_geometric.data.graph_store import EdgeAttr, EdgeLayout
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    HeteroSamplerOutput,
    NegativeSampling,
    NodeSamplerInput,
    SamplerOutput,
)
from torch_geometric.sampler.neighbor_sampler import edge_sample

from kgdist.base.errors import UsageError
from kgdist.graphs.structure import NOTHING, Draw, EType, Question
from kgdist.kernels.hashing import numbered
from kgdist.sampling.blocks import check_once
from kgdist.sampling.neighbours import fresh_seed


def pyg_stores(graph: Any) -> tuple[PyGFeatureStore, PyGGraphStore]:
    """What PyG's loaders take as `data`: the features of the nodes of a Graph or DistGraph, and its edges."""
    return PyGFeatureStore(graph), PyGGraphStore(graph)


def one_type(graph: Any) -> bool:
    """Whether PyG sees a graph without types."""
    return len(graph.ntypes) == 1 and len(graph.canonical_etypes) == 1


class PyGFeatureStore(FeatureStore):  # type: ignore[misc]
    """Data of nodes by (type, name); the type is None where there is one."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.__dict__["graph"] = graph

    def get_all_tensor_attrs(self) -> list[TensorAttr]:
        """Every name of every type."""
        types = [(None, None)] if one_type(self.graph) else [(ntype, ntype) for ntype in self.graph.ntypes]
        return [TensorAttr(group, name) for group, ntype in types for name in self._data(ntype)]

    def _data(self, ntype: str | None) -> Any:
        return self.graph.nodes[self.graph.ntypes[0] if ntype is None else ntype].data

    def _get_tensor(self, attr: TensorAttr) -> torch.Tensor | None:
        data = self._data(attr.group_name)
        if attr.attr_name not in data:
            return None
        found: torch.Tensor = data[attr.attr_name][slice(None) if attr.index is None else attr.index]
        return found

    def _get_tensor_size(self, attr: TensorAttr) -> tuple[int, ...] | None:
        data = self._data(attr.group_name)
        return tuple(data[attr.attr_name].shape) if attr.attr_name in data else None

    def _put_tensor(self, tensor: Any, attr: TensorAttr) -> bool:
        data = self._data(attr.group_name)
        if attr.attr_name in data:
            data[attr.attr_name][slice(None) if attr.index is None else attr.index] = torch.as_tensor(tensor)
        else:
            data[attr.attr_name] = tensor  # refuses what has no row for each node, and what is no DistTensor for a DistGraph
        return True

    def _remove_tensor(self, attr: TensorAttr) -> bool:
        del self._data(attr.group_name)[attr.attr_name]
        return True


class PyGGraphStore(GraphStore):  # type: ignore[misc]
    """The edges of each type, which are read by PyG only where it is to make batches of all of them."""

    def __init__(self, graph: Any) -> None:
        super().__init__()
        self.__dict__["graph"] = graph

    def get_all_edge_attrs(self) -> list[EdgeAttr]:
        """Every type, as lists of edges by id."""
        single = one_type(self.graph)
        return [
            EdgeAttr(
                None if single else each, EdgeLayout.COO, size=(self.graph.num_nodes(each[0]), self.graph.num_nodes(each[2]))
            )
            for each in self.graph.canonical_etypes
        ]

    def _get_edge_index(self, edge_attr: EdgeAttr) -> tuple[torch.Tensor, torch.Tensor] | None:
        etype = self.graph.canonical_etypes[0] if edge_attr.edge_type is None else edge_attr.edge_type
        if edge_attr.layout != EdgeLayout.COO or etype not in self.graph.canonical_etypes:
            return None
        found: tuple[torch.Tensor, torch.Tensor] = self.graph.find_edges(torch.arange(self.graph.num_edges(etype)), etype)
        return found

    def _put_edge_index(self, edge_index: Any, edge_attr: EdgeAttr) -> bool:
        raise UsageError(f"{edge_attr.edge_type}: the edges of a graph are those it was made with")

    def _remove_edge_index(self, edge_attr: EdgeAttr) -> bool:
        raise UsageError(f"{edge_attr.edge_type}: the edges of a graph stay")


class PyGNeighborSampler(BaseSampler):  # type: ignore[misc]
    """What NodeLoader and LinkLoader call for the neighbours of a batch.

    Each hop draws for the nodes that the hop before has found, so every node draws once. Batches hold the nodes in the order they
    were found, seeds first, and say how many nodes and edges each hop found (`trim_to_layer`).

    Args:
        graph: a Graph or DistGraph.
        num_neighbors: how many edges a node draws, in PyG's order: the first number is the hop next to the seeds (which stands
            last in MultiLayerNeighborSampler). -1: all. A dictionary of edge type to numbers names every type.
        replace: an edge may be drawn several times.
        prob: an edge feature that says which are drawn: floats are weights, bool or uint8 a mask.

    torch's generator says what is drawn; each worker of a loader has its own. Raises UsageError for types that are not there or
    not named, for seeds that repeat, and for batches with times.
    """

    def __init__(
        self,
        graph: Any,
        num_neighbors: Sequence[int] | Mapping[Any, Sequence[int]],
        replace: bool = False,
        prob: str | None = None,
    ) -> None:
        self.graph, self.replace, self.prob = graph, replace, prob
        self.etypes: list[EType] = list(graph.canonical_etypes)
        if isinstance(num_neighbors, Mapping):
            named = {graph.to_canonical_etype(each): list(counts) for each, counts in num_neighbors.items()}
            if missing := [":".join(each) for each in self.etypes if each not in named]:
                raise UsageError(f"num_neighbors says nothing of edges of type {missing[0]}: name every type, with 0 for none")
        else:
            named = {each: list(num_neighbors) for each in self.etypes}
        if len({len(counts) for counts in named.values()}) > 1:
            raise UsageError("num_neighbors: every type has as many hops as the others, with 0 for none")
        self.num_neighbors = named

    def sample_from_nodes(self, index: NodeSamplerInput, **_: Any) -> SamplerOutput | HeteroSamplerOutput:
        """Nodes and edges for seed nodes."""
        self._check(index)
        found = self._sample(index.node if index.input_type is None else {index.input_type: index.node})
        found.metadata = (index.input_id, index.time)
        return found

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> SamplerOutput | HeteroSamplerOutput:
        """Nodes and edges for the ends of seed edges, and of as many negative ones as PyG draws."""
        self._check(index)
        counts = {ntype: self.graph.num_nodes(ntype) for ntype in self.graph.ntypes}
        total = counts[self.graph.ntypes[0]] if one_type(self.graph) else counts
        return edge_sample(index, self._sample, total, disjoint=False, neg_sampling=neg_sampling)

    def _check(self, index: NodeSamplerInput | EdgeSamplerInput) -> None:
        if index.time is not None:
            raise UsageError("neighbours are not drawn by time: leave the times of a loader's input out")
        if (index.input_type is None) != one_type(self.graph):
            said = "no type" if one_type(self.graph) else f"one of {', '.join(self.graph.ntypes)}, or a type of edges"
            raise UsageError(f"the input of a loader is of type {index.input_type}: of this graph, name {said}")
        if index.input_type is not None:
            edges = isinstance(index, EdgeSamplerInput)
            there = self.etypes if edges else self.graph.ntypes
            if index.input_type not in there:
                listed = ", ".join(map(str, there))
                raise UsageError(f"the input of a loader is of type {index.input_type!r}, which is not one of {listed}")

    def _sample(self, seeds: Any, seed_time: None = None) -> SamplerOutput | HeteroSamplerOutput:
        """Nodes and edges, under numbers of their own; `seeds` int64[n], or by type where there are several."""
        given = seeds if isinstance(seeds, Mapping) else {self.graph.ntypes[0]: seeds}
        nodes = {ntype: NOTHING for ntype in self.graph.ntypes} | {ntype: ids.numpy() for ntype, ids in given.items()}
        for ids in nodes.values():
            check_once(ids, numbered([ids])[1][0])
        new = {ntype: 0 for ntype in nodes}  # from which place on nodes are to draw
        found: dict[EType, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = {etype: [] for etype in self.etypes}
        num_nodes = {ntype: [len(ids)] for ntype, ids in nodes.items()}
        seed = fresh_seed()
        for hop in range(len(next(iter(self.num_neighbors.values())))):
            asked = [each for each in self.etypes if len(nodes[each[2]]) > new[each[2]] and self.num_neighbors[each][hop] != 0]
            questions = [
                Question(each, nodes[each[2]][new[each[2]] :], self.num_neighbors[each][hop], self.replace, self.prob)
                for each in asked
            ]
            answers = dict(zip(asked, self.graph.neighbours(questions, Draw(seed, 0, hop)), strict=True))
            before, first = {ntype: len(ids) for ntype, ids in nodes.items()}, dict(new)
            for ntype in nodes:
                leaving = [each for each in asked if each[0] == ntype]
                nodes[ntype], (_, *places) = numbered([nodes[ntype], *(answers[each].ends for each in leaving)])
                for each, sources in zip(leaving, places, strict=True):
                    counts = answers[each].counts
                    destinations = np.repeat(np.arange(len(counts)) + first[each[2]], counts)
                    found[each].append((sources, destinations, answers[each].edges))
            for each in self.etypes:
                if each not in answers:
                    found[each].append((NOTHING, NOTHING, NOTHING))
            new = before
            for ntype in nodes:
                num_nodes[ntype].append(len(nodes[ntype]) - before[ntype])
        return self._output(nodes, found, num_nodes, typed=isinstance(seeds, Mapping))

    def _output(
        self,
        nodes: dict[str, np.ndarray],
        found: dict[EType, list[tuple[np.ndarray, np.ndarray, np.ndarray]]],
        num_nodes: dict[str, list[int]],
        typed: bool,
    ) -> SamplerOutput | HeteroSamplerOutput:
        ids = {ntype: torch.from_numpy(array) for ntype, array in nodes.items()}
        hops = {etype: [len(sources) for sources, _, _ in parts] for etype, parts in found.items()}
        arrays = {
            etype: [torch.from_numpy(np.concatenate([NOTHING, *column])) for column in zip(*parts, strict=True)]
            for etype, parts in found.items()
        }
        if not typed:
            (ntype,), (etype,) = ids, arrays
            row, col, edge = arrays[etype]
            return SamplerOutput(ids[ntype], row, col, edge, None, num_nodes[ntype], hops[etype])
        sides = [{etype: columns[which] for etype, columns in arrays.items()} for which in range(3)]
        return HeteroSamplerOutput(ids, *sides, None, num_nodes, hops)


def with_edge_data(graph: Any, *names: str) -> Callable[[Data | HeteroData], Data | HeteroData]:
    """A `transform` for PyG's loaders, which bring no data of edges: it adds `graph.edata` of these names to a batch."""

    def add(batch: Data | HeteroData) -> Data | HeteroData:
        for etype in graph.canonical_etypes:
            part = batch if one_type(graph) else batch[etype]
            data = graph.edges[etype].data
            for name in names:
                if name in data:
                    part[name] = data[name][part.e_id]
        return batch

    return add
