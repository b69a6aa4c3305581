"""The processes that train and serve, and the one that forks them.

`main` runs in the fork server (`forkserver.py`): it imports what all of them need, and forks a worker when its owner orders one
(`forking.py`). A worker (`work`) reads its job as one line of JSON on stdin, does it, and writes events (see `child.py`) as lines
of JSON on stdout; further lines on stdin are commands. When stdin closes, the process that owns it is gone, and it ends at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import functools
import gc
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgdist.base.errors import Diverged, KgdistError
from kgdist.base.log import background
from kgdist.runtime.processes.child import Owner
from kgdist.runtime.processes.forking import die_with_owner, owner_line, serve_forks

# role -> the function of (job, owner) that does it and returns what is told at the end. Imported when it is asked for: each has
# libraries of its own, and all of them start such processes themselves.
WORK = {
    "share": "runtime.job:train_share",
    "server": "runtime.agent.roles:serve",
    "trainer": "runtime.agent.roles:train",
    "trial": "tuning.trials:train_trial",
    "chunks": "runtime.processes.chunks:serve",
}


def prepare() -> None:
    """Import what every job needs: a second or two, in which the owner prepares the job."""
    from kgdist.kernels import jit
    from kgdist.runtime import job  # noqa: F401

    jit.load()


def main(prepare: Callable[[], None] = prepare) -> None:
    """Fork workers until the owner is gone. `prepare` imports what all of them need."""
    die_with_owner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    line = owner_line()
    with contextlib.suppress(Exception):  # every child meets the same error, and tells it
        prepare()
    gc.collect()
    gc.freeze()  # what is here stays: looking through it would make copies of its pages in every child
    serve_forks(line, functools.partial(_begin, prepare))


def _begin(prepare: Callable[[], None], order: dict[str, Any]) -> None:
    """Be the worker that was ordered."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        _show(f"{sys.executable}\0kgdist.runtime.processes.worker\0{order['name']}")
    live(prepare)


def _show(words: str) -> None:
    """Change the command line that lists of processes show, as far as there is room in it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    if start and end > start:
        ctypes.memmove(start, words.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


def work(owner: Owner, prepare: Callable[[], None] = prepare) -> int:
    """Do the job that `owner` sends; the exit code."""
    try:
        prepare()
        while (job := owner.receive(60.0)) is None:
            pass
        module, _, function = WORK[job["role"]].partition(":")
        owner.send(done=getattr(importlib.import_module(f"kgdist.{module}"), function)(job, owner))
    except KgdistError as error:
        owner.send(error=str(error), traceback="", code=error.exit_code, diverged=isinstance(error, Diverged))
        return error.exit_code
    except BaseException as error:  # whatever it is, the owner must hear of it
        owner.send(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc(), code=1)
        return 1
    return 0


def live(prepare: Callable[[], None] = prepare) -> None:
    """Be a worker, of which nothing comes back: do one job to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    owner = Owner(gone=lambda: os._exit(1))  # nothing is worth finishing without it
    with background():
        code = work(owner, prepare)
    sys.stderr.flush()
    os._exit(code)  # the listening thread sits in a read that no one will end, and holds a lock that an orderly exit wants
