"""kgdist-train: train, validate, test and save on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgdist.cli.command import run
from kgdist.options import parse


def train(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    parsed = parse.parse("train", argv)
    from kgdist.base import log  # after the flags: --help and usage errors need no torch
    from kgdist.runtime import local
    from kgdist.runtime.local import ready

    config = parsed.config
    log.setup(debug=config.debug, quiet=config.quiet, json=config.json)
    config = ready(parsed)
    if config.report:
        from kgdist.report.charts import require
        from kgdist.report.report import report_or_warn

        require("--report")  # now, not after the training
    result = local.train(config)
    if config.report and result.folder is not None and not result.interrupted:
        report_or_warn(result.folder, config)
    log.result({"run": str(result.folder), "interrupted": result.interrupted, "test": result.metrics})
    return 130 if result.interrupted else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(train, argv, detached=True)


if __name__ == "__main__":
    sys.exit(main())
