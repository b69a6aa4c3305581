"""The process that keeps a user's own commands on a machine: it starts them when the agent orders it, and when the agent is gone,
or says nothing for its lease, it ends them with all that they have started.

It imports nothing that a command could use: each is a program of its own. Processes that a command has left behind become
children of this one, so none gets away, into whatever session it went.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgdist.runtime.processes.forking import GRACE, SUBREAPER, control, owner_line, serve_forks
from kgdist.runtime.processes.forkserver import ForkServer

NOT_FOUND = 127  # what a shell ends with when there is no such program
RESTORED = (signal.SIGINT, signal.SIGPIPE)  # which Python, or this process, ignores


class Keeper(ForkServer):
    """See ForkServer: a child becomes the program `argv` in the folder `cwd`, with the changes `env` to the environment.

    Args:
        lease: seconds without a `beat` after which all of them end.
    """

    MODULE = "kgdist.runtime.processes.keeper"

    def __init__(self, lease: float, *, threads: int) -> None:
        super().__init__(threads=threads)
        self._lease = lease
        control(SUBREAPER, 1)  # those whom even a killed keeper leaves behind come to this process

    def start(self, name: str, argv: list[str], cwd: str, env: dict[str, str], *fds: int) -> int:
        """Have a child; its number. Raises WorkerError when nothing takes the order."""
        return self.fork(name, *fds, argv=argv, cwd=cwd, env=env, lease=self._lease)

    def beat(self) -> None:
        """Tell it that its owner lives."""
        with self._lock:
            self._order({})

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE + 1.0)  # it ends its children, and theirs
        super()._end(process)
        sweep()


def main() -> None:
    """Keep commands until the owner is gone: the end of their line tells, and leaves time to end the commands."""
    control(SUBREAPER, 1)
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, signal.SIG_IGN)  # the owner decides what they mean
    serve_forks(owner_line(), _begin, over=sweep)


def _begin(order: dict[str, Any]) -> None:
    """Become the program."""
    for which in (*RESTORED, signal.SIGTERM, signal.SIGHUP):
        signal.signal(which, signal.SIG_DFL)
    what = order["cwd"]
    try:
        os.chdir(what)
        what = order["argv"][0]
        os.execvpe(what, order["argv"], os.environ | order["env"])
    except OSError as error:
        os.write(2, f"{what}: {error.strerror}\n".encode())
    os._exit(NOT_FOUND)


def sweep() -> None:
    """End all processes below this one."""
    until = time.monotonic() + GRACE
    while (left := list(below(os.getpid()))) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.005)


def below(pid: int) -> Iterator[int]:
    """The processes that it has started, and those that they have, as far as they are not dead."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent, *_ = path.read_text().rpartition(")")[2].split()
            if state not in "ZX":
                children.setdefault(int(parent), []).append(int(path.parent.name))
    todo = [pid]
    while todo:
        found = children.get(todo.pop(), [])
        yield from found
        todo += found
