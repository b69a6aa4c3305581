"""A model is its file: PairRE as a built-in and, under another name, as a file of the user's, through every command.

Over SSH: tests/faults/test_over_ssh.py. The laws of models, steps, ranks and predictions have it among all others.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import kgdist
from kgdist.base.types import Batch, Side
from kgdist.cli import compare, emb_sim, export, predict, tune
from kgdist.exchange.embeddings import TARGETS
from kgdist.kernels import jit
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import MODELS
from kgdist.options import model_file
from kgdist.options.config import Config
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.step import Clock
from tests.cli.graphs import Bench, embeddings, metrics, random_splits, tree
from tests.own_models import as_before

FILE = Path(__file__).parent / "paired.py"


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """A random graph of 30 entities, the commands on it, and the user's file beside it."""
    shutil.copy(FILE, tmp_path / "paired.py")
    with as_before():
        yield Bench(tmp_path, capsys)


def words(bench: Bench, model: str) -> list[str]:
    """What names the model to a command besides --model_name."""
    return ["--model_file", str(bench.root / "paired.py")] if model == "Paired" else []


def close(one: Any, other: Any) -> None:
    """The same numbers, but for what sums in another order make of them."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"model"}:
            close(one[key], other[key])
    else:
        assert one == (pytest.approx(other, rel=0.02) if isinstance(one, float) else other)


def test_both_are_one_model(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit where both train by autograd; by compiled loops the built-in comes to the same but for roundings."""
    runs = {}
    for kernels in ("numba", "torch"):
        monkeypatch.setattr(jit, "WANTED", kernels)
        for model in ("PairRE", "Paired"):
            runs[kernels, model] = bench.train("--model_name", model, *words(bench, model), "--seed", "3", "--test")
    assert "--double_rel added" in bench.out()
    numbers = {key: embeddings(run) for key, run in runs.items()}
    assert numbers["numba", "PairRE"]["relation"].shape == (4, 16)
    for table, rows in numbers["torch", "PairRE"].items():
        assert np.array_equal(rows, numbers["torch", "Paired"][table])
        np.testing.assert_allclose(numbers["numba", "PairRE"][table], numbers["numba", "Paired"][table], rtol=1e-3, atol=1e-4)
    assert metrics(runs["torch", "PairRE"])["all"] == metrics(runs["torch", "Paired"])["all"]
    close(metrics(runs["numba", "PairRE"])["all"], metrics(runs["numba", "Paired"])["all"])


def test_the_whole_gradient_arrives_even_where_rows_are_read_by_triple() -> None:
    """A user who does not say `vectors = ()`: the candidates' push is added to one of the relation's uses."""
    sizes = {"hidden_dim": 6, "entity_dim": 6, "relation_dim": 12, "gamma": 4.0}
    rows = np.random.default_rng(1).uniform(-1, 1, (12, 12)).astype(np.float32)
    found = []
    for vectors in ((), ("relation",)):
        model = type("Variant", (MODELS["PairRE"],), {"vectors": vectors, "kernel": None})(**sizes)
        tables = MemoryTables.create(model.tables(9, 3), "sgd")
        for table in tables.rows.values():
            table.copy_(torch.from_numpy(rows[: len(table), : table.shape[1]]))
        ids = np.arange(6)
        batch = Batch(ids, ids % 3, (ids + 1) % 9, np.arange(8).reshape(2, 4), Side.TAIL, 3)
        step = AutogradStep(
            Config(model_name="PairRE", neg_sample_size=4, regularization_coef=0.0), model, tables, torch.device("cpu")
        )
        found.append(step(step.plan(batch), Clock())[0]["relation"].grads)
    torch.testing.assert_close(*found)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("model", ["PairRE", "Paired"])
