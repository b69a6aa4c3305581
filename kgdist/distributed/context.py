"""What a process is in a script on several machines: a server, a trainer, or all there is. `initialize` finds out.

A script that kgdist-launch has started runs in servers and trainers alike; a server serves where it calls `initialize`, and ends
there. Run by hand, the same script is alone, and everything is in its own process.
"""

from __future__ import annotations

import atexit
import faulthandler
import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.gloo import let_gloo_rest
from kgdist.base.integers import integer
from kgdist.distributed.initialisers import filled, function_at, mapped, path_of
from kgdist.kvstore.identity import Identity
from kgdist.kvstore.wire import USER, Keys, Transport
from kgdist.runtime.cluster.script_plan import SERVER, TRAINER, ScriptPlan
from kgdist.runtime.ip_config import Machine, read_cluster
from kgdist.runtime.processes.pipes import ready
from kgdist.runtime.processes.script_line import ScriptLine
from kgdist.version import __version__

ALONE = "standalone"
BEATS = 20  # in --peer_timeout, that a server shows its agent
TURN = 0.05  # seconds that a server serves before it looks at its line
BEFORE = "call kgdist.distributed.initialize() first: this script was started by kgdist-launch"

Handles = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Job:
    """The job of a process that kgdist-launch has started.

    Attributes:
        machine: the number of this machine.
        rank: of a trainer among all; a server's number among all.
        part_config: <graph_name>.json on this machine, partition `machine` beside it; None where there is none.
        graph: digest of that file.
        num_workers: processes of each trainer that sample.
        line: to the agent.
        keys: that its connections show and admit; None where they are not encrypted.
    """

    plan: ScriptPlan
    machine: int
    role: str
    rank: int
    part_config: Path | None
    graph: str
    num_workers: int
    line: ScriptLine
    keys: Keys | None

    @property
    def machines(self) -> list[Machine]:
        """All of them; addresses and ports of servers are `plan.addresses`, in the order of their numbers."""
        return self.plan.machines

    @property
    def clients(self) -> int:
        """Of all servers, on all machines: trainers, and processes of theirs that sample."""
        return self.plan.trainers * (1 + self.num_workers)

    def client(self, worker: int | None = None) -> int:
        """The number by which servers know this trainer, or the process `worker` of it that samples."""
        return self.rank * (1 + self.num_workers) + (0 if worker is None else 1 + worker)

    def identity(self) -> Identity:
        """What all processes of an attempt share."""
        told = json.dumps([__version__, self.plan.to_json()["config"], self.num_workers], sort_keys=True)
        settings = hashlib.sha256(told.encode()).hexdigest()
        return Identity(__version__, self.plan.run, self.plan.attempt, settings, self.graph)

    def transport(self, row_bytes: int = 0) -> Transport:
        """Makes the sockets of a process. `row_bytes`: of the longest row."""
        return Transport(self.keys, self.plan.config.peer_timeout, user=self.plan.security == USER, row_bytes=row_bytes)

    def barrier(self, name: str = "", problem: str = "") -> None:
        """Wait for all trainers. Raises KgdistError, in all of them, where one says that it has a problem."""
        self.line.call("barrier", name=name, problem=problem)

    def create(
        self,
        name: str,
        spec: Mapping[str, Any],
        arrays: Mapping[str, tuple[str, Sequence[int]]],
        bounds: Sequence[int],
        initialiser: Callable[..., Any] | None = None,
    ) -> tuple[int, Handles]:
        """Make a table together with all trainers, or share that which is there by its name.

        Args:
            spec: what it is, as JSON; equal for all trainers, and what servers are told besides. `dtype` is torch's name of
                that of the rows; without it they are what NumPy calls them.
            arrays: name -> NumPy's dtype and the shape of a row; the first are the rows, the others belong to them (the state
                of an optimiser). None: servers are told of the table, and that is all.
            bounds: int64[machines + 1]: machine m has rows bounds[m] to bounds[m + 1].
            initialiser: of (shape, dtype), makes the rows of one machine, in the server's process, which looks it up by its name.
        Returns the number of the table, and by the names of `arrays` what maps this machine's part, which its servers share, see
        kgdist.kvstore.shared_memory. Raises UsageError.
        """
        init = "" if initialiser is None else path_of(initialiser)
        told = {key: [dtype, list(row)] for key, (dtype, row) in arrays.items()}
        answer = self.line.call("create", name=name, spec=dict(spec), arrays=told, bounds=[int(b) for b in bounds], init=init)
        return int(answer["table"]), dict(answer["handles"])

    def drop(self, name: str) -> None:
        """One user less of a table; it goes with the last of all trainers'. Waits for nobody."""
        self.line.post("drop", name=name)


