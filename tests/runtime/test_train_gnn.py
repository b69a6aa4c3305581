"""`kgdist.train_gnn` from Python: by a process that is alone, and by workers that torch.distributed lets find each other."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import kgdist
from kgdist.base.errors import PeersLost
from kgdist.cli import partition as partition_command
from kgdist.runs import checkpoint
from tests.faults.jobs import graph
from tests.patience import patience
from tests.training.test_peers import LIMIT, ends, start

FILES = ("train.tsv", "valid.tsv", "test.tsv")
SMALL: dict[str, Any] = {
    "dataset": "toy", "format": "raw_udd_hrt", "encoder": "sage", "model_name": "DistMult", "hidden_dim": 8, "encoder_dim": 8,
    "batch_size": 64, "neg_sample_size": 16, "lr": 0.1, "gamma": 8.0, "quiet": True,
}  # fmt: skip


@pytest.fixture
def space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with a small graph."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    graph(tmp_path / "data")
    return tmp_path


def of(space: Path, **more: Any) -> dict[str, Any]:
    """The options of a training of that graph."""
    return SMALL | {"data_path": str(space / "data"), "data_files": FILES} | more


def test_one_process_goes_on_with_what_it_is_called(space: Path) -> None:
    first = kgdist.train_gnn(of(space, max_step=6), run="one")
    other = kgdist.train_gnn(of(space, max_step=6), run="another")
    assert first.folder is not None and other.folder != first.folder
    again = kgdist.train_gnn(of(space, max_step=9), run="one")
    assert again.folder == first.folder and checkpoint.latest(first.folder).meta["steps"] == [9]
    assert kgdist.train_gnn(of(space, max_step=6)).folder not in (first.folder, other.folder)  # of no name: it begins anew


STARTED = """
import json, os, sys, time
import torch.distributed as dist
import kgdist
from kgdist.runtime import gnn, local

options, who, seconds = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
fresh, follower = local.fresh, gnn.Follower

def slow(made, name):
    def work(*given, **more):
        if who == name:
            print("busy", flush=True)
            time.sleep(seconds)
        return made(*given, **more)
    return work

local.fresh, gnn.Follower = slow(fresh, "first"), slow(follower, "second")
dist.barrier()
print("began", flush=True)
try:
    result = kgdist.train_gnn(options)
    print("ended", flush=True)
except kgdist.KgdistError as error:
    print(type(error).__name__, flush=True)
    os._exit(error.exit_code)
"""


@pytest.fixture
def parts(space: Path) -> dict[str, Any]:
    """The options of two workers of that graph."""
    words = ["--dataset", "toy", "--format", "raw_udd_hrt", "--data_path", str(space / "data"), "--data_files", *FILES, "--quiet"]
    assert partition_command.main([*words, "-k", "2", "--edges", "--out", str(space / "parts" / "toy")]) == 0
    given = {name: value for name, value in SMALL.items() if name != "format"}
    return given | {"path": str(space), "data_path": "parts", "max_step": 4, "save_path": str(space / "ckpts")}


def test_the_others_wait_while_the_first_worker_makes_its_rows(parts: dict[str, Any]) -> None:
    """However long it takes, for it lives."""
    limit = patience(4.0)
    processes = start(2, "-c", STARTED, json.dumps(parts | {"stall_timeout": limit}), "first", str(2.5 * limit))
    for code, said in ends(processes):
        assert code == 0, said


def test_one_that_hangs_at_the_start_is_missed(parts: dict[str, Any]) -> None:
    limit = patience(4.0)
    processes = start(2, "-c", STARTED, json.dumps(parts | {"stall_timeout": limit}), "second", "600")
    try:
        assert processes[1].stdout is not None
        assert [processes[1].stdout.readline() for _ in range(2)] == ["began\n", "busy\n"]
        begun = time.monotonic()
        said, errors = processes[0].communicate(timeout=LIMIT)
        assert processes[0].returncode == PeersLost.exit_code == 3 and said.endswith("PeersLost\n"), said + errors
        assert time.monotonic() - begun < 3 * limit + patience(20.0)
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=LIMIT)
