"""Checkpoints of many machines: full disks, machines lost while one is written, damage, and other trainers than before."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from kgdist.runs import checkpoint
from tests.faults.jobs import ROOT, Job, run, wait

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
FULL = 2000  # bytes: more than a list of names takes, less than the rows


def limit(*pids_and_size: int) -> None:
    """Let no file of those processes grow beyond so many bytes (-1: any size): a full disk for whatever is larger."""
    *pids, size = pids_and_size
    for pid in pids:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def whole(folder: Path) -> int:
    """The newest step that both machines have, of one attempt, with every file as it was written; nothing is half written."""
    found = []
    for number in range(2):
        shard = folder / f"machine_{number}"
        assert [path.name for path in shard.iterdir() if path.name.startswith(".")] == []
        loaded = [checkpoint.load(path) for _, path in checkpoint.numbered(shard)]
        found.append({(saved.step, saved.meta["stamp"]) for saved in loaded})
    return max(step for step, _ in found[0] & found[1])


def run_folder(space: Path) -> Path:
    (found,) = (space / "ckpts").iterdir()
    return found


@pytest.mark.long
def test_a_full_disk_costs_a_checkpoint_and_no_embeddings(space: Path) -> None:
    """That of one machine at more checkpoints than are kept: the last whole one stays, everywhere. At the end those of all
    machines: the embeddings wait in memory until there is room."""
    hurry = "from kgdist.runtime import course; course.AGAIN = 0.5"
    with Job(space, "--valid", max_step="2000", checkpoint_interval="200", eval_interval="400", before=hurry) as job:
        before = job.saved()
        agent = job.agent(1)
        limit(agent, FULL)
        failed = (
            r"machine_1 .*ckpt-\d+: cannot be written \(File too large\); the previous checkpoint is unchanged; training goes on"
        )
        job.until(failed, times=3)
        assert max(job.checkpoints(0) & job.checkpoints(1)) >= before
        limit(agent, -1)
        job.saved()
        everybody = job.pids("agent|trainer")
        limit(*everybody, FULL)
        kept = "the embeddings are kept in memory: another try in 0.5 s"
        job.until(rf"machine_0 .*ckpt-2000: cannot be written .*{kept}")
        limit(*job.pids("agent"), -1)
        job.until(rf"machine_0 .*toy_TransE_l2_entity.npy: cannot be written .*{kept}")
        limit(*everybody, -1)
        text = job.end(0)
    folder = run_folder(space)
    assert whole(folder) == 2000 and "attempt" not in text and "saved in" in text
    assert np.load(folder / "toy_TransE_l2_entity.npy", allow_pickle=False).shape == (120, 16)


@pytest.mark.long
def test_embeddings_that_find_no_room_at_all(space: Path) -> None:
    hurry = "from kgdist.runtime import course; course.AGAIN, course.PATIENCE = 0.5, 2.0"
    with Job(space, max_step="1000", checkpoint_interval="200", before=hurry) as job:
        step = job.saved()
        limit(*job.pids("agent|trainer"), FULL)
        text = job.end(1)
    last = re.findall(r"error: machine_0 .*_entity.npy: cannot be written .*; the last checkpoint is of step (\d+), go on", text)
    assert [int(found) for found in last] == [whole(run_folder(space))] and int(last[0]) >= step
    assert "cannot be written (File too large); the previous checkpoint is unchanged; the embeddings themselves may" in text


FILL = """
import numpy as np, sys
from kgdist.runs import rundir
from kgdist.base.errors import KgdistError
rows = ((np.arange(n, n + 100), np.ones((100, 1000), np.float32)) for n in range(0, 2000, 100))
try:
    rundir.save_rows(rundir.Path(sys.argv[1]) / "rows.npy", (2000, 1000), rows)
except KgdistError as error:
    print(error)
