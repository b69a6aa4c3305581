"""What every command does around its work: run it, and turn an error into one line and an exit code.

How lines are printed, in colour or not at all, is decided in `kgdist.base.log`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TextIO

from kgdist.base import log
from kgdist.base.errors import KgdistError
from kgdist.options.config import Config
from kgdist.options.presets import Preset


class Main(Protocol):
    """An entry point: takes the words after the command's name, those of this process by default, and gives the exit code."""

    def __call__(self, argv: Sequence[str] | None = None) -> int: ...


def command(*, detached: bool = False) -> Callable[[Callable[[Sequence[str]], int]], Main]:
    """Decorator: what a command does with its words, as the command's entry point. `detached`: see `run`."""

    def decorate(work: Callable[[Sequence[str]], int]) -> Main:
        @functools.wraps(work)
        def main(argv: Sequence[str] | None = None) -> int:
            return run(work, argv, detached=detached)

        return main

    return decorate


def recipe_of(config: Config) -> Preset:
    """What --preset means for the data set that the options name (`kgdist.runtime.told.recipe_of`)."""
    from kgdist.data.dataset import find_files

    find_files(config)
    from kgdist.runtime import told  # takes torch, and reads the graph

    return told.recipe_of(config)


def set_up_log(options: Any) -> None:
    """Say as much as --quiet, --debug and --json of these options want."""
    log.setup(debug=options.debug, quiet=options.quiet, json=getattr(options, "json", False))


def run(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None, *, detached: bool = False) -> int:
    """Run `work` on the command line. Exit codes: 0, 1 failed, 2 usage or data, 3 peers lost, 130 interrupted.

    What a command prints is its work, and one whose reader has gone ends; but a `detached` one makes files, and outlives whoever
    reads its words (`log.background`).
    """
    words = sys.argv[1:] if argv is None else argv
    _hold()
    with log.background() if detached else contextlib.nullcontext():
        try:
            try:
                return work(words)
            finally:
                _flush(detached)
        except KgdistError as error:
            if "--debug" in words:
                traceback.print_exc()
            complain(str(error))
            return error.exit_code
        except KeyboardInterrupt:
            complain("interrupted", label="")
            return 130
        except BrokenPipeError:  # the reader of our output has gone (| head)
            for stream in (sys.stdout, sys.stderr):
                _forget(stream)
            return 1
        except (MemoryError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):  # so torch says it
                raise
            complain("out of memory; take a smaller --hidden_dim, --batch_size or --neg_sample_size")
            return 1


def _hold() -> None:
    """Open what whoever has started this process has closed of stdin, stdout and stderr: no file of ours may get its number,
    and processes of ours have them, too."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def _flush(detached: bool) -> None:
    """Write what stdout holds: a reader that has gone is noticed here, not when Python ends."""
    if sys.stdout is None:
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        _forget(sys.stdout)
        if detached:
            return
        if isinstance(error, BrokenPipeError):
            raise
        raise log.unwritten(error) from error


def _forget(stream: TextIO | None) -> None:
    """Let what cannot be written go nowhere."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        stream.flush()  # type: ignore[union-attr]
        return
    with contextlib.suppress(AttributeError, OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)


def complain(text: str, label: str = "error: ") -> None:
    """Print the one line of an error on stderr, its label in red on a terminal."""
    log.complain((log.paint(label, "red", sys.stderr) if label else "") + text)
