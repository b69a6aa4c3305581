"""What an evaluation of a data set says: which triples it takes, the filter, the protocol, the lines on stdout, plain JSON."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import kgdist
from kgdist.base.errors import OptionError, UsageError
from kgdist.base.files import read_json, write_json
from kgdist.data.dataset import Dataset, Triples
from kgdist.data.statistics import relation_categories
from kgdist.data.vocabulary import Vocabulary
from kgdist.evaluation.evaluator import Evaluator, evaluate
from kgdist.evaluation.ranks import metrics
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import make_model
from kgdist.options.config import Config

ENTITIES, RELATIONS = 30, 4


def triples(count: int, seed: int) -> Triples:
    rng = np.random.default_rng(seed)
    return Triples(
        np.stack([rng.integers(0, limit, count) for limit in (ENTITIES, RELATIONS, ENTITIES)], axis=1).astype(np.int32)
    )


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return Dataset(
        name="tiny",
        entities=Vocabulary.numbered(ENTITIES),
        relations=Vocabulary.from_names(["likes", "knows", "eats", "is"]),
        train=triples(80, 1),
        valid=Triples(np.empty((0, 3), np.int32)),
        test=triples(50, 2),
        digest="",
        folder=tmp_path,
    )


@pytest.fixture
def model() -> Model:
    return make_model("DistMult", hidden_dim=6, entity_dim=6, relation_dim=6, gamma=4.0)


@pytest.fixture
def tables(model: Model) -> MemoryTables:
    generator = torch.Generator().manual_seed(3)
    shapes = model.tables(ENTITIES, RELATIONS)
    return MemoryTables({n: torch.randint(-1, 2, shape, generator=generator).float() for n, shape in shapes.items()}, {}, "sgd")


def config(**options: object) -> Config:
    return Config(model_name="DistMult", hidden_dim=6, **options)  # type: ignore[arg-type]


def test_the_report_is_the_summary_of_filtered_ranks(
    dataset: Dataset, model: Model, tables: MemoryTables, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluator = Evaluator(dataset, config())
    report = evaluator.run(model, tables, "test")
    assert dataset.test is not None
    ranks = evaluate(model, tables, dataset.test.array, num_entities=ENTITIES, known=evaluator.known("test"))
    assert report["all"]["realistic"] == metrics(ranks)
    assert report["count"] == 100 and report["split"] == "test"
    assert {int(relation): part["name"] for relation, part in report["relations"].items()} == dict(enumerate(dataset.relations))
    for relation, category in enumerate(relation_categories(dataset.train.array, RELATIONS)):
        assert category == evaluator.categories[relation]
    write_json(tmp_path / "test.json", report)
    assert read_json(tmp_path / "test.json") == report
    printed = capsys.readouterr().out.splitlines()
    for number, (line, name) in enumerate(
        [("MRR", "mrr"), ("MR", "mr"), ("HITS@1", "hits@1"), ("HITS@3", "hits@3"), ("HITS@10", "hits@10"), ("AUC-ROC", "auc-roc")]
    ):
        assert printed[number] == f"Test average {line} : {report['all']['realistic'][name]:.6f}"
    assert printed[6].startswith("test ranks: filtered by train, valid, test, among all 30 entities (")


def test_the_filter_takes_every_split(dataset: Dataset, model: Model, tables: MemoryTables) -> None:
    ranks = Evaluator(dataset, config()).rank(model, tables, "test")
    raw = Evaluator(dataset, config(no_eval_filter=True)).rank(model, tables, "test")
    assert (raw.candidates == ENTITIES).all()
    facts = {tuple(row) for split in dataset.splits.values() for row in split.array.tolist()}
    for side, head, relation, tail, candidates in zip(
        ranks.side, ranks.head, ranks.relation, ranks.tail, ranks.candidates, strict=True
    ):
        others = {(e, relation, tail) if side == 0 else (head, relation, e) for e in range(ENTITIES)} & facts
        assert candidates == ENTITIES - len(others - {(head, relation, tail)})


def test_the_chosen_tie_policy_is_printed(
    dataset: Dataset, model: Model, tables: MemoryTables, capsys: pytest.CaptureFixture[str]
) -> None:
    report = Evaluator(dataset, config(rank_ties="pessimistic")).run(model, tables, "test")
    assert report["all"]["pessimistic"]["mrr"] < report["all"]["realistic"]["mrr"]  # there are ties
    printed = capsys.readouterr().out
    assert f"Test average MRR : {report['all']['pessimistic']['mrr']:.6f}\n" in printed
    assert "ties: pessimistic" in printed


def test_a_part_of_a_split_is_drawn_without_repetition_and_the_same_every_time(dataset: Dataset) -> None:
    part = Evaluator(dataset, config(eval_percent=0.5)).triples("test")
    assert dataset.test is not None and len(part) == 25
    places = [np.flatnonzero((dataset.test.array == row).all(1))[0] for row in part]
    assert places == sorted(set(places))
    np.testing.assert_array_equal(part, Evaluator(dataset, config(eval_percent=0.5)).triples("test"))
    assert not np.array_equal(part, Evaluator(dataset, config(eval_percent=0.5, seed=1)).triples("test"))
    assert len(Evaluator(dataset, config(eval_percent=0.001)).triples("test")) == 1


def test_sampling_options_reach_the_ranks(dataset: Dataset, model: Model, tables: MemoryTables) -> None:
    options = config(neg_sample_size_eval=5, no_eval_filter=True, neg_deg_sample_eval=True, batch_size_eval=10, seed=4)
    evaluator = Evaluator(dataset, options)
    ranks = evaluator.rank(model, tables, "test")
    assert ranks.candidates.max() <= 5 + 10 and ranks.candidates.min() >= 5
    assert evaluator.report(ranks, "test")["protocol"] == {
        "filter": [],
        "entities": ENTITIES,
        "sampled": 5,
        "in_batch": True,
        "batch": 10,
        "fraction": 1.0,
        "triples": 50,
        "seed": 4,
    }


def test_threads_and_batches_do_not_change_full_ranks(dataset: Dataset, model: Model, tables: MemoryTables) -> None:
    expected = Evaluator(dataset, config()).rank(model, tables, "test")
    other = Evaluator(dataset, config(num_thread=2, batch_size_eval=2000)).rank(model, tables, "test")
    for (name, ours), (_, theirs) in zip(expected.columns(), other.columns(), strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=name)


@pytest.mark.parametrize("split", ["valid", "holdout"])
def test_a_split_that_is_not_there_is_named(dataset: Dataset, model: Model, tables: MemoryTables, split: str) -> None:
    with pytest.raises(UsageError, match=f"tiny has no {split} triples"):
        Evaluator(dataset, config()).run(model, tables, split)


def test_what_cannot_be_evaluated_is_refused_before_training(dataset: Dataset) -> None:
    with pytest.raises(OptionError, match="--neg_sample_size_eval"):
        Evaluator(dataset, config(neg_sample_size_eval=31))


def test_pandas_is_asked_for_by_name_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if not installed
    table = kgdist.Table({"n": [1, 2]})
    with pytest.raises(UsageError, match=r"^to_pandas needs pandas: pip install pandas, or take to_arrow$"):
        table.to_pandas()
    assert table.to_arrow().num_rows == 2
