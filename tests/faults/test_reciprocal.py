"""Machines that train inverse relations, and by every objective that takes them: one run that all commands read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from kgdist.runs.opened import open_model
from tests.faults.jobs import Job, here, refused, workspace
from tests.faults.test_gnn import ENCODER, parts

pytestmark = pytest.mark.timeout(240)
OBJECTIVE = {
    "loss_genre": "Softmax",
    "label_smoothing": "0.1",
    "regularizer": "n3",
    "regularization_coef": "1e-3",
    "relation_regularization_coef": "1e-2",
    "entity_dropout": "0.1",
    "relation_dropout": "0.1",
    "relation_loss": "0.5",
    "init": "normal",
    "init_scale": "0.1",
}
"""For ComplEx, whose relations have a query of their own."""


def read_by_all(space: Path, told: str, model: str) -> None:
    """Every command reads the one run folder, whose metrics are those that the machines have found."""
    (folder,) = (space / "ckpts").iterdir()
    relation = np.load(folder / f"toy_{model}_relation.npy")
    assert len(relation) == 10 and np.isfinite(relation).all() and len(np.unique(relation, axis=0)) == 10
    again = here("eval", str(folder), folder=space)
    assert again.returncode == 0, again.stderr
    found = [float(re.findall(r"Test average MRR : ([0-9.]+)", text)[0]) for text in (told, again.stdout)]
    assert found[1] == pytest.approx(found[0], abs=1e-6)
    opened = open_model(folder)
    assert (opened.num_relations, len(opened.row_names("relation")), opened.config.reciprocal) == (5, 10, True)
    asked = (
        ("predict", str(folder), "--relation", "r3", "--tail", "e1", "--topK", "2", "--explain"),
        ("emb_sim", "--model_path", str(folder), "--kind", "relation", "--left", "r3_inverse", "--topK", "2"),
        ("export", str(folder)),
    )
    for words in asked:
        done = here(*words, folder=space)
        assert done.returncode == 0, done.stderr


DURA = {
    "neg_sampler": "typed",
    "lr_schedule": "plateau",
    "plateau_patience": "0",
    "loss_genre": "BCE",
    "regularizer": "dura",
    "regularization_coef": "1e-3",
    "relation_dropout": "0.1",
    "optimizer": "adam",
}


@pytest.mark.parametrize(
    "objective",
    [
        pytest.param({}, id="usual", marks=pytest.mark.slow),
        pytest.param(OBJECTIVE, id="softmax", marks=pytest.mark.slow),
        pytest.param(DURA | {"lr": "0.01"}, id="dura", marks=pytest.mark.slow),
    ],
)
def test_two_machines_make_one_run(tmp_path: Path, objective: dict[str, str]) -> None:
    space, weighed = workspace(tmp_path, typed=True), ["--bernoulli", "--subsampling"] if objective else []
    options = {"model_name": "ComplEx", "max_step": "400", "eval_interval": "200", "checkpoint_interval": "200"} | objective
    with Job(space, "--reciprocal", "--neg_deg_sample", "--mask_known", "--test", "--valid", *weighed, **options) as job:
        text = job.end(0)
    assert float(re.findall(r"Test average MRR : ([0-9.]+)", text)[0]) > 0.1  # 0.05 has a model that learned nothing
    read_by_all(space, text, "ComplEx")


@pytest.mark.long
def test_a_job_goes_on_with_the_rows_that_it_has(space: Path) -> None:
    with Job(space, "--reciprocal", max_step="200", checkpoint_interval="100") as job:
        job.end(0)
    name = "TransE_l2_toy_0"
    line = refused(space, "--resume", name, "--reciprocal=false", max_step="300")
    assert "was trained with --reciprocal True, not False" in line
    with Job(space, "--resume", name, "--test", max_step="300") as job:
        text = job.end(0)
    assert "at step 200 of 300" in text
    read_by_all(space, text, "TransE_l2")


@pytest.mark.slow
def test_a_machine_without_a_relation_has_no_row(tmp_path: Path) -> None:
    """One relation for two machines is a range of none for the second one."""
    path = workspace(tmp_path, relations=1)
    with Job(path, "--reciprocal", "--test", max_step="100") as job:
        text = job.end(0)
    (folder,) = (path / "ckpts").iterdir()
    assert np.load(folder / "toy_TransE_l2_relation.npy").shape == (2, 16) and "Test average MRR" in text


@pytest.mark.slow
def test_workers_of_an_encoder_share_both_rows(tmp_path: Path) -> None:
    path = parts(tmp_path, 2, typed=True)
    options = (
        ENCODER
        | {"neg_sampler": "typed", "lr_schedule": "plateau"}
        | {"regularizer": "f2", "loss_genre": "Softmax", "relation_loss": "0.5", "relation_dropout": "0.1"}
    )
    with Job(
        path, "--reciprocal", "--valid", "--test", "--json", "--bernoulli", "--subsampling", **options, eval_interval="12"
    ) as job:
        job.end(0)
    result = json.loads(job.lines[-1])
    folder = path / result["run"]
    assert np.load(folder / "toy_DistMult_relation.npy").shape == (10, 16)
    again = here("eval", str(folder), "--json", folder=tmp_path)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["test"]["all"]["realistic"] == result["test"]["all"]["realistic"]
