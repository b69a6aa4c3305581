"""kgdist-compare: several runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from kgdist.base.errors import OptionError
from kgdist.cli.command import run
from kgdist.options import parse
from kgdist.options.tools import CompareOptions

KINDS = ("html", "tsv", "json", "md")


def compare(argv: Sequence[str]) -> int:
    """The command, without its error handling."""
    options = cast(CompareOptions, parse.parse_tool("compare", argv)[0])
    kind = Path(options.output).suffix.removeprefix(".").lower() if options.output is not None else ""
    if options.output is not None and kind not in KINDS:
        raise OptionError("--output", f"must end in {', '.join(f'.{name}' for name in KINDS)}, not {options.output[-60:]!r}")
    from kgdist.base import log
    from kgdist.base.files import atomic_write
    from kgdist.report import compare as side_by_side
    from kgdist.report.charts import require

    log.setup(debug=options.debug, quiet=options.quiet, json=options.json)
    if kind == "html":
        require("--output")
    found = side_by_side.compare(options.runs, options.sort)
    for note in found.notes:
        log.log.warning(note)
    if options.output is None:
        for line in side_by_side.terminal(found, None if options.json else sys.stdout):
            log.say(line)
    elif kind == "html":
        side_by_side.write_page(found, options.output)
        log.say(f"written: {options.output}")
    else:
        with atomic_write(options.output, "w") as file:
            file.write(side_by_side.write_text(found, kind))
        log.say(f"written: {options.output}")
    log.result(side_by_side.as_json(found))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(compare, argv)


if __name__ == "__main__":
    sys.exit(main())
