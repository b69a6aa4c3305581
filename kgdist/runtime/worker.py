"""A process of a run: `main`, started by `kgdist.runtime.child`.

It imports what it needs, reads its job as one line of JSON on stdin, does it, and writes events (see `kgdist.runtime.child`) as
lines of JSON on stdout; further lines on stdin are commands. When stdin closes, the process that owns it is gone, and it ends at
once.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import signal
import sys
import traceback

from kgdist.errors import Diverged, KgdistError
from kgdist.log import background
from kgdist.runtime.owner import Owner


def die_with_owner() -> None:
    """Let the system end this process when its owner dies, even while it is stopped or stuck; Linux only.

    Counts for the owner's thread that has started it, which must live as long as the owner itself.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG of linux/prctl.h


def work(owner: Owner) -> int:
    """Do the job that `owner` sends; the exit code."""
    try:
        from kgdist.kernels import choice
        from kgdist.runtime.job import train_share  # takes a second or two, in which the owner prepares the job

        choice.numba()
        while (job := owner.receive(60.0)) is None:
            pass
        role = job.get("role", "share")
        if role == "share":
            owner.send(done=train_share(job, owner.say))
        elif role == "trial":
            from kgdist.runtime.trial import train_trial  # which starts such processes itself

            owner.send(done=train_trial(job, owner))
        else:
            from kgdist.runtime import roles  # with the libraries of the network

            owner.send(done=(roles.serve if role == "server" else roles.train)(job, owner))
    except KgdistError as error:
        owner.send(error=str(error), traceback="", code=error.exit_code, diverged=isinstance(error, Diverged))
        return error.exit_code
    except BaseException as error:  # whatever it is, the owner must hear of it
        owner.send(error=f"{type(error).__name__}: {error}", traceback=traceback.format_exc(), code=1)
        return 1
    return 0


def main() -> None:
    """Do one job to its end."""
    die_with_owner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    owner = Owner(gone=lambda: os._exit(1))  # nothing is worth finishing without it
    with background():
        code = work(owner)
    sys.stderr.flush()
    os._exit(code)  # the listening thread sits in a read that no one will end, and holds a lock that an orderly exit wants
