"""A process of a run: `main`, forked by `forking.py`.

It reads its job as one line of JSON on stdin, does it, and writes events (see `kgdist.runtime.processes.child`) as lines of JSON
on stdout; further lines on stdin are commands. When stdin closes, the process that owns it is gone, and it ends at once.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import traceback

from kgdist.base.errors import Diverged, KgdistError
from kgdist.base.log import background
from kgdist.runtime.processes.owner import Owner

# role -> the function of (job, owner) that does it and returns what is told at the end. Imported when it is asked for: each has
# libraries of its own, and all of them start such processes themselves.
WORK = {
    "share": "runtime.job:train_share",
    "server": "runtime.agent.roles:serve",
    "trainer": "runtime.agent.roles:train",
    "trial": "tuning.trials:train_trial",
}


def prepare() -> None:
    """Import what every job needs: a second or two, in which the owner prepares the job."""
    from kgdist.kernels import jit
    from kgdist.runtime import job  # noqa: F401

    jit.load()


def work(owner: Owner) -> int:
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


def main() -> None:
    """Do one job to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    owner = Owner(gone=lambda: os._exit(1))  # nothing is worth finishing without it
    with background():
        code = work(owner)
    sys.stderr.flush()
    os._exit(code)  # the listening thread sits in a read that no one will end, and holds a lock that an orderly exit wants
