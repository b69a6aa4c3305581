"""One machine's part of a script: its servers and trainers, processes of the user's own command, and the memory of its tables.

Nothing here knows what a table is for: its arrays are allocated as the trainers asked, and servers and trainers map them.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, ProtocolError, counted
from kgdist.base.files import Moved, size
from kgdist.base.machine import free_memory, usable_cores, used_now
from kgdist.kvstore.shared_memory import SharedArray
from kgdist.kvstore.wire import Keys
from kgdist.partition.manifest import check_part, folder_of
from kgdist.runtime.agent.site import Failure, Site, Tell, Turns
from kgdist.runtime.cluster.plan import workspace
from kgdist.runtime.cluster.script_plan import PYTHONS, SERVER, TRAINER, ScriptPlan
from kgdist.runtime.ports import free_port, interface_of, port_problems
from kgdist.runtime.processes.forkserver import environment
from kgdist.runtime.processes.keeper import Keeper
from kgdist.runtime.processes.pipes import Descriptor, readable
from kgdist.runtime.processes.scripted import ScriptProcess
from kgdist.runtime.protocol import SCRIPT_SAYS, Doing, word_of

PER_PROCESS = 200 << 20  # bytes that a process takes by importing torch
FLOW = 1 << 20  # bytes a second that are told of what the processes of a machine print, and at once after a silence
PATH, GLOO = "PYTHONPATH", "GLOO_SOCKET_IFNAME"


class Tap:
    """Lets so many bytes a second through, and no more than those of one second at once."""

    def __init__(self, flow: float) -> None:
        self._flow = self._left = flow
        self._looked = time.monotonic()

    def lets(self, count: int) -> bool:
        """Whether so many may pass now."""
        now = time.monotonic()
        self._left = min(self._flow, self._left + (now - self._looked) * self._flow)
        self._looked = now
        if passes := count <= self._left:
            self._left -= count
        return passes


class ScriptSite(Site):
    """What runs on machine `number`, which has made the pair `keys`. `tell` sends an event to the launcher."""

    def __init__(self, plan: ScriptPlan, number: int, tell: Tell, keys: Keys | None = None) -> None:
        self._keys = plan.keys_of(keys)
        self.plan, self.number, self.tell, self.config = plan, number, tell, plan.config
        self.graph = ""
        self._processes: dict[tuple[str, int], ScriptProcess] = {}
        self._keeper: Keeper | None = None
        self._ready: set[int] = set()  # servers
        self._beats = np.zeros(len(plan.servers(number)), np.int64)  # of each
        self._turns = Turns(self._beats, plan.config.peer_timeout)
        self._tables: dict[int, dict[str, SharedArray]] = {}
        self._making: dict[int, set[int]] = {}  # table -> servers that have not mapped it
        self._tap, self._dropped = Tap(FLOW), 0
        self._meeting: dict[str, str] = {}  # where trainers find each other
        self._beaten = 0.0
        self._leaving = False

    # ---- before the start

    def problems(self, *, copied: bool, moved: Moved) -> list[str]:
        root = workspace(self.config)
        if not root.is_dir():
            return [f"--workspace {root}: no such folder here"]
        found = self._partition() if copied else []
        until = time.monotonic() + (2 * self.config.peer_timeout if self.plan.attempt else 0.0)
        while (held := port_problems(self.plan.machines[self.number])) and time.monotonic() < until:
            time.sleep(0.2)  # processes of the attempt before may still have them
        return [*found, *held, *self._memory()]

    def _partition(self) -> list[str]:
        """What is wrong with the file of the partitions, or with the partition of this machine."""
        path = self.plan.part_config()
        if path is None:
            return []
        try:
            text = path.read_bytes()
            value = json.loads(text)
            parts, graph = int(value["num_parts"]), str(value["graph"])
        except FileNotFoundError:
            return [f"--part_config {path}: no such file here; kgdist-copy sends it"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            return [f"--part_config {path}: is not a file of partitions ({type(error).__name__}: {error})"]
        self.graph = hashlib.sha256(text).hexdigest()
        if parts != len(self.plan.machines):
            lists, divided = counted(len(self.plan.machines), "machine"), counted(parts, "partition")
            return [f"--ip_config lists {lists}, but {path.name} is of {divided}; there is one machine for each"]
        folder = folder_of(path.parent, self.number)
        if not folder.is_dir():
            return [f"{folder}: no such folder here; kgdist-copy sends it"]
        try:
            check_part(folder, graph, self.number, path)
        except CheckpointError as error:
            return [str(error)]
        return []

    def _memory(self) -> list[str]:
        own = self.config.num_trainers * (1 + self.config.num_samplers) + self.plan.machines[self.number].servers
        free = free_memory()
        if free is None or own * PER_PROCESS <= free:
            return []
        return [f"{own} processes need about {size(own * PER_PROCESS)}, and {size(free)} of memory are free"]

    def checkpoints(self, run: str, moved: Moved) -> list[list[Any]]:
        """See Site: a script has none that we know of."""
        return []

    # ---- processes

    def port(self) -> int:
        """One where the trainers can meet. Raises UsageError."""
        return free_port({port for machine in self.plan.machines for port in machine.ports})

    def launch(self, address: str, port: int) -> None:
        """Start the trainers."""
        self._meeting = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
        for local, rank in enumerate(self.plan.ranks(self.number)):
            self._start(TRAINER, rank, local)

    def serve(self) -> None:
        """Start the servers."""
        for local, number in enumerate(self.plan.servers(self.number)):
            self._start(SERVER, number, local)

    def _start(self, role: str, rank: int, local: int) -> None:
        if self._keeper is None:
            self._keeper = Keeper(self.config.peer_timeout, threads=self._threads())
        argv = [sys.executable, *self.plan.argv[1:]] if self.plan.argv[0] in PYTHONS else self.plan.argv
        cwd = str(workspace(self.config).absolute())
        self._processes[role, rank] = ScriptProcess(
            self._keeper, f"{role}-{rank}", argv, cwd, self._environment(role, rank, local)
        )

    def _threads(self) -> int:
        if self.config.num_omp_threads is not None:
            return self.config.num_omp_threads
        working = self.config.num_trainers * (1 + self.config.num_samplers) + self.plan.machines[self.number].servers
        return max(1, usable_cores() // working)

    def _environment(self, role: str, rank: int, local: int) -> dict[str, str]:
        """What a process finds in its environment besides that of this one: the names that torch knows, and ours."""
        several = self.plan.trainers if role == TRAINER else len(self.plan.addresses)
        here = self.config.num_trainers if role == TRAINER else self.plan.machines[self.number].servers
        given = {"KGDIST_ROLE": role, "PYTHONUNBUFFERED": "1", "RANK": str(rank), "LOCAL_RANK": str(local)}
        given |= {"WORLD_SIZE": str(several), "LOCAL_WORLD_SIZE": str(here), **self._meeting}
        interface = interface_of(self.plan.machines[self.number].address)
        if interface is not None and GLOO not in os.environ:  # which would take what the host's own name leads to
            given[GLOO] = interface
        own = dict(pair.split("=", 1) for pair in self.config.extra_envs)
        if PATH in own:  # beside that which leads to kgdist
            own[PATH] = os.pathsep.join(filter(None, (own[PATH], environment(1).get(PATH))))
        return given | own

    def _job(self, role: str, rank: int) -> dict[str, Any]:
        """What a process is told when it says hello."""
        path = self.plan.part_config()
        return {
            "plan": self.plan.to_json(),
            "keys": None if self._keys is None else self._keys.to_json(),
            "machine": self.number,
            "role": role,
            "rank": rank,
            "graph": self.graph,
            "part_config": "" if path is None else str(Path(path).absolute()),
        }

    def leave(self) -> None:
        """Let the servers end."""
        self._leaving = True
        for (role, _), process in self._processes.items():
            if role == SERVER:
                process.send({"leave": True})

    # ---- tables

    def make(self, number: int, value: dict[str, Any]) -> None:
        """Allocate this machine's part of a table, and let the servers map it."""
        rows = int(value["bounds"][self.number + 1]) - int(value["bounds"][self.number]) if value["bounds"] else 0
        arrays: dict[str, SharedArray] = {}
        try:
            for name, (dtype, row) in value["arrays"].items():
                arrays[name] = SharedArray.allocate((rows, *row), np.dtype(dtype))
        except (OSError, TypeError, ValueError) as error:
            for array in arrays.values():
                array.close()
            self.tell(made={"number": number, "problem": f"{value['name']!r} cannot be allocated here: {error}"})
            return
        self._tables[number] = arrays
        servers = self.plan.servers(self.number)
        self._making[number] = set(servers)
        for server in servers:
            told = {"number": number, "value": value, "handles": self._handles(number), "fill": server == servers[0]}
            self._processes[SERVER, server].send({"make": told})

    def drop(self, number: int) -> None:
        """Give a table up."""
        for server in self.plan.servers(self.number):
            self._processes[SERVER, server].send({"drop": number})
        for array in self._tables.pop(number, {}).values():
            array.close()

    def reply(self, calls: list[tuple[int, int]], table: int, problem: str) -> None:
        """Answer those of our trainers who have called; with their machine's part of a table, if its number is not 0."""
        value = {"table": table, "handles": self._handles(table)} if table and not problem else {}
        for rank, number in calls:
            if rank in self.plan.ranks(self.number):
                self._processes[TRAINER, rank].send({"reply": {"number": number, "value": value, "problem": problem}})

    def _handles(self, number: int) -> dict[str, Any]:
        return {name: array.handle() | {"pid": os.getpid()} for name, array in self._tables.get(number, {}).items()}

    # ---- watching

    def look(self) -> None:
        if self._keeper is None:
            return
        now = time.monotonic()
        if now - self._beaten > self.config.peer_timeout / 5:
            self._beaten = now
            self._keeper.beat()
        for (role, rank), process in list(self._processes.items()):
            if process.ended:
                continue
            code = process.code  # before what it said is read: nothing comes after
            process.flush()
            for message in process.messages():
                self._hear(role, rank, message)
            for error, line in process.printed(rest=code is not None):
                self._print(f"{role} {rank}", line, error)
            if code is not None:
                self._end(role, rank, process, code)
        self._find_hung(now)

    def _find_hung(self, now: float) -> None:
        """End the job for a server that serves no more. One that fills a table, or that is told to leave, need not beat."""
        busy = self._ready & set().union(*self._making.values())
        for local in self._turns.still(now):
            server = self.plan.servers(self.number)[local]
            process = self._processes[SERVER, server] if server in self._ready - busy else None
            if process is not None and not self._leaving and not process.ended:
                process.send_signal(signal.SIGUSR1)  # its stacks, if it can still tell
                time.sleep(0.5)
                for error, line in process.printed(rest=True):
                    self._print(f"{SERVER} {server}", line, error)
                patience = self.config.peer_timeout
                raise Failure(f"server {server} has done nothing for {patience:g} s", recoverable=True, code=3)

    def _print(self, who: str, line: bytes, error: bool) -> None:
        if not self._tap.lets(len(line) + 40):
            self._dropped += 1
            return
        if self._dropped:
            left, self._dropped = self._dropped, 0
            what = f"{counted(left, 'line')} left out: more than {size(FLOW)} a second"
            self.tell(line={"who": who, "text": f"[{what}]", "error": True})
        self.tell(line={"who": who, "text": readable(line), "error": error})

    def _hear(self, role: str, rank: int, message: dict[str, Any]) -> None:
        try:
            name, value = word_of(message, SCRIPT_SAYS)
        except ProtocolError as error:
            raise Failure(f"{role} {rank}: {error}", recoverable=False) from error
        if name == "hello":
            self._processes[role, rank].send({"job": self._job(role, rank)})
        elif name == "call" and role == TRAINER:
            self.tell(call={"rank": rank, **value})
        elif name == "raised":
            self.tell(exit={"who": role, "rank": rank, "code": 1, "why": value, "early": True})
        elif name == "beat" and role == SERVER:
            self._beats[rank - self.plan.servers(self.number).start] += 1
        elif name == "ready" and role == SERVER:
            self._ready.add(rank)
            self._turns.begin(rank - self.plan.servers(self.number).start)
            if len(self._ready) == len(self.plan.servers(self.number)):
                self.tell(served=True)
        elif name == "made" and role == SERVER:
            self._made(rank, value["number"], value["problem"])

    def _made(self, server: int, number: int, problem: str) -> None:
        left = self._making.get(number)
        if left is None:
            return
        left.discard(server)
        self._turns.begin(server - self.plan.servers(self.number).start)
        if problem or not left:
            del self._making[number]
            self.tell(made={"number": number, "problem": problem and f"server {server}: {problem}"})

    def _end(self, role: str, rank: int, process: ScriptProcess, code: int) -> None:
        last = [readable(line) for line in process.last] if code else []
        why = last[-1] if last else ""
        for text in last if self._dropped else ():  # what it said last may be among what was left out
            self.tell(line={"who": f"{role} {rank}", "text": text, "error": True})
        if role == SERVER and code == 0 and not self._leaving:
            code, why = 1, "it ran the script to its end: kgdist.distributed.initialize() must come before its work"
        process.close()
        self.tell(exit={"who": role, "rank": rank, "code": code, "why": why[:500], "early": False})

    def outputs(self) -> list[Descriptor]:
        return [each for process in self._processes.values() for each in process.outputs()]

    @property
    def doing(self) -> Doing:
        """See Site: what a script does is its own business."""
        return "", "", 0

    def stop(self, leave: bool = False) -> None:
        """See Site: trainers hear it as SIGTERM."""
        for (role, _), process in self._processes.items():
            if role == TRAINER and not process.ended:
                process.send_signal(signal.SIGTERM)

    def memory(self) -> int:
        return used_now(self._keeper.pids() if self._keeper is not None else [])

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None
        for process in self._processes.values():
            if not process.ended:
                process.close()
        for arrays in self._tables.values():
            for array in arrays.values():
                array.close()
        self._tables = {}
