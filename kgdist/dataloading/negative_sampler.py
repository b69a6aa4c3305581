"""Pairs of nodes that stand for edges that are not there, drawn for each batch of edges."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from kgdist.base.integers import integer
from kgdist.graphs.ids import as_ids
from kgdist.graphs.schema import Schema
from kgdist.graphs.structure import Draw, EType, Question
from kgdist.kernels.random import uniform_ids
from kgdist.sampling.neighbours import fresh_seed, schema_of
from kgdist.sampling.samplers import EdgeGraph

Pairs = tuple[torch.Tensor, torch.Tensor]  # sources and destinations int64[n]


class SeededNegatives(ABC):
    """Negatives that follow from a `Draw`, so that they are the same in whatever process a batch is made.

    Args:
        k: how many for each edge.
    """

    def __init__(self, k: int) -> None:
        self.k = integer("k", k, 1)

    def __call__(self, g: EdgeGraph, eids: Any) -> Pairs | dict[EType, Pairs]:
        """(sources, destinations) for ids of edges; a dictionary of these by edge type for such a dictionary of ids."""
        return self.drawn(g, eids, Draw(fresh_seed()))

    def drawn(self, g: EdgeGraph, eids: Any, draw: Draw) -> Pairs | dict[EType, Pairs]:
        """The same, of random numbers that `draw` says."""
        schema = schema_of(g)
        if not isinstance(eids, Mapping):
            return self.of_type(g, schema, schema.etype(None), as_ids(eids), draw)
        return {etype: self.of_type(g, schema, etype, as_ids(ids), draw) for etype, ids in _found(eids, schema).items()}

    @abstractmethod
    def of_type(self, g: EdgeGraph, schema: Schema, etype: EType, eids: np.ndarray, draw: Draw) -> Pairs:
        """Negatives for edges of one type."""


class PerSourceUniform(SeededNegatives):
    """The source of each edge k times, with destinations drawn evenly from all nodes of their type. Some may be edges."""

    def of_type(self, g: EdgeGraph, schema: Schema, etype: EType, eids: np.ndarray, draw: Draw) -> Pairs:
        sources, _ = g.find_edges(torch.from_numpy(eids), etype)
        return sources.repeat_interleave(self.k), torch.from_numpy(_evenly(g, schema, etype, 2, len(eids) * self.k, draw))


Uniform = PerSourceUniform


class GlobalUniform(SeededNegatives):
    """Pairs drawn evenly from all pairs of nodes, without those that are edges; at most k for each edge of the batch.

    Args:
        k: how many pairs are drawn for each edge.
        exclude_self_loops: leave out pairs of a node with itself.
        replace: a pair may come twice.
    """

    def __init__(self, k: int, exclude_self_loops: bool = True, replace: bool = False) -> None:
        super().__init__(k)
        self.exclude_self_loops, self.replace = exclude_self_loops, replace

    def of_type(self, g: EdgeGraph, schema: Schema, etype: EType, eids: np.ndarray, draw: Draw) -> Pairs:
        sources = _evenly(g, schema, etype, 0, len(eids) * self.k, draw)
        destinations = _evenly(g, schema, etype, 2, len(eids) * self.k, draw)
        asked, rows = np.unique(destinations, return_inverse=True)
        answer = g.neighbours([Question(etype, asked, -1)], draw)[0]
        width = g.num_nodes(etype[0])
        edges = np.repeat(np.arange(len(asked)), answer.counts) * width + answer.ends
        pairs = rows.reshape(-1) * width + sources
        kept = ~np.isin(pairs, edges)
        if self.exclude_self_loops and etype[0] == etype[2]:
            kept &= sources != destinations
        places = np.flatnonzero(kept)
        if not self.replace:
            places = places[np.sort(np.unique(pairs[places], return_index=True)[1])]
        return torch.from_numpy(sources[places]), torch.from_numpy(destinations[places])


def _found(eids: Mapping[Any, Any], schema: Schema) -> dict[EType, Any]:
    return {schema.etype(etype): ids for etype, ids in eids.items()}


def _evenly(g: EdgeGraph, schema: Schema, etype: EType, side: int, count: int, draw: Draw) -> np.ndarray:
    """int64[count], nodes that edges of a type leave (side 0) or reach (2). The stream tells types and sides apart."""
    number = 2 * schema.numbers[etype] + side // 2
    return uniform_ids(draw.seed, number, draw.step, count, g.num_nodes(etype[side])) if count else np.zeros(0, np.int64)
