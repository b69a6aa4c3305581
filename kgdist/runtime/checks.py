"""What a training refuses before it has written anything: data, machines, memory, disk or ports that cannot do.

`check_...` raise for the training of this machine, or for the launcher of one on several; `problems` is asked on each machine of
those, and tells all at once. Contradictions between options alone are refused earlier, by `kgdist.options.contradictions`.
"""

from __future__ import annotations

import contextlib
import mmap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgdist.attributes.attribute_folder import open_attributes
from kgdist.base.errors import CheckpointError, KgdistError, OptionError, UsageError, counted
from kgdist.base.files import Moved, free_bytes, size, unwatched, writable
from kgdist.base.log import tell
from kgdist.base.machine import free_memory
from kgdist.data.dataset import Dataset
from kgdist.kvstore.places import too_many
from kgdist.kvstore.shared_memory import huge_pages_refused
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.encoders.encoder import attributes_of
from kgdist.models.registry import MODELS
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import read_run
from kgdist.options.model_file import OWN
from kgdist.partition.folder import Partition
from kgdist.runs import checkpoint
from kgdist.runtime.cluster.plan import workspace
from kgdist.runtime.cluster.training_plan import TrainingPlan, run_folder
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.job import bytes_of
from kgdist.runtime.observe import curves_writer
from kgdist.runtime.ports import port_problems
from kgdist.runtime.storage import Storage

STATE = (
    "optimizer",
    "encoder",
    "num_layers",
    "encoder_dim",
    "num_bases",
    "relation_blocks",
    "no_inverse",
    "own_rows",
)  # on these depends what a checkpoint holds besides rows
WORK = ("encoder", "model", "training", "loss", "negative samples")  # groups of options: what a training does
LENGTH = ("max_step", "max_epoch")  # of these; for how long
ENTRY = 8  # bytes in which a page table has a page
LIBRARIES = 450 << 20  # bytes of the agent and of what its processes are forked from, which share the libraries
PER_PROCESS = 75 << 20  # that each of those takes beside that: a server, or a trainer with the arrays of a step of dim 400


def check_splits(config: Config, data: Dataset | Partition) -> None:
    """Refuse --valid or --test without such triples, and an empty train split."""
    for split in ("valid", "test"):
        if getattr(config, split) and not len(data.splits.get(split, ())):
            raise OptionError(
                f"--{split}", f"{data.name} has no {split} triples; give a file of them, --split .8 .1 .1, or drop the flag"
            )
    if not len(data.splits["train"]):
        raise UsageError(f"{data.name}: the train split is empty")


def check_data(config: Config, data: Dataset) -> None:
    """The same, and refuse attributes whose entities are not those of the data set, in its order. Raises OptionError, UsageError,
    CheckpointError."""
    check_splits(config, data)
    if config.attributes is not None:
        found = attributes_of(config, len(data.entities)).entities
        if found.digest != data.entities.digest:
            message = f"{config.attributes} is of other entities than {data.name}, or has them in another order"
            raise OptionError("--attributes", f"{message}; make it by kgdist-preprocess with the data options of this training")


def features_of(config: Config) -> dict[str, str]:
    """What a checkpoint remembers of the attributes that a run is trained with. Raises CheckpointError."""
    return {} if config.attributes is None else {"attributes": open_attributes(config.attributes).digest}


def check_start(config: Config) -> None:
    """Refuse to go on with a run that kgdist-encode has made of another, and a score function that processes could not find.
    Raises CheckpointError, OptionError."""
    check_model(config)
    if config.resume and (made := checkpoint.encoded_from(Path(config.resume))) is not None:
        problem = f"was written by kgdist-encode, so it cannot be trained further; what was trained is {made['run']}"
        raise CheckpointError(f"{config.resume}: {problem}")


def check_model(config: Config) -> None:
    """Refuse a score function of the user's own that worker processes could not find."""
    several = config.num_proc > 1 and config.worker == "process"
    if several and config.model_name in OWN and config.model_file is None:
        message = f"only this process knows {config.model_name}: name the file that registers it with --model_file"
        raise OptionError("--num_proc", f"{message}, or take --worker thread")


def check_memory(config: Config, shapes: dict[str, tuple[int, int]], beside: int = 0) -> None:
    """Refuse tables that cannot fit before the system kills something. Costs: 4 bytes a number, the optimiser's state, what each
    of several processes needs to map them, and what a step needs `beside`."""
    need = bytes_of(config, shapes) + beside
    if config.num_proc > 1 and config.worker == "process":
        need += page_tables(need, config.num_proc + 1, huge=config.huge_pages)
    free = free_memory()
    if free is not None and need > free and config.gpu[0] < 0:
        message = f"the tables take {size(need)} and {size(free)} of memory are free"
        raise OptionError("--hidden_dim", f"{message}; take a smaller --hidden_dim or more machines")


