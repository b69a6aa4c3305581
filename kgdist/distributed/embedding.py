"""Learnable rows, one for each node or edge: read by a trainer, updated where they live."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from kgdist.base.files import PathLike
from kgdist.distributed.current import storage
from kgdist.distributed.policy import PartitionPolicy
from kgdist.distributed.rows import row_ids
from kgdist.distributed.saving import load_tables, save_tables
from kgdist.distributed.storage import Initialiser
from kgdist.distributed.tensor import DistTensor, anonymous


class DistEmbedding:
    """float32 rows that an optimiser of kgdist.distributed (SparseAdagrad, SparseAdam, SparseSGD) trains.

    Created as a DistTensor is, and shared by name as it is. It is no torch.nn.Module: its rows are not in `parameters()` of a
    model. `emb(ids)` gives the rows of a list, array or tensor of ids as a leaf of autograd. When a backward pass reaches it, its
    gradient is kept for the optimiser's next step; while gradients are off (torch.no_grad) nothing is kept.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        name: str | None = None,
        init_func: Initialiser | None = None,
        part_policy: PartitionPolicy | None = None,
    ) -> None:
        given = anonymous("embedding") if name is None else name
        self._weight = DistTensor((num_embeddings, embedding_dim), torch.float32, given, init_func, part_policy)
        self._reached: list[tuple[np.ndarray, torch.Tensor]] = []  # ids, and the leaf whose gradient is theirs

    @property
    def weight(self) -> DistTensor:
        """The rows."""
        return self._weight

    @property
    def name(self) -> str:
        """By which all trainers mean these rows."""
        return self._weight.name

    @property
    def num_embeddings(self) -> int:
        """Rows altogether."""
        return len(self._weight)

    @property
    def embedding_dim(self) -> int:
        """Numbers of a row."""
        return int(self._weight.shape[1])

    @property
    def part_policy(self) -> PartitionPolicy:
        """Whose rows these are."""
        return self._weight.part_policy

    def __repr__(self) -> str:
        return f"DistEmbedding(name={self.name!r}, {self.num_embeddings} x {self.embedding_dim}, rows as the {self.part_policy})"

    def __call__(self, ids: Any, device: torch.device | str = "cpu") -> torch.Tensor:
        """float32[n, embedding_dim] on `device`, the rows `ids`, which may repeat, with all steps of this trainer so far."""
        rows = np.asarray(row_ids(ids, self.num_embeddings, f"DistEmbedding {self.name!r}"), np.int64)
        values = storage().read(self.name, rows).to(device)
        if torch.is_grad_enabled():
            reached = self._reached  # the graph of autograd keeps the leaf until then, and nothing if there is no backward pass
            values.requires_grad_()
            values.register_post_accumulate_grad_hook(lambda leaf: reached.append((rows, leaf)))  # type: ignore[no-untyped-call]
        return values

    def save(self, folder: PathLike) -> None:
        """Write all rows into one folder, which says whose they were before the graph was partitioned; all trainers together.

        The first trainer writes, so the folder is on its machine, whole or as before. Raises KgdistError when it cannot.
        """
        save_tables(folder, "DistEmbedding", {"weight": self._weight.spec})

    def load(self, folder: PathLike) -> None:
        """Read what `save` wrote, on any number of trainers and machines; all trainers together. The first trainer reads the
        folder. Raises CheckpointError for one that is not of as many and as wide rows of the same graph."""
        load_tables(folder, "DistEmbedding", {"weight": self._weight.spec})

    def take_gradients(self) -> tuple[np.ndarray, torch.Tensor]:
        """int64[n], float32[n, embedding_dim] on the CPU: ids, which may repeat, and the gradients that have arrived since the
        last call, which this forgets."""
        ids, grads = [np.empty(0, np.int64)], [torch.empty(0, self.embedding_dim)]
        for rows, leaf in self._reached:
            if leaf.grad is not None:  # of two backward passes over one leaf autograd has made the sum
                ids.append(rows)
                grads.append(leaf.grad.detach().to("cpu", torch.float32))
                leaf.grad = None
        self._reached.clear()
        return (ids[1], grads[1]) if len(ids) == 2 else (np.concatenate(ids), torch.cat(grads))
