"""Typed negatives and weights by occurrence, through the command: every way of running on one machine trains by them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kgdist.base.types import Side
from kgdist.data.dataset import Triples, load_dataset
from kgdist.data.domains import Domains
from kgdist.data.weighing import Weighing
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runtime.job import trainer_of
from tests.cli.graphs import FILES, Bench, embeddings, state
from tests.cli.test_plateau import ENCODER

OPTIONS = ["--neg_sampler", "typed", "--bernoulli", "--subsampling", "--answer_weight", ".3", "--seed", "4"]
WAYS = {
    "one process": [],
    "softmax": ["--loss_genre", "Softmax", "--mask_known"],
    "in-batch": ["--neg_deg_sample", "--model_name", "TransR"],
    "two processes": ["--num_proc", "2"],
    "two threads": ["--num_proc", "2", "--worker", "thread"],
    "an encoder": ["--model_name", "DistMult", *ENCODER],
}


def types(bench: Bench) -> Path:
    names = sorted(
        {name for file in FILES for line in (bench.data / file).read_text().splitlines() for name in line.split("\t")[::2]}
    )
    file = bench.root / "types.tsv"
    file.write_text("".join(f"{name}\tlast{name[-1]}\n" for name in names))
    return file


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.slow
def test_they_change_what_is_learned(bench: Bench, way: list[str]) -> None:
    given = [*OPTIONS, "--entity_types", str(types(bench)), *way]
    run = bench.train(*given, "--test")
    if "--num_proc" not in way:
        assert state(run) == state(bench.train(*given))
        without = [bench.train(*(word for word in given if word != other)) for other in ("--bernoulli", "--subsampling")]
        untyped = bench.train("--bernoulli", "--subsampling", "--seed", "4", *way)
        rows = [embeddings(each)["entity"] for each in (run, *without, untyped, bench.train(*OPTIONS, *way))]
        assert len({each.tobytes() for each in rows}) == 5
    bench.resume(run, "--max_step", "30", *(way[:2] if "--num_proc" in way else []))


def test_relations_of_one_entity_are_told_once(bench: Bench) -> None:
    with (bench.data / FILES[0]).open("a") as file:
        file.write("e1\tonce\te2\n")
    bench.train("--neg_sampler", "typed", "--num_proc", "2")
    said = (
        "--neg_sampler typed: at 2 ends of 5 relations there are fewer than two entities to draw; there they are drawn among all"
    )
    assert bench.out().count(said) == 1


def test_types_that_cannot_be_read_are_refused(bench: Bench) -> None:
    file = types(bench)
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))
    for words in ([], ["--num_proc", "2"]):
        problem = bench.train_refused("--neg_sampler", "typed", "--entity_types", str(file), *words)
        assert f"{file}: has no line for 1 of 30 entities" in problem
    assert "no such file" in bench.train_refused("--neg_sampler", "typed", "--entity_types", str(bench.root / "none"))
    assert not bench.runs()


@pytest.mark.parametrize(("candidates", "reciprocal"), [("sampled", False), ("all", False), ("all", True)])
def test_batches_are_weighed_and_typed(bench: Bench, candidates: str, reciprocal: bool) -> None:
    data = load_dataset(path=bench.data, name="toy", format="raw_udd_hrt", files=FILES)
    plain = Config(
        model_name="ComplEx", hidden_dim=8, loss_genre="Softmax", batch_size=32, neg_sample_size=8, candidates=candidates,
        reciprocal=reciprocal,
    )  # fmt: skip
    sizes = len(data.entities), len(data.relations)
    train = Triples(data.train.array, np.linspace(1, 2, len(data.train), dtype=np.float32))
    more = {"bernoulli": True, "subsampling": True, "answer_weight": 0.2}
    kinds = np.stack([np.arange(30), np.arange(30) % 3], axis=1).astype(np.int32)
    if candidates == "sampled":
        more |= {"neg_sampler": "typed"}
    tables = MemoryTables.create(model_of(plain).shapes(*sizes), "adagrad")
    trainer = trainer_of(plain.replace(**more), train, tables, 0, types=kinds)
    weighing = Weighing(train, sizes[1], bernoulli=True, subsampling=True, answer=0.2)
    domains = Domains.of(train.array, sizes[1]).typed(kinds, 30)
    for step in range(2):
        batch = trainer.batch(step)
        assert batch.weights is not None and batch.numbers is not None and train.weights is not None
        assert set(batch.inverse.tolist()) == {False, True} if reciprocal else batch.inverse is None
        own = weighing(trainer_of(plain, train, tables, 0).batch(step)) if candidates == "all" else batch
        np.testing.assert_array_equal(batch.weights, own.weights)
        assert not np.allclose(batch.weights, train.weights[batch.numbers])
        if candidates == "sampled":
            assert batch.side is (Side.TAIL if step == 0 else Side.HEAD) and batch.masked is not None
            for i, row in enumerate(batch.negatives):
                there = [domains.entities(batch.side, relation) for relation in batch.relations[8 * i :][:8].tolist()]
                assert np.isin(row, np.concatenate(there)).all()
