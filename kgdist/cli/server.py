"""kgdist-server: one machine of a job, started by hand or by a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse


@command(detached=True)
def main(argv: Sequence[str]) -> int:
    config = parse.parse("server", argv).config
    from kgdist.runtime.agent.enlist import attend

    set_up_log(config)
    return attend("server", Path(config.job), config.machine)


if __name__ == "__main__":
    sys.exit(main())
