"""kgdist-compare: several runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import CompareOptions


@command()
def main(argv: Sequence[str]) -> int:
    options: CompareOptions = parse.parse_tool("compare", argv)
    kind = "" if options.output is None else Path(options.output).suffix.removeprefix(".").lower()
    from kgdist.base import log
    from kgdist.base.files import atomic_write, check_output
    from kgdist.report import comparison as side_by_side
    from kgdist.report.charts import require

    set_up_log(options)
    if kind == "html":
        require("--output")
    if options.output is not None:
        check_output("--output", options.output)
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


if __name__ == "__main__":
    sys.exit(main())
