"""Workers as their owner sees them: real processes and threads, run from this process."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.base.errors import WorkerError
from kgdist.cli import train as train_command
from kgdist.kvstore.shared_memory import private_array
from kgdist.options.config import Config
from kgdist.runs import checkpoint
from kgdist.runtime.processes.child import Event
from kgdist.runtime.processes.control import SharedControl
from kgdist.runtime.processes.workers import Crew, Processes, Threads, Workers
from tests.family import descendants
from tests.faults.commands import FOREVER, LIMIT, train_flags

KINDS = ("process", "thread")


@pytest.mark.parametrize(
    "workers",
    [
        pytest.param(("--num_proc", "2", "--worker", "process"), marks=pytest.mark.slow),
        ("--num_proc", "2", "--worker", "thread"),
        (),
    ],
)
def test_the_tables_go_with_the_training(workers: tuple[str, ...], tmp_path: Path) -> None:
    """At once, not when Python happens to look for circles of objects: they may be most of the machine's memory."""
    flags = train_flags(tmp_path, *workers, "--max_step", "20", "--checkpoint_interval", "10", "--quiet")
    held: list[weakref.ref[np.ndarray]] = []

    def remembered(*words: Any, **more: Any) -> np.ndarray:
        array = private_array(*words, **more)
        held.append(weakref.ref(array))
        return array

    gc.collect()
    gc.disable()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("kgdist.kvstore.tables.private_array", remembered)
            assert train_command.main(flags) == 0
        assert (held or "process" in workers) and not [found for found in held if found() is not None]
        assert not [link for link in map(_target, os.listdir("/proc/self/fd")) if "memfd:kgdist" in link]
    finally:
        gc.enable()


def _target(descriptor: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


@pytest.mark.parametrize("worker", KINDS)
def test_two_workers_train_validate_save_and_go_on(worker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--num_proc 2 --worker {worker} --rel_part --force_sync_interval 5 "
    words += "--valid --eval_interval 20 --checkpoint_interval 10 --max_step 40"
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
    del saved["digest"]
    saved["meta"]["steps"] = [50, 40]
    manifest.write_text(json.dumps(saved))
    assert train_command.main(["--resume", str(run), "--max_step", "50"]) == 0
    assert checkpoint.latest(run).meta["steps"] == [50, 50]
    assert train_command.main(["--resume", str(run), "--max_step", "110", "--num_proc", "1"]) == 0
    assert checkpoint.latest(run).meta["steps"] == [110]  # one process stands for the steps of two
    assert descendants(os.getpid()) == []
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2  # libraries may open a file of their own


@pytest.mark.parametrize("worker", [pytest.param("process", marks=pytest.mark.slow), "thread"])
def test_a_loss_that_diverges_ends_the_run(worker: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert (
        train_command.main(train_flags(tmp_path, *f"--num_proc 2 --worker {worker} --lr 1e38 --max_step {FOREVER}".split())) == 1
    )
    err = capfd.readouterr().err
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "of 2 failed: the loss became" in line and "Traceback" not in err and "Fatal Python" not in err


@contextlib.contextmanager
def owned(crew: Crew) -> Iterator[Workers]:
    """`crew`, of one worker, at work."""
    made = Workers(crew, SharedControl.create(1))
    try:
        made.begin([0])
        yield made
    finally:
        made.close()


def watched(workers: Workers) -> None:
    workers.watch(lambda step: None, lambda shared: None, print)


def processes(job: dict[str, Any]) -> Processes:
    return Processes(1, job, [], threads=1)


def test_what_a_process_raises_is_told(caplog: pytest.LogCaptureFixture) -> None:
    crew = processes({"role": "share"})
    with owned(crew) as workers, pytest.raises(WorkerError, match="process 0 of 1 failed: KeyError: 'config'"):
        watched(workers)
    assert crew.children[0].code is not None
    assert any("Traceback" in record.message for record in caplog.records)


def test_what_a_thread_raises_is_told(caplog: pytest.LogCaptureFixture) -> None:
    crew = Threads(1, lambda rank, say: {0: 7}[rank + 1])
    with owned(crew) as workers, pytest.raises(WorkerError, match="thread 0 of 1 failed: KeyError: 1"):
        watched(workers)
    assert any("Traceback" in record.message for record in caplog.records)


def test_what_threads_say_and_do_is_passed_on() -> None:
    said: list[str] = []

    def work(rank: int, say: Callable[[str], None]) -> int:
        say(f"{rank} speaks")
        return 10 + rank

    made = Workers(Threads(3, work), SharedControl.create(3))
    made.begin([1, 2, 3])
    try:
        assert made.steps() == [1, 2, 3]
        made.watch(lambda step: None, lambda shared: None, said.append)
        assert made.done == {0: 10, 1: 11, 2: 12}
    finally:
        made.close()
        made.close()
    assert sorted(said) == ["0 speaks", "1 speaks", "2 speaks"]


def test_a_process_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.runtime.processes.workers.STALL", 0.5)
    monkeypatch.setattr("kgdist.runtime.processes.workers.GRACE", 0.5)
    crew = processes({"role": "share"})
    with owned(crew) as workers:
        os.kill(crew.pids()[0], signal.SIGSTOP)
        with pytest.raises(WorkerError, match="process 0 of 1 has made no step for"):
            watched(workers)
    assert crew.children[0].code == -signal.SIGKILL


def test_of_those_that_are_lost_at_once_the_first_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the process that has forked them, which may go when the first has been asked already."""
    crew = Processes(2, {"role": "share"}, [], threads=1)
    first, second = crew.children
    said = second.events

    def late() -> Iterator[Event]:
        monkeypatch.undo()
        os.kill(crew.pids()[-1], signal.SIGKILL)
        assert first.wait(LIMIT) and second.wait(LIMIT)
        return said()

    try:
        monkeypatch.setattr(second, "events", late)
        lost = {"lost": "was killed by signal SIGKILL; the system may have run out of memory"}
        assert crew.events(0.0) == [(0, lost), (1, lost)]
    finally:
        crew.close()


def test_a_thread_that_stands_still_is_found(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("kgdist.runtime.processes.workers.STALL", 0.3)
    monkeypatch.setattr("kgdist.runtime.processes.workers.THREAD_GRACE", 0.1)
    ended = threading.Event()
    crew = Threads(1, lambda rank, say: int(ended.wait(30)))
    with owned(crew) as workers, pytest.raises(WorkerError, match="thread 0 of 1 has made no step for"):
        watched(workers)
    assert "threading.py" in capfd.readouterr().err  # where it stands
    ended.set()


def test_a_worker_finds_kgdist_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kgdist.py").write_text("raise SystemExit(7)")
    (tmp_path / "torch.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with owned(processes({"role": "share"})) as workers, pytest.raises(WorkerError, match="KeyError: 'config'"):
        watched(workers)


def test_the_options_of_a_job_survive_json() -> None:
    config = Config()
    assert Config(**json.loads(json.dumps(dataclasses.asdict(config)))).replace(data_files=config.data_files) == config
