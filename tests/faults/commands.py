"""kgdist-train as a command of its own, in a session of its own, with its output read while it runs."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from tests.cli.graphs import FILES, random_splits, write
from tests.family import descendants
from tests.patience import patience

FOREVER = "1000000000"
LIMIT = patience(60.0)  # seconds that any wait may take; a busy machine needs many times an idle one's


def until(what: str, true: Callable[[], bool], limit: float = LIMIT) -> float:
    """Wait until `true()`; the seconds it took. Raises AssertionError saying `what` did not happen."""
    begun = time.monotonic()
    while not true():
        assert time.monotonic() - begun < limit, f"not within {limit:.0f} s: {what}"
        time.sleep(0.02)
    return time.monotonic() - begun


def train_flags(root: Path, *words: str) -> list[str]:
    """A command line for a graph of 30 entities that is written below `root`; `words` come last and so win."""
    if not (root / "data").exists():
        for name, split in zip(FILES, random_splits(), strict=True):
            write(root / "data" / name, split)
    graph = ["--data_path", str(root / "data"), "--dataset", "toy", "--format", "raw_udd_hrt", "--data_files", *FILES]
    small = "--model_name TransE_l2 --hidden_dim 8 --gamma 4 --batch_size 16 --neg_sample_size 8 --lr 0.1".split()
    return [*graph, "--save_path", str(root / "ckpts"), *small, "--num_thread", "1", "--log_interval", "10", *words]


class Command:
    """A running kgdist-train; `before` is Python that it runs first, for constants of its own that are too long for a test."""

    def __init__(self, words: list[str], before: str = "") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"{before}\nfrom kgdist.cli.train import main\nraise SystemExit(main())", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.out: list[str] = []
        self.err: list[str] = []
        assert self.process.stdout is not None and self.process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read, args=pair)
            for pair in ((self.process.stdout, self.out), (self.process.stderr, self.err))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: IO[str], lines: list[str]) -> None:
        with stream:
            lines.extend(line.rstrip("\n") for line in iter(stream.readline, ""))

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def folder(self) -> Path:
        """The run folder that it named."""
        (line,) = [line for line in self.out if line.startswith("run folder: ")]
        return Path(line.removeprefix("run folder: "))

    def prints(self, pattern: str, *, times: int = 1) -> None:
        """Wait until so many of its lines match from their start."""
        found, looked, matches = re.compile(pattern), [0, 0], 0

        def seen() -> bool:
            nonlocal matches
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.err}"
            for which, lines in enumerate((self.out, self.err)):  # only what is new: the threads that read need the time
                new = lines[looked[which] :]
                looked[which] += len(new)
                matches += sum(bool(found.match(line)) for line in new)
            return matches >= times

        until(f"{times} lines {pattern!r}", seen)

    def trains(self, workers: int = 1, processes: int | None = None) -> list[int]:
        """Wait until every worker of it has made steps; the ids of its processes, `processes` of them: first
        the one that forks the others."""
        for rank in range(workers):
            self.prints(rf"\[proc {rank}\]\[Train\]\(\d+/")
        found = descendants(self.pid)
        assert len(found) == (processes if processes is not None else workers + 1 if workers > 1 else 0)
        return found

    def signal(self, *numbers: signal.Signals, group: bool = False) -> None:
        """Send signals; several of them so that they arrive at the same moment."""
        send = os.killpg if group else os.kill
        if len(numbers) > 1:
            os.kill(self.pid, signal.SIGSTOP)
        for number in numbers:
            send(self.pid, number)
        if len(numbers) > 1:
            os.kill(self.pid, signal.SIGCONT)

    def ends(self, limit: float = LIMIT) -> int:
        """Its exit code, once it has ended and all it printed has been read."""
        code = self.process.wait(timeout=limit)
        for reader in self._readers:
            reader.join(timeout=5)  # a process it left behind would keep the pipes open
            assert not reader.is_alive(), "something still holds the command's output"
        return code

    def close(self) -> None:
        """End it and all it started, whatever the test has come to."""
        for pid in (*reversed(descendants(self.pid)), self.pid):
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(timeout=10)
        for reader in self._readers:
            reader.join(timeout=5)
        with contextlib.suppress(ChildProcessError):  # orphans of the command become children of this process (tests/conftest.py)
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
