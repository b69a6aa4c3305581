"""What every process of a job on several machines is told, as plain data: what a training and a script have in common.

The launcher makes one plan; it travels as JSON to the agents and on to the processes of the machines, so nothing is typed twice
and two machines cannot mean different things.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from kgdist.kvstore.wire import CURVE, USER, Keys
from kgdist.options.cluster import ReachOptions
from kgdist.runtime.ip_config import Machine

Own = TypeVar("Own", bound="Plan")


@dataclass(frozen=True)
class Plan:
    """A job.

    Attributes:
        config: the options of the command, ReachOptions and more.
        run: a name that no other job has; with `attempt` it marks all that belongs together.
        graph: digest of the partitioned graph, which every machine must have.
        keys: the public keys of the machines, in Z85 text, which each made for this attempt; empty before, and where connections
            are not encrypted. Their secrets never travel.
        security: how connections are closed to strangers, see kgdist.kvstore.wire.
    """

    KIND: ClassVar[str]  # as it is called in JSON

    config: Any
    machines: list[Machine]
    run: str
    attempt: int
    graph: str
    keys: list[str] = field(default_factory=list, kw_only=True)
    security: str = field(default=USER, kw_only=True)

    def again(self: Own) -> Own:
        """The next attempt at the same job."""
        return dataclasses.replace(self, attempt=self.attempt + 1)

    def placed(self: Own, machines: list[Machine], keys: list[str], security: str) -> Own:
        """The same with what is known once agents run: addresses and ports, and the keys that machines have made."""
        return dataclasses.replace(self, machines=machines, keys=keys, security=security)

    def keys_of(self, own: Keys | None) -> Keys | None:
        """What a process of the machine that made the pair `own` shows and admits; None where connections are not encrypted."""
        if self.security != CURVE or own is None:
            return None
        return own.knowing({f"{m.address}:{port}": self.keys[m.number] for m in self.machines for port in m.ports})

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of every server, through all machines."""
        return [(machine.address, port) for machine in self.machines for port in machine.ports]

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return values | {"kind": self.KIND, "machines": [dataclasses.asdict(machine) for machine in self.machines]}

    @staticmethod
    def shared(value: dict[str, Any]) -> dict[str, Any]:
        """The fields of what `to_json` gave, those above as they were."""
        machines = [Machine(**machine) for machine in value["machines"]]
        return {name: given for name, given in value.items() if name != "kind"} | {"machines": machines}


def workspace(config: ReachOptions) -> Path:
    """The folder that relative ones are below."""
    return Path(config.path).expanduser()
