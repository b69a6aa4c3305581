"""kgdist-export: the embeddings of a run for other tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kgdist.base.errors import OptionError
from kgdist.cli.command import run
from kgdist.options import parse
from kgdist.options.tools import ExportOptions


def export(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    options, given = parse.parse_tool("export", argv)
    options = cast(ExportOptions, options)
    if "blank" in given and options.to != "word2vec":
        raise OptionError("--blank", "has no say here: only --to word2vec changes names; drop it")
    from kgdist.base import log
    from kgdist.exchange import embeddings
    from kgdist.exchange.source import Source
    from kgdist.runs.opened import open_model

    log.setup(debug=options.debug, quiet=options.quiet)
    opened = open_model(options.model_path)
    out = Path(options.out) if options.out is not None else opened.run.path / "export" / options.to
    source = Source.of(opened)
    for path in embeddings.export(source, options.to, out, tables=options.tables, force=options.force, blank=options.blank):
        log.say(str(path))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(export, argv)


if __name__ == "__main__":
    sys.exit(main())
