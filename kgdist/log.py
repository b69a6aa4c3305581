"""The one logger. Lines that users parse go to stdout (`say`); everything else is logging on stderr."""

from __future__ import annotations

import logging
import sys

log = logging.getLogger("kgdist")


def setup(*, debug: bool = False, quiet: bool = False) -> None:
    """Send kgdist's log to stderr: warnings only when `quiet`, everything when `debug`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)


def say(line: str) -> None:
    """Print one result line on stdout at once, above any progress bar."""
    from tqdm import tqdm

    with tqdm.external_write_mode(file=sys.stdout):
        print(line, flush=True)
