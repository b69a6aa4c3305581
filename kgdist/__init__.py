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

from typing import TYPE_CHECKING, Any

from kgdist.version import __version__

if TYPE_CHECKING:
    from kgdist.api import load, load_dataset, train
    from kgdist.callbacks import STOP, Progress, Validation
    from kgdist.data.store import Dataset
    from kgdist.embedder import KGEmbedder
    from kgdist.embeddings import Embeddings
    from kgdist.errors import KgdistError, UsageError
    from kgdist.evaluation import Evaluation
    from kgdist.models.base import Model
    from kgdist.models.registry import register
    from kgdist.run import Run
    from kgdist.table import Table
    from kgdist.types import Side

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

_HOMES = {
    "api": ("load", "load_dataset", "train"),
    "callbacks": ("STOP", "Progress", "Validation"),
    "data.store": ("Dataset",),
    "embedder": ("KGEmbedder",),
    "embeddings": ("Embeddings",),
    "errors": ("KgdistError", "UsageError"),
    "evaluation": ("Evaluation",),
    "models.base": ("Model",),
    "models.registry": ("register",),
    "run": ("Run",),
    "table": ("Table",),
    "types": ("Side",),
}


def __getattr__(name: str) -> Any:
    import importlib

    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(importlib.import_module(f"kgdist.{home}"), name)
            return value
    raise AttributeError(f"module 'kgdist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
