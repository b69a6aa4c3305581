"""kgdist trains knowledge-graph embeddings, from one laptop upwards, with the commands of DGL-KE.

    import kgdist

    run = kgdist.train(model_name="RotatE", dataset="wordnet", preset=True)
    run.predict(head="dog.n.01", relation="hypernym", k=3)

    run = kgdist.load("ckpts/RotatE_wordnet_0")
    run.evaluate("test").mrr
    run.similar("dog.n.01")
    run.entity_embeddings["dog.n.01"]

Importing the package costs nothing: no torch, no numba, no files. Each name below is imported when it is first used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kgdist.version import __version__

if TYPE_CHECKING:
    from kgdist import attributes, dataloading, distributed, nn, sampling
    from kgdist.api.estimator import KGEmbedder
    from kgdist.api.functions import load, load_dataset, train
    from kgdist.api.results import Embeddings, Evaluation, Table
    from kgdist.api.run import Run
    from kgdist.base.errors import KgdistError, UsageError
    from kgdist.base.types import Side
    from kgdist.data.dataset import Dataset
    from kgdist.graphs.convert import from_networkx, from_pyg, from_scipy
    from kgdist.graphs.in_memory import Graph, graph, heterograph
    from kgdist.graphs.structure import EID, ETYPE, NID, NTYPE
    from kgdist.graphs.transform import (
        add_reverse_edges,
        add_self_loop,
        node_subgraph,
        remove_self_loop,
        to_bidirected,
        to_homogeneous,
    )
    from kgdist.models.base import Model
    from kgdist.models.registry import register
    from kgdist.runtime.gnn import train_gnn
    from kgdist.sampling.neighbours import seed, to_block
    from kgdist.training.callbacks import STOP, Progress, Saved, Validation

__all__ = [
    "EID",
    "ETYPE",
    "NID",
    "NTYPE",
    "STOP",
    "Dataset",
    "Embeddings",
    "Evaluation",
    "Graph",
    "KGEmbedder",
    "KgdistError",
    "Model",
    "Progress",
    "Run",
    "Saved",
    "Side",
    "Table",
    "UsageError",
    "Validation",
    "__version__",
    "add_reverse_edges",
    "add_self_loop",
    "attributes",
    "dataloading",
    "distributed",
    "from_networkx",
    "from_pyg",
    "from_scipy",
    "graph",
    "heterograph",
    "load",
    "load_dataset",
    "nn",
    "node_subgraph",
    "register",
    "remove_self_loop",
    "sampling",
    "seed",
    "to_bidirected",
    "to_block",
    "to_homogeneous",
    "train",
    "train_gnn",
]


def _folder(_: ModuleType) -> ModuleType:
    """This package: a folder of it that has been imported is one of its names."""
    return sys.modules[__name__]


# Where each name is defined; the modules are written out, so that no text ever decides what is imported.
_HOMES: dict[str, Callable[[], ModuleType]] = {
    "load": lambda: import_module("kgdist.api.functions"),
    "load_dataset": lambda: import_module("kgdist.api.functions"),
    "train": lambda: import_module("kgdist.api.functions"),
    "train_gnn": lambda: import_module("kgdist.runtime.gnn"),
    "STOP": lambda: import_module("kgdist.training.callbacks"),
    "Progress": lambda: import_module("kgdist.training.callbacks"),
    "Saved": lambda: import_module("kgdist.training.callbacks"),
    "Validation": lambda: import_module("kgdist.training.callbacks"),
    "Dataset": lambda: import_module("kgdist.data.dataset"),
    "KGEmbedder": lambda: import_module("kgdist.api.estimator"),
    "Embeddings": lambda: import_module("kgdist.api.results"),
    "KgdistError": lambda: import_module("kgdist.base.errors"),
    "UsageError": lambda: import_module("kgdist.base.errors"),
    "Evaluation": lambda: import_module("kgdist.api.results"),
    "Model": lambda: import_module("kgdist.models.base"),
    "register": lambda: import_module("kgdist.models.registry"),
    "Run": lambda: import_module("kgdist.api.run"),
    "Table": lambda: import_module("kgdist.api.results"),
    "Side": lambda: import_module("kgdist.base.types"),
    "Graph": lambda: import_module("kgdist.graphs.in_memory"),
    "from_networkx": lambda: import_module("kgdist.graphs.convert"),
    "from_pyg": lambda: import_module("kgdist.graphs.convert"),
    "from_scipy": lambda: import_module("kgdist.graphs.convert"),
    "graph": lambda: import_module("kgdist.graphs.in_memory"),
    "heterograph": lambda: import_module("kgdist.graphs.in_memory"),
    "NID": lambda: import_module("kgdist.graphs.structure"),
    "EID": lambda: import_module("kgdist.graphs.structure"),
    "NTYPE": lambda: import_module("kgdist.graphs.structure"),
    "ETYPE": lambda: import_module("kgdist.graphs.structure"),
    "add_reverse_edges": lambda: import_module("kgdist.graphs.transform"),
    "add_self_loop": lambda: import_module("kgdist.graphs.transform"),
    "remove_self_loop": lambda: import_module("kgdist.graphs.transform"),
    "node_subgraph": lambda: import_module("kgdist.graphs.transform"),
    "to_bidirected": lambda: import_module("kgdist.graphs.transform"),
    "to_homogeneous": lambda: import_module("kgdist.graphs.transform"),
    "seed": lambda: import_module("kgdist.sampling.neighbours"),
    "to_block": lambda: import_module("kgdist.sampling.neighbours"),
    "attributes": lambda: _folder(import_module("kgdist.attributes")),
    "dataloading": lambda: _folder(import_module("kgdist.dataloading")),
    "distributed": lambda: _folder(import_module("kgdist.distributed")),
    "nn": lambda: _folder(import_module("kgdist.nn")),
    "sampling": lambda: _folder(import_module("kgdist.sampling")),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kgdist' has no attribute {name!r}")
    value = globals()[name] = getattr(_HOMES[name](), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
