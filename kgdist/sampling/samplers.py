"""What a loader does with the nodes or edges of a batch: blocks of their neighbourhood, and pairs to tell apart.

Everything random follows from a `Draw`: of the loader's seed, and the number of the batch. So batches are the same in whatever
process they are made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.base.integers import integer
from kgdist.graphs.ids import as_ids, by_type
from kgdist.graphs.in_memory import Graph
from kgdist.graphs.schema import Schema
from kgdist.graphs.structure import EID, NID, NOTHING, Draw, EType, Neighbourhood, check_ids
from kgdist.kernels.hashing import numbered
from kgdist.sampling.blocks import Block
from kgdist.sampling.neighbours import Fanout, excluded, fanouts, fresh_seed, hop, schema_of

Nodes = torch.Tensor | dict[str, torch.Tensor]  # int64[n], by node type where there are several


class EdgeGraph(Neighbourhood, Protocol):
    """What samplers of edges need of a graph."""

    def find_edges(self, eid: Any, etype: Any = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Sources and destinations int64[n] of edges by id."""


class MultiLayerNeighborSampler:
    """The neighbourhoods that a network of as many layers sees: a block for each layer.

    Args:
        fanouts: how many edges a node draws, a number or a dictionary by edge type for each layer, **the input layer first: the
            last is the hop next to the seeds**. -1: all. (Texts that speak of the first hop first mean the reverse.)
        prob: an edge feature of weights, 0 never drawn; or of bool or uint8, a mask.
        mask: the same as `prob`, for who would rather say so.
        replace: an edge may be drawn several times.
        prefetch_node_feats: names of node data that loaders put into `blocks[0].srcdata`.
        prefetch_labels: names of node data that they put into `blocks[-1].dstdata`.
    """

    def __init__(
        self,
        fanouts: Sequence[Fanout],
        *,
        prob: str | None = None,
        mask: str | None = None,
        replace: bool = False,
        prefetch_node_feats: Sequence[str] | str = (),
        prefetch_labels: Sequence[str] | str = (),
    ) -> None:
        if prob is not None and mask is not None:
            raise UsageError(f"edges are drawn by {prob!r} or by {mask!r}, not by both: make one feature of them")
        if isinstance(fanouts, str | Mapping) or not isinstance(fanouts, Iterable) or np.ndim(fanouts) == 0:  # type: ignore[arg-type]
            raise UsageError(f"fanouts={fanouts!r}: give a list, one number for each layer: [{fanouts}] for one layer")
        self.fanouts, self.prob, self.replace = list(fanouts), prob if mask is None else mask, replace
        self.prefetch_node_feats = _names("prefetch_node_feats", prefetch_node_feats)
        self.prefetch_labels = _names("prefetch_labels", prefetch_labels)

    def sample_blocks(
        self, g: Neighbourhood, seed_nodes: Any, exclude_eids: Any = None, draw: Draw | None = None
    ) -> tuple[Nodes, Nodes, list[Block]]:
        """(input nodes, seeds, blocks), the block of the input layer first.

        Args:
            seed_nodes: ids, each once, or a dictionary of node type to ids.
            exclude_eids: ids of edges, or a dictionary by edge type, that are drawn at no hop.
            draw: what random numbers are for; where not said, torch's generator says it.
        """
        schema = schema_of(g)
        seeds, exclude = by_type(seed_nodes, schema), excluded(exclude_eids, g, schema)
        draw = draw or Draw(fresh_seed())
        blocks: list[Block] = []
        for number, fanout in enumerate(reversed(self.fanouts)):
            counts = fanouts(fanout, schema)
            how = {"prob": self.prob, "replace": self.replace, "exclude": exclude}
            blocks.insert(0, hop(g, schema, seeds, counts, draw._replace(hop=number), **how))
            seeds = {ntype: blocks[0].srcnodes[ntype].data[NID].numpy() for ntype in schema.ntypes}
        if not blocks:
            raise UsageError("no fan-outs: give one for each layer")
        return blocks[0].srcdata[NID], blocks[-1].dstdata[NID], blocks

    sample = sample_blocks


NeighborSampler = MultiLayerNeighborSampler


