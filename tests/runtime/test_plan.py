"""The plan of a job: the same after its journey as JSON, and arithmetic that adds up over machines."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.partition.book import Book, dealt
from kgdist.runtime.cluster.training_plan import TrainingPlan, data_folder, from_here, partition_folder
from kgdist.runtime.ip_config import Machine


@st.composite
def plans(draw: st.DrawFn) -> TrainingPlan:
    """Of one to five machines."""
    machines = [Machine("127.0.0.1", 30000 + 100 * n, draw(st.integers(1, 4)), n) for n in range(draw(st.integers(1, 5)))]
    sizes = [draw(st.integers(0, 9)) for _ in machines]
    relations = draw(st.integers(1, 7))
    starts = [np.concatenate([[0], np.cumsum(part)]).astype(np.int64) for part in (sizes, dealt(len(machines), relations))]
    name = draw(st.sampled_from(["TransE_l2", "ComplEx", "RESCAL", "TransR"]))
    more = {"num_proc": draw(st.integers(1, 3)), "lr": draw(st.floats(1e-9, 1)), "reciprocal": draw(st.booleans())}
    config = Config(model_name=name, hidden_dim=8, **more)
    return TrainingPlan(config, machines, "run", draw(st.integers(0, 3)), "g" * 64, Book(*starts), draw(st.integers(1, 1000)))


@given(plans())
def test_a_plan_survives_its_journey(plan: TrainingPlan) -> None:
    back = TrainingPlan.from_json(json.loads(json.dumps(plan.to_json(), allow_nan=False)))
    assert back.to_json() == plan.to_json() and back.config == plan.config and back.machines == plan.machines
    assert back.config_hash == plan.config_hash and back.stamp == plan.stamp != plan.again().stamp
    other = dataclasses.replace(plan, config=plan.config.replace(lr=2.0))
    assert other.config_hash != plan.config_hash


@given(plans())
def test_every_row_has_one_machine_and_one_server(plan: TrainingPlan) -> None:
    layout, count = plan.layout(), len(plan.machines)
    assert layout.servers == len(plan.addresses) == sum(machine.servers for machine in plan.machines)
    for name, (rows, width) in plan.shapes.items():
        parts = [plan.shapes_of(n)[name] for n in range(count)]
        assert sum(part for part, _ in parts) == rows and {w for _, w in parts} == {width}
    assert plan.trainers == count * plan.config.num_proc
    owned = [plan.seat(n).own for n in range(count)]
    assert owned[0][0] == 0 and owned[-1][1] == plan.book.num_entities
    assert all(before[1] == after[0] for before, after in itertools.pairwise(owned))


@given(plans())
def test_a_machine_has_both_rows_of_its_relations(plan: TrainingPlan) -> None:
    model, layout, starts = model_of(plan.config), plan.layout(), plan.book.relations
    assert plan.shapes == model.shapes(plan.book.num_entities, plan.book.num_relations)
    for name in plan.shapes.keys() - {"entity"}:
        for machine in range(len(plan.machines)):
            own = np.arange(starts[machine], starts[machine + 1])
            assert model.rows_of(name, own).tolist() == list(range(*layout.machine_range(name, machine)))


@pytest.mark.parametrize("epochs", [1.0, 2.5])
def test_steps_of_an_epoch_are_shared_by_all_trainers(epochs: float) -> None:
    book = Book(np.array([0, 3, 6]), np.array([0, 1, 2]))
    machines = [Machine("127.0.0.1", 30000 + n, 1, n) for n in range(2)]
    plan = TrainingPlan(
        Config(max_epoch=epochs, batch_size=10, neg_sample_size=10, num_proc=3), machines, "run", 0, "", book, 600
    )
    assert plan.steps == 10 * epochs


@pytest.mark.parametrize("name", ["..", "a/b"])
def test_a_data_set_cannot_lead_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--dataset"):
        partition_folder(Config(dataset=name, path=str(tmp_path)), 0)


def test_a_relative_data_path_is_found_below_the_workspace_or_from_where_the_user_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work" / "both").mkdir(parents=True)
    for name in ("both", "work/own", "here"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    for said, wanted in {
        "both": "work/both",
        "own": "work/own",
        "here": "here",
        "work/own": "work/own",
        "none": "work/none",
    }.items():
        found = data_folder(from_here(Config(path="work", data_path=said)))
        assert found.absolute() == tmp_path / wanted
