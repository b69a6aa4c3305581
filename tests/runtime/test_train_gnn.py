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
from kgdist.options.presets import find
from kgdist.runs import checkpoint, rundir
from kgdist.runtime import told
from tests import own_models
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


OWN = """
import kgdist

@kgdist.register
class Gated(kgdist.Model):
    name = "Gated"
    compare = "dot"

    def query(self, anchor, relation, side):
        return anchor * relation.tanh()
"""


def test_options_mean_what_they_do_on_a_command_line(space: Path) -> None:
    (space / "own.py").write_text(OWN)
    with own_models.as_before():
        made = kgdist.train_gnn(of(space, max_step=3, model_file=space / "own.py", model_name="Gated"))
    assert made.folder is not None and made.folder.name == "Gated_toy_0"
    (space / "own.yaml").write_text("max_step: 5\nlr: 0.25\n")
    made = kgdist.train_gnn(of(space, config="own.yaml", lr=0.125, num_proc=3))
    assert made.folder is not None
    config = rundir.open_run(made.folder).config
    assert (config.max_step, config.lr, config.num_proc) == (5, 0.125, 1)
    again = kgdist.train_gnn({"resume": made.folder, "max_step": 8, "quiet": True})
    assert again.folder == made.folder and checkpoint.latest(made.folder).meta["steps"] == [8]
    assert rundir.open_run(made.folder).config.replace(max_step=5, config="own.yaml", resume=None) == config
    given = {"dataset": "FB15k-237", "preset": True, "max_step": 2}
    made = kgdist.train_gnn(
        {name: value for name, value in of(space, **given).items() if name not in PRESET} | {"encoder": "rgcn"}
    )
    assert made.folder is not None
    config = rundir.open_run(made.folder).config
    assert all(getattr(config, name) == value for name, value in find("DistMult", "FB15k-237", "rgcn").options.items())


PRESET = ("hidden_dim", "encoder_dim", "batch_size", "neg_sample_size", "lr", "gamma")


@pytest.mark.parametrize(("workers", "steps"), [(1, 2000), (4, 500)])
def test_a_presets_steps_are_divided(workers: int, steps: int) -> None:
    given = {"dataset": "FB15k-237", "model_name": "DistMult", "encoder": "relgnn", "preset": True, "num_client_proc": 7}
    assert told.understood(given, 0, workers).max_step == told.understood(given, workers - 1, workers).max_step == steps


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"report": True}, "--report: is of kgdist-train; kgdist.load(run).report() writes the page"),
        ({"encoder": "none"}, "--encoder_dim: goes with --encoder; name one, or drop it"),
        ({"edges": True}, "edges"),
        ({"model_file": "nowhere.py"}, "--model_file: "),
        ({"preset": True}, "--preset: there is none for DistMult behind sage on toy"),
        ({"resume": "nowhere"}, "nowhere: no such run folder"),
    ],
)
def test_what_cannot_be_is_refused_by_name(space: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(kgdist.KgdistError) as caught:
        kgdist.train_gnn(of(space, **more))
    assert said in str(caught.value) and caught.value.exit_code in (1, 2) and not (space / "ckpts").exists()
    with pytest.raises(kgdist.KgdistError, match="--encoder: name the graph encoder to train"):
        kgdist.train_gnn({"dataset": "toy"})


@pytest.mark.slow
def test_workers_do_as_the_first_one_is_told(parts: dict[str, Any]) -> None:
    """It alone may see the run that goes on; others may have been told something else."""
    folder = Path(parts["save_path"]) / "DistMult_toy_0"
    places = {name: parts[name] for name in ("path", "data_path", "dataset")}
    both = [
        {"resume": str(folder), "max_step": 9, **places},
        {"resume": "/nowhere/at/all", "lr": 7.0, "max_step": 1000, **places},
    ]
    for code, said in ends(start(2, "-c", STARTED, json.dumps([parts, both]), "nobody", "0")):
        assert code == 0, said
    assert checkpoint.latest(folder).meta["steps"] == [9] and rundir.open_run(folder).config.lr == parts["lr"]


STARTED = """
import json, os, sys, time
import torch.distributed as dist
import kgdist
from kgdist.runtime import gnn, local

given, who, seconds = json.loads(sys.argv[1]), sys.argv[2], float(sys.argv[3])
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
    for options in given:  # of each training, the same for all or a list of theirs
        kgdist.train_gnn(options[rank] if isinstance(options, list) else options)
    print("ended", flush=True)
except kgdist.KgdistError as error:
    print(error, file=sys.stderr)
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


@pytest.mark.long
def test_the_others_wait_while_the_first_worker_makes_its_rows(parts: dict[str, Any]) -> None:
    """However long it takes, for it lives."""
    limit = patience(4.0)
    processes = start(2, "-c", STARTED, json.dumps([parts | {"stall_timeout": limit}]), "first", str(1.5 * limit))
    for code, said in ends(processes):
        assert code == 0, said


@pytest.mark.long
def test_one_that_hangs_at_the_start_is_missed(parts: dict[str, Any]) -> None:
    limit = patience(4.0)
    processes = start(2, "-c", STARTED, json.dumps([parts | {"stall_timeout": limit}]), "second", "600")
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