@pytest.mark.slow
def test_every_command_takes_it(bench: Bench, model: str) -> None:
    own, named = words(bench, model), ["--model_name", model, *words(bench, model)]
    run = bench.train(*named, "--seed", "3", "--test", "--valid")
    trained = metrics(run)
    assert bench.eval(run, *own) == trained
    assert bench.eval(run, *own, "--batch_size_eval", "3", "--num_thread", "2")["all"] == trained["all"]
    assert bench.eval(run, *own, "--neg_sample_size_eval", "9", "--report")["protocol"]["sampled"] == 9
    assert (run / "report.html").stat().st_size > 1000

    longer = bench.train(*named, "--seed", "3", "--max_step", "40")
    half = bench.train(*named, "--seed", "3")
    bench.resume(half, *own, "--max_step", "40")
    assert all(np.array_equal(rows, embeddings(longer)[table]) for table, rows in embeddings(half).items())
    still = bench.train(*named, "--lr", "1e-30", "--max_step", "1", "--init_from", str(longer))
    assert all(np.allclose(rows, embeddings(longer)[table]) for table, rows in embeddings(still).items())
    for more in ("--num_proc 2", "--num_proc 2 --worker thread", "--neg_deg_sample -adv", "--pairwise --loss_genre Hinge"):
        assert metrics(bench.train(*named, *more.split(), "--test"))["count"] == trained["count"]

    bench.out()
    asked = [str(run), *own, "--head", "e1", "--relation", "r1", "--topk", "3", "--json"]
    assert predict.main([*asked, "--explain"]) == 0
    answers = json.loads(bench.out())["answers"]
    ours = kgdist.load(run, model_file=str(bench.root / "paired.py") if own else None).predict("e1", "r1", k=3)
    assert [row["tail"] for row in answers] == list(ours["tail"]) and [row["tail_rank"] for row in answers] == [1, 2, 3]
    assert "leave it out" in bench.refused(predict.main, [*asked, "--index"])
    assert emb_sim.main([str(run), *own, "--left", "e1", "--topk", "3", "--json"]) == 0
    assert len(json.loads(bench.out())["answers"]) == 3

    for target in TARGETS.keys() - {"dglke"}:
        assert export.main([str(run), *own, "--to", target, "--out", str(bench.root / target)]) == 0
    assert "DGL-KE has no model" in bench.refused(export.main, [str(run), *own, "--to", "dglke", "--out", str(bench.root / "no")])
    assert np.array_equal(np.load(bench.root / "npy/relation.npy"), embeddings(run)["relation"])
    assert compare.main([str(run), str(longer), *own]) == 0
    search = ["--trials", "1", "--validations", "2", "--out", str(bench.root / "search"), "--max_step", "20"]
    assert tune.main([*bench.source(), *named, "--hidden_dim", "8", "--batch_size", "16", "--neg_sample_size", "8", *search]) == 0
    assert tree(bench.root / "search")


@pytest.mark.parametrize("model", ["PairRE", "Paired"])
def test_from_python(bench: Bench, model: str) -> None:
    train, valid, test = random_splits()
    if model == "Paired":
        model_file.bring(str(bench.root / "paired.py"))
    options: dict[str, Any] = {"hidden_dim": 8, "gamma": 4.0, "batch_size": 16, "neg_sample_size": 8, "max_step": 20, "seed": 1}
    data = kgdist.load_dataset(train, valid=valid, test=test, data_path=str(bench.root / "memory"))
    run = kgdist.train(data, model_name=model, save_path=str(bench.ckpts), **options)
    scores = run.score("e3", "r2", np.arange(len(run.entities)))
    assert run.predict("e3", "r2", k=4).ids["tail"].tolist() == np.argsort(-scores, kind="stable")[:4].tolist()
    assert run.embeddings("relation").shape == (4, 16) and 0 < run.evaluate("test").mrr <= 1
    fitted = kgdist.KGEmbedder(model, data_path=str(bench.root / "memory"), save_path=str(bench.ckpts), **options).fit(train)
    assert len(fitted.predict([("e3", "r2")])) == 1


def test_what_cannot_be_is_refused(bench: Bench) -> None:
    assert "double --hidden_dim" in bench.train_refused("--model_name", "PairRE", "--double_ent")
    text = FILE.read_text()
    for wrong, message in (
        (
            text.replace("def project(self, entities, relation, side)", "def project(self, entities)"),
            "project takes (self, entities",
        ),
        (text.replace("return normalize(entities, dim=-1)", "return entities[:, 1:]"), "does not work with rows of 8 numbers"),
    ):
        (bench.root / "wrong.py").write_text(wrong)
        assert message in bench.train_refused("--model_file", str(bench.root / "wrong.py"), "--model_name", "Paired")
        model_file.OWN.clear()
        MODELS.pop("Paired", None)


BOTH = """
import kgdist

@kgdist.register
class Scales(kgdist.Model):
    "gamma - ||h o r - t o r||_1"
    name, compare, distance = "Scales", "l1", True

    def query(self, anchor, relation, side):
        return anchor * relation

    def project(self, entities, relation{side}):
        return entities * relation.per_triple("relation")
"""


def test_a_projection_of_one_s_own_may_know_of_no_side(bench: Bench) -> None:
    """So it was written before a projection was asked for a side."""
    found = {}
    for side in ("", ", side"):
        (bench.root / "own.py").write_text(BOTH.replace("{side}", side))
        run = bench.train("--model_file", str(bench.root / "own.py"), "--model_name", "Scales", "--test", "--seed", "1")
        found[side] = json.loads((run / "test.json").read_text())["all"], embeddings(run)["entity"]
        model_file.OWN.clear()
        MODELS.pop("Scales", None)
    assert found[""][0] == found[", side"][0] and np.array_equal(found[""][1], found[", side"][1])
