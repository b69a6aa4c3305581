"""Words to the user: the one logger, result lines, and the manners of a terminal (quiet, JSON, colours).

Result lines, which people and their scripts read, go to stdout (`say`); so does what happens meanwhile (`tell`), unless --quiet;
warnings and errors are logging on stderr. With --json stdout is one JSON object (`result`) and nothing else, and words go to
stderr. Bars are `kgdist.progress`'s; whether there may be any is decided here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO

log = logging.getLogger("kgdist")
_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1"}  # of ECMA-48


@dataclasses.dataclass
class _Manners:
    quiet: bool = False
    json: bool = False
    silent: bool = False


_manners = _Manners()


def setup(*, debug: bool = False, quiet: bool = False, json: bool = False) -> None:
    """Send kgdist's log to stderr: warnings only when `quiet`, everything when `debug`; keep stdout for one object if `json`."""
    _manners.quiet, _manners.json = quiet, json
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("%(levelname)s: %(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)


def say(line: str) -> None:
    """Print one result line on stdout at once, above any progress bar."""
    if _manners.silent:
        return
    from tqdm import tqdm

    stream = sys.stderr if _manners.json else sys.stdout
    with tqdm.external_write_mode(file=stream):
        print(line, flush=True, file=stream)


def tell(line: str) -> None:
    """Print a line about what happens, unless --quiet."""
    if not _manners.quiet:
        say(line)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Print nothing meanwhile but warnings and errors, for a caller in Python who gets the result as a value."""
    before = _manners.silent
    _manners.silent = True
    try:
        yield
    finally:
        _manners.silent = before


def result(value: dict[str, Any]) -> None:
    """With --json, print the result of the command as one JSON object, once; without, nothing: it has been said in words."""
    if _manners.json:
        print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)


def on_terminal(stream: TextIO | None) -> bool:
    """Whether a person sees what is written to `stream`, on a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def bars() -> bool:
    """Whether progress may be drawn on stderr."""
    return on_terminal(sys.stderr) and not (_manners.quiet or _manners.silent)


def paint(text: str, colour: str, stream: TextIO | None) -> str:
    """`text` in a colour where `stream` is a terminal, unless the user has set NO_COLOR (no-color.org)."""
    if not on_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


class _Formatter(logging.Formatter):
    """Names of levels in colour."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
        level, found, rest = text.partition(":")
        return paint(level + found, colour, sys.stderr) + rest if colour else text