class Hosting(Protocol):
    """What a server does besides talking with its agent; made by the function that `serve_with` was given."""

    def make(self, number: int, name: str, spec: Mapping[str, Any], handles: Handles, bounds: Sequence[int]) -> None:
        """A table is there: its part of this machine, filled or about to be. Raises KgdistError."""

    def drop(self, name: str) -> None:
        """It is not there any more."""

    def turn(self, seconds: float, line: ScriptLine) -> None:
        """Answer who asks, for so long at most; return when there is something on the line."""

    def close(self) -> None:
        """All have left."""


class Waiting:
    """A server that nobody asks: all there is without a store."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def make(self, number: int, name: str, spec: Mapping[str, Any], handles: Handles, bounds: Sequence[int]) -> None:
        """See Hosting: the agent holds the memory."""

    def drop(self, name: str) -> None:
        """See Hosting."""

    def turn(self, seconds: float, line: ScriptLine) -> None:
        """See Hosting."""
        ready(line, seconds)

    def close(self) -> None:
        """See Hosting."""


_job: list[Job] = []
_hosting: list[Callable[[Job], Hosting]] = [Waiting]
_joined: list[Callable[[Job], None]] = []  # called in a trainer when all servers are there
_workers = [0]  # of a process that is alone


def serve_with(make: Callable[[Job], Hosting]) -> None:
    """Let servers do this; the module that has it says so when it is imported."""
    _hosting[:] = [make]


def when_joined(do: Callable[[Job], None]) -> None:
    """Let trainers do this when they have found the servers."""
    _joined.append(do)


def role() -> str:
    """`server`, `trainer`, or `standalone` for a script that was not started by kgdist-launch."""
    return os.environ.get("KGDIST_ROLE", ALONE)


def job() -> Job | None:
    """That of this process; None where it is alone. Raises UsageError before `initialize`."""
    if not _job and role() != ALONE:
        raise UsageError(BEFORE)
    return _job[0] if _job else None


def rank() -> int:
    """Of this trainer among those of all machines; 0 where it is alone."""
    found = job()
    return 0 if found is None else found.rank


def num_machines() -> int:
    """How many there are."""
    found = job()
    return 1 if found is None else len(found.machines)


def num_workers() -> int:
    """Processes of each trainer that sample, unless a loader says otherwise."""
    found = job()
    return _workers[0] if found is None else found.num_workers


def get_num_clients() -> int:
    """Trainers of all machines together."""
    found = job()
    return 1 if found is None else found.plan.trainers


def barrier(name: str = "") -> None:
    """Wait until all trainers are here. Raises KgdistError."""
    if (found := job()) is not None:
        found.barrier(name)


def initialize(
    ip_config: str | os.PathLike[str] | None = None,
    num_workers: int | None = None,
    *,
    max_queue_size: int | None = None,
    net_type: str | None = None,
    num_worker_threads: int = 1,
    use_graphbolt: bool = False,
) -> None:
    """Take one's part in the job: before anything else of this package, and before torch.distributed.init_process_group.

    A trainer returns when all servers can be reached. A server serves until all trainers have ended, and never returns: what it
    is to call, an initialiser of a tensor for instance, must be declared before. A script that was run by hand goes on alone.

    Args:
        ip_config: the file of the machines. They are those of kgdist-launch; one that is here must say the same.
        num_workers: processes of each trainer that sample; otherwise --num_samplers of kgdist-launch. The same in all trainers.
        max_queue_size, net_type, num_worker_threads, use_graphbolt: of DGL. What has no meaning here is refused: queues are
            bounded by what trainers wait for, all goes over ZeroMQ (which net_type="socket" may stand for), and samplers have
            one thread.
    Raises UsageError, PeersLost.
    """
    _refuse(max_queue_size=max_queue_size is not None, net_type=net_type not in (None, "socket"))
    _refuse(num_worker_threads=num_worker_threads != 1, use_graphbolt=use_graphbolt)
    num_workers = None if num_workers is None else integer("num_workers", num_workers, 0)
    if role() == ALONE:  # once, or again in a cell of a notebook: the last one counts
        if _workers[0] != (num_workers or 0):
            from kgdist.sampling.loaders import Defaults

            Defaults.workers = _workers[0] = num_workers or 0
        return
    if _job:
        raise UsageError("initialize() was called before; once is enough")
    line = ScriptLine()
    line.tell_errors()
    told = line.ask("job", hello={"pid": os.getpid()})
    plan = ScriptPlan.from_json(told["plan"])
    _same_machines(ip_config, plan)
    workers = plan.config.num_samplers if num_workers is None else num_workers
    path = Path(told["part_config"]) if told["part_config"] else None
    keys = Keys.from_json(told["keys"]) if told["keys"] is not None else None
    own = Job(plan, told["machine"], told["role"], told["rank"], path, told["graph"], workers, line, keys)
    if own.role == SERVER:
        serve(own, _hosting[0](own))
    assert own.role == TRAINER
    line.call("initialize", num_workers=workers)
    _job[:] = [own]
    atexit.register(let_gloo_rest)
    for do in _joined:
        do(own)


def _refuse(**given: bool) -> None:
    for name, meant in given.items():
        if meant:
            raise UsageError(f"initialize({name}=...): has no meaning here; leave it out")


def _same_machines(ip_config: str | os.PathLike[str] | None, plan: ScriptPlan) -> None:
    placed = plan.config.backend == "ray"  # on machines that no file knows
    if ip_config is None or placed or not Path(ip_config).exists():  # it need not be on every machine
        return
    found = [machine.address for machine in read_cluster(ip_config)]
    if found != [machine.address for machine in plan.machines]:
        raise UsageError(f"initialize({os.fspath(ip_config)!r}): lists other machines than the --ip_config of kgdist-launch")


def serve(job: Job, hosting: Hosting) -> NoReturn:
    """Be a server until the agent says that all have left; this process ends here. Raises PeersLost."""
    faulthandler.register(signal.SIGUSR1)  # for an agent that wants to know where it hangs
    job.line.say(ready=True)
    names: dict[int, str] = {}
    beaten = 0.0
    while True:
        hosting.turn(TURN, job.line)
        if time.monotonic() - beaten > job.plan.config.peer_timeout / BEATS:
            beaten = time.monotonic()
            job.line.say(beat=True)
        if (heard := job.line.hear(0.0)) is None:
            continue
        name, value = heard
        if name == "leave":
            break
        if name == "drop":
            if value in names:
                hosting.drop(names.pop(value))
        elif name == "make":
            problem = ""
            try:
                _make(hosting, **value)
                names[value["number"]] = value["value"]["name"]
            except KgdistError as error:
                problem = str(error)
            job.line.say(made={"number": value["number"], "problem": problem})
    hosting.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever the script would do at its end is for trainers


def _make(hosting: Hosting, number: int, value: dict[str, Any], handles: dict[str, Any], fill: bool) -> None:
    if fill and value["init"] and handles:
        rows = mapped(next(iter(handles.values())))
        filled(rows, value["name"], value["spec"].get("dtype"), function_at(value["init"]))
    hosting.make(number, value["name"], value["spec"], handles, value["bounds"])