def page_tables(mapped: int, processes: int, *, huge: bool) -> int:
    """Bytes that the system needs to map so many shared bytes into so many processes, each of which touches all of them: 0.2 %
    for each process. On huge pages, where they are wanted and granted, it is next to nothing."""
    if huge and huge_pages_refused(shared=True) is None:
        return 0
    return processes * ENTRY * -(-mapped // mmap.PAGESIZE)


def check_disk(config: Config, tables: MemoryTables) -> None:
    """The result and two checkpoints must fit before hours are spent."""
    if config.no_save_emb:
        return
    if not writable(Path(config.save_path)):
        raise UsageError(f"--save_path {config.save_path}: cannot be written; name a folder that can be")
    arrays = tables.arrays()
    need = 3 * sum(array.nbytes for array in arrays.values())
    if (free := free_bytes(config.save_path)) < need:
        message = f"--save_path {config.save_path}: {size(free)} are free"
        raise UsageError(f"{message}, but the run may take {size(need)} with its checkpoints")


def check_parts(parts: int, machines: list[Machine], name: str) -> None:
    """Refuse another number of machines than of partitions, of the data set `name`."""
    if parts != len(machines):
        lists, divided = counted(len(machines), "machine"), counted(parts, "partition")
        raise OptionError("--ip_config", f"lists {lists}, but {name} is in {divided}; make as many partitions (-k)")


def check_job(config: Config, machines: list[Machine], partition: Partition) -> None:
    """Refuse what the machines, the partition, the options and a run that is resumed together cannot be. Raises KgdistError.

    A run whose folder cannot be read from here is compared on the machines, by its checkpoints.
    """
    if config.tensorboard:
        curves_writer()
    check_parts(partition.book.parts, machines, partition.name)
    if config.has_edge_importance and partition.train.weights is None:
        raise OptionError("--has_edge_importance", f"the partitions of {partition.name} were made without weights")
    check_splits(config, partition)
    folder = run_folder(config, config.resume) if config.resume else None
    if folder is not None and (folder / "config.json").exists():
        check_rows(config, read_run(folder), folder)


def check_connections(plan: TrainingPlan) -> None:
    """Refuse more connections than a process could have if the machines' limits were this one's. Raises OptionError."""
    for machine in plan.machines:
        if (problem := too_many(plan.connections(machine.number))) is not None:
            raise OptionError("--ip_config", f"{machine.name} would need {problem}")


def check_same(new: Config, old: Config) -> None:
    """Refuse to go on with a run of the options `old` as one of another model or data set."""
    for name in ("model_name", "dataset"):
        if getattr(new, name) != getattr(old, name):
            raise OptionError(f"--{name}", "cannot change when a run is resumed; start a new one")


def check_rows(new: Config, old: Config, run: str | Path) -> None:
    """Refuse to go on with the folder `run`, of the options `old`, whose rows or optimiser state mean something else."""
    if difference := different(old, new, *STATE):
        raise OptionError("--resume", f"{run} was trained with {difference}")


def tell_changes(new: Config, old: Config) -> None:
    """Say in a line what a run that goes on does otherwise than before; nothing where it only goes on for longer."""
    names = [name for name, row in OPTIONS.items() if (row.group in WORK or name == "freeze") and name not in LENGTH]
    found = [
        f"--{name} {getattr(old, name)} -> {getattr(new, name)}" for name in names if getattr(old, name) != getattr(new, name)
    ]
    if found:
        tell(f"not as the run was trained so far: {', '.join(found)}")


def meaning(config: Config, *more: str) -> dict[str, Any]:
    """The options on which the rows' meaning depends, and `more`, by name."""
    needed = MODELS[config.model_name].depends_on
    usual = ("model_name", "hidden_dim", "double_ent", "double_rel", "reciprocal")
    return {name: getattr(config, name) for name in (*usual, *needed, *more)}


def different(old: Config, new: Config, *more: str) -> str | None:
    """The first option on which the rows' meaning depends (or one of `more`) and that differs, in words."""
    wanted = meaning(new, *more)
    return changed({name: getattr(old, name) for name in wanted}, wanted)


def changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> str | None:
    """The first option whose value in `new` is another than in `old`, in words; what `old` does not know is not compared."""
    for name, value in new.items():
        if name in old and old[name] != value:
            return f"--{name} {old[name]}, not {value}"
    return None


def problems(plan: TrainingPlan, number: int, *, copied: bool = True, moved: Moved = unwatched) -> list[str]:
    """One line for everything on machine `number` that keeps the job from running there; none if all is well.

    Before the partition has been `copied` there may not even be a workspace. Where there is a storage, it is fetched from there.
    """
    config = plan.config
    root = workspace(config)
    if copied and config.storage is None and not root.is_dir():
        return [f"--path {root}: no such folder here"]
    try:
        return [*(_partition(plan, number, moved) if copied else ()), *_apart(plan, number)]
    except KgdistError as error:  # of the storage
        return [str(error)]


def _apart(plan: TrainingPlan, number: int) -> list[str]:
    """What can be asked without the partition."""
    return [*_resumed(plan, number), *_connections(plan, number), *_freed(plan, number), *_disk(plan, number)]


def _partition(plan: TrainingPlan, number: int, moved: Moved = unwatched) -> list[str]:
    folder, storage = plan.partition(number), Storage.of(plan.config)
    partition, why = _opened(folder)
    if storage is not None and (partition is None or partition.graph != plan.graph):
        storage.fetch_partition(folder, plan.graph, moved)
        partition, why = _opened(folder)
    if partition is None:
        return [f"{why}; or {_sent(plan)}"]
    if partition.part != number or partition.graph != plan.graph:
        found = f"partition {partition.part} of graph {partition.graph[:12]}"
        message = f"{folder}: is {found}, but the launcher has a graph {plan.graph[:12]}, of which this is partition {number}"
        return [f"{message}; {_sent(plan, again=True)}"]
    return []


def _opened(folder: Path) -> tuple[Partition | None, str]:
    """The partition that is here whole, or why there is none."""
    try:
        return Partition.open(folder, verify=True), ""
    except KgdistError as error:
        return None, str(error)


def _sent(plan: TrainingPlan, *, again: bool = False) -> str:
    """How a partition comes here."""
    if plan.config.backend == "ray":
        return "put it where all nodes of the cluster see it, or where they fetch it (--storage): any of them may be this machine"
    if plan.config.backend == "manual":  # which reaches no machine
        return "copy it here again" if again else "copy it here"
    return "send it again with --copy" if again else "send it with --copy"


def _resumed(plan: TrainingPlan, number: int) -> list[str]:
    """The newest checkpoint of the run that is resumed whose rows would become those of other entities under this plan, or would
    mean something else. One that does not say what it is of, from an older kgdist, is not refused."""
    if not plan.config.resume:
        return []
    place = plan.checkpoints(number, plan.config.resume)
    if (storage := Storage.of(plan.config)) is not None:
        metas = [(each.path, each.meta) for each in storage.checkpoints(place)]
    else:
        metas = _metas(place)
    for path, meta in metas:
        if (graph := str(meta.get("graph", plan.graph))) != plan.graph:
            message = f"was trained on another partition of the data (graph {graph[:12]}, this one is {plan.graph[:12]})"
            return [f"--resume: {path} {message}; put the partitions back that it was made with, or train again"]
        if difference := changed(meta.get("options") or {}, meaning(plan.config, *STATE)):
            return [f"--resume: {path} was trained with {difference}"]
    return []


def _metas(place: Path) -> list[tuple[Path, dict[str, Any]]]:
    """The checkpoints in a folder, newest first, and what they say of themselves. One that cannot be read is passed over, with a
    warning, where the rows are read."""
    hidden = place.glob(".ckpt-*")  # that a killed process has left: it may be put back
    found = []
    for path in (*(path for _, path in checkpoint.numbered(place)), *hidden):
        with contextlib.suppress(CheckpointError, OSError):
            found.append((path, checkpoint.opened(path).meta))
    return found


def _connections(plan: TrainingPlan, number: int) -> list[str]:
    problem = too_many(plan.connections(number))
    return [f"needs {problem}"] if problem is not None else []


def _freed(plan: TrainingPlan, number: int) -> list[str]:
    """Ports and memory. Processes of an attempt before may still hold both, while they wait for their agent, and then end."""
    deadline = time.monotonic() + (2 * plan.config.peer_timeout if plan.attempt else 0.0)
    while (found := [*port_problems(plan.machines[number]), *_memory(plan, number)]) and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


def _memory(plan: TrainingPlan, number: int) -> list[str]:
    rows, processes = plan.memory_of(number), plan.machines[number].servers + plan.config.num_proc
    need = rows + page_tables(rows, processes + 1, huge=plan.config.huge_pages)  # 1: the agent
    need += LIBRARIES + PER_PROCESS * processes
    free = free_memory()
    if free is None or need <= free:
        return []
    return [f"needs about {size(need)} of memory, and {size(free)} are free; take more machines or less --hidden_dim"]


def _disk(plan: TrainingPlan, number: int) -> list[str]:
    if plan.config.no_save_emb or plan.attempt:  # once a job has begun, a full disk is no reason to give it up
        return []
    folder = run_folder(plan.config)
    whole = sum(4 * rows * width for rows, width in plan.shapes.values())
    copies = (1 if plan.config.resume else 3) + (4 if plan.config.valid else 0)  # checkpoints; best rows, of these and of now
    need = copies * plan.memory_of(number) + (whole if number == 0 else 0)
    if not writable(folder):
        return [f"--save_path {folder}: cannot be written here"]
    if (free := free_bytes(folder)) < need:
        return [f"--save_path {folder}: {size(free)} are free, but the run may take {size(need)} with checkpoints"]
    return []
