"""What the report computes, against the plainest computation of it."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.types import Side
from kgdist.evaluation.ranks import Ranks, metrics
from kgdist.options import parse
from kgdist.options.config import OPTIONS, Config
from kgdist.report import facts, run_facts
from kgdist.report.facts import (
    ANSWERS,
    RankedSample,
    best_and_worst,
    degree_bins,
    degrees,
    domains,
    examples,
    open_sample,
    project,
    true_entities,
)
from kgdist.report.run_facts import FEW


@pytest.fixture(scope="module")
def sample(hostile: Path) -> RankedSample:
    return open_sample(hostile, run_facts.read(hostile).config)


@pytest.fixture(scope="module")
def ranks(sample: RankedSample) -> Ranks:
    return sample.ranks


def ranking(sample: RankedSample, side: Side, given: str, relation: str, true: str) -> list[str]:
    """All filtered candidates of a DistMult query, the best first."""
    names = list(sample.dataset.entities)
    rows, relations = (sample.opened.tables.rows[name].double().numpy() for name in ("entity", "relation"))
    anchor, number = names.index(given), list(sample.dataset.relations).index(relation)
    triples = np.concatenate([triples.array for triples in sample.dataset.splits.values()]).tolist()
    scores = rows @ (rows[anchor] * relations[number])
    known = {side.pick(h, t) for h, r, t in triples if r == number and side.other.pick(h, t) == anchor}
    return [names[e] for e in np.argsort(-scores, kind="stable") if e not in known or names[e] == true]


def test_examples_are_true(sample: RankedSample, ranks: Ranks) -> None:
    shown = 0
    for relation in np.unique(ranks.relation):
        for example, right in zip(examples(sample, int(relation)), (True, False), strict=True):
            if example is None:
                assert (ranks.rank()[ranks.relation == relation] == 1).any() != right
                continue
            order = ranking(sample, example.side, example.given, example.relation, example.true)
            assert [name for name, _ in example.answers] == order[:ANSWERS]
            assert [true for _, true in example.answers] == [name == example.true for name in order[:ANSWERS]]
            assert example.rank == order.index(example.true) + 1 and (example.rank == 1) == right
            assert example.candidates == len(order)
            shown += 1
    assert shown >= 4


def test_relations_of_the_saved_metrics(hostile: Path, ranks: Ranks) -> None:
    saved = run_facts.relations(run_facts.read(hostile).test)
    assert saved.keys() == set(ranks.relation.tolist())
    for relation, (_, queries, row) in saved.items():
        part = ranks[ranks.relation == relation]
        assert queries == len(part) and row == pytest.approx(metrics(part))
    assert run_facts.relations({"relations": {"1": {"mrr": 1}, "x": {"mrr": 1, "count": 1}, "2": 3}}) == {}


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 30)), max_size=30), st.data())
def test_the_best_and_the_worst_relations(parts: list[tuple[float, int]], data: st.DataObject) -> None:
    found = {key: run_facts.RelationMetrics("r", queries, {"mrr": mrr}) for key, (mrr, queries) in enumerate(parts)}
    present = np.array(data.draw(st.lists(st.sampled_from(range(len(parts))), unique=True)) if parts else [], np.int64)
    best, worst = best_and_worst(found, present)
    assert len({*best, *worst}) == len(best) + len(worst) and {*best, *worst} <= set(present.tolist())
    assert [found[r].mrr for r in best] == sorted((found[r].mrr for r in best), reverse=True)
    assert [found[r].mrr for r in worst] == sorted(found[r].mrr for r in worst)
    assert all(found[good].mrr >= found[bad].mrr for good in best for bad in worst)
    many = [relation for relation in present.tolist() if found[relation].queries >= FEW]
    assert len(many) < 2 or {*best, *worst} <= set(many)
    assert best or not len(present)


def test_degrees_and_domains(sample: RankedSample, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kgdist.report.facts.ROWS", 7)  # several blocks
    train = sample.dataset.train.array.tolist()
    degree = Counter(end for h, _, t in train for end in (h, t))
    domain = {entity: Counter() for entity in range(len(sample.dataset.entities))}
    for h, r, t in train:
        domain[h][2 * r] += 1
        domain[t][2 * r + 1] += 1
    asked = np.array([3, 1, 1, 29, *range(30)])
    assert degrees(sample.dataset, asked).tolist() == [degree[entity] for entity in asked.tolist()]
    expected = [min(domain[e], key=lambda key: (-domain[e][key], key), default=-1) for e in asked.tolist()]
    assert domains(sample.dataset, asked).tolist() == expected


def test_ranks_by_degree(ranks: Ranks) -> None:
    degree = np.random.default_rng(0).integers(0, 40, len(ranks))
    bins = degree_bins(ranks, degree)
    assert sum(part["queries"] for part in bins) == len(ranks)
    assert [part["lowest"] for part in bins] == [0, 1, 2, 4, 8, 16, 32]
    for part in bins:
        here = ranks.rank()[(degree >= part["lowest"]) & (degree <= part["highest"])]
        assert part["queries"] == len(here)
        assert (part["low"], part["median"], part["high"]) == tuple(np.quantile(here, (0.25, 0.5, 0.75)))
        assert part["mrr"] == pytest.approx((1 / here).mean())


def test_who_is_asked_for(ranks: Ranks) -> None:
    expected = [h if side == 0 else t for side, h, t in zip(ranks.side, ranks.head, ranks.tail, strict=True)]
    assert true_entities(ranks).tolist() == expected


def test_principal_components() -> None:
    rows = (np.random.default_rng(1).normal(size=(50, 6)) * [1, 5, 1, 3, 1, 1] + 7).astype(np.float32)
    places, explained = project(rows)
    u, s, _ = np.linalg.svd(rows - rows.mean(0), full_matrices=False)
    assert explained == pytest.approx((s[:2] ** 2).sum() / (s**2).sum(), rel=1e-4)
    assert np.abs(places) == pytest.approx(np.abs(u[:, :2] * s[:2]), rel=1e-3, abs=1e-3)
    assert project(rows[:, :1])[0].shape == (50, 2) and not project(rows[:, :1])[0][:, 1].any()


def test_a_picture_holds_a_sample_of_every_kind(sample: RankedSample, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = facts.picture(sample)
    assert drawn.points == drawn.entities == 30
    assert sorted(name for group in drawn.groups for name in group.names) == sorted(sample.dataset.entities)
    kind = dict(zip(sample.dataset.entities, domains(sample.dataset, np.arange(30)).tolist(), strict=True))
    for group in drawn.groups:
        assert len({kind[name] for name in group.names}) == 1 or not group.end
        for name, degree in zip(group.names, group.degrees, strict=True):
            assert degree == degrees(sample.dataset, np.array([sample.dataset.entities.id(name)]))[0]
    monkeypatch.setattr(facts, "POINTS", 12)
    fewer = facts.picture(sample)
    assert 12 <= fewer.points <= 12 + len(fewer.groups) and all(group.names for group in fewer.groups)


def test_work_is_bounded(hostile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = run_facts.read(hostile).config
    for limit, value, triples in (("TRIPLES", 5, 5), ("WORK", 2 * 30 * 8 * 7, 7), ("WORK", 1, 1), ("TRIPLES", 10**9, 12)):
        with monkeypatch.context() as patch:
            patch.setattr(f"kgdist.report.facts.{limit}", value)
            sample = open_sample(hostile, config)
            assert len(sample.evaluator.triples(sample.split)) == triples


def test_curves_of_a_run_that_was_resumed(hostile: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((hostile / "config.json").read_text())
    rows = [(10, 1), (20, 2), (30, 3), (20, 4), (30, 5)]  # killed after step 30, resumed from step 10
    lines = [f'{{"kind": "train", "step": {step}, "loss": {loss}, "time": {loss}}}' for step, loss in rows]
    (tmp_path / "metrics.jsonl").write_text("\n".join([*lines, '{"kind": "train", "st']))
    found = run_facts.read(tmp_path)
    assert [(row["step"], row["loss"]) for row in found.curves["train"]] == [(10, 1), (20, 4), (30, 5)]
    assert found.notes == ("metrics.jsonl: 1 line cannot be read and is left out",)
    many = "".join(f'{{"kind": "train", "step": {step}}}\n' for step in range(5000))
    (tmp_path / "metrics.jsonl").write_text(many)
    steps = [row["step"] for row in run_facts.read(tmp_path).curves["train"]]
    assert len(steps) == run_facts.POINTS and (steps[0], steps[-1]) == (0, 4999) and steps == sorted(set(steps))


def test_the_command_repeats_the_options() -> None:
    config = Config(
        model_name="RotatE",
        double_ent=True,
        lr=1e-9,
        gamma=19.9,
        max_epoch=2.5,
        data_files=("a b.tsv", "c;d"),
        format="raw_udd_hrt",
        delimiter=" | ",
        data_path=str(Path.cwd() / "my data"),
        gpu=(0, 1),
        test=True,
    )
    words = shlex.split(" ".join(run_facts.command(config)))
    assert words[0] == "kgdist-train"
    again = parse.parse("train", words[1:]).config.replace(num_proc=config.num_proc)
    assert again == config.replace(data_path="my data")
    changed, same = run_facts.options(config)
    named = {name for name, *_ in changed} | {name for name, _ in same}
    assert {name for name, *_ in changed} >= {"lr", "gpu", "test", "data_files"} and not {name for name, *_ in changed} & {"seed"}
    assert named <= set(OPTIONS) and len(named) == len(changed) + len(same)
    own = config.replace(model_file=str(Path.cwd() / "my own.py"))
    assert "--model_file 'my own.py'" in run_facts.command(own)
    assert ("model_file", "my own.py", "none") in run_facts.options(own)[0]
