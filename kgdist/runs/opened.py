"""A trained run opened to ask it: options, score function, embeddings and, where the run knows them, names. Not its data set."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from kgdist.base.errors import CheckpointError
from kgdist.base.files import read_json
from kgdist.base.log import log
from kgdist.data.dataset import Dataset, open_dataset
from kgdist.data.vocabulary import Vocabulary, with_inverses
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.options.configfile import DIGEST
from kgdist.options.resolve import resolve
from kgdist.runs import rundir


@dataclass(frozen=True)
class Opened:
    """What is needed to ask a run."""

    run: rundir.RunFolder
    config: Config
    model: Model
    tables: MemoryTables
    vocabularies: tuple[Vocabulary, Vocabulary] | None  # entities, relations; None where a DGL-KE folder has no names
    num_entities: int
    num_relations: int

    @property
    def names(self) -> tuple[Vocabulary, Vocabulary]:
        """Of entities and of relations; their numbers where the run knows none."""
        return self.vocabularies or (Vocabulary.numbered(self.num_entities), Vocabulary.numbered(self.num_relations))

    def row_names(self, kind: str) -> Vocabulary:
        """The same of the rows of tables of entities ("entity") or relations ("relation"): inverse relations have rows, too."""
        entities, relations = self.names
        if kind == "entity":
            return entities
        return with_inverses(relations) if self.model.reciprocal else relations

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
    run = rundir.open_run(path)
    config = run.config.replace(gpu=(gpu,), num_proc=1, mix_cpu_gpu=False, async_update=False, compute_dtype="float32")
    if data_path is not None:
        config = config.replace(data_path=data_path)
    with contextlib.suppress(CheckpointError):  # without names ids can still be asked for
        run = rundir.maps_with_data(run, config)
    if run.vocabularies is not None:
        entities, relations = map(len, run.vocabularies)
    else:
        entities, rows = (rundir.rows_of(run, table) for table in ("entity", "relation"))
        relations = rows // model_of(config).per_relation
    return _open(run, config, entities, relations, torch.device("cpu") if gpu < 0 else torch.device("cuda", gpu))


def open_with_data(run: rundir.RunFolder, config: Config, device: str | torch.device = "cpu") -> tuple[Opened, Dataset]:
    """Open a run and the data set that it was trained on, under the options `config`, resolved from the run's own.

    Raises CheckpointError as `open_model`, also for names that are nowhere; DataError for data that cannot be read.
    """
    run = rundir.maps_with_data(run, config)
    dataset = open_dataset(config, run.vocabularies)
    trained_on = read_json(run.path / "config.json").get(DIGEST)
    if trained_on not in (None, dataset.digest):
        what = "are not the data that it was trained on, or have changed since"
        log.warning("%s: %s %s; what it was trained on may be tested", run.path, config.data_path, what)
    return _open(run, config, len(dataset.entities), len(dataset.relations), device), dataset


def _open(run: rundir.RunFolder, config: Config, entities: int, relations: int, device: str | torch.device) -> Opened:
    model = model_of(config)
    tables = rundir.load_tables(run, config, model, entities, relations, device)
    return Opened(run, config, model, tables, run.vocabularies, entities, relations)
