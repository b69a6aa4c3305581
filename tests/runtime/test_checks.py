"""What keeps a job from starting does not keep it from going on: ports and memory become free, and the disk holds checkpoints."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.base.errors import OptionError, UsageError
from kgdist.kvstore.places import SPARE
from kgdist.kvstore.shared_memory import SharedArray, huge_pages_refused
from kgdist.kvstore.tables import MemoryTables
from kgdist.options.config import Config
from kgdist.partition.book import Book
from kgdist.runtime import checks
from kgdist.runtime.checks import page_tables
from kgdist.runtime.cluster.training_plan import TrainingPlan
from kgdist.runtime.ip_config import Machine
from kgdist.runtime.processes.forkserver import environment
from tests.patience import patience


def plan(folder: Path, port: int = 30050, **options: object) -> TrainingPlan:
    """Of one machine, 4 MB of rows."""
    config = Config(path=str(folder), hidden_dim=1000, peer_timeout=5.0, **options)  # type: ignore[arg-type]
    return TrainingPlan(config, [Machine("127.0.0.1", port, 1, 0)], "run", 0, "", Book(np.array([0, 1000]), np.array([0, 1])), 1)


def test_a_port_that_is_becoming_free_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = plan(tmp_path, port)
        assert checks._freed(first, 0) == [f"127.0.0.1:{port} is in use (pid {os.getpid()})"]
        timer = threading.Timer(0.5, taken.close)
        timer.start()
        assert checks._freed(first.again(), 0) == []
        timer.join(timeout=5)


def test_the_disk_must_hold_what_a_run_will_write_and_a_begun_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 11_000_000)
    (line,) = checks._disk(plan(tmp_path), 0)
    assert line.startswith("--save_path ") and "11.0 MB are free, but the run may take 16.0 MB with" in line
    assert checks._disk(plan(tmp_path, resume="run"), 0) == []  # its checkpoints are there already
    assert checks._disk(plan(tmp_path).again(), 0) == []
    assert checks._disk(plan(tmp_path, no_save_emb=True), 0) == []
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 17_000_000)
    assert checks._disk(plan(tmp_path), 0) == []
    assert checks._disk(plan(tmp_path, valid=True), 0) != []


def test_a_run_on_this_machine_must_find_room_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = MemoryTables({"entity": torch.zeros(1000, 100)}, {"entity": {}}, "sgd")
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 1_100_000)
    with pytest.raises(UsageError, match=r"1\.1 MB are free, but the run may take 1\.2 MB with its checkpoints$"):
        checks.check_disk(Config(save_path=str(tmp_path)), tables)
    monkeypatch.setattr(checks, "free_bytes", lambda folder: 1_200_000)
    checks.check_disk(Config(save_path=str(tmp_path)), tables)


def test_a_partition_that_is_missing_is_told_once_with_what_brings_it(tmp_path: Path) -> None:
    for backend, advice in (("ssh", "; or send it with --copy"), ("manual", "; or copy it here")):
        (line,) = checks._partition(plan(tmp_path, backend=backend), 0)
        assert "partition_0" in line and line.endswith(advice)


def needed(root: Path, monkeypatch: pytest.MonkeyPatch, **options: object) -> float:
    """GB of memory that machine 0 says it needs for 40 GB of rows."""
    config = Config(path=str(root), hidden_dim=1000, optimizer="sgd", **options)  # type: ignore[arg-type]
    monkeypatch.setattr(checks, "free_memory", lambda: 1)
    machine = Machine("127.0.0.1", 30050, 3, 0)
    (line,) = checks._memory(TrainingPlan(config, [machine], "run", 0, "", Book(np.array([0, 10**7]), np.array([0, 1])), 1), 0)
    return float(line.removeprefix("needs about ").split()[0])


def test_every_process_needs_page_tables_for_the_rows_that_it_maps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.runtime.checks.mmap.PAGESIZE", 4096)
    few, many = (needed(tmp_path, monkeypatch, num_proc=count) for count in (1, 51))
    assert many - few == pytest.approx(50 * (40 * 8 / 4096 + 0.0786), abs=0.11)
    monkeypatch.setattr("kgdist.runtime.checks.huge_pages_refused", lambda shared: None)
    huge = needed(tmp_path, monkeypatch, num_proc=51, huge_pages=True)
    assert many - huge == pytest.approx(55 * 40 * 8 / 4096, abs=0.11)


MAPS = """
import json, re, sys
from kgdist.kvstore.places import SPARE
from kgdist.kvstore.shared_memory import SharedArray
def tables():
    return 1024 * int(re.search(r"VmPTE:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
before = tables()
array = SharedArray.attach(json.loads(sys.argv[1])).array
array[:: 4096 // array.itemsize] = 1  # each page, where the system does not enter all at once
print(tables() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="this system does not tell")
def test_page_tables_take_what_is_reckoned_and_no_more() -> None:
    size = 64 << 20
    tables = SharedArray.allocate((size // 4,), np.float32)
    try:
        words = [sys.executable, "-c", MAPS, json.dumps(tables.handle())]
        done = subprocess.run(
            words, stdout=subprocess.PIPE, check=True, timeout=patience(100), pass_fds=[tables.fd], env=environment(1)
        )
    finally:
        tables.close()
    reckoned = page_tables(size, 1, huge=False)
    assert int(done.stdout) <= reckoned + (64 << 10)
    if huge_pages_refused(shared=True) is not None:  # granted to all, they would need none
        assert int(done.stdout) >= reckoned


def test_several_processes_of_one_machine_need_them_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = {"entity": (10**6, 1000)}
    monkeypatch.setattr(checks, "free_memory", lambda: 4 * 10**9 + 10**8)
    for options in ({"num_proc": 1}, {"num_proc": 40, "worker": "thread"}, {"num_proc": 8}):
        checks.check_memory(Config(optimizer="sgd", **options), shapes)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"^--hidden_dim: the tables take 4\.3 GB and 4\.1 GB of memory are free"):
        checks.check_memory(Config(optimizer="sgd", num_proc=40), shapes)


def test_a_container_that_may_take_less_than_the_tables_is_refused_before_a_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes = {"entity": (1000, 1000)}
    monkeypatch.setattr("kgdist.base.machine.CGROUP", tmp_path)
    (tmp_path / "memory.current").write_text("1000000")
    (tmp_path / "memory.max").write_text("6000000")
    checks.check_memory(Config(optimizer="sgd"), shapes)
    (tmp_path / "memory.max").write_text("4000000")
    with pytest.raises(OptionError, match=r"^--hidden_dim: the tables take 4\.0 MB and 3\.0 MB of memory are free"):
        checks.check_memory(Config(optimizer="sgd"), shapes)
    config = Config(path=str(tmp_path), hidden_dim=1000, optimizer="sgd")
    book = Book(np.array([0, 1000]), np.array([0, 1]))
    (line,) = checks._memory(TrainingPlan(config, [Machine("127.0.0.1", 30050, 1, 0)], "run", 0, "", book, 1), 0)
    assert "3.0 MB are free" in line


@pytest.mark.parametrize(
    ("trainers", "update", "most"),
    [(1, "direct", 8), (3, "direct", 11), (60, "direct", 210), (1, "owner", 16), (3, "owner", 24)],
)
def test_more_connections_than_files_may_be_open_are_refused_with_the_number(
    trainers: int, update: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer asks one server of each machine; a server has its share of those elsewhere. By owner, all ask all."""
    machines = [Machine(f"127.0.0.{n + 1}", 30050, 2, n) for n in range(8)]
    made = TrainingPlan(
        Config(num_proc=trainers, local_update=update), machines, "run", 0, "", Book(np.arange(9), np.arange(9)), 80
    )
    assert made.connections(0) == most
    for limit, refused in ((most + SPARE, False), (most + SPARE - 1, True)):
        monkeypatch.setattr("kgdist.kvstore.places.resource.getrlimit", lambda _, limit=limit: (64, limit))
        found = checks._connections(made, 0)
        assert bool(found) is refused
        if refused:
            assert f"needs {most} connections in one process" in found[0] and f"raise it to {most + SPARE}" in found[0]
            with pytest.raises(OptionError, match=rf"machine_0 \(127.0.0.1\) would need {most} connections"):
                checks.check_connections(made)
        else:
            checks.check_connections(made)
