"""One process of ours that does a job: started, given its job, listened to, and ended.

The process is `kgdist.runtime.worker`. It imports while its owner prepares the job, reads the job as one line of JSON on stdin,
later lines as commands, and writes events as lines of JSON on stdout. When stdin closes, it ends: it cannot outlive its owner.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kgdist.log import log

GRACE = 5.0  # seconds between asking a process to end and making it
FORCE = 2.0  # seconds in which one that is made to end is gone, unless the system holds it
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")

# {"say": line} and others of its job, and as the last one {"done": value}, {"error": line, "traceback": text, "code": exit code},
# which says of an error without a traceback whether the training has "diverged", or {"lost": how}
Event = dict[str, Any]
LAST = ("done", "error", "lost")


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
    folder = os.fspath(Path(__file__).resolve().parents[2])
    if folder not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # there every Python looks by itself
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return changed


class Child:
    """A process without work yet.

    Args:
        fds: descriptors that its job's handles will name.
        threads: intra-op threads, set before it imports anything.
        name: stands in its command line, for those who look at the list of processes.
    """

    def __init__(self, fds: list[int], *, threads: int, name: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program("kgdist.runtime.worker"), *([name] if name else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            env=environment(threads),
            start_new_session=True,
        )
        assert self.process.stdout is not None and self.process.stdin is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        os.set_blocking(self.stdout.fileno(), False)
        self.open = True  # whether it may still say something
        self._buffer = b""
        self._ended = False  # it has said how
        self._killed = False  # by us

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def send(self, message: dict[str, Any]) -> None:
        """The job, or a command. A process that has ended hears nothing: its events tell."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            self.stdin.write(json.dumps(message).encode() + b"\n")
            self.stdin.flush()

    def events(self) -> Iterator[Event]:
        """What it has said since. One that ended without a last word is told as lost."""
        code = self.process.poll()  # before the pipe is read: nothing comes after
        data = self.stdout.read() if self.open else None
        self.open = self.open and data != b""
        *lines, self._buffer = (self._buffer + (data or b"")).split(b"\n")
        for line in lines:
            event = json.loads(line)
            self._ended = self._ended or any(key in event for key in LAST)
            yield event
        if code is not None and not self._ended:
            self._ended = True
            how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            unknown = code == -signal.SIGKILL and not self._killed
            yield {"lost": how + ("; the system may have run out of memory" if unknown else "")}

    def show_stack(self) -> None:
        """Let it write to stderr where it stands; a stopped process cannot."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGUSR1)

    def kill(self) -> None:
        """End it at once, whatever it does."""
        self._killed = True
        self.process.kill()

    def release(self) -> None:
        """Tell it to end."""
        with contextlib.suppress(OSError):
            self.stdin.close()

    def close(self, deadline: float) -> None:
        """End it: asked until `deadline` (time.monotonic()), then by force."""
        end([self], deadline)


def end(children: Sequence[Child], deadline: float) -> None:
    """End all of them: asked until `deadline` (time.monotonic()), then by force. It is said which ones even that does not end:
    the system holds a process that waits for a file system, and ends it when that answers."""
    for child in children:
        child.release()
    for child in children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(timeout=max(0.1, deadline - time.monotonic()))
    left = [child for child in children if child.process.poll() is None]
    for child in left:
        child.kill()
    deadline = time.monotonic() + FORCE
    for child in left:
        try:
            child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            log.error(
                "process %d cannot be ended: the system holds it, perhaps for a file system that does not answer", child.pid
            )
    for child in children:
        child.stdout.close()
