"""Workers as processes of their own (`kgdist.runtime.worker`): started, given their job, listened to, and ended.

They are started early, so that they import while this process prepares the job. What they come to mean for a run is the business
of `kgdist.runtime.workers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kgdist.runtime.workers import Event

GRACE = 5.0  # seconds between asking a process to end and making it
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


def environment(threads: int) -> dict[str, str]:
    """The environment of a worker: `threads` intra-op threads, and kgdist found where this process has found it."""
    changed = os.environ | dict.fromkeys(THREADS, str(threads)) | {"PYTHONSAFEPATH": "1"}  # not what lies in the working folder
    folder = os.fspath(Path(__file__).resolve().parents[2])
    if folder not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):  # there every Python looks by itself
        changed["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
    return changed


class Processes:
    """A crew (see kgdist.runtime.workers) of `world` processes.

    Args:
        job: JSON for every process; `rank` is added.
        fds: descriptors that the job's handles name.
        threads: intra-op threads of each process, set before it imports anything.
    """

    def __init__(self, world: int, job: dict[str, Any], fds: list[int], *, threads: int) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self._job = job
        self._buffers = [b""] * world
        self._ended: set[int] = set()  # those that have said how
        self._selector = selectors.DefaultSelector()
        try:
            for rank in range(world):
                process = subprocess.Popen(
                    [sys.executable, "-m", "kgdist.runtime.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=fds,
                    env=environment(threads),
                    start_new_session=True,
                )
                self.processes.append(process)
                assert process.stdout is not None
                os.set_blocking(process.stdout.fileno(), False)
                self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        except BaseException:
            self.close()
            raise

    def begin(self) -> None:
        """See Crew: every process gets its job."""
        for rank, process in enumerate(self.processes):
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already: `events` tells how
                process.stdin.write(json.dumps(self._job | {"rank": rank}).encode() + b"\n")
                process.stdin.flush()

    def events(self, seconds: float) -> Iterator[tuple[int, Event]]:
        """See Crew. A process that ends without a word is told as lost."""
        for key, _ in self._selector.select(seconds):
            yield from self._read(key.data)
        for rank, process in enumerate(self.processes):
            code = process.poll()
            if code is None or rank in self._ended:
                continue
            yield from self._read(rank)  # its last words may still be in the pipe
            if rank not in self._ended:
                self._ended.add(rank)
                how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                yield rank, {"lost": how + ("; the system may have run out of memory" if code == -signal.SIGKILL else "")}

    def _read(self, rank: int) -> Iterator[tuple[int, Event]]:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        data = stdout.read()
        if data == b"" and stdout in self._selector.get_map():
            self._selector.unregister(stdout)
        *lines, self._buffers[rank] = (self._buffers[rank] + (data or b"")).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "say" not in event:
                self._ended.add(rank)
            yield rank, event

    def pids(self) -> list[int]:
        """See Crew."""
        return [process.pid for process in self.processes]

    def show_stacks(self) -> None:
        """See Crew; processes that are stopped cannot."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
        time.sleep(1.0)

    def close(self) -> None:
        """End every process that is left: first by closing its stdin, then by force."""
        self._selector.close()
        for process in self.processes:
            with contextlib.suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            try:
                process.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(timeout=GRACE)
            if process.stdout is not None:
                process.stdout.close()