def _names(what: str, given: Any) -> tuple[str, ...]:
    """Names of data, of a list of them or of one."""
    found = (given,) if isinstance(given, str) else given
    if isinstance(found, Mapping) or not isinstance(found, Iterable) or not all(isinstance(name, str) for name in found):
        raise UsageError(f"{what}={given!r}: give a list of names; each is read of all node types that have it")
    return tuple(found)


def check_sampler(sampler: Any) -> None:
    """Raises UsageError for what is no sampler."""
    if isinstance(sampler, type) or not callable(getattr(sampler, "sample", None)):
        raise UsageError(f"a sampler is needed, not {sampler!r}: make one, as MultiLayerNeighborSampler([25, 10])")


class MultiLayerFullNeighborSampler(MultiLayerNeighborSampler):
    """All neighbours, for as many layers."""

    def __init__(self, num_layers: int, **how: Any) -> None:
        super().__init__([-1] * integer("num_layers", num_layers, 1), **how)


class NegativeSampler(Protocol):
    """Pairs of nodes that are no edges, for each batch of edges."""

    def __call__(self, g: Any, eids: Any) -> Any:
        """(sources, destinations), or a dictionary of these by edge type, for ids of edges, by type where there are several."""


class EdgePredictionSampler:
    """For edges: their ends as a graph, negatives as another, and blocks of the neighbourhoods of both.

    Args:
        sampler: what makes the blocks.
        exclude: edges that no message may travel by: None, none; "self", those of the batch; "reverse_id", these and their
            reverse ones by `reverse_eids`; "reverse_types", these and those of equal id of the type that `reverse_etypes` gives.
        reverse_eids: int64[E], the reverse of each edge; by type where there are several.
        reverse_etypes: edge type -> the type of its reverse edges.
        negative_sampler: called with the graph and the edges of a batch.
    """

    def __init__(
        self,
        sampler: MultiLayerNeighborSampler,
        exclude: str | None = None,
        reverse_eids: Any = None,
        reverse_etypes: Mapping[Any, Any] | None = None,
        negative_sampler: NegativeSampler | Callable[..., Any] | None = None,
    ) -> None:
        check_sampler(sampler)
        if exclude not in (None, "self", "reverse_id", "reverse_types"):
            raise UsageError(f"exclude={exclude!r}: give None, 'self', 'reverse_id' or 'reverse_types'")
        if (exclude == "reverse_id") != (reverse_eids is not None):
            raise UsageError("exclude='reverse_id' goes with reverse_eids, the id of each edge's reverse one")
        if (exclude == "reverse_types") != (reverse_etypes is not None):
            raise UsageError("exclude='reverse_types' goes with reverse_etypes, the type of each type's reverse edges")
        self.sampler, self.exclude, self.negative_sampler = sampler, exclude, negative_sampler
        self.reverse_eids, self.reverse_etypes = reverse_eids, reverse_etypes
        self.prefetch_node_feats, self.prefetch_labels = sampler.prefetch_node_feats, sampler.prefetch_labels

    def sample(self, g: EdgeGraph, eids: Any, exclude_eids: Any = None, draw: Draw | None = None) -> tuple[Any, ...]:
        """(input nodes, graph of the edges, graph of negatives where there is a sampler of such, blocks).

        Both graphs have the nodes of `blocks[-1]`'s destinations, in their order: `ndata[NID]` are their ids, and `edata[EID]`
        those of the edges.
        """
        schema = schema_of(g)
        draw = draw or Draw(fresh_seed())
        given = eids if isinstance(eids, Mapping) else {schema.etype(None): eids}
        wanted = {schema.etype(etype): as_ids(ids).astype(np.int64, copy=False) for etype, ids in given.items()}
        positive = {etype: _pair(g.find_edges(torch.from_numpy(ids), etype)) for etype, ids in wanted.items()}
        negative = self._negatives(g, schema, wanted, draw)
        seeds: dict[str, np.ndarray] = {}
        placed: list[dict[tuple[EType, int], np.ndarray]] = [{}, {}]
        for ntype in schema.ntypes:
            met = [
                (number, (etype, side), ends[side])
                for number, pairs in enumerate((positive, negative))
                for etype, ends in pairs.items()
                for side in (0, 1)
                if etype[2 * side] == ntype
            ]
            seeds[ntype], places = numbered([ends for _, _, ends in met])
            for (number, which, _), found in zip(met, places, strict=True):
                placed[number][which] = found
        graphs = [_pairs(schema, seeds, placed[0], wanted)]
        if self.negative_sampler is not None:
            graphs.append(_pairs(schema, seeds, placed[1], None))
        left_out = _joined([self._left_out(schema, wanted), excluded(exclude_eids, g, schema)])
        input_nodes, _, blocks = self.sampler.sample_blocks(g, seeds, left_out, draw)
        return (input_nodes, *graphs, blocks)

    def _negatives(
        self, g: Neighbourhood, schema: Schema, wanted: Mapping[EType, np.ndarray], draw: Draw
    ) -> dict[EType, tuple[np.ndarray, np.ndarray]]:
        if self.negative_sampler is None:
            return {}
        single = len(schema.etypes) == 1
        eids: Any = {etype: torch.from_numpy(ids) for etype, ids in wanted.items()}
        asked = eids[schema.etypes[0]] if single else eids
        seeded = getattr(self.negative_sampler, "drawn", None)
        made = self.negative_sampler(g, asked) if seeded is None else seeded(g, asked, draw)
        found = made if isinstance(made, Mapping) else {schema.etype(None): made}
        return {schema.etype(etype): _pair(ends) for etype, ends in found.items()}

    def _left_out(self, schema: Schema, wanted: Mapping[EType, np.ndarray]) -> dict[EType, np.ndarray]:
        if self.exclude is None:
            return {}
        parts = [dict(wanted)]
        if self.exclude == "reverse_id":
            given = self.reverse_eids if isinstance(self.reverse_eids, Mapping) else {schema.etype(None): self.reverse_eids}
            reverse = {schema.etype(etype): as_ids(ids) for etype, ids in given.items()}
            for etype, ids in wanted.items():
                if etype not in reverse:
                    raise UsageError(f"reverse_eids say nothing of edges of type {':'.join(etype)}")
                check_ids("reverse of edge", ids, len(reverse[etype]))
                parts.append({etype: reverse[etype][ids].astype(np.int64, copy=False)})
        if self.exclude == "reverse_types":
            of = {schema.etype(etype): schema.etype(other) for etype, other in (self.reverse_etypes or {}).items()}
            parts += [{of[etype]: ids} for etype, ids in wanted.items() if etype in of]
        return _joined(parts)


