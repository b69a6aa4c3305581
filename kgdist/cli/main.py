"""What every command does around its work: run it, and turn an error into one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Sequence

from kgdist.errors import KgdistError


def run(work: Callable[[Sequence[str]], int], argv: Sequence[str] | None) -> int:
    """Run `work` on the command line. Exit codes: 0, 1 failed, 2 usage or data, 3 peers lost, 130 interrupted."""
    words = sys.argv[1:] if argv is None else argv
    try:
        return work(words)
    except KgdistError as error:
        if "--debug" in words:
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone (| head)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except MemoryError:
        print("error: out of memory; take a smaller --hidden_dim or --batch_size", file=sys.stderr)
        return 1
