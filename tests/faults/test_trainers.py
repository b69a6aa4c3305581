"""What a job on several machines makes of trainers that hang, lag behind, or die while all wait for one another."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.family import alive
from tests.faults.jobs import Job, wait
from tests.patience import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def quiet(job: Job, seconds: float = 1.0) -> None:
    """Wait until it has printed nothing for so long: whoever can move has come to a meeting."""
    wait(lambda: job.times and time.monotonic() - job.times[-1] > seconds, 60, job)


@pytest.mark.long
def test_hung_and_killed_trainers_are_started_again_where_they_stood(space: Path) -> None:
    """One hangs; one dies while it waits for another one at a meeting; nobody else is started again, or loses a step."""
    options = {
        "checkpoint_interval": "200",
        "eval_interval": "400",
        "log_interval": "20",
        "stall_timeout": "4",
        "force_sync_interval": "200",
    }
    with Job(space, "--valid", max_step="3000", **options) as job:
        job.saved()
        others = job.pids("server|trainer-1")
        hung, begun = job.kill("trainer-0-0", signal.SIGSTOP), time.monotonic()
        job.until(r"trainer 0 has done nothing for 4 s; its stacks follow, and it is started again")
        assert time.monotonic() - begun > 3.9
        job.until(r"trainer 0 was killed by signal SIGKILL; it is started again at step \d+")
        assert not alive(hung) and all(map(alive, others))
        job.saved()  # they meet again
        late = job.kill("trainer-0-0", signal.SIGSTOP)
        quiet(job)
        before = max(job.checkpoints(1))
        job.kill("trainer-1-0")
        line = job.until(r"machine_1 .* trainer 0 was killed by signal SIGKILL")
        os.kill(late, signal.SIGCONT)
        assert int(re.findall(r"at step (\d+)", line)[0]) in (before, before + 200)  # at a meeting
        text = job.end(0)
    assert "attempt" not in text and text.count("is started again at step") == 2


@pytest.mark.long
def test_the_others_do_not_wait_for_a_straggler_until_the_end(space: Path) -> None:
    """One trainer runs a tenth of the time. Without meetings the other one comes to its end, and then it is said whom it waits
    for."""
    with Job(space, max_step="3000", log_interval="100", peer_timeout="2", force_sync_interval="3000") as job:
        job.until(r"machine_1 .*\(100/3000\)")
        slow = job.kill("trainer-0-0", signal.SIGSTOP)
        while not any("(3000/3000)" in line for line in job.lines if line.startswith("machine_1 ")):
            time.sleep(0.18)
            os.kill(slow, signal.SIGCONT)
            time.sleep(0.02)
            os.kill(slow, signal.SIGSTOP)
        behind = max((int(n) for n in re.findall(r"^machine_0 .*\((\d+)/3000\)", job.text, re.MULTILINE)), default=0)
        job.until(r"the others wait for machine_0 \(127.0.0.1\) \(at step \d+ of 3000\)")
        os.kill(slow, signal.SIGCONT)
        text = job.end(0)
    assert behind < 2000 and "started again" not in text


@pytest.mark.long
def test_machines_keep_together(space: Path) -> None:
    """One trainer on each of two machines: they meet every --force_sync_interval steps, so one that stands still holds back the
    other one at the next meeting."""
    with Job(space, max_step="3000", log_interval="50", peer_timeout="4", force_sync_interval="200") as job:
        for machine in (0, 1):
            job.until(rf"machine_{machine} .*\(100/3000\)")
        slow = job.kill("trainer-0-0", signal.SIGSTOP)
        time.sleep(patience(3))
        ahead, behind = (max(map(int, re.findall(rf"^machine_{n} .*\((\d+)/3000\)", job.text, re.MULTILINE))) for n in (1, 0))
        os.kill(slow, signal.SIGCONT)
        text = job.end(0)
    assert ahead % 200 == 0 and ahead - behind <= 250 and "started again" not in text
