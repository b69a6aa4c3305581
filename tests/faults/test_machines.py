"""What becomes of a job when an agent dies or freezes, when a port is taken, and of the machines that it loses for good."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kgdist.runtime.processes.forkserver import environment
from tests.family import alive
from tests.faults.jobs import ROOT, Job, wait

pytestmark = pytest.mark.timeout(240)


@pytest.mark.long
def test_a_frozen_agent_is_replaced(space: Path) -> None:
    """Nothing of it is left, and the job goes on where all machines had saved."""
    with Job(space, max_step="1500", checkpoint_interval="200", peer_timeout="4", max_restarts="1") as job:
        job.saved()
        before, agent = job.pids(), job.agent(1)
        os.kill(agent, signal.SIGSTOP)
        begun = time.monotonic()
        job.until(r"machine_1 .*: silent for 4 s; attempt 2 of 2 follows", 30)
        assert time.monotonic() - begun > 3.5
        line = job.until(r"resumed .* at step \d+ of 1500")
        assert int(re.findall(r"at step (\d+)", line)[0]) % 200 == 0
        wait(lambda: not any(map(alive, before)), 10, job)
        text = job.end(0)
    assert text.count("run folder: ") == 1 and len(list((space / "ckpts").iterdir())) == 1


@pytest.mark.slow
def test_a_port_that_is_taken_after_the_preflight(space: Path) -> None:
    """By somebody else, before the server could bind it: nothing trains, and the one who has it is named."""
    port = int((space / "ip_config.txt").read_text().split()[1])
    with Job(space, max_step="100000") as job, socket.socket() as taken:
        wait(lambda: list(space.glob("ckpts/*/machine_0")), 60, job)  # the preflight is over; the server still has to start
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        text = job.end(2, 60)
    assert f"error: machine_0 (127.0.0.1): server 0 failed: 127.0.0.1:{port} is in use (pid {os.getpid()})" in text
    assert "attempt" not in text and "[Train]" not in text


IMPATIENT = "from kgdist.runtime.agent import agent; agent.LEASE, agent.HANGS = 1.0, 1.0; agent.main()"


def test_an_agent_whose_words_nobody_reads_does_not_stay() -> None:
    """A frozen launcher reads nothing: the agent's loop comes to hang in a full pipe, where no lease is looked after."""
    words = [sys.executable, "-c", IMPATIENT]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes, env=environment(1), cwd=ROOT) as agent:  # type: ignore[call-overload]
        assert agent.stdin is not None
        agent.stdin.write(b'{"do": "memory"}\n' * 10000)  # answers of 14 bytes each, into a pipe of 64 KiB
        agent.stdin.flush()
        assert agent.wait(timeout=60) == 1
