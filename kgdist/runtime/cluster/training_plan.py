"""The plan of a training on several machines: what servers and trainers are told, and what follows from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kgdist.base.errors import OptionError
from kgdist.base.files import safe_join
from kgdist.kvstore.layout import Layout
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.options.configfile import from_json, to_json
from kgdist.options.model_file import FLAG, bring, digest_of
from kgdist.partition.book import Book
from kgdist.partition.manifest import folder_of
from kgdist.runtime.cluster.plan import Plan, workspace
from kgdist.runtime.job import Seat, bytes_of, steps_of
from kgdist.version import __version__

Shapes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class TrainingPlan(Plan):
    """A training.

    Attributes:
        triples: of the train splits of all partitions together.
        models: sha256 of --model_file, of which every machine has the same; None where there is none.
    """

    KIND = "training"

    config: Config
    book: Book
    triples: int
    models: str | None = None

    @property
    def stamp(self) -> str:
        """Of this attempt at the job: checkpoints of one step belong together when they bear the same."""
        return f"{self.run}:{self.attempt}"

    @cached_property
    def config_hash(self) -> str:
        """Hex digest of the options and of this release."""
        text = json.dumps([__version__, to_json(self.config)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def shapes(self) -> Shapes:
        """(rows, width) of every table, on all machines."""
        return model_of(self.config).shapes(self.book.num_entities, self.book.num_relations)

    def layout(self) -> Layout:
        """Which server owns which rows."""
        relations = self.book.relations * model_of(self.config).per_relation  # a range of relations is one of rows
        bounds = {name: self.book.entities if name == "entity" else relations for name in self.shapes}
        widths = {name: width for name, (_, width) in self.shapes.items()}
        servers = [machine.servers for machine in self.machines]
        by_owner, optimizer = self.config.local_update == "owner", self.config.optimizer
        return Layout.build(widths, bounds, servers, by_owner=by_owner, optimizer=optimizer)

    def shapes_of(self, machine: int) -> Shapes:
        """(rows, width) of the part of each table that lies on one machine."""
        layout = self.layout()
        ranges = {name: layout.machine_range(name, machine) for name in self.shapes}
        return {name: (stop - start, self.shapes[name][1]) for name, (start, stop) in ranges.items()}

    def memory_of(self, machine: int) -> int:
        """Bytes of those rows with their optimiser state."""
        return bytes_of(self.config, self.shapes_of(machine))

    def seat(self, machine: int) -> Seat:
        """For the trainers of one machine."""
        own = int(self.book.entities[machine]), int(self.book.entities[machine + 1])
        return Seat(machine, len(self.machines), self.triples, own)

    @property
    def steps(self) -> int:
        """Of each trainer."""
        return steps_of(self.config, self.triples, len(self.machines))

    @property
    def trainers(self) -> int:
        """On all machines."""
        return self.config.num_proc * len(self.machines)

    def connections(self, machine: int) -> int:
        """The most that one process of a machine has: a trainer to all that it asks, a server from all that ask it."""
        layout, own = self.layout(), self.config.num_proc
        asking = self.trainers if layout.by_owner else -(-(self.trainers - own) // self.machines[machine].servers)
        return max(len(layout.targets(0)), asking)

    def partition(self, machine: int) -> Path:
        """Where the partition of a machine lies there; relative to the workspace unless --data_path is absolute."""
        return partition_folder(self.config, machine)

    def checkpoints(self, machine: int, run: str) -> Path:
        """Where a machine keeps those of a run: machines may share a file system."""
        return run_folder(self.config, run) / f"machine_{machine}"

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"config": to_json(self.config), "book": self.book.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TrainingPlan:
        """What `to_json` gave. Raises OptionError where --model_file is not there, or not that of the launcher."""
        if file := value["config"]["model_file"]:
            if digest_of(file) != value["models"]:
                raise OptionError(FLAG, f"{file}: is not the file that the launcher has there; copy it to this machine")
            bring(file)
        return cls(**cls.shared(value) | {"config": from_json(value["config"]), "book": Book.from_json(value["book"])})


def run_folder(config: Config, run: str = "") -> Path:
    """Where a run lies on a machine, or all runs do: on the first one, and on the launcher's where that is the same or shares its
    file system."""
    return workspace(config) / Path(config.save_path).expanduser() / run


def data_folder(config: Config) -> Path:
    """Where the partitions of data sets lie."""
    return workspace(config) / Path(config.data_path).expanduser()


def from_here(config: Config) -> Config:
    """With a relative --data_path that is no folder of the workspace, but one from where the user stands, as that folder."""
    here = Path(config.data_path).expanduser()
    if here.is_absolute() or data_folder(config).exists() or not here.exists():
        return config
    return config.replace(data_path=str(here.absolute()))


def partition_folder(config: Config, number: int) -> Path:
    """Where partition `number` of the data set lies. Raises OptionError for a name that leads elsewhere."""
    try:
        return folder_of(safe_join(data_folder(config), config.dataset), number)
    except Exception as error:
        raise OptionError("--dataset", str(error)) from error
