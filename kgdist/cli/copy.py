"""kgdist-copy: send every machine its partition."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    config = parse.parse("copy", argv).config
    from kgdist.base.log import tell
    from kgdist.runtime.copy.send import copy_partitions
    from kgdist.runtime.ip_config import read_cluster

    set_up_log(config)
    copy_partitions(config, read_cluster(config.ip_config), tell)
    return 0


if __name__ == "__main__":
    sys.exit(main())
