"""kgdist doctor: whether this machine has what kgdist needs."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from kgdist.cli.command import run
from kgdist.options import parse
from kgdist.options.tools import DoctorOptions
from kgdist.version import __version__

MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "problem": ("PROBLEM", "red")}


def doctor(argv: Sequence[str]) -> int:
    """The command, without its error handling; 1 when something that is needed is not there."""
    options, _ = parse.parse_tool("doctor", argv)
    assert isinstance(options, DoctorOptions)
    from kgdist.base import log
    from kgdist.runtime.doctor import examine

    log.setup(debug=options.debug, quiet=options.quiet, json=options.json)
    findings = examine(options.ip_config)
    width = max(len(finding.name) for finding in findings)
    stream = sys.stderr if options.json else sys.stdout
    for finding in findings:
        word, colour = MARKS[finding.state]
        if options.quiet and finding.state == "ok":
            continue
        log.say(f"{log.paint(f'{word:7}', colour, stream)} {finding.name:{width}}  {finding.found}")
        if finding.advice:
            log.say(f"{'':{width + 8}}  -> {finding.advice}")
    problems = [finding.name for finding in findings if finding.state == "problem"]
    verdict = f"problems with {', '.join(problems)}" if problems else "all that is needed is there"
    log.say(f"kgdist {__version__}: {verdict}")
    log.result({"version": __version__, "ok": not problems, "findings": [dataclasses.asdict(finding) for finding in findings]})
    return 1 if problems else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    return run(doctor, argv)


if __name__ == "__main__":
    sys.exit(main())
