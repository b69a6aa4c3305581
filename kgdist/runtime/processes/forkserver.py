"""How processes of ours are started: a Python of its own, and the one that forks those that train or serve, as its owner sees it.

What it runs is `kgdist.runtime.processes.worker`; for a user's own commands `kgdist.runtime.processes.keeper`.

Importing torch and Numba takes two seconds of a core and 170 MB that are no file's: here they are spent once for all processes of
a machine, and one that is started again is there in milliseconds. Nothing runs in this process that would start threads or open
a device, for those do not outlive a fork. The children get SIGKILL when it dies, as it does when its owner dies.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kgdist.base.errors import WorkerError
from kgdist.runtime.processes.pipes import ready

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
LONGEST = 1 << 16  # bytes of a message between the two
PATIENCE = 60.0  # seconds until it takes an order: it has room for some hundred while it imports
GLANCE = 0.2  # seconds between two looks at what other threads have heard
FORCE = 2.0  # seconds in which it is gone when it is killed, unless the system holds it


def program(module: str) -> str:
    """What `python -c` is given to run `main` of a module of ours.

    `-m` would look into the working folder first, where the user's own queue.py may lie, or another kgdist; on a machine reached
    over SSH that is the home folder. PYTHONSAFEPATH forbids it from Python 3.11 on only. `-c` makes the same place an empty first
    entry of the path, which is gone before anything is imported. A library that is missing is told in one line, without the
    traceback.
    """
    path = "sys.path[:] = filter(None, sys.path)"
    return f"import sys; {path}; sys.tracebacklimit = 0; from {module} import main; del sys.tracebacklimit; main()"


def environment(threads: int) -> dict[str, str]:
    """The environment of a process: `threads` intra-op threads, and kgdist found where this process has found it."""
    changed = os.environ | dict.fromkeys(THREADS, str(threads))
    folder = os.fspath(Path(__file__).resolve().parents[3])
    if folder not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # there every Python looks by itself
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return changed


class ForkServer:
    """Started with the first child, and again with the first after it was lost. `close` when its children have ended. Several
    threads may use it.

    Args:
        fds: descriptors that the jobs' handles name; every child has them, under the same numbers.
        threads: intra-op threads of every child.
    """

    MODULE = "kgdist.runtime.processes.worker"

    def __init__(self, fds: Sequence[int] = (), *, threads: int) -> None:
        self._fds, self._threads = fds, threads
        self._process: subprocess.Popen[bytes] | None = None
        self._line: socket.socket | None = None
        self._numbers = itertools.count()
        self._pids: dict[int, int] = {}  # of the children that have begun, by number
        self._codes: dict[int, int | None] = {}  # of all of them
        self._lock = threading.RLock()  # of all this

    def fork(self, name: str, *fds: int, **more: Any) -> int:
        """Have a child called `name` with these descriptors as 0, 1, ...; its number. It comes when all is imported.

        Raises WorkerError when nothing takes the order.
        """
        with self._lock:
            number = next(self._numbers)
            self._hear()
            if self._line is None:
                self._start()
            self._codes[number] = None
            self._order({"fork": number, "name": name, **more}, *fds)
            return number

    def pid(self, number: int) -> int:
        """Of a child; 0 before it has begun."""
        self._hear()
        return self._pids.get(number, 0)

    def code(self, number: int) -> int | None:
        """What a child has ended with, less than 0: the signal; None while it runs, or has not begun."""
        self._hear()
        return self._codes[number]

    def wait(self, number: int, seconds: float) -> bool:
        """Whether a child has ended, now or in that time."""
        deadline = time.monotonic() + seconds
        while self.code(number) is None and (line := self._line) is not None and (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(ValueError):  # another thread has lost it this moment, or has heard what is waited for
                ready(line, min(left, GLANCE))
        return self._codes[number] is not None

    def send_signal(self, number: int, which: signal.Signals) -> None:
        """To a child, once it has begun; to none that has ended."""
        with self._lock:
            if self.code(number) is not None:
                return
            if pid := self._pids.get(number):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, which)
            else:
                self._order({"signal": number, "which": int(which)})

    def pids(self) -> list[int]:
        """Of the children that run, in the order in which they have begun, and of the process that has forked them."""
        with self._lock:
            self._hear()
            own = [self._process.pid] if self._process is not None else []
            return [pid for number, pid in self._pids.items() if self._codes[number] is None] + own

    def close(self) -> None:
        """End it, and with it whatever child is left."""
        with self._lock:
            self._hear()
            if self._line is not None:
                self._lost()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._starter = ThreadPoolExecutor(1, "starter")  # the system ends it with the thread that has started it: with this one
        with theirs:
            ours.settimeout(PATIENCE)
            self._process = self._starter.submit(
                subprocess.Popen,
                [sys.executable, "-c", program(self.MODULE)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                pass_fds=self._fds,
                env=environment(self._threads),
                start_new_session=True,
            ).result(timeout=PATIENCE)
        self._line = ours

    def _order(self, what: dict[str, Any], *fds: int) -> None:
        if self._line is None:
            return
        try:
            socket.send_fds(self._line, [json.dumps(what).encode()], fds)
        except ConnectionError:  # it is lost this moment, and so are its children, this one too
            pass
        except TimeoutError:
            raise WorkerError(f"the process that starts the others has done nothing for {PATIENCE:g} s") from None

    def _hear(self) -> None:
        """Take what it has told."""
        with self._lock:
            while self._line is not None and ready(self._line, 0.0):
                try:
                    data = self._line.recv(LONGEST)
                except ConnectionError:
                    data = b""
                if not data:
                    self._lost()
                    return
                told = json.loads(data)
                if "pid" in told:
                    self._pids[told["number"]] = told["pid"]
                else:
                    self._codes[told["number"]] = told["code"]

    def _lost(self) -> None:
        """It has died, or shall: no child outlives it."""
        assert self._line is not None and self._process is not None
        self._line.close()
        self._line = None
        self._end(self._process)
        self._starter.shutdown(wait=False)
        ended = self._process.returncode
        self._process = None
        for number, code in self._codes.items():
            if code is None:
                self._codes[number] = -signal.SIGKILL if number in self._pids or not ended else ended

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Make an end of it, whose line is closed."""
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=FORCE)
