"""kgdist-train: train, validate, test and save on this machine."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgdist import flags
from kgdist.cli.main import run
from kgdist.errors import OptionError
from kgdist.resolve import resolve


def train(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    parsed = flags.parse("train", argv)
    from kgdist import log, runs  # after the flags: --help and usage errors need no torch
    from kgdist.runtime import local

    config = parsed.config
    log.setup(debug=config.debug, quiet=config.quiet, json=config.json)
    if config.resume:
        saved = runs.open_run(config.resume).config
        config = parsed.over(saved).replace(resume=config.resume)
        for name in ("model_name", "dataset"):
            if getattr(config, name) != getattr(saved, name):
                raise OptionError(f"--{name}", "cannot change when a run is resumed; start a new one with --init_from")
    config, notes = resolve(config, set(parsed.explicit))
    for note in (*parsed.notes, *notes):
        log.tell(note)
    result = local.train(config)
    log.result({"run": str(result.folder), "interrupted": result.interrupted, "test": result.metrics})
    return 130 if result.interrupted else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(train, argv)


if __name__ == "__main__":
    sys.exit(main())
