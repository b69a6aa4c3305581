"""The training processes of one machine, owned: started together, watched, and gone when this module is done with them.

The first failure ends the run and is the one that is told; a process that makes no step for `STALL` seconds counts as failed.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from kgdist.errors import KgdistError, WorkerError
from kgdist.log import log
from kgdist.runtime.control import ARRIVED, DONE, POSITIVES, RELEASED, STOP, SharedControl

STALL = 300.0  # seconds
GRACE = 5.0  # seconds between asking a process to end and making it
TICK = 0.02  # seconds between two looks at the shared numbers

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")


class Workers:
    """`world` processes at work on one job.

    Args:
        job: JSON for every process; `rank` is added.
        fds: descriptors that the job's handles name.
        threads: intra-op threads of each process, set before it imports anything.
    """

    def __init__(self, world: int, job: dict[str, Any], fds: list[int], *, threads: int) -> None:
        self.shared = SharedControl.create(world)
        self.said: list[str] = []
        self.done: dict[int, int] = {}
        self._buffers = [b""] * world
        self._steps = np.full(world, -1)  # int64[world], DONE of each process at the last look
        self._moved = np.full(world, time.monotonic())  # float64[world], when it last changed
        self._ended = threading.Event()
        self._selector = selectors.DefaultSelector()
        self.processes: list[subprocess.Popen[bytes]] = []
        environment = os.environ | dict.fromkeys(THREADS, str(threads))
        handles = self.shared.handles()
        try:
            for rank in range(world):
                process = subprocess.Popen(
                    [sys.executable, "-m", "kgdist.runtime.worker"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[*fds, *(handle["fd"] for handle in handles)],
                    env=environment,
                    start_new_session=True,
                )
                self.processes.append(process)
                assert process.stdin is not None and process.stdout is not None
                with contextlib.suppress(BrokenPipeError):  # it has ended already: `watch` tells how
                    process.stdin.write(json.dumps(job | {"rank": rank, "world": world, "control": handles}).encode() + b"\n")
                    process.stdin.flush()
                os.set_blocking(process.stdout.fileno(), False)
                self._selector.register(process.stdout, selectors.EVENT_READ, rank)
        except BaseException:
            self.close()
            raise
        threading.Thread(target=self.shared.beat, args=(self._ended,), daemon=True).start()

    def watch(self, met: Callable[[int], None], tick: Callable[[SharedControl], None], say: Callable[[str], None]) -> list[int]:
        """Stay until all processes have ended; returns the steps each has done.

        Args:
            met: called with the step when all processes that still train wait at it, before they go on; not after a stop.
            tick: called often, to show progress.
        Raises WorkerError naming the first process that died, with its traceback.
        """
        met_last = 0
        while len(self.done) < len(self.processes):
            for key, _ in self._selector.select(TICK):
                self._read(key.data, say)
            self._check_exits(say)
            tick(self.shared)
            arrived = self._arrived()
            if arrived > met_last and not self.shared.header[STOP]:
                met(arrived)
                met_last = arrived
                self.shared.release(arrived)
                self._moved[:] = time.monotonic()
            self._check_progress()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # its work is done; `close` ends it
                process.wait(timeout=GRACE)
        tick(self.shared)
        return [self.done[rank] for rank in range(len(self.processes))]

    def steps(self) -> list[int]:
        """Steps done by each process so far."""
        return [int(step) for step in self.shared.workers[:, DONE]]

    def positives(self) -> int:
        """Positives trained on so far, by all processes."""
        return int(self.shared.workers[:, POSITIVES].sum())

    def sums(self) -> np.ndarray:
        """Loss sums over all steps so far: float64[4] (positive, negative, total, regularisation)."""
        return np.asarray(self.shared.sums.sum(0))

    def pids(self) -> list[int]:
        """Process ids."""
        return [process.pid for process in self.processes]

    def _read(self, rank: int, say: Callable[[str], None]) -> None:
        stdout = self.processes[rank].stdout
        assert stdout is not None
        data = stdout.read()
        if data == b"" and stdout in self._selector.get_map():
            self._selector.unregister(stdout)
        *lines, self._buffers[rank] = (self._buffers[rank] + (data or b"")).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "say" in event:
                say(event["say"])
            elif "done" in event:
                self.done[rank] = event["done"]
            else:
                for text in event["traceback"].splitlines():
                    log.error("[proc %d] %s", rank, text)
                error = KgdistError if not event["traceback"] else WorkerError
                failure = error(f"process {rank} of {len(self.processes)} failed: {event['error']}")
                failure.exit_code = event["code"]
                raise failure

    def _check_exits(self, say: Callable[[str], None]) -> None:
        for rank, process in enumerate(self.processes):
            code = process.poll()
            if code is None or rank in self.done:
                continue
            self._read(rank, say)  # its last words may still be in the pipe
            if rank not in self.done:
                how = f"was killed by signal {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                hint = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
                raise WorkerError(f"process {rank} of {len(self.processes)} {how}{hint}")

    def _arrived(self) -> int:
        """The step that every process still at work has come to wait at; resumed ones may differ in their steps."""
        return min((int(step) for rank, step in enumerate(self.shared.workers[:, ARRIVED]) if rank not in self.done), default=0)

    def _check_progress(self) -> None:
        now, steps = time.monotonic(), self.shared.workers[:, DONE].copy()
        waiting = self.shared.workers[:, ARRIVED] > self.shared.header[RELEASED]
        waiting[list(self.done)] = True
        self._moved[waiting | (steps != self._steps)] = now
        self._steps = steps
        for rank in np.flatnonzero(now - self._moved > STALL):
            self._stalled(int(rank))

    def _stalled(self, rank: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)  # each writes where it stands to stderr
        time.sleep(1.0)
        who = f"process {rank} of {len(self.processes)}"
        raise WorkerError(f"{who} has made no step for {STALL:.0f} s; the stacks of all that can still tell are above")

    def close(self) -> None:
        """End every process that is left: first by closing its stdin, then by force."""
        self._ended.set()
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
        self.shared.close()
