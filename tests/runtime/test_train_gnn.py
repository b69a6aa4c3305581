"""`kgdist.train_gnn` from Python: by a process that is alone, and by workers that torch.distributed lets find each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kgdist
from kgdist.runs import checkpoint
from tests.faults.jobs import graph

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
