"""Optimisers of DistEmbeddings: a step sends gradients to the owners of their rows, and the owners update them.

Trainers do not wait for each other: a row that two of them have gradients for is updated twice, in either order (DGL lets all
trainers meet at each step, and takes the mean over them). Within a step of one trainer each row is updated once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from kgdist.base.errors import Diverged, UsageError
from kgdist.base.files import PathLike
from kgdist.distributed.current import storage
from kgdist.distributed.embedding import DistEmbedding
from kgdist.distributed.saving import load_tables, save_tables
from kgdist.distributed.storage import Spec
from kgdist.kernels.route import FINITE, within
from kgdist.kernels.rows import merge_rows


class SparseSGD:
    """row -= lr g.

    Args:
        params: the embeddings it trains, each of one optimiser. One that was made for the same rows before, by this or another
            name of theirs, shares the state if its rule and settings are the same; otherwise it can take no more steps.
        lr: its rate, which may be changed between steps.
        duplicates: what becomes of several gradients of a row in one step: "mean", as in DGL, or "sum", as in torch.
    """

    rule = "sgd"

    def __init__(self, params: Iterable[DistEmbedding], lr: float, duplicates: str = "mean") -> None:
        self._setup(params, lr, duplicates, {})

    def _setup(self, params: Iterable[DistEmbedding], lr: float, duplicates: str, settings: dict[str, float]) -> None:
        what = type(self).__name__
        self.embeddings = list(params) if isinstance(params, Iterable) else [params]
        if not self.embeddings or not all(isinstance(each, DistEmbedding) for each in self.embeddings):
            raise UsageError(f"{what}: give it a list of DistEmbeddings; parameters of a model are for an optimiser of torch")
        if len({each.name for each in self.embeddings}) < len(self.embeddings):
            raise UsageError(f"{what}: an embedding is there twice")
        if not all(isinstance(value, int | float | np.number) and value >= 0 for value in (lr, *settings.values())):
            raise UsageError(f"{what}: lr and other settings are numbers from 0 on, not {lr}, {settings}")
        if duplicates not in ("mean", "sum"):
            raise UsageError(f"{what}: duplicates are combined by 'mean' or 'sum', not {duplicates!r}")
        self.lr, self.duplicates, self.settings = lr, duplicates, settings
        self._states = [storage().learn(each.name, self.rule, settings) for each in self.embeddings]

    def step(self) -> None:
        """Send the gradients that backward passes have brought since the last step or `zero_grad` to the owners of their rows.

        Returns while they are on their way; what this trainer reads then has them. Raises Diverged where a gradient is no number,
        UsageError where another optimiser was made for the rows meanwhile.
        """
        for embedding in self.embeddings:
            ids, grads = embedding.take_gradients()
            if not len(ids):
                continue
            if not within(grads.numpy(), FINITE):
                raise Diverged(f"DistEmbedding {embedding.name!r}: a gradient is infinite or no number; a smaller lr may help")
            if storage().learns(embedding.name) != (self.rule, self.settings):
                raise UsageError(f"{embedding!r}: another optimiser was made for it; rows have one, take steps of the newer one")
            storage().push(embedding.name, *self._combined(ids, grads), self.lr)

    def save(self, folder: PathLike) -> None:
        """Write the state of all rows into one folder, as DistEmbedding.save does; all trainers together."""
        save_tables(folder, type(self).__name__, self._tables())

    def load(self, folder: PathLike) -> None:
        """Read what `save` of an optimiser of this kind wrote for as many embeddings; all trainers together. Raises
        CheckpointError for a folder of something else."""
        load_tables(folder, type(self).__name__, self._tables())

    def _tables(self) -> dict[str, Spec]:
        return {f"{number}.{key}": spec for number, states in enumerate(self._states) for key, spec in states.items()}

    def _combined(self, ids: np.ndarray, grads: torch.Tensor) -> tuple[np.ndarray, torch.Tensor]:
        unique, merged = merge_rows(ids, grads.numpy(), mean=self.duplicates == "mean")
        return unique, torch.from_numpy(merged)

    def zero_grad(self) -> None:
        """Forget gradients that no step has used."""
        for embedding in self.embeddings:
            embedding.take_gradients()


class SparseAdagrad(SparseSGD):
    """Adagrad per element (Duchi et al. 2011), as torch.optim.Adagrad, for rows that have a gradient: G += g^2,
    row -= lr g / (sqrt(G) + eps)."""

    rule = "adagrad"

    def __init__(self, params: Iterable[DistEmbedding], lr: float, eps: float = 1e-10, duplicates: str = "mean") -> None:
        self._setup(params, lr, duplicates, {"eps": eps})


class SparseAdam(SparseSGD):
    """Lazy Adam (Kingma and Ba 2015), as torch.optim.SparseAdam: moments move only for rows that have a gradient. The correction
    of their bias counts each row's own updates."""

    rule = "adam"

    def __init__(
        self,
        params: Iterable[DistEmbedding],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        duplicates: str = "mean",
    ) -> None:
        self._setup(params, lr, duplicates, {"beta1": betas[0], "beta2": betas[1], "eps": eps})
