"""kgdist-copy: send every machine its partition."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgdist.cli.command import run
from kgdist.options import parse


def copy(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    config = parse.parse("copy", argv).config
    from kgdist.base.log import setup, tell
    from kgdist.runtime.copy.send import copy_partitions
    from kgdist.runtime.ip_config import read_cluster

    setup(debug=config.debug, quiet=config.quiet)
    copy_partitions(config, read_cluster(config.ip_config), tell)
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(copy, argv, detached=True)


if __name__ == "__main__":
    sys.exit(main())
