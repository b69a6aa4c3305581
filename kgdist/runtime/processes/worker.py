"""The processes that train and serve, and the one that forks them.

`main` runs in the fork server (`forkserver.py`): it imports what all of them need, forks a worker when its owner orders one, and
tells of its end; orders and answers are messages of JSON on the socket that is its stdin. A worker (`work`) reads its job as one
line of JSON on stdin, does it, and writes events (see `child.py`) as lines of JSON on stdout; further lines on stdin are
commands. When stdin closes, the process that owns it is gone, and it ends at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kgdist.base.errors import Diverged, KgdistError
from kgdist.base.log import background
from kgdist.runtime.processes.child import Owner
from kgdist.runtime.processes.forkserver import LONGEST
from kgdist.runtime.processes.pipes import Bell, ready

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


def die_with_owner() -> None:
    """Let the system end this process when its owner dies, even while it is stopped or stuck; Linux only.

    Counts for the owner's thread that has started it, which must live as long as the owner itself.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG of linux/prctl.h


def main() -> None:
    """Fork workers until the owner is gone.

    {"fork": number, "name": name} with the descriptors of stdin and stdout is answered with {"number", "pid"}, and with
    {"number", "code"} when that child has ended; {"signal": number, "which": signal} is for one that may not have begun.
    """
    die_with_owner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    line = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with contextlib.suppress(Exception):  # every child meets the same error, and tells it
        prepare()
    gc.collect()
    gc.freeze()  # what is here stays: looking through it would make copies of its pages in every child
    bell = Bell()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(bell.rope, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(bell, select.POLLIN)
    children: dict[int, int] = {}  # number -> pid, of those that run
    while True:
        poll.poll()
        bell.quiet()
        for number, pid in list(children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del children[number]
                _tell(line, number=number, code=os.waitstatus_to_exitcode(status))
        if not ready(line, 0.0):
            continue
        data, fds, _, _ = socket.recv_fds(line, LONGEST, 2)
        if not data:
            os._exit(0)
        order = json.loads(data)
        if "signal" in order:
            if order["signal"] in children:
                os.kill(children[order["signal"]], order["which"])
            continue
        owner = os.getpid()
        if (pid := os.fork()) == 0:
            try:
                _become(order["name"], owner, fds, line, bell)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        children[order["fork"]] = pid
        _tell(line, number=order["fork"], pid=pid)


def _tell(line: socket.socket, **what: Any) -> None:
    try:
        line.sendall(json.dumps(what).encode())
    except ConnectionError:
        os._exit(0)


def _become(name: str, parent: int, fds: Sequence[int], line: socket.socket, bell: Bell) -> None:
    """Be a worker called `name`, with `fds` as stdin and stdout."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_owner()
    if os.getppid() != parent:  # it has died before this could be said
        os._exit(1)
    os.setsid()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)
    line.close()
    bell.close()
    with contextlib.suppress(OSError, ValueError, IndexError):
        _show(f"{sys.executable}\0kgdist.runtime.processes.worker\0{name}")
    live()


def _show(words: str) -> None:
    """Change the command line that lists of processes show, as far as there is room in it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    if start and end > start:
        ctypes.memmove(start, words.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)


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


def live() -> None:
    """Be a worker, of which nothing comes back: do one job to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    faulthandler.register(signal.SIGUSR1)
    owner = Owner(gone=lambda: os._exit(1))  # nothing is worth finishing without it
    with background():
        code = work(owner)
    sys.stderr.flush()
    os._exit(code)  # the listening thread sits in a read that no one will end, and holds a lock that an orderly exit wants