def as_edge_prediction_sampler(
    sampler: MultiLayerNeighborSampler,
    exclude: str | None = None,
    reverse_eids: Any = None,
    reverse_etypes: Mapping[Any, Any] | None = None,
    negative_sampler: NegativeSampler | Callable[..., Any] | None = None,
) -> EdgePredictionSampler:
    """The sampler of edges around a sampler of nodes, for `DataLoader`: see `EdgePredictionSampler`."""
    return EdgePredictionSampler(sampler, exclude, reverse_eids, reverse_etypes, negative_sampler)


def _pair(ends: Any) -> tuple[np.ndarray, np.ndarray]:
    sources, destinations = (as_ids(side).astype(np.int64, copy=False) for side in ends)
    return sources, destinations


def _joined(parts: Sequence[Mapping[EType, np.ndarray]]) -> dict[EType, np.ndarray]:
    kinds = dict.fromkeys(etype for part in parts for etype in part)
    return {etype: np.concatenate([part[etype] for part in parts if etype in part]) for etype in kinds}


def _pairs(
    schema: Schema,
    nodes: Mapping[str, np.ndarray],
    placed: Mapping[tuple[EType, int], np.ndarray],
    ids: Mapping[EType, np.ndarray] | None,
) -> Graph:
    """The graph of pairs whose sources (side 0) and destinations (1) are places among `nodes`, with ids of nodes and of edges."""
    edges = {etype: (placed.get((etype, 0), NOTHING), placed.get((etype, 1), NOTHING)) for etype in schema.etypes}
    made = Graph(edges, {ntype: len(nodes[ntype]) for ntype in schema.ntypes})
    for ntype, own in nodes.items():
        made.nodes[ntype].data[NID] = torch.from_numpy(own)
    if ids is not None:
        for etype in schema.etypes:
            made.edges[etype].data[EID] = torch.from_numpy(ids.get(etype, NOTHING))
    return made
