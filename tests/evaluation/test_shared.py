"""Evaluation by shares: together they are the evaluation of the whole, whatever the split of the work and of the graph."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kgdist.data.dataset import Dataset
from kgdist.evaluation.evaluator import Evaluator
from kgdist.evaluation.ranks import Ranks
from kgdist.evaluation.shared import PIECE, Collected, SharedEvaluator, pieces
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import make_model, model_of
from kgdist.options.config import Config
from kgdist.partition.folder import Partition
from kgdist.partition.manifest import folder_of
from kgdist.runtime.agent.roles import Tasks
from kgdist.runtime.cluster.training_plan import TrainingPlan
from kgdist.runtime.ip_config import Machine
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
    assert report["baselines"] == whole["baselines"] and report["baselines"]["frequent"]["mrr"] > 0
    assert 0 < report["all"]["pessimistic"]["auc-roc"] < 1  # one of those
    assert report["protocol"] == whole["protocol"]


def test_baselines_need_all_partitions_and_few_triples(
    world: tuple[Dataset, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that has its own partition alone, and a graph too large to be gathered, have no baselines, nor an error."""
    config = Config(model_name="DistMult")
    shutil.copytree(folder_of(world[1], 0), folder_of(tmp_path, 0))
    alone, together = (SharedEvaluator(Partition.open(folder_of(root, 0)), config) for root in (tmp_path, world[1]))
    ranks = Ranks.of(together.triples("test"), candidates=1)
    assert alone.report(ranks, "test")["baselines"] == {}
    assert set(together.report(ranks, "test")["baselines"]) >= {"frequent"}
    assert "baselines" not in together.report(Ranks.of(together.triples("valid"), candidates=1), "valid")
    monkeypatch.setattr("kgdist.evaluation.shared.AT_ONCE", 10)
    assert together.report(ranks, "test")["baselines"] == {}


def test_pieces_are_small_and_say_where_they_belong(world: tuple[Dataset, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    first = Partition.open(folder_of(world[1], 0))
    _, new = tables_of("DistMult", first)
    evaluator = SharedEvaluator(first, Config(model_name="DistMult"))
    model = make_model("DistMult", gamma=formulas.GAMMA, **formulas.sizes("DistMult"))
    ranks = evaluator.rank(model, new, "valid")
    monkeypatch.setattr("kgdist.evaluation.shared.PIECE", 7)
    count = len(evaluator.triples("valid"))
    found = pieces(ranks, (0, count), count)
    assert PIECE > 7 and len(found) == 2 * -(-count // 7)
    collected = Collected(evaluator.triples("valid"))
    for piece in reversed(found):
        collected.add(piece)
        collected.add(piece)  # a trainer that was started again tells it twice
    assert (collected.ranks.greater == ranks.greater).all() and (collected.ranks.candidates == ranks.candidates).all()


class Watched(MemoryTables):
    """Tables that note which spans are read."""

    def __init__(self, tables: MemoryTables) -> None:
        super().__init__(tables.rows, tables.state, "sgd")
        self.spans: list[tuple[int, int]] = []

    def block(self, name: str, start: int, stop: int) -> torch.Tensor:
        self.spans.append((start, stop))
        return super().block(name, start, stop)


class Quiet:
    """An owner that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []

    def send(self, **event: Any) -> None:
        self.told.append(event)

    def receive(self, seconds: float) -> dict[str, Any] | None:
        return None


def test_every_trainer_begins_at_rows_of_its_own_machine_and_reads_all(world: tuple[Dataset, Path]) -> None:
    """So that those of all machines are never with one server at the same time."""
    partitions = [Partition.open(folder_of(world[1], number)) for number in range(3)]
    config = Config(model_name="DistMult", hidden_dim=formulas.DIM, num_proc=2, batch_size_eval=2)
    book, machines = partitions[0].book, [Machine("127.0.0.1", 30050 + n, 1, n) for n in range(3)]
    plan = TrainingPlan(config, machines, "run", 0, partitions[0].graph, book, 100)
    begun, collected = [], Collected(SharedEvaluator(partitions[0], config).triples("test"))
    for machine in range(3):
        for rank in range(2):
            tables, owner = Watched(tables_of("DistMult", partitions[0])[1]), Quiet()
            Tasks(plan, machine, rank, partitions[machine], tables, owner).evaluate("test")  # type: ignore[arg-type]
            first = tables.spans[0][0]
            assert book.entities[machine] <= first < book.entities[machine + 1]
            begun.append(first)
            assert sum(stop - start for start, stop in tables.spans) % ENTITIES == 0
            for event in owner.told:
                collected.add(event["result"])
    assert len(set(begun)) == 6 and collected.complete
    head = SharedEvaluator(partitions[0], config)
    whole = head.rank(model_of(config), tables_of("DistMult", partitions[0])[1], "test")
    assert (collected.ranks.greater == whole.greater).all() and (collected.ranks.equal == whole.equal).all()
