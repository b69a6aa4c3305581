"""kgdist doctor: whether this machine has what kgdist needs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from kgdist.cli.command import command, set_up_log
from kgdist.options import parse
from kgdist.options.tools import DoctorOptions
from kgdist.version import __version__

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "red")}


@command()
def main(argv: Sequence[str]) -> int:
    """The command; 1 when something that is needed is not there."""
    options: DoctorOptions = parse.parse_tool("doctor", argv)
    from kgdist.base import log
    from kgdist.runtime.doctor import examine

    set_up_log(options)
    findings = examine(options.ip_config)
    width = max(len(finding.name) for finding in findings)
    for finding in findings if not options.json else ():
        word, colour = MARKS[finding.state]
        if options.quiet and finding.state == "ok":
            continue
        log.say(f"{log.paint(f'{word:7}', colour, sys.stdout)} {finding.name:{width}}  {finding.found}")
        if finding.advice:
            log.say(f"{'':{width + 8}}  -> {finding.advice}")
    problems = [finding.name for finding in findings if finding.state == "problem"]
    verdict = f"problems with {', '.join(problems)}" if problems else "ready: nothing required is missing"
    if not options.json:
        log.say(f"kgdist {__version__}: {verdict}")
    log.result({"version": __version__, "ok": not problems, "findings": [dataclasses.asdict(finding) for finding in findings]})
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
