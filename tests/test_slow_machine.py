"""The slow machine slows everything below a command, keeps stopped what the command has stopped, and leaves nothing stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.family import alive
from tests.faults.commands import until
from tests.patience import SLOWNESS, patience

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "slow_machine.py"

# Starts a process that would never rest, stops it, and sees whether it works on; then lets it. A stop that comes at the very
# moment of one of the slow machine's own is one with it and passes with it: then the next one counts.
STOPPING = """
import signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "while True: pass"], stdout=subprocess.DEVNULL)
def worked():
    with open(f"/proc/{child.pid}/stat") as file:
        return sum(map(int, file.read().rpartition(")")[2].split()[11:13]))
def stays():
    before = worked()
    while worked() < before + 2:
        time.sleep(0.01)
    child.send_signal(signal.SIGSTOP)
    time.sleep(0.2)
    before = worked()
    time.sleep(0.8)
    after = worked()
    child.send_signal(signal.SIGCONT)
    return before == after
try:
    good = all(any(stays() for _ in range(6)) for _ in range(3))
finally:
    child.kill()
    child.wait(60)
sys.exit(7 if good else 1)
"""


def start(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, str(SCRIPT), sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
def test_what_the_command_stops_stays_stopped_and_its_exit_code_is_told() -> None:
    process = start(STOPPING)
    process.communicate(timeout=patience(100))
    assert process.returncode == 7


@pytest.mark.skipif(SLOWNESS > 1, reason="a slow machine within another: the outer one stops what the inner one has left")
def test_nothing_is_left_stopped_when_it_is_killed() -> None:
    code = "import os, time; print(os.getpid(), os.environ['KGDIST_TEST_SLOWNESS'], flush=True); time.sleep(1000)"
    process = start(code)
    assert process.stdout is not None
    with process.stdout as lines:
        pid, slowness = map(int, lines.readline().split())
        assert slowness == 10

        def state() -> str:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]

        try:
            until("it is held", lambda: state() == "T", patience(60))
            process.kill()
            process.wait(timeout=patience(60))
            until("it goes on", lambda: {state(), time.sleep(0.2), state()} == {"S", None}, patience(60))
        finally:
            os.kill(pid, signal.SIGKILL)
    until("it is gone", lambda: not alive(pid), patience(60))
