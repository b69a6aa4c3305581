"""A graph to try things on: nodes of several classes, edges mostly within a class, features that tell the class in part."""

from __future__ import annotations

import numpy as np
import torch

from kgdist.base.errors import UsageError
from kgdist.graphs.in_memory import Graph, graph


def planted_partition(
    num_nodes: int = 2000,
    num_edges: int = 16000,
    num_classes: int = 4,
    num_features: int = 16,
    mixing: float = 0.2,
    noise: float = 2.0,
    seed: int = 0,
) -> Graph:
    """A graph with planted classes (Condon and Karp 2001), each edge in both directions: edge e's reverse is e ± num_edges / 2.

    `ndata` has `feat` float32[num_features], which is the class's own vector and noise; `labels` int64; and bool `train_mask` (a
    tenth of the nodes), `val_mask` (a fifth), `test_mask` (all others).

    Args:
        num_edges: of both directions together; even.
        mixing: the share of edges that lead from a node to any node, and not to one of its class.
        noise: standard deviation, where the numbers of the class's vector have 1.

    Raises UsageError for an odd number of edges, and for fewer nodes than classes.
    """
    if num_edges % 2 or num_nodes < num_classes:
        raise UsageError(f"{num_edges} edges, {num_nodes} nodes: give an even number of edges, and a node for each class")
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(num_nodes) % num_classes)
    members = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[members], np.arange(num_classes + 1))
    sources = random.integers(0, num_nodes, num_edges // 2)
    low, high = starts[labels[sources]], starts[labels[sources] + 1]
    near = members[random.integers(low, high)]
    destinations = np.where(random.random(num_edges // 2) < mixing, random.integers(0, num_nodes, num_edges // 2), near)
    g = graph((np.concatenate([sources, destinations]), np.concatenate([destinations, sources])), num_nodes=num_nodes)
    centres = random.normal(size=(num_classes, num_features))
    features = centres[labels] + noise * random.normal(size=(num_nodes, num_features))
    g.ndata["feat"], g.ndata["labels"] = torch.from_numpy(features.astype(np.float32)), torch.from_numpy(labels)
    order = random.permutation(num_nodes)
    train, valid = num_nodes // 10, num_nodes // 10 + num_nodes // 5
    for name, ids in (("train_mask", order[:train]), ("val_mask", order[train:valid]), ("test_mask", order[valid:])):
        g.ndata[name] = torch.zeros(num_nodes, dtype=torch.bool).index_fill_(0, torch.from_numpy(ids), True)
    return g
