"""What is made of workers that fail under Ray Train, and what it keeps of a run: nothing here needs Ray."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from kgdist.base.errors import Diverged, KgdistError, OptionError, PeersLost, UsageError
from kgdist.runs import checkpoint
from kgdist.runs.rundir import JOB
from kgdist.runtime.ray_train import Failures, _restore, _stage


class Gone(Exception):
    """As Ray tells of a worker that has ended."""

    __module__ = "ray.train.v2._internal.exceptions"

    def __init__(self, *, preempted: bool = False) -> None:
        super().__init__("a health check failed\nand more")
        self.health_check_failure = RuntimeError("The actor died.\n and more")
        self.health_check_failure.preempted = preempted  # type: ignore[attr-defined]


MISSES = PeersLost("another worker has ended")


def test_workers_that_are_lost_begin_again_until_it_is_too_often() -> None:
    failures = Failures(2)
    said = "worker 1 was lost (The actor died.); all begin again"
    assert failures.failed({0: MISSES, 1: Gone()}) == f"{said}, attempt 2 of 3"
    failures.saved(40)
    assert failures.failed({1: Gone()}) == f"{said} at the checkpoint of step 40, attempt 3 of 4"
    assert failures.failed({1: Gone()}, 45) == f"{said} at the checkpoint of step 45, attempt 4 of 4"
    with pytest.raises(PeersLost, match=r"worker 0 misses another one \(another worker has ended\), after 4 attempts"):
        failures.failed({0: MISSES})


@pytest.mark.parametrize(
    ("error", "kind", "line"),
    [
        (OptionError("--attributes", "is no folder"), UsageError, "worker 1: --attributes: is no folder"),
        (Diverged("the loss is not a number"), KgdistError, "worker 1: the loss is not a number"),
        (ValueError("too bad\nfor words"), KgdistError, "worker 1: ValueError: too bad"),
    ],
)
def test_what_another_attempt_does_not_mend_ends_the_training(error: Exception, kind: type[KgdistError], line: str) -> None:
    failures = Failures(3)
    with pytest.raises(kind) as raised:
        failures.failed({0: MISSES, 1: error})
    assert type(raised.value) is kind and str(raised.value) == line
    assert "all begin again" in failures.failed({0: Gone(), 1: error}), "it may come of the worker that is gone"


def test_nodes_that_are_taken_back_count_for_nothing() -> None:
    failures = Failures(0)
    assert failures.failed({1: Gone(preempted=True)}).endswith("all begin again")
    assert not failures.failed({1: Gone(preempted=True)}), "Ray Train tells until all workers of the node have ended"
    with pytest.raises(PeersLost):
        failures.failed({1: Gone()})


def run_of(folder: Path, step: int, best: int) -> Path:
    """A run folder that has come so far; its best rows are all of the number `best`."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder, step, {"entity": np.full((3, 2), step, np.float32)}, {})
    checkpoint.save(folder, best, {"entity": np.full((3, 2), best, np.float32)}, {"mrr": best / 1000}, name="best")
    (folder / JOB).write_text(json.dumps({"run": "one"}))
    (folder / "metrics.jsonl").write_text(f"{step}\n")
    (folder / "toy_DistMult_entity.npy").write_bytes(b"of an end that was not the last one")
    return folder


@pytest.mark.parametrize(("before", "goes_on"), [(None, 80), (40, 80), (80, 80), (120, 120)])
def test_a_worker_elsewhere_has_the_run_with_its_best_rows(tmp_path: Path, before: int | None, goes_on: int) -> None:
    """From what Ray Train keeps, unless the run has come as far where the worker is."""
    run = run_of(tmp_path / "here" / "run_0", 80, 60)
    _stage(run, 80, tmp_path / "kept" / run.name)
    rows = run / "ckpt-80" / "entity.npy"
    assert rows.samefile(tmp_path / "kept" / run.name / "ckpt-80" / "entity.npy"), "Ray Train copies it; one copy is enough"
    assert not (tmp_path / "kept" / run.name / "toy_DistMult_entity.npy").exists()
    place = tmp_path / "there" / run.name
    if before is not None:
        run_of(place, before, before)
    _restore(tmp_path / "kept", tmp_path / "there")
    best = 60 if before in (None, 40) else before
    found = checkpoint.load(place / "best")
    assert checkpoint.latest(place).step == goes_on and found.step == best and (found.arrays["entity"] == best).all()
    assert (place / "metrics.jsonl").read_text() == f"{goes_on}\n" and json.loads((place / JOB).read_text()) == {"run": "one"}
    assert not list(place.glob(".*"))
