"""kgdist-client: the word that a machine started by kgdist-server may train; ends with the job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.cli.command import run
from kgdist.options import parse


def client(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    config = parse.parse("client", argv).config
    from kgdist.base.log import setup
    from kgdist.runtime.agent.enlist import attend

    setup(debug=config.debug, quiet=config.quiet)
    return attend("client", Path(config.job), config.machine)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(client, argv, detached=True)


if __name__ == "__main__":
    sys.exit(main())
