"""A job that is told to end does so, and saves, whatever hangs; one whose disk does not answer says so, and goes back."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from kgdist.runs import checkpoint
from tests.faults.jobs import Job, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
NAMED = "from kgdist.runtime.cluster import fleet; fleet.NAMED = 1.0"


def run_folder(space: Path) -> Path:
    (found,) = (space / "ckpts").iterdir()
    return found


@pytest.mark.long
def test_a_scheduler_that_ends_the_job_has_it_saved_although_a_trainer_hangs(space: Path) -> None:
    """It is ended where it is, and its rows, which lie in memory that it does not own, are saved with all others."""
    with Job(space, max_step="1000000", force_sync_interval="-1") as job:
        for machine in range(2):
            job.until(rf"machine_{machine} .*\(1000/1000000\)")
        job.kill("trainer-1-0", signal.SIGSTOP)
        job.process.send_signal(signal.SIGTERM)
        text = job.end(130, 60)
    step = int(re.findall(r"interrupted at step (\d+); go on with: kgdist-dist-train --resume TransE_l2_toy_0", text)[0])
    assert "machine_1 " in text and "trainer 0 has done nothing for" in text and "it is ended where it is" in text
    assert "started again" not in text and "attempt" not in text
    saved = [checkpoint.load(run_folder(space) / f"machine_{n}" / f"ckpt-{step}").meta["steps"] for n in range(2)]
    assert min(saved)[0] == step >= 1000


HANGING = """
import os, signal
from pathlib import Path
from kgdist.runtime.cluster.fleet import Fleet
tell = Fleet.tell
def hang(self, do, *args, **more):
    if do == "stop":
        os.kill(int(Path("victim").read_text()), signal.SIGSTOP)
    tell(self, do, *args, **more)