"""


def test_embeddings_on_a_disk_that_is_full(tmp_path: Path) -> None:
    """They are written by mapping a file; a page that finds no block would kill the process."""
    disk = tmp_path / "disk"
    disk.mkdir()
    tool = shutil.which("mount")
    if tool is None or subprocess.run([tool, "-t", "tmpfs", "-o", "size=4m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        done = run([sys.executable, "-c", FILL, str(disk)], ROOT)
        assert done.returncode == 0 and "rows.npy: cannot be written (No space left on device)" in done.stdout
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", "-l", disk], check=True, timeout=10)


def freeze_while_saving(job: Job, machine: int) -> tuple[int, int]:
    """Stop the agent of a machine in the midst of writing a checkpoint; the checkpoint's step, and the agent."""
    agent, shard = job.agent(machine), run_folder(job.folder) / f"machine_{machine}"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        names = [name for name in os.listdir(shard) if name.startswith(".ckpt-")]
        if not names:
            time.sleep(0.0002)
            continue
        os.kill(agent, signal.SIGSTOP)
        time.sleep(0.01)
        if (shard / names[0]).exists():
            return int(names[0].split(".")[1].removeprefix("ckpt-")), agent
        os.kill(agent, signal.SIGCONT)
    raise AssertionError(f"no checkpoint was seen half written:\n{job.text}")


def stamp(space: Path, machine: int, step: int) -> str:
    """The attempt that a machine's checkpoint is of; empty without one."""
    manifest = run_folder(space) / f"machine_{machine}" / f"ckpt-{step}" / "manifest.json"
    return json.loads(manifest.read_text())["meta"]["stamp"].rpartition(":")[2] if manifest.exists() else ""


@pytest.mark.long
def test_machines_that_are_lost_while_they_write_a_checkpoint(space: Path) -> None:
    """One is killed when the other has written its part of step S: that counts for nothing. Then the other way round, so that
    both have a part of S, of different attempts: they are not put together. At last one part of the newest checkpoint is
    damaged, and twice as many trainers go on from the one before."""
    with Job(space, max_step="600", checkpoint_interval="100", hidden_dim="1000") as job:
        job.saved()
        for attempt, victim in enumerate((1, 0)):
            step, agent = freeze_while_saving(job, victim)
            wait(lambda s=step, v=victim, a=attempt: stamp(space, 1 - v, s) == str(a), 60, job)
            assert stamp(space, victim, step) in ("", str(attempt - 1))
            with contextlib.suppress(ProcessLookupError):  # on a slow machine it is given up before
                os.kill(agent, signal.SIGKILL)
            line = job.until(r"resumed .* at step \d+ of 600", times=attempt + 1)
            assert int(re.findall(r"at step (\d+)", line)[0]) == step - 100
        text = job.end(0)
    last = stamp(space, 0, 600)  # of the third attempt, or a later one where a slow machine lost one more
    assert whole(run_folder(space)) == 600 and stamp(space, 1, 600) == last and int(last) >= 2, text

    cut = run_folder(space) / "machine_1" / "ckpt-600" / "relation.npy"  # damage on one machine: the one before is taken
    os.truncate(cut, cut.stat().st_size - 1)
    resume = {"num_client_proc": "2", "max_step": "400", "checkpoint_interval": "50", "hidden_dim": "1000"}
    with Job(space, "--resume", "TransE_l2_toy_0", "--test", **resume) as job:
        text = job.end(0)
        assert [job.checkpoints(machine) for machine in range(2)] == [{350, 400}] * 2  # meetings below the old step, too
    assert f"WARNING: machine_1 (127.0.0.1): {cut}: " in text and "it is passed over" in text
    assert "at step 250 of 400" in text and "Test average MRR" in text
    saved = [checkpoint.load(run_folder(space) / f"machine_{n}" / "ckpt-400") for n in range(2)]
    assert [found.meta["steps"] for found in saved] == [[400, 400]] * 2  # 500 steps became 2 x 250, and 2 x 150 were left
