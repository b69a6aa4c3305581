"""What a job on several machines survives, and what it never does: with real processes, several "machines" on this host."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from tests.family import alive
from tests.faults.jobs import Job, command, here, run, workspace

pytestmark = pytest.mark.timeout(180)
LONG = {"max_step": "100000", "checkpoint_interval": "100"}


def trained(folder: Path) -> Path:
    """The one run folder."""
    (found,) = (folder / "ckpts").iterdir()
    return found


def test_a_calm_run_ends_with_the_whole_model_on_the_first_machine(space: Path) -> None:
    with Job(space, "--test", "--valid", max_step="400", eval_interval="200", num_client_proc="2") as job:
        text = job.end(0)
    folder = trained(space)
    entity = np.load(folder / "toy_TransE_l2_entity.npy", allow_pickle=False)
    assert entity.shape == (120, 16) and entity.dtype == np.float32 and np.isfinite(entity).all()
    told = float(re.findall(r"Test average MRR : ([0-9.]+)", text)[0])
    baseline = json.loads((folder / "test.json").read_text())["baselines"]["frequent"]
    assert "baseline: most frequent answers" in text
    again = here("eval", str(folder), folder=space)
    assert again.returncode == 0, again.stderr
    assert float(re.findall(r"Test average MRR : ([0-9.]+)", again.stdout)[0]) == pytest.approx(told, abs=1e-6)
    assert json.loads((folder / "test.json").read_text())["baselines"]["frequent"] == pytest.approx(baseline)
    assert told > 0.15  # 120 entities, 2 answers each: a model that learned nothing has 0.05
    assert json.loads((folder / "test.json").read_text())["protocol"]["entities"] == 120
    assert (folder / "valid.json").exists() and (folder / "metrics.jsonl").exists()


@pytest.mark.long
def test_a_run_that_stops_early_is_validated_and_tested(space: Path) -> None:
    options = {"max_step": "1000", "eval_interval": "100", "early_stop_patience": "1", "lr": "1e-12"}  # nothing ever gets better
    with Job(space, "--test", "--valid", **options) as job:
        text = job.end(0)
    assert "early stop at step 200: no better MRR than" in text and "kept: the embeddings of step 100," in text
    assert "Test average MRR" in text and "saved in" in text


@pytest.mark.slow
def test_a_trainer_that_is_killed_is_started_again_and_nobody_else_stops(space: Path) -> None:
    with Job(space, max_step="2400", checkpoint_interval="300") as job:
        job.saved()
        others = job.pids("server|trainer-0")
        job.kill("trainer-1-0")
        job.until(r"trainer 0 was killed by signal SIGKILL.*; it is started again at step \d+", 10)
        job.pids()
        assert all(map(alive, others))
        text = job.end(0)
    assert "attempt" not in text and "saved in" in text


@pytest.mark.slow
def test_after_the_loss_of_a_server_the_job_goes_on_from_the_last_checkpoint_of_all(space: Path) -> None:
    with Job(space, max_step="2400", checkpoint_interval="300") as job:
        job.saved(2)
        job.kill("server-1")
        job.until(r"machine_1 .*server 0 was killed by signal SIGKILL.*; attempt 2 of 4 follows", 10)
        line = job.until(r"resumed .* at step \d+ of 2400")
        job.pids()
        job.end(0)
    assert int(re.findall(r"at step (\d+)", line)[0]) % 300 == 0
    assert len(list((space / "ckpts").iterdir())) == 1
    manifest = json.loads((trained(space) / "machine_1" / "ckpt-2400" / "manifest.json").read_text())
    assert manifest["meta"]["stamp"].endswith(":1")


@pytest.mark.slow
def test_a_machine_that_is_lost_for_good_ends_the_job_by_name(space: Path) -> None:
    """Its checkpoint is one that nobody has asked for by its step: the clock has."""
    with Job(space, max_restarts="0", max_step="100000", checkpoint_interval="0.001m") as job:
        job.saved()
        job.kill("agent")
        text = job.end(3, 30)
    assert re.search(r"error: machine_[01] \(127.0.0.1\): its agent was killed by signal SIGKILL.*--resume TransE_l2_toy_0", text)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)])
def test_nothing_outlives_the_launcher(space: Path, how: signal.Signals) -> None:
    """Killed: the agents see the end of their input. Frozen, as behind a cut network: their lease runs out."""
    with Job(space, peer_timeout="3", **LONG) as job:
        job.saved()
        assert len(job.pids("agent")) == 2 and len(job.pids("server|trainer")) == 4
        os.kill(job.process.pid, how)
        job.gone(20)


@pytest.mark.slow
def test_ctrl_c_saves_and_the_run_can_go_on(space: Path) -> None:
    with Job(space, **LONG) as job:
        job.saved()
        job.process.send_signal(signal.SIGINT)
        text = job.end(130, 30)
    assert "go on with: kgdist-dist-train --resume TransE_l2_toy_0" in text
    step = int(re.findall(r"interrupted at step (\d+)", text)[0])
    with Job(space, "--resume", "TransE_l2_toy_0", max_step=str(step + 100)) as job:
        text = job.end(0)
    assert f"resumed ckpts/TransE_l2_toy_0 on the first machine at step {step} of {step + 100}" in text


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_at_once(space: Path) -> None:
    with Job(space, **LONG) as job:
        job.saved()
        for trainer in job.pids("trainer"):
            os.kill(trainer, signal.SIGSTOP)  # so that the first one cannot be carried out
        job.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        job.process.send_signal(signal.SIGINT)
        job.end(130, 20)


@pytest.mark.slow
def test_all_problems_are_told_before_anything_starts(space: Path, toy: Path, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (space / "ip_config.txt").write_text(f"127.0.0.1 {port} 1\n192.0.2.1 30050 1\n")
        with Job(space, **LONG) as job:
            text = job.end(2, 60)
    assert f"machine_0 (127.0.0.1): 127.0.0.1:{port} is in use (pid {os.getpid()})" in text
    assert "machine_1 (192.0.2.1): 192.0.2.1: is not an address of this machine" in text
    assert "(2 problems; nothing was started)" in text and not (space / "ckpts" / "TransE_l2_toy_0").exists()


@pytest.mark.slow
def test_another_graph_is_refused(space: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = workspace(tmp_path_factory.mktemp("other"), parts=2)
    (space / "data").unlink()
    (space / "data" / "toy").mkdir(parents=True)
    (space / "data" / "toy" / "partition_0").symlink_to(other / "data" / "toy" / "partition_0")
    words = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(other / "data"), "--data_files"]
    files = [str(other / "data" / "toy" / f"{split}.tsv") for split in ("train", "valid", "test")]
    made = run(command("partition", *words, *files, "-k", "2", "--method", "random", "--out", str(other / "more")), other)
    assert made.returncode == 0, made.stderr
    (space / "data" / "toy" / "partition_1").symlink_to(other / "more" / "partition_1")
    with Job(space, **LONG) as job:
        text = job.end(2, 60)
    assert "partition 1 of graph" in text and "send it again with --copy" in text


@pytest.mark.long
def test_a_training_that_diverges_is_not_tried_again(space: Path) -> None:
    with Job(space, lr="1e30", optimizer="sgd", max_step="200") as job:
        text = job.end(1, 60)
    assert re.search(r"error: machine_[01] .*: trainer 0 failed: ", text) and "attempt" not in text
