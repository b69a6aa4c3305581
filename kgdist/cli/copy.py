"""kgdist-copy: send every machine its partition, and a script."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgdist.base.errors import OptionError
from kgdist.cli.command import command, set_up_log
from kgdist.options import parse


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    config = parse.parse("copy", argv).config
    from kgdist.base.log import tell
    from kgdist.runtime.cluster.training_plan import from_here
    from kgdist.runtime.copy.script_files import deliveries_of_script
    from kgdist.runtime.copy.send import copy_partitions, deliver
    from kgdist.runtime.ip_config import read_cluster

    set_up_log(config)
    config = from_here(config)
    if config.backend == "ray" and config.storage is None:
        raise OptionError(
            "--backend", "ray knows no machine before it has placed it; copy to what all nodes share, or to --storage"
        )
    if config.storage is not None:
        copy_partitions(config, [], tell)
        return 0
    machines = read_cluster(config.ip_config)
    if config.part_config is None and config.script_folder is None:
        copy_partitions(config, machines, tell)
    else:
        for deliveries in filter(None, deliveries_of_script(config, machines)):
            deliver(config, deliveries, tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
