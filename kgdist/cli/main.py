"""What every command does around its work: run it, and turn an error into one line and an exit code.

How lines are printed, in colour or not at all, is decided in `kgdist.log`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence

from kgdist.errors import KgdistError
from kgdist.log import paint


def run(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run `work` on the command line. Exit codes: 0, 1 failed, 2 usage or data, 3 peers lost, 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv
    try:
        try:
            return work(words)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # a reader that has gone is noticed here, not when Python ends
    except KgdistError as error:
        if "--debug" in words:
            traceback.print_exc()
        complain(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        complain("interrupted", label="")
        return 130
    except BrokenPipeError:  # the reader of our output has gone (| head)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                stream.flush()
                continue
            with contextlib.suppress(AttributeError, OSError, ValueError):
                os.dup2(nowhere, stream.fileno())
        return 1
    except MemoryError:
        complain("out of memory; take a smaller --hidden_dim or --batch_size")
        return 1


def complain(text: str, label: str = "error: ") -> None:
    """Print the one line of an error on stderr, its label in red on a terminal."""
    with contextlib.suppress(OSError):  # nobody reads it
        print((paint(label, "red", sys.stderr) if label else "") + text, file=sys.stderr)
