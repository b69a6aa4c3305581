"""kgdist-inspect: look at a data set before training."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import InspectOptions


@command()
def main(argv: Sequence[str]) -> int:
    options: InspectOptions = parse.parse_tool("inspect", argv)
    from kgdist.api.functions import load_dataset
    from kgdist.base import log
    from kgdist.base.errors import UsageError
    from kgdist.report import inspection

    set_up_log(options)
    if options.report:
        from kgdist.base.files import check_output
        from kgdist.report.charts import require

        require("--report")  # now, not after the work
        check_output("--report", options.report)
    first, *held_out = options.data
    where = Path(first)
    if held_out and not where.is_file():
        reason = "a folder has its own valid and test" if where.is_dir() else "no such file"
        raise UsageError(f"{first}: {reason}; give files of train, valid and test triples, or one folder or name of a data set")
    valid, test = (*held_out, None, None)[:2]
    written = {"delimiter": options.delimiter, "header": options.header, "quoted": options.quoted}
    if where.is_dir():
        dataset = load_dataset(where, **written)
    elif not where.is_file():
        dataset = load_dataset(first, data_path=options.data_path, **written)
    else:
        dataset = load_dataset(where, valid=valid, test=test, format=options.format, **written)
    facts = inspection.inspect(dataset)
    if not options.json:
        for line in inspection.lines(facts, options.most):
            log.say(line)
        for line in facts["findings"]:
            log.say(f"! {line}")
        if not facts["findings"]:
            log.say("found nothing that would distort results")
    if options.report:
        from kgdist.report.inspection_report import write_inspection_report

        write_inspection_report(options.report, facts)
        log.say(f"report: {options.report}")
    log.result(facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
