"""A whole training on several machines, seen from the launcher: from options to a saved and tested run on the first machine.

An attempt (`kgdist.runtime.cluster.training_attempt`) ends when a server or a machine is lost; the next one begins at the last
checkpoint that is whole on every machine, exactly as --resume does.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection
from pathlib import Path

from kgdist.base.errors import OptionError, UsageError, counted
from kgdist.base.log import log, say
from kgdist.kvstore.wire import CURVE, NONE, USER, secured
from kgdist.options.config import Config
from kgdist.options.configfile import read_run
from kgdist.options.model_file import digest_of
from kgdist.partition.folder import Partition
from kgdist.partition.manifest import NAME as PARTITION
from kgdist.runtime.checks import check_job, check_same, tell_changes
from kgdist.runtime.cluster import encoder_job
from kgdist.runtime.cluster.attempt import Connect, endure
from kgdist.runtime.cluster.saved import Saved
from kgdist.runtime.cluster.start_rows import source_of
from kgdist.runtime.cluster.training_attempt import TrainingAttempt
from kgdist.runtime.cluster.training_plan import TrainingPlan, partition_folder, run_folder
from kgdist.runtime.course import Result
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.job import steps_of, with_interval
from kgdist.runtime.storage import Storage


def launch(config: Config, machines: list[Machine], connect: Connect, interrupts: Interrupts) -> Result:
    """Train as `config` says (already resolved) on `machines`, whose agents `connect` starts.

    Raises KgdistError; PeersLost (exit code 3) when a machine was lost and could not be replaced.
    """
    plan, partition = plan_of(config, machines)
    if plan.security == NONE:
        log.warning("--transport_security none: whoever reaches the servers' ports can read and change the embeddings")
    if not config.quiet:
        for line in describe(plan, partition):
            say(line)
    source = source_of(plan, partition)
    return endure(TrainingAttempt(plan, partition, Saved(config), interrupts, source), connect, interrupts)


def ask(config: Config, machines: list[Machine], connect: Connect, interrupts: Interrupts) -> None:
    """Refuse what would keep the job from running, before gigabytes are sent to machines that need them for it. Raises
    UsageError."""
    plan, partition = plan_of(config, machines)
    source_of(plan, partition)
    attempt = TrainingAttempt(plan, partition, Saved(config.replace(resume=None)), interrupts)
    with attempt.connected(connect), interrupts.immediate():
        attempt.preflight(copied=False)
        attempt.fleet.tell("end")


def plan_of(config: Config, machines: list[Machine]) -> tuple[TrainingPlan, Partition]:
    """The plan of a new job, and partition 0, which knows what the partitions share. Raises KgdistError."""
    partition = Partition.open(partition_folder(config, 0))
    check_job(config, machines, partition)
    security = secured(config.transport_security, [machine.address for machine in machines])
    triples = sum(partition.manifest.common.triples)
    plan = TrainingPlan(
        config=with_interval(config, steps_of(config, triples, len(machines))),
        machines=machines,
        run=uuid.uuid4().hex[:16],
        attempt=0,
        graph=partition.graph,
        book=partition.book,
        triples=triples,
        security=security,
        models=digest_of(config.model_file) if config.model_file else None,
    )
    return plan, partition


def resumed(config: Config, over: Callable[[Config], Config]) -> Config:
    """The options of the run `--resume` with the user's own `over` them, where its folder can be read from here.

    A launcher elsewhere than on the first machine, or on its file system, has to be given the same options again.
    """
    asked = Path(str(config.resume))
    if asked.parent != Path():
        config = config.replace(save_path=str(asked.parent))
    name = asked.name
    folder = run_folder(config, name)
    if (storage := Storage.of(config)) is not None and not (folder / "config.json").exists():
        storage.fetch_run(folder, ("config.json",))
    if not (folder / "config.json").exists():
        if storage is not None:
            there = ", ".join(storage.runs()) or "none"
            raise UsageError(f"--resume {name}: no such run in {folder.parent}, nor in {storage.shown('runs')} (there: {there})")
        log.warning("%s: no config.json here, so the options are taken from the command line alone", folder)
        return config.replace(resume=name)
    saved = read_run(folder)
    check_same(over(saved), saved)
    tell_changes(over(saved), saved)
    found = over(saved).replace(resume=name, path=config.path, save_path=config.save_path)
    # Partitions of a storage are fetched: not into the workspace that the run began in, where that is another one.
    gone = Storage.of(found) is not None and not (partition_folder(found, 0) / PARTITION).exists()
    return found.replace(data_path=config.data_path) if gone else found


def bring(config: Config) -> None:
    """Have partition 0 here, from the storage where it is not. Raises KgdistError."""
    folder = partition_folder(config, 0)
    if (storage := Storage.of(config)) is not None and not (folder / PARTITION).exists():
        storage.fetch_partition(folder, None)


def sourced(config: Config, explicit: Collection[str]) -> Config:
    """With the options that the partitions' data set was read with. Raises KgdistError where --format contradicts them."""
    partition = Partition.open(partition_folder(config, 0)) if config.encoder == "none" else encoder_job.partition_of(config)
    source = partition.manifest.common.source
    if "format" in explicit and config.format != source.get("format", config.format):
        message = f"the partitions of {partition.name} were made from {source['format']}; drop it, or partition again"
        raise OptionError("--format", message)
    return config.replace(**source)


def describe(plan: TrainingPlan, partition: Partition) -> list[str]:
    """The plan in words."""
    config, book, triples = plan.config, plan.book, partition.manifest.common.triples
    lines = [f"{partition.name}: {book.num_entities} entities, {book.num_relations} relations, {plan.triples} training triples"]
    for machine in plan.machines:
        n = machine.number
        rows = int(book.entities[n + 1] - book.entities[n])
        what = f"{machine.listening}, {counted(config.num_proc, 'trainer')}"
        lines.append(f"{machine.name}: {what}, {rows} entities, {triples[n]} triples, {plan.memory_of(n) / 1e6:,.0f} MB of rows")
    way = {CURVE: "encrypted (CURVE)", USER: "between processes of this user only", NONE: "open"}[plan.security]
    most = max(plan.connections(machine.number) for machine in plan.machines)
    lines.append(f"{counted(plan.trainers, 'trainer')} x {plan.steps} steps; rows travel as {config.transport_dtype}")
    meetings = f"all meet every {config.force_sync_interval} steps (--force_sync_interval)"
    lines.append(f"{meetings}; what is lost is tried again up to {config.max_restarts} times (--max_restarts)")
    lines.append(f"connections are {way}; a process has {most} at most")
    return lines
