"""kgdist-server: one machine of a job, started by hand or by a scheduler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.cli.command import run
from kgdist.options import parse


def server(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    config = parse.parse("server", argv).config
    from kgdist.base.log import setup
    from kgdist.runtime.agent.enlist import attend

    setup(debug=config.debug, quiet=config.quiet)
    return attend("server", Path(config.job), config.machine)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(server, argv, detached=True)


if __name__ == "__main__":
    sys.exit(main())
