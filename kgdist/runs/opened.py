"""A trained run opened to ask it: options, score function, embeddings and, where the run knows them, names. Not its data set."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from kgdist.base.errors import CheckpointError
from kgdist.base.files import load_npy
from kgdist.data.dataset import Dataset
from kgdist.data.vocabulary import Vocabulary
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.options.resolve import resolve
from kgdist.runs import rundir


@dataclass(frozen=True)
class Opened:
    """What is needed to ask a run."""

    run: rundir.Run
    config: Config
    model: Model
    tables: MemoryTables
    vocabularies: tuple[Vocabulary, Vocabulary] | None  # entities, relations; None where a DGL-KE folder has no names
    num_entities: int
    num_relations: int

    def require(self, dataset: Dataset) -> None:
        """Raise CheckpointError when `dataset` cannot be what the run was trained on."""
        found = len(dataset.entities), len(dataset.relations)
        if found != (self.num_entities, self.num_relations):
            own = f"{self.num_entities:,} entities and {self.num_relations:,} relations"
            other = f"{dataset.name} has {found[0]:,} and {found[1]:,}"
            raise CheckpointError(f"{self.run.path}: embeds {own}, but {other}; is --data_path the data it was trained on?")


def open_model(path: str | Path, *, data_path: str | None = None, gpu: int = -1) -> Opened:
    """Open the run folder `path`; its data, where names may lie, is below `data_path` if that is given.

    Raises CheckpointError for a folder that is no run, or one that lacks embeddings or has others than it says; OptionError for
    a `gpu` that is not there.
    """
    resolve(Config(gpu=(gpu,)), {"gpu"})  # whether there is such a GPU
    trained = rundir.open_run(path)
    config = trained.config.replace(gpu=(gpu,), num_proc=1, mix_cpu_gpu=False, async_update=False, compute_dtype="float32")
    if data_path is not None:
        config = config.replace(data_path=data_path)
    with contextlib.suppress(CheckpointError):  # without names ids can still be asked for
        trained = rundir.maps_with_data(trained, config)
    model, names = model_of(config), rundir.array_names(config)
    for name in names.values():
        if not (trained.path / name).is_file():
            hint = "the run has not ended, or its embeddings were moved; go on with it by kgdist-train --resume"
            raise CheckpointError(f"{trained.path / name}: no such file; {hint} {trained.path}")
    if trained.vocabularies is not None:
        entities, relations = map(len, trained.vocabularies)
    else:
        entities, relations = (_rows(trained.path / names[table]) for table in ("entity", "relation"))
    device = torch.device("cpu") if gpu < 0 else torch.device("cuda", gpu)
    tables = rundir.load_tables(trained, config, model, entities, relations, device)
    return Opened(trained, config, model, tables, trained.vocabularies, entities, relations)


def _rows(path: Path) -> int:
    array = load_npy(path, mmap=True)
    if array.ndim != 2:
        raise CheckpointError(f"{path}: expected a table of float32, found {array.dtype}{list(array.shape)}")
    return len(array)
