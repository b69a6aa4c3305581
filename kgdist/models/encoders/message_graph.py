"""Training triples as what messages travel by: an edge from head to tail, and its inverse, of a relation of its own."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from kgdist.graphs.in_memory import Graph
from kgdist.graphs.schema import EDGES, NODES
from kgdist.graphs.structure import EID, Draw, Question
from kgdist.sampling.blocks import Block


class Copies(NamedTuple):
    """Which of so many triples are the same: those that stand more than once. Costs 16 bytes a triple, where there are such."""

    group: np.ndarray  # int64[T]
    starts: np.ndarray  # int64[groups + 1] into
    order: np.ndarray  # int64[T], numbers of triples by group

    @classmethod
    def of(cls, heads: np.ndarray, relations: np.ndarray, tails: np.ndarray) -> Copies | None:
        """Of columns int[T]; None where all triples are different."""
        order = np.lexsort((tails, relations, heads))
        first = np.ones(len(order), bool)
        first[1:] = np.any([np.diff(column[order]) != 0 for column in (heads, relations, tails)], axis=0)
        if first.all():
            return None
        group = np.empty(len(order), np.int64)
        group[order] = np.cumsum(first) - 1
        return cls(group, np.append(np.flatnonzero(first), len(order)), order)

    def all_of(self, triples: np.ndarray) -> np.ndarray:
        """int64[.]: these triples, by number, and those that are the same, each once."""
        groups = np.unique(self.group[triples])
        counts = self.starts[groups + 1] - self.starts[groups]
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.asarray(self.order[np.repeat(self.starts[groups], counts) + within], np.int64)


class MessageGraph(NamedTuple):
    """Edge t of the graph is triple t, and edge T + t its inverse, of relation R + r, where there are inverse ones.

    Costs 24 bytes an edge: its ends, its relation, and the edges into each entity.
    """

    graph: Graph
    relations: torch.Tensor  # int32[edges]
    num_relations: int  # of edges, inverse ones included
    triples: int
    copies: Copies | None

    @classmethod
    def of(cls, triples: np.ndarray, num_entities: int, num_relations: int, *, inverse: bool = True) -> MessageGraph:
        """Of int[T, 3]: heads, relations, tails."""
        heads, relations, tails = (np.ascontiguousarray(column, np.int32) for column in triples.T)
        copies = Copies.of(heads, relations, tails)
        if inverse:
            heads, tails = np.concatenate([heads, tails]), np.concatenate([tails, heads])
            relations = np.concatenate([relations, relations + np.int32(num_relations)])
            num_relations *= 2
        graph = Graph({EDGES: (heads, tails)}, {NODES: num_entities})
        return cls(graph, torch.from_numpy(relations), num_relations, len(triples), copies)

    def edges_of(self, triples: np.ndarray) -> np.ndarray:
        """int64[.]: the edges of triples int64[B], by number, of others that are the same, and their inverses."""
        if self.copies is not None:
            triples = self.copies.all_of(triples)
        return triples if len(self.relations) == self.triples else np.concatenate([triples, triples + self.triples])

    def triples_into(self, entities: np.ndarray) -> np.ndarray:
        """int64[.]: the triples, by number, by which messages come to entities int64[n], each once: all that they are in, where
        there are inverse ones."""
        found = self.graph.in_edges_of().neighbours(Question(EDGES, entities, -1), Draw(0), 0)
        return np.unique(found.edges % max(self.triples, 1))

    def relations_of(self, block: Block) -> torch.Tensor:
        """int64[E]: the relation of each edge of a block."""
        return self.relations[block.edges[EDGES].data[EID].cpu()].long().to(block.device)
