"""The rows of all entities by an encoder, layer by layer: no entity's neighbourhood is looked at twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import torch

from kgdist.graphs.schema import NODES
from kgdist.graphs.structure import NID, Draw
from kgdist.models.encoders.encoder import Encoder, Encoding
from kgdist.models.encoders.message_graph import MessageGraph
from kgdist.sampling.neighbours import fanouts, hop

EDGES_AT_ONCE = 1 << 18  # and all those of one entity more: 64 MB of rows of 64 numbers where a layer makes one for each edge


def spans(starts: np.ndarray, most: int) -> list[tuple[int, int]]:
    """Ranges of nodes that about `most` edges lead to; int64[n + 1], where the edges into each begin."""
    bounds = [0]
    while bounds[-1] < len(starts) - 1:
        after = int(np.searchsorted(starts, starts[bounds[-1]] + most, side="right")) - 1
        bounds.append(max(after, bounds[-1] + 1))
    return list(pairwise(bounds))


def parts_of(rows: torch.Tensor, size: int = 1 << 14) -> Iterator[tuple[int, torch.Tensor]]:
    """Some rows after another, and where they begin."""
    return ((start, rows[start : start + size]) for start in range(0, len(rows), size))


def encode(
    encoder: Encoder, messages: MessageGraph, rows: torch.Tensor, heard: Callable[[int], object] = lambda done: None
) -> torch.Tensor:
    """float32[E, out], of entities' own rows, float32[E, in]: by all edges there are, without dropout.

    Memory is that of two layers' rows and of what some hundred thousand edges need. `heard` is told how many entities of a layer
    are done.
    """
    return through_layers(encoder, messages, beginnings(encoder, rows), heard)


def encode_tables(
    encoding: Encoding, rows: torch.Tensor, weights: torch.Tensor, heard: Callable[[int], object] = lambda done: None
) -> torch.Tensor:
    """The same by tables that are trained on, float32[E, in] and float32[1, P], of which it takes copies. The weights are in CPU
    memory wherever the rows are, and go there."""
    encoding.encoder.use(weights.to(rows.device, copy=True))
    return encode(encoding.encoder, encoding.messages, rows, heard)


@torch.no_grad()
def beginnings(encoder: Encoder, rows: torch.Tensor) -> torch.Tensor:
    """What all entities begin with, float32[E, in], of their own rows."""
    if encoder.attributes is None:
        return rows
    return torch.cat([encoder.begin(np.arange(start, start + len(part)), part) for start, part in parts_of(rows)])


@torch.no_grad()
def through_layers(
    encoder: Encoder, messages: MessageGraph, rows: torch.Tensor, heard: Callable[[int], object] = lambda done: None
) -> torch.Tensor:
    """float32[E, out], of what entities begin with, float32[E, in]; see `encode`."""
    graph = messages.graph
    counts = fanouts(-1, graph.schema)
    starts = np.concatenate([[0], np.cumsum(graph.in_degrees().numpy())])
    for number in range(len(encoder.layers)):
        made: torch.Tensor | None = None
        for start, stop in spans(starts, EDGES_AT_ONCE):
            block = hop(graph, graph.schema, {NODES: np.arange(start, stop)}, counts, Draw(0)).to(rows.device)
            part = encoder.layer(number, block, messages.relations_of(block), rows[block.srcnodes[NODES].data[NID]])
            made = rows.new_empty(len(rows), part.shape[1]) if made is None else made
            made[start:stop] = part
            heard(stop - start)
        assert made is not None, "there is no entity"
        rows = made
    return rows
