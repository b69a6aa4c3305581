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

from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from kgdist.version import __version__

if TYPE_CHECKING:
    from kgdist.api.estimator import KGEmbedder
    from kgdist.api.functions import load, load_dataset, train
    from kgdist.api.results import Embeddings, Evaluation, Table
    from kgdist.api.run import Run
    from kgdist.base.errors import KgdistError, UsageError
    from kgdist.base.types import Side
    from kgdist.data.dataset import Dataset
    from kgdist.models.base import Model
    from kgdist.models.registry import register
    from kgdist.training.callbacks import STOP, Progress, Validation

__all__ = [
    "STOP",
    "Dataset",
    "Embeddings",
    "Evaluation",
    "KGEmbedder",
    "KgdistError",
    "Model",
    "Progress",
    "Run",
    "Side",
    "Table",
    "UsageError",
    "Validation",
    "__version__",
    "load",
    "load_dataset",
    "register",
    "train",
]

# Where each name is defined; the modules are written out, so that no text ever decides what is imported.
_HOMES: dict[str, Callable[[], ModuleType]] = {
    "load": lambda: import_module("kgdist.api.functions"),
    "load_dataset": lambda: import_module("kgdist.api.functions"),
    "train": lambda: import_module("kgdist.api.functions"),
    "STOP": lambda: import_module("kgdist.training.callbacks"),
    "Progress": lambda: import_module("kgdist.training.callbacks"),
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
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kgdist' has no attribute {name!r}")
    value = globals()[name] = getattr(_HOMES[name](), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
