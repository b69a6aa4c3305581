"""A checkpoint of several machines is taken only under the partitions and the options that give its rows their meaning."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kgdist.base.errors import OptionError
from kgdist.base.files import write_json
from kgdist.options.config import Config
from kgdist.options.configfile import run_json
from kgdist.partition.book import Book
from kgdist.runs.rundir import resume_command
from kgdist.runtime import checks
from kgdist.runtime.agent.shard import Shard
from kgdist.runtime.cluster import launch
from kgdist.runtime.cluster.training_plan import TrainingPlan
from kgdist.runtime.ip_config import Machine

BOOK = Book(np.array([0, 3, 7]), np.array([0, 1, 2]))
MACHINES = [Machine("127.0.0.1", 30050 + n, 1, n) for n in range(2)]
ROTATE = {"model_name": "RotatE", "hidden_dim": 4, "double_ent": True, "gamma": 12.0}
Change = dict[str, Any]


def planned(root: Path, graph: str = "a" * 64, **options: Any) -> TrainingPlan:
    """Of two machines."""
    config = Config(path=str(root), **{**ROTATE, **options})
    return TrainingPlan(config, MACHINES, "job", 0, graph, BOOK, 10)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A workspace in which the second machine has two checkpoints of the run `run`."""
    shard = Shard(planned(tmp_path), 1)
    shard.fill("run", None)
    for step in (100, 200):
        shard.save("run", step, {"best": {}}, best=False)
    shard.close()
    return tmp_path


def place(root: Path, step: int) -> Path:
    """One of these checkpoints."""
    return root / "ckpts" / "run" / "machine_1" / f"ckpt-{step}"


def test_the_same_partitions_and_options_are_taken_and_so_are_changes_that_mean_nothing(saved: Path) -> None:
    harmless: list[Change] = [{}, {"lr": 0.5}, {"num_proc": 3}, {"max_step": 9}, {"regularization_coef": 0.1}, {"gamma": 12}]
    for options in harmless:
        assert checks._resumed(planned(saved, resume="run", **options), 1) == []
    assert checks._resumed(planned(saved, resume="run"), 0) == []  # has none; that is said by `Saved.find`
    assert checks._resumed(planned(saved, "b" * 64), 1) == []  # a new run


@pytest.mark.parametrize("copied", [True, False])
def test_rows_of_another_partition_are_refused_before_the_partition_is_sent(saved: Path, copied: bool) -> None:
    lines = checks.problems(planned(saved, "b" * 64, resume="run"), 1, copied=copied)
    (line,) = [line for line in lines if line.startswith("--resume")]
    assert line.startswith(f"--resume: {place(saved, 200)} was trained on another partition of the data (graph aaaaaaaaaaaa, ")
    assert line.endswith("this one is bbbbbbbbbbbb); put the partitions back that it was made with, or train again")


CHANGES: list[tuple[Change, str]] = [
    ({"gamma": 2.0}, "--gamma 12.0, not 2.0"),
    ({"hidden_dim": 8}, "--hidden_dim 4, not 8"),
    ({"model_name": "TransE_l2"}, "--model_name RotatE, not TransE_l2"),
    ({"double_ent": False}, "--double_ent True, not False"),
    ({"optimizer": "sgd"}, "--optimizer adagrad_row, not sgd"),
]


@pytest.mark.parametrize(("options", "words"), CHANGES)
def test_options_that_give_rows_another_meaning_are_refused_on_the_machine(saved: Path, options: Change, words: str) -> None:
    line = f"--resume: {place(saved, 200)} was trained with {words}"
    assert checks._resumed(planned(saved, resume="run", **options), 1) == [line]


@pytest.mark.parametrize(("options", "words"), CHANGES)
def test_and_by_the_launcher_where_it_can_read_the_run(tmp_path: Path, options: Change, words: str) -> None:
    folder = tmp_path / "ckpts" / "run"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", run_json(planned(tmp_path).config, version="0"))
    partition: Any = SimpleNamespace(book=BOOK, name="toy", splits={"train": [0]})
    checks.check_job(planned(tmp_path, resume="run", lr=0.5).config, MACHINES, partition)
    other = planned(tmp_path, resume="run", **options).config
    with pytest.raises(OptionError, match=f"^--resume: {folder} was trained with {words}$"):
        checks.check_job(other, MACHINES, partition)
    checks.check_job(other.replace(resume=None), MACHINES, partition)
    (folder / "config.json").unlink()
    checks.check_job(other, MACHINES, partition)


@pytest.mark.parametrize("elsewhere", ["runs", "deep/runs"])
def test_a_run_in_another_folder_is_resumed_by_its_path(tmp_path: Path, elsewhere: str) -> None:
    config = planned(tmp_path, save_path=elsewhere).config
    folder = tmp_path / elsewhere / "run"
    folder.mkdir(parents=True)
    write_json(folder / "config.json", run_json(config, version="0"))
    command = resume_command("kgdist-dist-train", "run", config)
    assert f"--resume {elsewhere}/run" in command and "--save_path" not in command
    found = launch.resumed(planned(tmp_path, resume=f"{elsewhere}/run").config, lambda saved: saved.replace(lr=0.7))
    assert (found.resume, found.save_path, found.lr) == ("run", elsewhere, 0.7)


def test_a_damaged_one_does_not_hide_what_the_one_before_is_of(saved: Path) -> None:
    (place(saved, 200) / "entity.npy").write_bytes(b"")
    (line,) = checks._resumed(planned(saved, "b" * 64, resume="run"), 1)
    assert f"{place(saved, 100)} was trained on another partition" in line


def test_one_that_is_to_be_put_back_is_asked_as_well(saved: Path) -> None:
    shutil.rmtree(place(saved, 100))
    place(saved, 200).rename(left := place(saved, 200).with_name(f".ckpt-200.{os.getpid()}-1-0123abcd.old"))
    (line,) = checks._resumed(planned(saved, "b" * 64, resume="run"), 1)
    assert line.startswith(f"--resume: {left} was trained on another partition")
    with closing(Shard(planned(saved, resume="run"), 1)) as whole:
        assert [found[0] for found in whole.checkpoints("run")] == [200]


def forget(manifest: Path) -> None:
    """Let it be as before checkpoints said what they are of."""
    value = json.loads(manifest.read_text())
    del value["meta"]["graph"], value["meta"]["options"]
    manifest.write_text(json.dumps({name: value[name] for name in ("format", "step", "files", "meta")}))


def test_one_of_an_older_kgdist_is_taken_and_that_is_said(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    plan = planned(saved, resume="run")
    with closing(Shard(plan, 1)) as whole:
        assert [found[0] for found in whole.checkpoints("run")] == [200, 100] and not caplog.messages
    for step in (100, 200):
        forget(place(saved, step) / "manifest.json")
    assert checks._resumed(dataclasses.replace(plan, graph="b" * 64), 1) == []
    with closing(Shard(plan, 1)) as older:
        assert [found[0] for found in older.checkpoints("run")] == [200, 100]
    (message,) = caplog.messages
    assert message == f"{place(saved, 200)}: does not say what it was trained on (an older kgdist wrote it); it is taken"
