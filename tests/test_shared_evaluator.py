"""Evaluation by shares: together they are the evaluation of the whole, whatever the split of the work and of the graph."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.config import Config
from kgdist.data.store import Dataset
from kgdist.evaluator import Evaluator
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import make_model
from kgdist.partition.folder import Partition, folder_of
from kgdist.shared_evaluator import PIECE, Collected, SharedEvaluator, pieces
from tests import formulas
from tests.partition.worlds import communities, dataset, partitioned

ENTITIES, RELATIONS = 60, 4


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Dataset, Path]:
    """A data set, and the folder of its three partitions."""
    folder = tmp_path_factory.mktemp("world")
    triples = communities(ENTITIES, 6, 6, 0.2, RELATIONS)
    cuts = [len(triples) * 8 // 10, len(triples) * 9 // 10]
    data = dataset(folder / "data", *np.split(triples, cuts), entities=ENTITIES, relations=RELATIONS)
    partitioned(data, folder / "parts", 3)
    return data, folder / "parts"


def tables_of(name: str, partition: Partition) -> tuple[MemoryTables, MemoryTables]:
    """Rows by original ids, and the same rows by new ids."""
    model = make_model(name, gamma=formulas.GAMMA, **formulas.sizes(name))
    original = MemoryTables.create(model.tables(ENTITIES, RELATIONS), "sgd")
    generator = torch.Generator().manual_seed(1)
    order = {"entity": partition.originals(), "relation": partition.book.original_relations()}
    new = {}
    for table, rows in original.rows.items():
        rows.copy_(torch.randn(rows.shape, generator=generator))
        new[table] = rows[torch.from_numpy(order.get(table, order["relation"]).astype(np.int64))].clone()
    return original, MemoryTables(new, {table: {} for table in new}, "sgd")


@pytest.mark.parametrize("shares", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"no_eval_filter": True}, {"neg_sample_size_eval": 20, "batch_size_eval": 3}])
@pytest.mark.parametrize("name", ["ComplEx", "TransE_l1", "TransR"])
def test_shares_give_the_report_of_the_whole(
    world: tuple[Dataset, Path], name: str, options: dict[str, object], shares: int
) -> None:
    data, parts = world
    config = Config(model_name=name, rank_ties="pessimistic", **options)  # type: ignore[arg-type]
    first = Partition.open(folder_of(parts, 0))
    original, new = tables_of(name, first)
    model = make_model(name, gamma=formulas.GAMMA, **formulas.sizes(name))
    head = SharedEvaluator(first, config)
    collected = Collected(head.triples("test"))
    for number in range(shares):
        worker = SharedEvaluator(Partition.open(folder_of(parts, number % 3)), config)
        span = worker.share("test", number, shares)
        assert not collected.complete
        if span[0] < span[1]:
            ranks = worker.rank(model, new, "test", span)
            for piece in pieces(ranks, span, len(worker.triples("test"))):
                collected.add(json.loads(json.dumps(piece)))
    assert collected.complete
    report = head.report(collected.ranks, "test")
    if "neg_sample_size_eval" in options:  # the sample is drawn by id, so another numbering draws others
        whole = head.report(head.rank(model, new, "test"), "test")
    else:
        alone = Evaluator(data, config)
        whole = alone.report(alone.rank(model, original, "test"), "test")
    assert report["all"] == whole["all"] and report["relations"] == whole["relations"]
    assert report["protocol"] == whole["protocol"]


def test_pieces_are_small_and_say_where_they_belong(world: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = Partition.open(folder_of(world[1], 0))
    _, new = tables_of("DistMult", first)
    evaluator = SharedEvaluator(first, Config(model_name="DistMult"))
    model = make_model("DistMult", gamma=formulas.GAMMA, **formulas.sizes("DistMult"))
    ranks = evaluator.rank(model, new, "valid")
    monkeypatch.setattr("kgdist.shared_evaluator.PIECE", 7)
    count = len(evaluator.triples("valid"))
    found = pieces(ranks, (0, count), count)
    assert PIECE > 7 and len(found) == 2 * -(-count // 7)
    collected = Collected(evaluator.triples("valid"))
    for piece in reversed(found):
        collected.add(piece)
        collected.add(piece)  # a trainer that was started again tells it twice
    assert (collected.ranks.greater == ranks.greater).all() and (collected.ranks.candidates == ranks.candidates).all()
