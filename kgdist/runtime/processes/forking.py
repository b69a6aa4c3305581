"""The loop of a process that forks others when its owner orders it, and tells of their ends; the owner's side is `forkserver.py`.

Orders and answers are messages of JSON on the socket that is its stdin: {"fork": number, "name": name, ...} with descriptors is
answered with {"number", "pid"}, and with {"number", "code"} when that child has ended; {"signal": number, "which": signal} is for
one that may not have begun; {} says that the owner lives.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from kgdist.runtime.processes.forkserver import LONGEST
from kgdist.runtime.processes.pipes import Bell, ready

DEATHSIG, SUBREAPER = 1, 36  # PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER of linux/prctl.h
MOST_FDS = 4  # that come with an order
GRACE = 2.0  # seconds in which a process that is killed is gone, unless the system holds it
LOOKS = 10  # in the time that the owner may be silent

Begin = Callable[[dict[str, Any]], None]


def control(option: int, value: int) -> None:
    """prctl(2), where there is one; Linux only."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def die_with_owner() -> None:
    """Let the system end this process when its owner dies, even while it is stopped or stuck; Linux only.

    Counts for the owner's thread that has started it, which must live as long as the owner itself.
    """
    control(DEATHSIG, signal.SIGKILL)


def serve_forks(line: socket.socket, begin: Begin, over: Callable[[], None] = lambda: None) -> None:
    """Fork children until the owner is gone; then do what is to be done when all is `over`, and end.

    Args:
        begin: what a child does, with its order; its descriptors are 0, 1, ... already. It does not return.

    An order may have a `lease`: seconds of running without a word from the owner after which that counts as gone.
    """
    bell = Bell()
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(bell.rope, warn_on_full_buffer=False)
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(bell, select.POLLIN)
    children: dict[int, int] = {}  # number -> pid, of those that run
    lease, missed, looked = None, 0, time.monotonic()
    while missed <= LOOKS:
        poll.poll(None if lease is None else lease / LOOKS * 1000)
        bell.quiet()
        if lease is not None and time.monotonic() - looked > lease / LOOKS:
            missed, looked = missed + 1, time.monotonic()
        for number, pid in list(children.items()):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                del children[number]
                _tell(line, over, number=number, code=os.waitstatus_to_exitcode(status))
        if not ready(line, 0.0):
            continue
        data, fds, _, _ = socket.recv_fds(line, LONGEST, MOST_FDS)
        if not data:
            break
        missed, order = 0, json.loads(data)
        if "signal" in order and order["signal"] in children:
            os.kill(children[order["signal"]], order["which"])
        if "fork" not in order:
            continue
        lease, owner = order.get("lease"), os.getpid()
        if (pid := os.fork()) == 0:
            try:
                _become(owner, fds, line, bell)
                begin(order)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        for fd in fds:
            os.close(fd)
        children[order["fork"]] = pid
        _tell(line, over, number=order["fork"], pid=pid)
    over()
    os._exit(0)


def _tell(line: socket.socket, over: Callable[[], None], **what: Any) -> None:
    try:
        line.sendall(json.dumps(what).encode())
    except ConnectionError:
        over()
        os._exit(0)


def _become(parent: int, fds: Sequence[int], line: socket.socket, bell: Bell) -> None:
    """Be a child with `fds` as its descriptors 0, 1, ..."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_owner()
    if os.getppid() != parent:  # it has died before this could be said
        os._exit(1)
    os.setsid()
    line.close()  # whose number may be one that they are to have
    bell.close()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
    for fd in fds:
        os.close(fd)


def owner_line() -> socket.socket:
    """The socket that is this process's stdin."""
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))
