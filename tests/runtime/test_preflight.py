"""What keeps a job from starting does not keep it from going on: ports and memory become free, and the disk holds checkpoints."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import numpy as np
import pytest

from kgdist.config import Config
from kgdist.partition.book import Book
from kgdist.runtime import preflight
from kgdist.runtime.cluster import Machine
from kgdist.runtime.plan import Plan


def plan(folder: Path, port: int = 30050, **options: object) -> Plan:
    """Of one machine, 4 MB of rows."""
    config = Config(path=str(folder), hidden_dim=1000, peer_timeout=5.0, **options)  # type: ignore[arg-type]
    return Plan(config, [Machine("127.0.0.1", port, 1, 0)], "run", 0, "", Book(np.array([0, 1000]), np.array([0, 1])), 1)


def test_a_port_that_is_becoming_free_is_waited_for(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first = plan(tmp_path, port)
        assert preflight._freed(first, 0) == [f"127.0.0.1:{port} is in use (pid {os.getpid()})"]
        timer = threading.Timer(0.5, taken.close)
        timer.start()
        assert preflight._freed(first.again(), 0) == []
        timer.join(timeout=5)


def test_the_disk_must_hold_what_a_run_will_write_and_a_begun_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "free_bytes", lambda folder: 11_000_000)
    (line,) = preflight._disk(plan(tmp_path), 0)
    assert line.startswith("--save_path ") and "0.01 GB are free, but the run may take 0.02 GB with" in line
    assert preflight._disk(plan(tmp_path, resume="run"), 0) == []  # its checkpoints are there already
    assert preflight._disk(plan(tmp_path).again(), 0) == []
    assert preflight._disk(plan(tmp_path, no_save_emb=True), 0) == []
    monkeypatch.setattr(preflight, "free_bytes", lambda folder: 17_000_000)
    assert preflight._disk(plan(tmp_path), 0) == []
    assert preflight._disk(plan(tmp_path, valid=True), 0) != []