Fleet.tell = hang
"""


@pytest.mark.long
def test_an_early_stop_ends_well_although_a_trainer_hangs(space: Path) -> None:
    """Nobody is there to press Ctrl-C: it is ended, started again for the test that follows, and that is all."""
    options = {"max_step": "1000", "eval_interval": "100", "early_stop_patience": "1", "lr": "1e-12", "peer_timeout": "3"}
    with Job(space, "--test", "--valid", before=HANGING, **options) as job:
        wait(lambda: job.pids("trainer-1-0"), 60, job)
        (space / "victim").write_text(str(*job.pids("trainer-1-0")))
        text = job.end(0)
    assert "early stop at step 200" in text and "trainer 0 has done nothing for 6 s; its stacks follow" in text
    assert "Test average MRR" in text and "saved in" in text and "attempt" not in text


class Blocked:
    """A file of the run folder that takes nothing: a pipe that nobody reads, whose opening waits as a hung file system does."""

    def __init__(self, job: Job, name: str) -> None:
        self.path = run_folder(job.folder) / name
        self.path.unlink(missing_ok=True)
        os.mkfifo(self.path)

    def free(self) -> None:
        """Let those who come from now on write."""
        self.path.unlink()


@pytest.mark.long
def test_a_disk_that_does_not_answer_is_named_and_one_ctrl_c_leaves(space: Path) -> None:
    with Job(space, max_step="1000000", log_interval="20", before=NAMED) as job:
        wait(lambda: list(space.glob("ckpts/*/metrics.jsonl")), 60, job)
        Blocked(job, "metrics.jsonl")
        job.until(r"machine_0 \(127.0.0.1\) has written nothing for \d+ s \(metrics.jsonl\); is its file system answering\?")
        job.process.send_signal(signal.SIGINT)
        text = job.end(3, 60)
    assert re.search(r"error: machine_0 \(127.0.0.1\): has written nothing for \d+ s \(metrics.jsonl\)", text)
    assert "Traceback" not in text


@pytest.mark.long
def test_a_disk_that_does_not_answer_for_long_sends_the_job_back(space: Path) -> None:
    options = {"max_step": "3000", "checkpoint_interval": "200", "log_interval": "20", "stall_timeout": "4"}
    with Job(space, **options) as job:
        job.saved()
        blocked = Blocked(job, "metrics.jsonl")
        job.until(r"machine_0 \(127.0.0.1\): has written nothing for \d+ s \(metrics.jsonl\); attempt 2 of 4 follows")
        blocked.free()
        job.until(r"resumed .* at step \d+ of 3000")
        text = job.end(0)
    assert "saved in" in text and "attempt 3" not in text


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that can be frozen."""
    image, folder = tmp_path / "image", tmp_path / "disk"
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(48 << 20)
    tools = [shutil.which(tool) for tool in ("mkfs.ext4", "mount", "fsfreeze", "umount")]
    if None in tools or subprocess.run(["mkfs.ext4", "-q", image], capture_output=True, timeout=30).returncode:
        pytest.skip("no tools for a file system that can be frozen")
    if subprocess.run(["mount", "-o", "loop", image, folder], capture_output=True, timeout=30).returncode:
        pytest.skip("mounting a file is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True, timeout=30)
        subprocess.run(["umount", "-l", folder], check=True, timeout=30)


@pytest.mark.long
def test_a_file_system_that_is_frozen_at_a_checkpoint_holds_nobody(space: Path, disk: Path) -> None:
    """Not even SIGKILL ends a process that waits for it: the launcher leaves all the same, and says so."""
    (space / "ckpts").symlink_to(disk)
    with Job(space, max_step="1000000", checkpoint_interval="200", log_interval="1000000", before=NAMED) as job:
        job.saved()
        subprocess.run(["fsfreeze", "-f", disk], check=True, timeout=30)
        job.until(r"machine_[01] .* has written nothing for \d+ s \(.*checkpoint.*\); is its file system answering\?")
        job.pids()
        job.process.send_signal(signal.SIGINT)
        job.process.wait(timeout=60)
        subprocess.run(["fsfreeze", "-u", disk], check=True, timeout=30)
        text = job.end(3)
    assert re.search(r"error: machine_[01] .*: has written nothing for \d+ s .*; the last checkpoint is of step \d+, go on", text)
    assert "its process could not be ended from here" in text


@pytest.mark.long
def test_failures_count_only_as_long_as_nothing_gets_on(space: Path) -> None:
    """Two trainers' deaths and two servers' are more than one restart allows, if there were no steps and checkpoints between."""
    with Job(space, max_step="100000", checkpoint_interval="200", max_restarts="1") as job:
        for attempt in range(2):
            for times in range(2):
                job.saved()
                job.kill("trainer-1-0")
                job.until(r"trainer 0 was killed by signal SIGKILL.*; it is started again at step", times=2 * attempt + times + 1)
            job.saved()
            job.kill("server-0")
            job.until(rf"server 0 was killed by signal SIGKILL.*; attempt {attempt + 2} of {attempt + 2} follows")
        job.until("resumed .* at step", times=2)
        os.kill(job.process.pid, signal.SIGTERM)
        job.end(130)


@pytest.mark.long
def test_a_frozen_server_is_ended_by_its_agent(space: Path) -> None:
    with Job(space, max_step="100000", checkpoint_interval="200", peer_timeout="4") as job:
        job.saved()
        job.kill("server-1", signal.SIGSTOP)
        job.until(r"machine_1 .*server 0 has done nothing for 4 s; its stacks follow, and it is ended")
        job.until(r"machine_1 .*server 0 was killed by signal SIGKILL.*; attempt 2 of 4 follows")
        job.until("resumed .* at step")
        os.kill(job.process.pid, signal.SIGTERM)
        job.end(130)


@pytest.mark.long
def test_a_terminal_that_takes_nothing_costs_nothing(space: Path) -> None:
    """Nobody reads what the launcher prints, which is more than a pipe holds: the training ends as ever, at its first attempt."""
    with Job(space, max_step="3000", log_interval="10", peer_timeout="3") as job:
        job.reading.clear()
        wait(lambda: job.process.poll() is not None, 150)
        job.reading.set()
        text = job.end(0)
    assert "attempt" not in text and (run_folder(space) / "toy_TransE_l2_entity.npy").exists()
