"""Training processes as their owner sees them: real ones, run from this process."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from kgdist import checkpoint
from kgdist.cli import train as train_command
from kgdist.config import Config
from kgdist.errors import KgdistError, WorkerError
from kgdist.runtime import workers
from kgdist.runtime.workers import Workers
from tests.faults.commands import FOREVER, children, train_flags


def test_two_processes_train_validate_save_and_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "--num_proc 2 --rel_part --force_sync_interval 5 --valid --eval_interval 20 --checkpoint_interval 10 --max_step 40"
    descriptors = len(os.listdir("/proc/self/fd"))
    assert train_command.main(train_flags(tmp_path, *words.split(), "--test")) == 0
    out = capsys.readouterr().out
    assert all(f"[proc {rank}][Train](40/40) average loss" in out for rank in (0, 1))
    run = tmp_path / "ckpts" / "TransE_l2_toy_0"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "valid"] == [20, 40]
    assert any(row["kind"] == "train" for row in rows) and rows[-1]["kind"] == "test"
    assert [step for step, _ in checkpoint.numbered(run)] == [40, 30]

    # One process has done all its steps, the other one has still to come to a meeting (10 and 5 divide 50).
    manifest = run / "ckpt-40" / "manifest.json"
    saved = json.loads(manifest.read_text())
    saved["meta"]["steps"] = [50, 40]
    manifest.write_text(json.dumps(saved))
    assert train_command.main(["--resume", str(run), "--max_step", "50"]) == 0
    assert checkpoint.latest(run).meta["steps"] == [50, 50]
    assert train_command.main(["--resume", str(run), "--max_step", "110", "--num_proc", "1"]) == 0
    assert checkpoint.latest(run).meta["steps"] == [110]  # one process stands for the steps of two
    assert children(os.getpid()) == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # libraries may open a file of their own


def test_a_loss_that_diverges_ends_the_run(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert train_command.main(train_flags(tmp_path, *f"--num_proc 2 --lr 1e38 --max_step {FOREVER}".split())) == 1
    err = capfd.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "of 2 failed: the loss became" in line and "Traceback" not in err and "Fatal Python" not in err


def outcome(job: dict[str, Any]) -> str:
    """What `watch` raises on this job of one process."""
    owned = Workers(1, {"threads": 1, "tables": {}, "start": [0], **job}, [], threads=1)
    try:
        with pytest.raises(KgdistError) as caught:
            owned.watch(lambda step: None, lambda shared: None, print)
    finally:
        owned.close()
    assert owned.processes[0].returncode is not None
    return str(caught.value)


def test_what_a_process_raises_is_told(caplog: pytest.LogCaptureFixture) -> None:
    assert "process 0 of 1 failed: KeyError: 'config'" in outcome({})


def test_a_process_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "STALL", 0.5)
    monkeypatch.setattr(workers, "GRACE", 0.5)
    owned = Workers(1, {"threads": 1}, [], threads=1)
    try:
        os.kill(owned.pids()[0], signal.SIGSTOP)
        with pytest.raises(WorkerError, match="process 0 of 1 has made no step for"):
            owned.watch(lambda step: None, lambda shared: None, print)
    finally:
        owned.close()
    assert owned.processes[0].returncode == -signal.SIGKILL


def test_the_options_of_a_job_survive_json() -> None:
    config = Config()
    assert Config(**json.loads(json.dumps(dataclasses.asdict(config)))).replace(data_files=config.data_files) == config
