"""What the fork server (`forkserver.py`) runs: `main` imports, forks a worker when its owner orders one, and tells of its end.

Orders and answers are messages of JSON, see `main`, on the socket that is its stdin.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
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

from kgdist.runtime.processes import worker
from kgdist.runtime.processes.bell import Bell, ready
from kgdist.runtime.processes.forkserver import LONGEST


def die_with_owner() -> None:
    """Let the system end this process when its owner dies, even while it is stopped or stuck; Linux only.

    Counts for the owner's thread that has started it, which must live as long as the owner itself.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG of linux/prctl.h


def main() -> None:
    """Fork until the owner is gone.

    {"fork": number, "name": name} with the descriptors of stdin and stdout is answered with {"number", "pid"}, and with
    {"number", "code"} when that child has ended; {"signal": number, "which": signal} is for one that may not have begun.
    """
    die_with_owner()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    line = socket.socket(fileno=os.dup(sys.stdin.fileno()))
    with contextlib.suppress(Exception):  # every child meets the same error, and tells it
        worker.prepare()
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
    """Be a worker, of which nothing comes back."""
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
    worker.main()


def _show(words: str) -> None:
    """Change the command line that lists of processes show, as far as there is room in it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    if start and end > start:
        ctypes.memmove(start, words.encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)
