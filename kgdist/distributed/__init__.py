"""Graphs, tensors and embeddings whose parts lie on several machines, or all of them in this process: DGL's names.

context.py         what this process is, and what all trainers do together
current.py         the storage of this process
dist_graph.py      a graph whose partitions lie on several machines
embedding.py       learnable rows, and what is left of a backward pass
hosting.py         what a server has and answers
initialisers.py    what fills tables, found by its name where they live
joining.py         what initialize makes of a process: a trainer with a storage, or a server
long_questions.py  what owners are asked, in pieces that a message holds
opening.py         a partitioned graph on disk, as the storages need it
policy.py          which partition owns which rows
remote.py          tables and graphs that servers of several machines have
rows.py            what stands between brackets, as row numbers
saving.py          tables in one folder, for any partitions
services.py        what the owner of a partition answers
sparse.py          optimisers of embeddings
splits.py          which trainer works on what
standalone.py      tables and graphs of one process
storage.py         where rows and structure lie: the seam
tensor.py          rows of nodes or edges, read and written by number

Each name below is imported when it is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgdist.distributed import embedding as nn
    from kgdist.distributed import sparse as optim
    from kgdist.distributed.context import barrier, get_num_clients, initialize, num_machines, num_workers, rank, role
    from kgdist.distributed.dist_graph import DistGraph, find_edges
    from kgdist.distributed.embedding import DistEmbedding
    from kgdist.distributed.policy import PartitionPolicy
    from kgdist.distributed.sparse import SparseAdagrad, SparseAdam, SparseSGD
    from kgdist.distributed.splits import edge_split, even_batches, node_split
    from kgdist.distributed.tensor import DistTensor
    from kgdist.partition.partition_graph import load_partition, load_partition_book, load_partition_feats, partition_graph
    from kgdist.partition.typed_book import PartitionBook
    from kgdist.partition.typed_verify import verify_partitions
    from kgdist.sampling import (
        DistDataLoader,
        DistEdgeDataLoader,
        DistNodeDataLoader,
        in_subgraph,
        sample_etype_neighbors,
        sample_neighbors,
    )

__all__ = [
    "DistDataLoader",
    "DistEdgeDataLoader",
    "DistEmbedding",
    "DistGraph",
    "DistNodeDataLoader",
    "DistTensor",
    "PartitionBook",
    "PartitionPolicy",
    "SparseAdagrad",
    "SparseAdam",
    "SparseSGD",
    "barrier",
    "edge_split",
    "even_batches",
    "find_edges",
    "get_num_clients",
    "in_subgraph",
    "initialize",
    "load_partition",
    "load_partition_book",
    "load_partition_feats",
    "nn",
    "node_split",
    "num_machines",
    "num_workers",
    "optim",
    "partition_graph",
    "rank",
    "role",
    "sample_etype_neighbors",
    "sample_neighbors",
    "verify_partitions",
]

_LOADERS = ("DistDataLoader", "DistEdgeDataLoader", "DistNodeDataLoader")
_SAMPLING = (*_LOADERS, "in_subgraph", "sample_etype_neighbors", "sample_neighbors")
_PARTITIONS = ("load_partition", "load_partition_book", "load_partition_feats", "partition_graph")
_CONTEXT = ("barrier", "get_num_clients", "initialize", "num_machines", "num_workers", "rank", "role")


def _context() -> ModuleType:
    import_module("kgdist.distributed.joining")  # says what `initialize` makes of trainers and servers
    return import_module("kgdist.distributed.context")


def _also_called(name: str, file: Callable[[], ModuleType]) -> ModuleType:
    """A module of DGL 2's name, with all that one of our files has, which is imported when it is first used."""
    module = sys.modules[f"kgdist.distributed.{name}"] = ModuleType(f"kgdist.distributed.{name}")

    def found(attribute: str) -> Any:
        if attribute.startswith("__"):  # who looks at all modules, as `inspect` does, is to import nothing
            raise AttributeError(attribute)
        return getattr(file(), attribute)

    module.__dict__["__getattr__"] = found
    return module


if not TYPE_CHECKING:
    optim = _also_called("optim", lambda: import_module("kgdist.distributed.sparse"))
    nn = _also_called("nn", lambda: import_module("kgdist.distributed.embedding"))

# Where each other name is defined.
_NAMES: dict[Callable[[], ModuleType], tuple[str, ...]] = {
    _context: _CONTEXT,
    lambda: import_module("kgdist.distributed.dist_graph"): ("DistGraph", "find_edges"),
    lambda: import_module("kgdist.distributed.embedding"): ("DistEmbedding",),
    lambda: import_module("kgdist.distributed.policy"): ("PartitionPolicy",),
    lambda: import_module("kgdist.distributed.sparse"): ("SparseAdagrad", "SparseAdam", "SparseSGD"),
    lambda: import_module("kgdist.distributed.splits"): ("edge_split", "even_batches", "node_split"),
    lambda: import_module("kgdist.distributed.tensor"): ("DistTensor",),
    lambda: import_module("kgdist.partition.partition_graph"): _PARTITIONS,
    lambda: import_module("kgdist.partition.typed_book"): ("PartitionBook",),
    lambda: import_module("kgdist.partition.typed_verify"): ("verify_partitions",),
    lambda: import_module("kgdist.sampling"): _SAMPLING,
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kgdist.distributed' has no attribute {name!r}")
    value = globals()[name] = getattr(_HOMES[name](), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
