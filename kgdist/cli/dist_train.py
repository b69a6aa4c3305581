"""kgdist-dist-train: train on several machines, started from this one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kgdist.base.errors import OptionError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.config import Config
from kgdist.options.contradictions import of_a_backend, refuse
from kgdist.options.presets import Preset
from kgdist.options.resolve import doubts
from kgdist.runtime.ip_config import Machine, read_cluster, unplaced

if TYPE_CHECKING:
    from kgdist.partition.folder import Partition

# Steps after which machines wait for one another unasked, and a trainer that is alone sees whether a checkpoint is due. They are
# never equally fast, and the others wear away what the first one to end has learnt: FB15k on four machines reaches MRR .63
# without meetings, .644 meeting every 1000 steps, .646 every 100.
TOGETHER = 100


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    machines: list[Machine] = []

    def count(config: Config) -> int:
        if config.backend in ("ray", "ray-train") and config.encoder != "none":
            from kgdist.runtime.cluster.encoder_job import machines_for

            machines[:] = unplaced(machines_for(config))
        elif config.backend == "ray":  # one for each partition
            machines[:] = unplaced(_first_partition(config).book.parts)
        else:
            machines[:] = read_cluster(config.ip_config)
        return len(machines)

    def recipe_of(config: Config) -> Preset:
        from kgdist.models.recipes import Sizes, recipe
        from kgdist.models.registry import MODELS

        common = _first_partition(config).manifest.common
        counts = common.book.num_entities, common.book.num_relations, sum(common.triples)
        sizes = Sizes(*counts, "valid" in common.splits, common.implied)
        return recipe(MODELS[config.model_name], config.dataset, sizes, alone=False)

    parsed = parse.parse("dist-train", argv, count, recipe_of)
    from kgdist.base import log
    from kgdist.models.recipes import slow_start
    from kgdist.models.registry import MODELS, settle
    from kgdist.runtime.checks import check_connections
    from kgdist.runtime.cluster import connect, encoder_job, launch, start_rows
    from kgdist.runtime.cluster.training_plan import from_here
    from kgdist.runtime.interrupt import Interrupts

    config = from_here(parsed.config)
    if config.backend in ("ray", "ray-train"):  # whose processes begin anywhere
        config = config.replace(path=os.path.abspath(os.path.expanduser(config.path)))
    set_up_log(config)
    if config.resume:
        config = launch.resumed(config, parsed.over)
        refuse(of_a_backend(config))
    launch.bring(config)
    if not machines:
        count(config)
    config = launch.sourced(config, parsed.explicit)
    apart = config.encoder == "none"  # trainers need not make the same step
    if not apart and "force_sync_interval" in parsed.explicit:
        raise OptionError("--force_sync_interval", "has no effect: the workers of --encoder are all at the same step; drop it")
    if apart and config.force_sync_interval < 0 and (len(machines) > 1 or config.num_proc == 1):
        config = config.replace(force_sync_interval=TOGETHER)
    config, notes = settle(config, {*parsed.explicit, "dataset"})
    slow = slow_start(MODELS[config.model_name], config, parsed.explicit)
    for note in (*parsed.notes, *notes, *doubts(config, parsed.explicit), *slow):
        if apart or not note.startswith("--force_sync_interval"):  # workers of an encoder are at the same step anyway
            log.tell(note)
    if config.backend == "manual":
        from kgdist.runtime.cluster.manual import control_of

        control_of(config, machines)  # refused here as well where nothing is done yet
    if config.dry_run:
        if apart:
            plan, partition = launch.plan_of(config, machines)
            check_connections(plan)
            start_rows.source_of(plan, partition)
            lines = launch.describe(plan, partition)
        else:
            lines = encoder_job.describe(config, encoder_job.plan_of(config, machines))
        for line in lines:
            log.say(line)
        log.result({"plan": lines})
        return 0
    if config.backend == "ray-train":
        from kgdist.runtime.ray_train import launch as launch_by_ray

        ended = launch_by_ray(config)
        run = None if ended.folder is None else str(ended.folder)
        log.result({"run": run, "interrupted": ended.interrupted, "test": ended.metrics})
        return 130 if ended.interrupted else 0
    if config.copy:
        from kgdist.runtime.copy.send import copy_partitions

        if config.backend == "ssh" and apart and config.storage is None:
            with Interrupts() as interrupts, connect.connecting(config, machines, interrupts) as start:
                launch.ask(config, machines, start, interrupts)
        copy_partitions(config, machines, log.say)
    with Interrupts() as interrupts, connect.connecting(config, machines, interrupts) as start:
        work = launch.launch if apart else encoder_job.launch
        result = work(config, machines, start, interrupts)
    folder = None if result.folder is None else str(result.folder)
    log.result({"run": folder, "interrupted": result.interrupted, "test": result.metrics})
    return 130 if result.interrupted else 0


def _first_partition(config: Config) -> Partition:
    """It is here, or is fetched. Raises KgdistError."""
    from kgdist.partition.folder import Partition
    from kgdist.runtime.cluster.launch import bring
    from kgdist.runtime.cluster.training_plan import from_here, partition_folder

    config = from_here(config)
    bring(config)
    return Partition.open(partition_folder(config, 0))


if __name__ == "__main__":
    sys.exit(main())
