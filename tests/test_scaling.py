"""The page on many machines is what its script makes of the measurements, and the model's arithmetic is right: who needs what
from whom is counted in batches drawn one by one, and nothing is used beyond its limit."""

from __future__ import annotations

import importlib
import itertools
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.cli.dist_train import TOGETHER

ROOT = Path(__file__).resolve().parents[1]
JOBS: list[dict[str, Any]] = [
    {"machines": 2, "batch": 100, "entities": 4000},
    {"machines": 5, "batch": 60, "entities": 500, "pull_ahead": 4},
    {"machines": 16, "batch": 40, "entities": 10_000, "local": True},
    {"machines": 40, "batch": 8, "entities": 100_000, "pull_ahead": 2, "cut": 1.0},
    {"machines": 64, "batch": 10, "entities": 100_000, "local": True, "cut": 0.087},
]


def load(name: str) -> ModuleType:
    """A script of the benchmarks, which import one another by their bare names."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


model, pages = load("scaling_model"), load("scaling")
MEASURED: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / "scaling.json").read_text())


def test_the_pages_are_what_the_script_makes_of_the_measurements() -> None:
    """If this fails: make scaling."""
    assert (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8") == pages.page(MEASURED)
    assert (ROOT / "benchmarks" / "results" / "scaling.md").read_text(encoding="utf-8") == pages.results(MEASURED)


def test_a_third_is_not_fitted_to_and_among_it_all_of_the_most_machines() -> None:
    rows = MEASURED["messages"]
    unseen = [row for row in rows if not row["fitted"]]
    assert 3 * len(unseen) >= len(rows)
    most = max(row["machines"] for row in rows)
    assert {row["fitted"] for row in rows if row["machines"] == most} == {False}
    assert len({row["machines"] for row in unseen}) > 3


def test_the_model_has_the_defaults_of_the_options() -> None:
    assert model.Job(2).interval == TOGETHER


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12))
def test_least_squares_is_the_best_of_all_subsets(seed: int, width: int, height: int) -> None:
    """The best x >= 0 is the unbounded answer of some subset of the terms."""
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(height, width)), random.normal(size=height)
    best = float(b @ b)
    for size in range(1, width + 1):
        for free in itertools.combinations(range(width), size):
            part = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            if (part >= 0).all():
                best = min(best, float(np.sum((a[:, free] @ part - b) ** 2)))
    x = model.least_squares(a, b)
    assert (x >= 0).all()
    assert float(np.sum((a @ x - b) ** 2)) == pytest.approx(best, rel=1e-6, abs=1e-9)


def test_costs_that_are_sums_of_the_terms_are_found_again() -> None:
    random = np.random.default_rng(0)
    costs = {end: random.uniform(0.1, 1, len(model.TERMS)) / [1, 10, 10, 10, 1e3, 1e5, 1e5, 10, 1e6] for end in model.ENDS}
    for end in model.ENDS[2:]:
        costs[end][: len(model.OF_TRAINERS)] = 0
    traffic = []
    ways = itertools.product((1, 8, 32), (20, 500), (4, 400), ("fp32", "bf16"), (False, True), (1, 4))
    for machines, rows, dim, dtype, curve, steps in ways:
        pushes = model.different(rows, machines)
        pulls = model.different(steps * rows, machines) / steps
        traffic.append(model.Traffic(machines, pulls, pulls + pushes, rows, rows, dim, dtype, curve))
    found = [{end: float(each.terms() @ costs[end]) for end in model.ENDS} for each in traffic]
    for end, fitted in model.fit(traffic, found).items():
        assert fitted == pytest.approx(costs[end], rel=1e-6)


@pytest.mark.parametrize("options", JOBS, ids=str)
def test_what_a_step_needs_is_what_drawn_batches_need(options: dict[str, Any]) -> None:
    """Averages over batches drawn one by one, for trainers of all machines."""
    job = model.Job(**options)
    random = np.random.default_rng(1)
    relations = len(model.SHARES)
    owner_of_relation = random.permutation(relations) % job.machines
    seen = []
    for trial in range(300):
        here = trial % job.machines
        entities: list[np.ndarray] = []
        used: list[np.ndarray] = []
        for _ in range(job.pull_ahead):
            heads = random.integers(job.entities, size=job.batch)
            heads = heads[random.random(job.batch) < job.cut]  # of those whose owner is drawn, some come out here, too
            drawn = random.integers(job.entities, size=job.batch)
            entities.append(np.unique(np.concatenate([heads, drawn[: 0 if job.local else None]])))
            used.append(np.unique(random.choice(relations, size=job.batch, p=model.SHARES)))
        every, which = np.unique(np.concatenate(entities)), np.unique(np.concatenate(used))
        far, away = every[every % job.machines != here], which[owner_of_relation[which] != here]
        met = {*(far % job.machines).tolist(), *owner_of_relation[away].tolist()}
        owners = np.concatenate([entities[0] % job.machines, owner_of_relation[used[0]]])  # of what the first step pushes
        pushed = owners[owners != here]
        pulls = len(met) / job.pull_ahead
        seen.append((pulls, pulls + len(set(pushed.tolist())), (len(far) + len(away)) / job.pull_ahead, len(pushed)))
    needs = model.needs(job)
    assert needs.connections == job.machines - 1
    counted = [needs.envelopes, needs.messages, needs.pulled, needs.pushed]
    assert np.mean(seen, axis=0) == pytest.approx(counted, rel=0.03)


COSTS = pages.costs_of(MEASURED)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([1, 2, 5, 64, 500]), st.sampled_from(["fp32", "bf16"]), st.booleans(), st.booleans(), st.integers(1, 16),
    st.integers(1, 8), st.sampled_from([1, 10, 400]),
)  # fmt: skip
def test_nothing_is_used_beyond_its_limit_and_what_limits_is_at_its_end(
    machines: int, dtype: str, curve: bool, local: bool, trainers: int, servers: int, gigabits: int
) -> None:
    job = model.Job(machines, dtype=dtype, curve=curve, local=local, gigabits=gigabits)
    found = model.speed(job, COSTS, trainers, servers)
    spent = {end: sum(terms.values()) / 1000 for end, terms in COSTS.shares(job).items()}
    steps = found.rate / job.batch / machines / trainers / (1 - found.met - found.late)  # a second, between meetings
    used = {
        "trainers": steps * spent["trainer"],
        "libzmq of trainers": steps * spent["trainer_io"],
        "servers": steps * trainers * spent["servers"] / servers,
        "libzmq of servers": steps * trainers * spent["servers_io"] / servers,
        "cores": steps * trainers * sum(spent.values()) / job.cores,
        "network": steps * trainers * model.needs(job).bytes * 8 / (gigabits * 1e9) * (machines > 1),
    }
    assert max(used.values()) == pytest.approx(1)
    assert found.limit == "meetings" or used[found.limit] == pytest.approx(1)
    assert 0 <= found.met + found.late < 1


@pytest.mark.parametrize("machines", [1, 4, 64])
def test_the_best_division_of_the_cores_is_that_of_trying_all(machines: int) -> None:
    job = model.Job(machines)
    every = [model.speed(job, COSTS, trainers, servers).rate for trainers in range(1, 17) for servers in (1, 2, 4, 8, 16)]
    assert model.best(job, COSTS).rate >= 0.99 * max(every)
