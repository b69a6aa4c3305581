"""What a step compares its positives with, and the neighbours whose messages it takes.

blocks.py      the edges that messages of one layer travel by
loaders.py     batches of nodes, edges or anything, made by worker processes
negatives.py   the candidates of each step
neighbours.py  neighbours drawn: frontiers, and blocks of them
parcels.py     batches on their way from workers
samplers.py    what loaders do with the nodes or edges of a batch
"""

from kgdist.sampling.blocks import Block
from kgdist.sampling.loaders import (
    DataLoader,
    DistDataLoader,
    DistEdgeDataLoader,
    DistNodeDataLoader,
    EdgeDataLoader,
    NodeDataLoader,
)
from kgdist.sampling.neighbours import in_subgraph, sample_etype_neighbors, sample_neighbors, to_block
from kgdist.sampling.samplers import (
    EdgePredictionSampler,
    MultiLayerFullNeighborSampler,
    MultiLayerNeighborSampler,
    NeighborSampler,
    as_edge_prediction_sampler,
)

__all__ = [
    "Block",
    "DataLoader",
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistNodeDataLoader",
    "EdgeDataLoader",
    "EdgePredictionSampler",
    "MultiLayerFullNeighborSampler",
    "MultiLayerNeighborSampler",
    "NeighborSampler",
    "NodeDataLoader",
    "as_edge_prediction_sampler",
    "in_subgraph",
    "sample_etype_neighbors",
    "sample_neighbors",
    "to_block",
]
