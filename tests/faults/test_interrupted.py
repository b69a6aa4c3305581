"""Ctrl-C, and deaths, while a job on several machines connects, validates and evaluates."""

from __future__ import annotations

import re
import signal
import socket
import time
from pathlib import Path

import pytest

from tests.faults.jobs import Job, ip_config, workspace
from tests.patience import patience

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
SLOW = {"neg_sample_size_eval": "50", "batch_size_eval": "1"}  # candidates are drawn for every query by itself


@pytest.fixture(scope="module")
def tested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace whose validation takes several seconds."""
    return workspace(tmp_path_factory.mktemp("tested"), triples=12000, held_out=0.1)


@pytest.fixture
def wide(tested: Path, tmp_path: Path) -> Path:
    """The same data in a workspace of one's own."""
    (tmp_path / "data").symlink_to(tested / "data")
    ip_config(tmp_path, parts=2)
    return tmp_path


def interrupted(job: Job) -> str:
    """Press Ctrl-C once; what the job has printed when it has ended."""
    begun = time.monotonic()
    job.pids()
    job.process.send_signal(signal.SIGINT)
    text = job.end(130, 60)
    print(f"gone {time.monotonic() - begun:.1f} s after Ctrl-C")
    return text


@pytest.mark.long
def test_evaluations_survive_and_can_be_left(wide: Path) -> None:
    """A trainer dies in validation, a server in the last one, and the final test is interrupted."""
    options = {"max_step": "100", "eval_interval": "50", "checkpoint_interval": "50", "log_interval": "50"}
    with Job(wide, "--valid", "--test", **options, **SLOW) as job:
        for machine in range(2):
            job.until(rf"machine_{machine} .*\(50/100\)")
        time.sleep(0.5)
        assert "validated at step" not in job.text
        job.kill("trainer-1-0")
        job.until(r"trainer 0 was killed by signal SIGKILL.*; it is started again at step 50")
        job.until("validated at step")
        for machine in range(2):
            job.until(rf"machine_{machine} .*\(100/100\)")
        time.sleep(0.5)
        job.kill("server-0")
        job.until(r"server 0 was killed by signal SIGKILL.*; attempt 2 of 4 follows")
        job.until(r"resumed .* at step (50|100) of 100")
        job.until("validated at step", times=2)
        job.until("steps/s|triples/s")
        time.sleep(0.3)
        text = interrupted(job)
    assert re.search(r"interrupted; saved in \S*ckpts/TransE_l2_toy_0 on", text) and "Test average" not in text
    assert (wide / "ckpts" / "TransE_l2_toy_0" / "toy_TransE_l2_entity.npy").exists()


def test_ctrl_c_in_validation_saves_and_can_be_resumed(wide: Path) -> None:
    with Job(wide, "--valid", max_step="100", eval_interval="50", log_interval="50", **SLOW) as job:
        for machine in range(2):
            job.until(rf"machine_{machine} .*\(50/100\)")
        time.sleep(0.5)
        text = interrupted(job)
    assert "interrupted at step 50; go on with: kgdist-dist-train --resume TransE_l2_toy_0" in text
    assert "validated at step" not in text and job.checkpoints(0) == job.checkpoints(1) == {50}


def test_ctrl_c_while_connecting(space: Path) -> None:
    """To a machine that does not answer: nothing is waited for."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = str(silent.getsockname()[1])
        with Job(space, backend="ssh", ssh_port=port, max_step="100") as job:
            job.until("2 trainers x 100 steps")
            time.sleep(0.5)
            begun = time.monotonic()
            assert interrupted(job).endswith("interrupted") and time.monotonic() - begun < patience(10)
