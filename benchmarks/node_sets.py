"""Graphs whose nodes are to be classified, read from a folder: npz without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import kgdist

PLANETOID = {"Cora": "cora_planetoid", "Citeseer": "citeseer_planetoid", "Amazon Photo": "amazon_photo"}


class Task(NamedTuple):
    """A graph whose nodes have features `x`, and which of them say what."""

    graph: kgdist.Graph
    labels: torch.Tensor  # int64[N]
    classes: int
    train: torch.Tensor  # ids
    valid: torch.Tensor
    test: torch.Tensor


def read_nodes(folder: Path, name: str, seed: int) -> Task:
    """One of PLANETOID; its public split, or 20 nodes a class to train on, 30 to validate with, drawn by `seed`.

    Features are 0 or 1. Where the split is public, those of a node are divided by their sum, as in Kipf and Welling's recipe.
    """
    with np.load(folder / f"{PLANETOID[name]}.npz", allow_pickle=False) as file:
        shape = tuple(int(size) for size in file["x_shape"])
        features = torch.zeros(shape)
        rows = np.repeat(np.arange(shape[0]), np.diff(file["x_indptr"]))
        features[torch.from_numpy(rows), torch.from_numpy(file["x_indices"].astype(np.int64))] = torch.from_numpy(file["x_data"])
        g = kgdist.graph((file["edge_index"][0], file["edge_index"][1]), num_nodes=shape[0])
        labels = torch.from_numpy(file["y"].astype(np.int64))
        public = "idx_train" in file.files
        if public:
            parts = [torch.from_numpy(file[f"idx_{part}"]) for part in ("train", "val", "test")]
        else:
            parts = drawn_split(labels, seed)
    g.ndata["x"] = features / features.sum(1, keepdim=True).clamp(min=1e-12) if public else features
    return Task(g, labels, int(labels.max()) + 1, *parts)


def drawn_split(labels: torch.Tensor, seed: int, train: int = 20, valid: int = 30) -> list[torch.Tensor]:
    """Ids of so many nodes of each class, and of all others."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(labels), generator=generator)
    parts: list[list[torch.Tensor]] = [[], [], []]
    for label in range(int(labels.max()) + 1):
        of_class = order[labels[order] == label]
        for part, ids in zip(parts, (of_class[:train], of_class[train : train + valid], of_class[train + valid :]), strict=True):
            part.append(ids)
    return [torch.cat(part).sort().values for part in parts]
