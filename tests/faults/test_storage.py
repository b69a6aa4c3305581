"""Jobs whose machines keep nothing: partitions come from the storage, checkpoints go there, and another machine goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

from kgdist.cli.copy import main as copy
from kgdist.cli.dist_train import main as dist_train
from kgdist.runs import checkpoint
from tests.faults.jobs import Job, command, ip_config, run, wait

pytestmark = pytest.mark.timeout(240)


def empty(folder: Path) -> Path:
    """A workspace of machines that have nothing yet."""
    folder.mkdir()
    ip_config(folder, parts=2)
    return folder


def kinds(file: Path) -> list[tuple[str, int]]:
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row["kind"], row["step"]) for row in rows if row["kind"] == "valid"]


@pytest.mark.long
def test_a_run_goes_on_where_nothing_of_it_is(space: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    usual = {"storage": str(shared), "checkpoint_interval": "100", "eval_interval": "100", "max_step": "200"}
    with Job(space, "--copy", "--valid", **usual) as job:
        text = job.end(0)
    assert f"kept in {shared}/runs/TransE_l2_toy_0" in text
    assert text.count(", sent\n") == 2
    kept = shared / "runs" / "TransE_l2_toy_0"
    here = space / "ckpts" / "TransE_l2_toy_0"
    for name in ("toy_TransE_l2_entity.npy", "entities.tsv", "config.json", "metrics.jsonl", "valid.json"):
        assert (kept / name).read_bytes() == (here / name).read_bytes()
    assert {path.name for path in (kept / "machine_1").iterdir()} == {path.name for path in (here / "machine_1").iterdir()}

    there = empty(tmp_path / "there")
    words = {"resume": "TransE_l2_toy_0", "storage": str(shared), "max_step": "400", "test": ""}
    flags = [text for name, value in words.items() for text in (f"--{name}", *([value] if value else []))]
    (space / "data").rename(space / "gone")  # the run knows it as where its partitions were
    done = run(command("dist_train", "--backend", "local", "--path", str(there), *flags), there)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (space / "data").exists()
    assert "at step 200 of 400" in done.stdout and "Test average MRR" in done.stdout
    assert (there / "data" / "toy" / "partition_1" / "partition.json").exists()
    assert kinds(kept / "metrics.jsonl") == [("valid", step) for step in (100, 200, 300, 400)]
    assert json.loads((kept / "test.json").read_text()) == json.loads(
        (there / "ckpts" / "TransE_l2_toy_0" / "test.json").read_text()
    )
    rows = np.load(kept / "toy_TransE_l2_entity.npy", allow_pickle=False)
    assert not np.array_equal(rows, np.load(here / "toy_TransE_l2_entity.npy", allow_pickle=False))

    wrong = ["--path", str(there), "--resume", "TransE_l2_toy_7", "--storage", str(shared)]
    done = run(command("dist_train", "--backend", "local", *wrong), there)
    assert done.returncode == 2 and "TransE_l2_toy_7: no such run in " in done.stderr, done.stderr
    assert f"nor in {shared}/runs (there: TransE_l2_toy_0)" in done.stderr

    damaged = there / "ckpts" / "TransE_l2_toy_0" / "machine_1" / "ckpt-400" / "entity.npy"
    raw = bytearray(damaged.read_bytes())
    raw[-1] ^= 1
    damaged.write_bytes(raw)
    words = {"resume": "TransE_l2_toy_0", "max_step": "410"}  # what the run was told it still knows
    flags = [text for name, value in words.items() for text in (f"--{name}", value)]
    done = run(command("dist_train", "--backend", "local", "--path", str(there), "--data_path", "data", *flags), there)
    assert "it is fetched again" in done.stderr and "at step 400 of 410" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 0 and f"kept in {shared}/runs/TransE_l2_toy_0" in done.stdout, done.stdout + done.stderr

    with Job(
        empty(tmp_path / "third"), **usual | {"max_step": "10"}
    ) as job:  # a new run, whose name is not taken from the old one
        assert "TransE_l2_toy_1" in job.end(0)


@pytest.mark.long
def test_another_machine_takes_a_place_over(space: Path, tmp_path: Path) -> None:
    """All that a machine had is gone with it: its partition and its checkpoints."""
    shared = tmp_path / "shared"
    words = {"storage": str(shared), "checkpoint_interval": "200", "max_step": "2500", "peer_timeout": "4"}
    with Job(space, "--copy", **words) as job:
        wait(lambda: len(list(shared.glob("runs/*/machine_*/ckpt-*/manifest.json"))) > 2, 60, job)
        os.kill(job.agent(1), signal.SIGSTOP)
        shutil.rmtree(space / "ckpts" / "TransE_l2_toy_0" / "machine_1")
        shutil.rmtree(space / "data" / "toy" / "partition_1")
        job.until("attempt 2 of")
        line = job.until(r"resumed .* at step \d+ of 2500")
        assert int(line.split("at step ")[1].split()[0]) % 200 == 0
        job.end(0)
    assert any("machine_1" in line and f"fetched from {shared}/partitions/toy/partition_1" in line for line in job.lines)
    assert any("machine_1" in line and f"fetched from {shared}/runs/" in line for line in job.lines)
    newest = checkpoint.numbered(space / "ckpts" / "TransE_l2_toy_0" / "machine_1")[0][1]
    checkpoint.load(shared / "runs" / "TransE_l2_toy_0" / "machine_1" / newest.name)


AGAIN = "from kgdist.runtime import course; course.AGAIN, course.PATIENCE = 0.5, {}"


@pytest.mark.long
@pytest.mark.parametrize("back", [True, False])
def test_what_cannot_be_sent_is_tried_again(space: Path, tmp_path: Path, back: bool) -> None:
    """Training goes on, as with a disk that is full; and at its end it waits, and says what it gives up."""
    shared = tmp_path / "shared"
    words = {"storage": str(shared), "checkpoint_interval": "500", "max_step": "1500"}
    with Job(space, "--copy", before=AGAIN.format(60 if back else 1), **words) as job:
        wait(lambda: list(shared.glob("runs/*/machine_1/ckpt-*/manifest.json")), 60, job)
        shutil.rmtree(shared / "runs")
        (shared / "runs").write_text("no folder any more")
        job.until("WARNING: .*--storage .*; training goes on")
        job.until("the embeddings are kept in memory: another try in 0.5 s")
        if back:
            (shared / "runs").unlink()
        text = job.end(0 if back else 1)
    kept = shared / "runs" / "TransE_l2_toy_0"
    if back:
        assert (kept / "toy_TransE_l2_entity.npy").exists()
        for machine in (0, 1):
            checkpoint.load(kept / f"machine_{machine}" / "ckpt-1500")
    else:
        last = text.splitlines()[-1]
        assert last.startswith("error: machine_") and f"--storage {shared}/runs/TransE_l2_toy_0" in last
        assert "the checkpoint of step 1500 lies on the machines, and could not be sent to the storage; go on with: " in last
        (shared / "runs").unlink()
        words = ["--path", str(space), "--resume", "TransE_l2_toy_0", "--storage", str(shared), "--max_step", "1600"]
        done = run(command("dist_train", "--backend", "local", *words), space)
        assert done.returncode == 0 and "at step 1500 of 1600" in done.stdout, done.stdout + done.stderr


def test_nothing_there(space: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither for the launcher, nor for one of the machines."""
    there = empty(tmp_path / "there")
    flags = ["--backend", "local", "--ip_config", str(there / "ip_config.txt"), "--model_name", "TransE_l2", "--max_step", "10"]
    words = ["--path", str(there), "--data_path", "data", "--dataset", "toy", "--storage", str(tmp_path / "shared"), *flags]
    assert dist_train(words) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("partitions/toy/partition_0/partition.json: is not there; send the partitions there with --copy")
    assert copy(["--data_path", str(space / "data"), "--dataset", "toy", "--storage", str(tmp_path / "shared"), "--dry_run"]) == 0
    assert not (tmp_path / "shared").exists() and "would be sent to" in capsys.readouterr().out
    assert copy(["--data_path", str(space / "data"), "--dataset", "toy", "--storage", str(tmp_path / "shared")]) == 0
    shutil.rmtree(tmp_path / "shared" / "partitions" / "toy" / "partition_1")
    assert dist_train(words) == 2
    captured = capsys.readouterr()
    assert "partition_1/partition.json: is not there" in captured.err + captured.out
    assert not (there / "ckpts").exists()
