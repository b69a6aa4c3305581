"""What every process of a training on several machines is told, as plain data, and what follows from it.

The launcher makes one plan; it travels as JSON to the agents and on to servers and trainers, so nothing is typed twice and two
machines cannot mean different things.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from kgdist.base.errors import OptionError
from kgdist.base.files import safe_join
from kgdist.kvstore.layout import Layout
from kgdist.kvstore.wire import USER
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.options.configfile import from_json, to_json
from kgdist.options.model_file import FLAG, bring, digest_of
from kgdist.partition.book import Book
from kgdist.partition.folder import folder_of
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.job import Seat, bytes_of, steps_of
from kgdist.version import __version__

Shapes = dict[str, tuple[int, int]]


@dataclass(frozen=True)
class Plan:
    """A job.

    Attributes:
        run: a name that no other job has; with `attempt` it marks all that belongs together.
        triples: of the train splits of all partitions together.
        graph: digest of the partitioned graph, which every machine must have.
        keys: of the connections between machines, as JSON; None where they have none.
        models: sha256 of --model_file, of which every machine has the same; None where there is none.
        security: how connections are closed to strangers, see kgdist.kvstore.wire.
    """

    config: Config
    machines: list[Machine]
    run: str
    attempt: int
    graph: str
    book: Book
    triples: int
    keys: dict[str, Any] | None = None
    models: str | None = None
    security: str = USER

    @property
    def stamp(self) -> str:
        """Of this attempt at the job: checkpoints of one step belong together when they bear the same."""
        return f"{self.run}:{self.attempt}"

    def again(self) -> Plan:
        """The next attempt at the same job."""
        return dataclasses.replace(self, attempt=self.attempt + 1)

    @cached_property
    def config_hash(self) -> str:
        """Hex digest of the options and of this release."""
        text = json.dumps([__version__, to_json(self.config)], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    @cached_property
    def shapes(self) -> Shapes:
        """(rows, width) of every table, on all machines."""
        return model_of(self.config).tables(self.book.num_entities, self.book.num_relations)

    def layout(self) -> Layout:
        """Which server owns which rows."""
        bounds = {name: self.book.entities if name == "entity" else self.book.relations for name in self.shapes}
        widths = {name: width for name, (_, width) in self.shapes.items()}
        servers = [machine.servers for machine in self.machines]
        return Layout.build(widths, bounds, servers, by_owner=self.config.local_update == "owner")

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

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every server, as the layout numbers them."""
        return [(machine.address, port) for machine in self.machines for port in machine.ports]

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
        """Everything."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        machines = [dataclasses.asdict(machine) for machine in self.machines]
        return values | {"config": to_json(self.config), "machines": machines, "book": self.book.to_json()}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Plan:
        """What `to_json` gave. Raises OptionError where --model_file is not there, or not that of the launcher."""
        if file := value["config"]["model_file"]:
            if digest_of(file) != value["models"]:
                raise OptionError(FLAG, f"{file}: is not the file that the launcher has there; copy it to this machine")
            bring(file)
        machines = [Machine(**machine) for machine in value["machines"]]
        return cls(
            **{
                **value,
                "config": from_json(value["config"]),
                "machines": machines,
                "book": Book.from_json(value["book"]),
            }
        )


def workspace(config: Config) -> Path:
    """The folder that relative ones are below."""
    return Path(config.path).expanduser()


def run_folder(config: Config, run: str = "") -> Path:
    """Where a run lies on a machine, or all runs do: on the first one, and on the launcher's where that is the same or shares its
    file system."""
    return workspace(config) / Path(config.save_path).expanduser() / run


def partition_folder(config: Config, number: int) -> Path:
    """Where partition `number` of the data set lies. Raises OptionError for a name that leads elsewhere."""
    root = workspace(config) / Path(config.data_path).expanduser()
    try:
        return folder_of(safe_join(root, config.dataset), number)
    except Exception as error:
        raise OptionError("--dataset", str(error)) from error
