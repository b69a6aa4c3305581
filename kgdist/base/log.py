"""Words to the user: the one logger, result lines, bars, and the manners of a terminal (quiet, JSON, colours).

Result lines, which people and their scripts read, go to stdout (`say`); so does what happens meanwhile (`tell`), unless --quiet;
warnings, errors and bars (`bar`) go to stderr. With --json stdout is one JSON object (`result`) and nothing else, and words go to
stderr.

Words wait for their reader, as those of any tool, but not in `background`: a work of hours does not stop because a terminal does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO

from kgdist.base.errors import KgdistError
from kgdist.base.writer import Writer

if TYPE_CHECKING:
    from tqdm import tqdm

log = logging.getLogger("kgdist")
_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1"}  # of ECMA-48


@dataclasses.dataclass
class _Manners:
    quiet: bool = False
    json: bool = False
    silent: bool = False


class _Background:
    """The writers of what is said in `background`, one for each file: words for stdout and stderr keep their order where both
    are the same terminal, and do not wait for one another where they are not."""

    def __init__(self) -> None:
        self.depth = 0
        self.lock = threading.RLock()  # a bar that is collected writes, in the midst of anything
        self.writers: dict[tuple[int, int], Writer] = {}  # device and inode -> its writer

    def put(self, stream: TextIO, text: str, *, fleeting: bool) -> None:
        """Have it written; a stream without a file (a notebook's, a test's) is written to at once."""
        with contextlib.suppress(OSError, ValueError):
            writer = self._writer(stream)
            if writer is not None:
                writer.put(text.encode(stream.encoding, "backslashreplace"), fleeting=fleeting)
            else:
                stream.write(text)
                stream.flush()

    def _writer(self, stream: TextIO) -> Writer | None:
        try:
            fd = stream.fileno() if isinstance(stream, io.TextIOWrapper) else -1
        except (OSError, ValueError):
            fd = -1
        if fd < 0:
            return None
        file = os.fstat(fd)
        with self.lock:
            if (key := (file.st_dev, file.st_ino)) not in self.writers:
                with contextlib.suppress(OSError):
                    stream.flush()  # what was printed before
                self.writers[key] = Writer(fd)
            return self.writers[key]

    def close(self) -> None:
        """Let the writers end."""
        with self.lock:
            writers, self.writers = list(self.writers.values()), {}
        for writer in writers:
            writer.close()


_manners = _Manners()
_background = _Background()


def setup(*, debug: bool = False, quiet: bool = False, json: bool = False, who: str = "") -> None:
    """Send kgdist's log to stderr: warnings only when `quiet`, everything when `debug`; keep stdout for one object if `json`.
    `who` names this process in each line."""
    _manners.quiet, _manners.json = quiet, json
    handler = _Handler()
    name = f"{who}: ".replace("%", "%%") if who else ""
    handler.setFormatter(_Formatter(f"%(levelname)s: {name}%(message)s"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)


def say(line: str) -> None:
    """Print one result line on stdout at once, above any progress bar.

    Raises KgdistError where it cannot be written, and BrokenPipeError where nobody reads any more; neither in `background`.
    """
    if not _manners.silent:
        _line(sys.stderr if _manners.json else sys.stdout, line)


def _line(stream: TextIO | None, line: str) -> None:
    from tqdm import tqdm

    with tqdm.external_write_mode(file=stream):
        _put(stream, line + "\n")


def _put(stream: TextIO | None, text: str, *, fleeting: bool = False) -> None:
    """Write it, or have it written; `fleeting` is what the next one replaces."""
    if stream is None:  # closed by whoever has started this process
        return
    if _background.depth:
        _background.put(stream, text, fleeting=fleeting)
        return
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> KgdistError:
    """The error for words that are the work of a command and cannot be written."""
    return KgdistError(f"the output cannot be written ({error.strerror or error})")


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


@contextlib.contextmanager
def background() -> Iterator[None]:
    """Say words meanwhile without waiting for anybody to read them: for a work that must outlive its terminal.

    Threads write them, see Writer: what nobody reads is dropped and counted, and what cannot be written (a full disk, a closed
    pipe) is no error. The end of the block waits for a reader that reads.
    """
    handler = _Handler(logging.WARNING) if not log.hasHandlers() else None  # what logging itself would do, but for the wait
    with _background.lock:
        _background.depth += 1
    if handler is not None:
        log.addHandler(handler)
    try:
        yield
    finally:
        if handler is not None:
            log.removeHandler(handler)
        with _background.lock:
            _background.depth -= 1
        if not _background.depth:
            _background.close()


def flush() -> None:
    """Wait until what was said in `background` is written, as far as somebody reads it."""
    _background.close()


def result(value: dict[str, Any]) -> None:
    """With --json, print the result of the command as one JSON object, once; without, nothing: it has been said in words.

    It waits for its reader. Raises KgdistError where it cannot be written, and BrokenPipeError where nobody reads any more.
    """
    if not _manners.json:
        return
    if sys.stdout is None:
        raise KgdistError("the output cannot be written (stdout is closed)")
    try:
        print(json.dumps(value, ensure_ascii=False, allow_nan=False), flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritten(error) from error


def complain(line: str) -> None:
    """Print a line on stderr, for whoever reads there."""
    with contextlib.suppress(OSError, KgdistError):
        _line(sys.stderr, line)


class _Screen:
    """stderr for bars: written as other words are, and cleared with them."""

    @property
    def encoding(self) -> str:
        return sys.stderr.encoding

    def write(self, text: str) -> None:
        _put(sys.stderr, text, fleeting=True)

    def flush(self) -> None:
        """Each picture is on its way."""

    def isatty(self) -> bool:
        return sys.stderr.isatty()

    def fileno(self) -> int:
        return sys.stderr.fileno()

    def __eq__(self, other: object) -> bool:
        return other is self or other in (sys.stdout, sys.stderr)  # so tqdm clears bars here before a line there

    __hash__ = object.__hash__


SCREEN = _Screen()


def on_terminal(stream: TextIO | None) -> bool:
    """Whether a person sees what is written to `stream`, on a terminal that can move its cursor."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


def bar(
    iterable: Iterable[Any] | None = None, *, total: float | None = None, desc: str, unit: str = "it", initial: int = 0
) -> tqdm[Any]:
    """A progress bar with the time left; silent with --quiet, where stderr is no terminal, and for two seconds."""
    from tqdm import tqdm  # only here: slow, and --help needs none

    return tqdm(
        iterable,
        file=SCREEN,
        total=total,
        desc=desc,
        unit=unit,
        unit_scale=True,
        initial=initial,
        delay=2,
        dynamic_ncols=True,
        disable=not on_terminal(sys.stderr) or _manners.quiet or _manners.silent,
    )


def paint(text: str, colour: str, stream: TextIO | None) -> str:
    """`text` in a colour where `stream` is a terminal, unless the user has set NO_COLOR (no-color.org)."""
    if not on_terminal(stream) or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


class _Handler(logging.Handler):
    """Writes to stderr, above any progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        complain(self.format(record))


class _Formatter(logging.Formatter):
    """Names of levels in colour."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        colour = "red" if record.levelno >= logging.ERROR else "yellow" if record.levelno >= logging.WARNING else ""
        level, found, rest = text.partition(":")
        return paint(level + found, colour, sys.stderr) + rest if colour else text
