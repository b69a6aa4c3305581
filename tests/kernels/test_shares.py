"""Threads that share work out: all parts are done, what one raises comes out, and a process may stand still meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from kgdist.base.errors import KgdistError
from kgdist.kernels import shares
from kgdist.kernels.shares import Crew, in_threads, part
from tests.patience import patience


@pytest.mark.parametrize("threads", [1, 3])
def test_every_part_is_done_once(threads: int) -> None:
    found: list[int] = []
    in_threads(threads, lambda number: found.extend(range(10)[part(10, number, threads)]))
    assert sorted(found) == list(range(10))


def test_what_one_raises_comes_out_when_all_have_ended() -> None:
    ended = []

    def do(number: int) -> None:
        if number == 0:
            raise ZeroDivisionError
        time.sleep(0.1)
        ended.append(number)

    with pytest.raises(ZeroDivisionError):
        in_threads(2, do)
    assert ended == [1]


def test_parts_that_do_not_end_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shares, "LIMIT", 0.2)
    monkeypatch.setattr(shares, "LOOK", 0.05)
    release, crew = threading.Event(), Crew(2)
    try:
        with pytest.raises(KgdistError, match="threads have not ended their part of a step in 0 s"):
            crew(lambda number: release.wait(patience(60)))
    finally:
        release.set()
        crew.close()


STOPPED = """
import time
from kgdist.kernels import shares
shares.LIMIT, shares.LOOK = 2.0, 0.1
def do(number):
    print("begun", flush=True)
    time.sleep(0.5)
shares.in_threads(2, do)
print("ended")
"""


def test_a_process_that_stands_still_loses_nothing() -> None:
    """Ctrl-Z, and fg after longer than all parts may take."""
    env = os.environ | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])}
    with subprocess.Popen([sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True, env=env) as process:
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(2.5)
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=patience(60))
    assert (out.splitlines()[-1], process.returncode) == ("ended", 0)


OWNER = """
import torch
torch.set_num_threads(3)
from kgdist.kernels.shares import in_threads
counts = [0, 0]
def do(number):
    counts[number] = torch.get_num_threads()
in_threads(2, do)
print(*counts, torch.get_num_threads())
"""


def test_the_owner_keeps_the_threads_that_it_has_set() -> None:
    """torch takes what any thread has set last as that of a thread that first asks later: an optimiser once ran alone for it."""
    env = os.environ | {"PYTHONPATH": os.fspath(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", OWNER], capture_output=True, text=True, env=env, timeout=patience(60))
    assert (done.stdout, done.returncode) == ("1 1 3\n", 0), done.stderr
