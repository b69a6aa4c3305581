"""The plan of a user's script on several machines: what agents, servers and trainers are told, and what follows from it."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgdist.base.errors import OptionError, counted
from kgdist.options.tools import LaunchOptions
from kgdist.runtime.cluster.plan import Plan, workspace

SERVER, TRAINER = ROLES = ("server", "trainer")
PYTHONS = ("python", "python3")  # that mean the one that kgdist runs in


@dataclass(frozen=True)
class ScriptPlan(Plan):
    """A script, every process of which is the command `argv`."""

    KIND = "script"

    config: LaunchOptions
    argv: list[str]

    @property
    def trainers(self) -> int:
        """On all machines."""
        return self.config.num_trainers * len(self.machines)

    @property
    def clients(self) -> int:
        """The most that servers know: trainers, and processes of theirs that sample."""
        return self.trainers * (1 + self.config.num_samplers)

    def servers(self, machine: int) -> range:
        """The numbers of a machine's servers, through all machines."""
        first = sum(each.servers for each in self.machines[:machine])
        return range(first, first + self.machines[machine].servers)

    def ranks(self, machine: int) -> range:
        """The ranks of a machine's trainers."""
        count = self.config.num_trainers
        return range(machine * count, (machine + 1) * count)

    def named(self, rank: int) -> str:
        """How messages call a trainer."""
        return f"trainer {rank} ({self.machines[rank // self.config.num_trainers].name})"

    def part_config(self) -> Path | None:
        """Where the file of the partitions lies, on every machine."""
        return None if self.config.part_config is None else workspace(self.config) / Path(self.config.part_config).expanduser()

    def to_json(self) -> dict[str, Any]:
        return super().to_json() | {"config": dataclasses.asdict(self.config)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ScriptPlan:
        """What `to_json` gave."""
        return cls(**cls.shared(value) | {"config": LaunchOptions(**value["config"])})

    def describe(self) -> list[str]:
        """The plan in words."""
        config = self.config
        lines = [
            f"{shlex.join(self.argv)} in {workspace(config)}" + (f", graph {config.part_config}" if config.part_config else "")
        ]
        for machine in self.machines:
            ranks = self.ranks(machine.number)
            shown = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
            samplers = f", each with {counted(config.num_samplers, 'sampler')}" if config.num_samplers else ""
            lines.append(f"{machine.name}: {machine.listening}, {counted(len(ranks), 'trainer')} ({shown}){samplers}")
        return lines


def argv_of(config: LaunchOptions) -> list[str]:
    """The words of the command. Raises OptionError."""
    try:
        words = shlex.split(config.command or "")
    except ValueError as error:
        raise OptionError("--command", f"{error}: {str(config.command)[:60]!r}") from error
    if not words:
        raise OptionError("--command", 'give the command of the script, in quotes, as the last word: "python3 train.py"')
    return words
