"""kgdist-launch: run a user's script on several machines, started from this one."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.base.errors import KgdistError, OptionError, UsageError
from kgdist.base.files import read_json
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import LaunchOptions
from kgdist.runtime.ip_config import Machine, read_cluster, unplaced


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    options = understood(argv)
    from kgdist.base.log import log, say, tell
    from kgdist.runtime.cluster.connect import connecting
    from kgdist.runtime.cluster.script_attempt import launch_script, plan_of_script
    from kgdist.runtime.interrupt import Interrupts

    set_up_log(options)
    if options.backend == "ray":
        options = dataclasses.replace(options, path=os.path.abspath(os.path.expanduser(options.path)))
    machines = machines_of(options)
    if (strayed := below_another(options)) is not None:
        log.warning("--part_config: is looked for below --workspace, which has no %s; that of this folder is not meant", strayed)
    plan = plan_of_script(options, machines)
    for line in plan.describe():
        (say if options.dry_run else tell)(line)
    if options.dry_run:
        return 0
    with Interrupts() as interrupts, connecting(options, machines, interrupts) as start:
        return launch_script(plan, start, interrupts)


def machines_of(options: LaunchOptions) -> list[Machine]:
    """Those of --ip_config, or as many as there are partitions, for Ray to place. Raises DataError, OptionError."""
    if options.backend != "ray":
        return read_cluster(options.ip_config, options.num_servers)
    if options.part_config is None:
        raise OptionError("--backend", "ray places a machine for each partition; name the graph's with --part_config")
    path = Path(options.path) / Path(options.part_config).expanduser()
    try:
        parts = int(read_json(path)["num_parts"])
    except (KgdistError, LookupError, TypeError, ValueError) as error:
        raise OptionError("--part_config", f"{path}: cannot be read here, or is not a file of partitions") from error
    return unplaced(parts, options.num_servers or 1)


def understood(argv: Sequence[str]) -> LaunchOptions:
    """The options. Raises UsageError."""
    try:
        options: LaunchOptions = parse.parse_tool("launch", argv)
    except UsageError as error:
        if not str(error).startswith("unrecognized arguments"):  # all that begins with -- is told apart
            raise
        raise OptionError("--command", 'put all of it into quotes, as the last word: "python3 train.py --lr 0.1"') from error
    return options


def below_another(options: LaunchOptions) -> str | None:
    """The file of the partitions, if it lies below this folder and not below the workspace, which this machine has."""
    root, file = Path(options.path).expanduser(), options.part_config
    if file is None or not root.is_dir() or (root / file).exists() or not Path(file).is_file():
        return None
    return file


if __name__ == "__main__":
    sys.exit(main())
