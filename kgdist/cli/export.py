"""kgdist-export: the embeddings of a run for other tools."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import ExportOptions


@command()
def main(argv: Sequence[str]) -> int:
    options: ExportOptions = parse.parse_tool("export", argv)
    from kgdist.base import log
    from kgdist.exchange import embeddings
    from kgdist.exchange.source import Source
    from kgdist.runs.opened import open_model

    set_up_log(options)
    opened = open_model(options.model_path)
    out = Path(options.out) if options.out is not None else opened.run.path / "export" / options.to
    source = Source.of(opened)
    for path in embeddings.export(source, options.to, out, tables=options.tables, force=options.force, blank=options.blank):
        log.say(str(path))
    return 0


if __name__ == "__main__":
    sys.exit(main())
