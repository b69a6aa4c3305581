"""Whole jobs over SSH between machines with a network that loses packets, cuts connections, and swallows everything."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.family import alive, words_of
from tests.faults.jobs import Job, wait
from tests.faults.netns import Network, Node
from tests.faults.sshd import Sshd
from tests.patience import patience

pytestmark = [pytest.mark.long, pytest.mark.timeout(500)]


def ours(node: Node, role: str = "runtime") -> list[int]:
    """The processes of kgdist on a machine."""
    return [pid for pid in node.pids() if f"kgdist.runtime.{role}" in words_of(pid) and alive(pid)]


def test_a_job_and_its_network(space: Path, make_network: Callable[[int], Network], make_sshd: Callable[..., Sshd]) -> None:
    """One job: loss, cut connections, a black hole, a frozen agent behind it, and a machine that does not come back."""
    network = make_network(2)
    here, there = network.nodes
    first, _ = (make_sshd(address=node.address, inside=node.inside) for node in network.nodes)
    (space / "ip_config.txt").write_text("".join(f"{node.address} 30050 1\n" for node in network.nodes))
    reach = {"ssh_key": str(first.user_key), "remote_python": sys.executable, "backend": "ssh", "inside": here.inside}
    with Job(space, max_step="1000000", checkpoint_interval="100", peer_timeout="4", max_restarts="2", **reach) as job:
        job.saved()
        there.lose(10)
        job.saved()
        there.lose(0)
        there.cut(20, 30050)
        job.saved(2)
        assert there.cuts() > 2
        there.cut(0, 30050)
        there.lose()
        time.sleep(patience(1.5))
        there.lose(0)
        job.saved()
        assert "attempt" not in job.text and "started again" not in job.text  # slower, that is all

        there.lose()
        time.sleep(patience(6))
        there.lose(0)
        job.until(r"machine_1 \(10.99.0.2\): .*; attempt 2 of 3 follows")
        job.until(r"resumed .* at step \d+")
        job.saved()

        (agent,) = [pid for pid in ours(there, "agent") if "from kgdist.runtime.agent.agent" in words_of(pid)]
        os.kill(agent, signal.SIGSTOP)  # nobody can end it from here; its servers and trainers see that it does nothing
        job.until(r"machine_1 \(10.99.0.2\): silent for 4 s; attempt 3 of 4 follows")  # the one before made checkpoints
        job.until(r"resumed .* at step \d+", times=2)
        job.saved()
        os.kill(agent, signal.SIGCONT)
        wait(lambda: not alive(agent), 10, job)

        there.lose()
        begun = time.monotonic()
        text = job.end(3, 200)  # two more attempts do not reach it
        assert time.monotonic() - begun > 3.9
        wait(lambda: not ours(here) and not ours(there), 20, job)
    assert re.search(r"machine_1 \(10.99.0.2\): .*; attempt 4 of \d follows", text)
    assert re.search(r"error: 10.99.0.2: .* --resume TransE_l2_toy_0 --path \S+\n*$", text)
    there.lose(0)
