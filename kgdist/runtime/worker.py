"""A process of a run: `main`, forked by `kgdist.runtime.forking`.

It reads its job as one line of JSON on stdin, does it, and writes events (see `kgdist.runtime.child`) as lines of JSON on stdout;
further lines on stdin are commands. When stdin closes, the process that owns it is gone, and it ends at once.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback

from kgdist.base.errors import Diverged, KgdistError
from kgdist.base.log import background
from kgdist.runtime.owner import Owner


def prepare() -> None:
    """Import what every job needs: a second or two, in which the owner prepares the job."""
    from kgdist.kernels import choice
    from kgdist.runtime import job  # noqa: F401

    choice.numba()


def work(owner: Owner) -> int:
    """Do the job that `owner` sends; the exit code."""
    try:
        prepare()
        from kgdist.runtime.job import train_share

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
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    owner = Owner(gone=lambda: os._exit(1))  # nothing is worth finishing without it
    with background():
        code = work(owner)
    sys.stderr.flush()
    os._exit(code)  # the listening thread sits in a read that no one will end, and holds a lock that an orderly exit wants
