"""What a machine must have before anything of a job starts there: asked on the machine itself, all problems at once."""

from __future__ import annotations

import errno
import os
import socket
import time

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.files import free_bytes, size
from kgdist.base.machine import free_memory
from kgdist.kvstore.places import in_use, too_many
from kgdist.partition.folder import Partition
from kgdist.runs import checkpoint
from kgdist.runtime.agent.shard import Shard
from kgdist.runtime.checks import STATE, changed, meaning
from kgdist.runtime.cluster.plan import Plan, run_folder, workspace
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.memory import page_tables

LIBRARIES = 450 << 20  # bytes of the agent and of what its processes are forked from, which share the libraries
PER_PROCESS = 75 << 20  # that each of those takes beside that: a server, or a trainer with the arrays of a step of dim 400


def problems(plan: Plan, number: int, *, copied: bool = True) -> list[str]:
    """One line for everything on machine `number` that keeps the job from running there; none if all is well.

    Before the partition has been `copied` there may not even be a workspace.
    """
    config = plan.config
    root = workspace(config)
    if not copied:
        return _apart(plan, number)
    if not root.is_dir():
        return [f"--path {root}: no such folder here"]
    return [*_partition(plan, number), *_apart(plan, number)]


def _apart(plan: Plan, number: int) -> list[str]:
    """What can be asked without the partition."""
    return [*_resumed(plan, number), *_connections(plan, number), *_freed(plan, number), *_disk(plan, number)]


def _partition(plan: Plan, number: int) -> list[str]:
    folder = plan.partition(number)
    try:
        partition = Partition.open(folder, verify=True)
    except KgdistError as error:
        return [f"{error}; or {_sent(plan)}"]
    if partition.part != number or partition.graph != plan.graph:
        found = f"partition {partition.part} of graph {partition.graph[:12]}"
        message = f"{folder}: is {found}, but the launcher has a graph {plan.graph[:12]}, of which this is partition {number}"
        return [f"{message}; {_sent(plan, again=True)}"]
    return []


def _sent(plan: Plan, *, again: bool = False) -> str:
    """How a partition comes here."""
    if plan.config.backend == "manual":  # which reaches no machine
        return "copy it here again" if again else "copy it here"
    return "send it again with --copy" if again else "send it with --copy"


def _resumed(plan: Plan, number: int) -> list[str]:
    """The newest checkpoint of the run that is resumed whose rows would become those of other entities under this plan, or would
    mean something else. One that does not say what it is of, from an older kgdist, is not refused."""
    if not plan.config.resume:
        return []
    place = Shard(plan, number).place(plan.config.resume)
    hidden = place.glob(".ckpt-*")  # that a killed process has left: it may be put back
    for path in (*(path for _, path in checkpoint.numbered(place)), *hidden):
        try:
            meta = checkpoint.opened(path).meta
        except (CheckpointError, OSError):
            continue  # it is passed over, with a warning, where the rows are read
        if (graph := str(meta.get("graph", plan.graph))) != plan.graph:
            message = f"was trained on another partition of the data (graph {graph[:12]}, this one is {plan.graph[:12]})"
            return [f"--resume: {path} {message}; put the partitions back that it was made with, or train anew"]
        if difference := changed(meta.get("options") or {}, meaning(plan.config, *STATE)):
            return [f"--resume: {path} was trained with {difference}"]
    return []


def _connections(plan: Plan, number: int) -> list[str]:
    problem = too_many(plan.connections(number))
    return [f"needs {problem}"] if problem is not None else []


def _freed(plan: Plan, number: int) -> list[str]:
    """Ports and memory. Processes of an attempt before may still hold both, while they wait for their agent, and then end."""
    deadline = time.monotonic() + (2 * plan.config.peer_timeout if plan.attempt else 0.0)
    while (found := [*port_problems(plan.machines[number]), *_memory(plan, number)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def port_problems(machine: Machine) -> list[str]:
    """One line for every port of `machine`, which is this one, that its servers could not listen on."""
    found = []
    for port in machine.ports:
        try:
            info = socket.getaddrinfo(machine.address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
            with socket.socket(info[0], info[1]) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(info[4])
        except socket.gaierror as error:
            return [f"{machine.address}: cannot be resolved here ({error.strerror}); check ip_config.txt"]
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                return [f"{machine.address}: is no address of this machine; ip_config.txt needs one that it has itself"]
            taken = error.errno == errno.EADDRINUSE
            reason = in_use(str(info[4][0]), port) if taken else f"cannot be bound ({error.strerror})"
            found.append(f"{machine.address}:{port} {reason}")
    return found


def _memory(plan: Plan, number: int) -> list[str]:
    rows, processes = plan.memory_of(number), plan.machines[number].servers + plan.config.num_proc
    need = rows + page_tables(rows, processes + 1, huge=plan.config.huge_pages)  # 1: the agent
    need += LIBRARIES + PER_PROCESS * processes
    free = free_memory()
    if free is None or need <= free:
        return []
    return [f"needs about {size(need)} of memory, and {size(free)} are free; take more machines or less --hidden_dim"]


def _disk(plan: Plan, number: int) -> list[str]:
    if plan.config.no_save_emb or plan.attempt:  # once a job has begun, a full disk is no reason to give it up
        return []
    folder = run_folder(plan.config)
    whole = sum(4 * rows * width for rows, width in plan.shapes.values())
    copies = (1 if plan.config.resume else 3) + (4 if plan.config.valid else 0)  # checkpoints; best rows, of these and of now
    need = copies * plan.memory_of(number) + (whole if number == 0 else 0)
    place = folder.absolute()
    while not place.exists():  # a job that is refused leaves nothing behind, not even a folder
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        return [f"--save_path {folder}: cannot be written here"]
    if (free := free_bytes(folder)) < need:
        return [f"--save_path {folder}: {size(free)} are free, but the run may take {size(need)} with checkpoints"]
    return []
