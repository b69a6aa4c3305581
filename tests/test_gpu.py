"""What a GPU computes is what the CPU computes, to roundings: steps of every model, optimisers, ranks, and whole commands.

Where there is no GPU nothing of this runs; `make test` says so.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kgdist.cli import emb_sim, predict
from kgdist.data.dataset import Triples
from kgdist.data.queries import Queries
from kgdist.kvstore.tables import MemoryTables, Update
from kgdist.models.registry import MODELS, make_model
from kgdist.options.config import Config
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.step import Losses
from tests import formulas
from tests.cli.graphs import Bench, embeddings, grid_splits, metrics, state
from tests.cli.test_all_candidates import Full
from tests.laws import test_steps as steps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
NAMES = sorted({model.name for model in MODELS.values()})
FULL = [name for name in NAMES if not MODELS[name].projects]
WAYS = {
    "rows on the GPU": "--gpu 0",
    "rows on the CPU": "--gpu 0 --mix_cpu_gpu",
    "updates beside it": "--gpu 0 --mix_cpu_gpu --async_update",
    "two processes": "--gpu 0 --num_proc 2 --mix_cpu_gpu",
}


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """A grid, which can be learnt, and the commands on it."""
    made = Bench(tmp_path, capsys)
    made.use(grid_splits(7))
    return made


def mrr(run: Path) -> float:
    """Of the test split."""
    return float(metrics(run)["all"]["realistic"]["mrr"])


def on_gpu(tables: MemoryTables, optimizer: str) -> MemoryTables:
    """The same rows there, with the optimiser's state of none."""
    moved = MemoryTables.create({name: tables.shape(name) for name in tables.names()}, optimizer, device=GPU)
    for name, rows in tables.rows.items():
        moved.rows[name].copy_(rows)
    return moved


def back(found: tuple[dict[str, Update], Losses]) -> tuple[dict[str, Update], Losses]:
    """The same on the CPU."""
    assert all(update.grads.is_cuda for update in found[0].values())
    squares = {name: None if update.squares is None else update.squares.cpu() for name, update in found[0].items()}
    return {n: u._replace(grads=u.grads.cpu(), squares=squares[n]) for n, u in found[0].items()}, found[1]


def agree(tables: MemoryTables, moved: MemoryTables, near: float = 1e-5) -> None:
    """Rows are the same. Raises AssertionError."""
    for name, rows in tables.rows.items():
        torch.testing.assert_close(moved.rows[name].cpu(), rows, rtol=1e-4, atol=near)


@pytest.mark.parametrize("optimizer", ["adagrad", "adagrad_row", "adam", "sgd"])
@pytest.mark.parametrize("name", NAMES)
def test_steps_against_drawn_entities(name: str, optimizer: str) -> None:
    """Both sides, the updates and the rows after them; rows on the GPU, and rows that come there from the CPU."""
    model = steps.model_of(name, 40, 12.0)
    options = {"neg_sample_size": 16, "neg_adversarial_sampling": True, "regularization_coef": 1e-3, "optimizer": optimizer}
    config = Config(model_name=name, **options)
    tables = MemoryTables.create(model.tables(200, 9), optimizer)
    for key, rows in steps.tables_of(model, 200, 9, 1).rows.items():
        tables.rows[key].copy_(0.3 * rows)
    moved = on_gpu(tables, optimizer)
    here, there, between = (AutogradStep(config, model, *where) for where in ((tables, CPU), (moved, GPU), (tables, GPU)))
    for which in range(2):
        batch = steps.batch_of(model, config, (200, 9, 16, 3, [(60, 0, False), (60, 1, False)], True), which)
        want, found = steps.done(here, batch), steps.done(there, batch)
        steps.check(back(found), want)
        steps.check(back(steps.done(between, batch)), want)
        tables.push(want[0], 0.1)
        moved.push(found[0], 0.1)
    agree(tables, moved, 2e-3 if optimizer == "adam" else 1e-5)  # Adam's first steps are as long for gradients of nothing


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("regularizer", ["n3", "f2", "dura"])
@pytest.mark.parametrize("name", FULL)
def test_steps_against_all_entities(name: str, regularizer: str, known: bool) -> None:
    model = make_model(name, **formulas.sizes(name), gamma=formulas.GAMMA)
    if regularizer == "dura" and model.compare != "dot":
        pytest.skip("regularises products")
    model.use_inverses()
    rng = np.random.default_rng(5)
    array = np.stack([rng.integers(9, size=300), rng.integers(3, size=300), rng.integers(70, size=300)], 1).astype(np.int32)
    triples = Triples(array, rng.uniform(0.2, 2, 300).astype(np.float32))
    extra = {"relation_loss": 0.5} if name in ("ComplEx", "DistMult") else {}
    config = Config(
        model_name=name, candidates="all", loss_genre="Softmax", reciprocal=True, regularizer=regularizer,
        regularization_coef=0.05, entity_dropout=0.2, relation_dropout=0.2, label_smoothing=0.1, optimizer="adagrad", **extra,
    )  # fmt: skip
    tables = MemoryTables.create(model.shapes(70, 3), "adagrad")
    for key, rows in tables.rows.items():
        spread = model.init_range if model.angles and key == "relation" else 1.0
        rows.uniform_(-spread, spread, generator=torch.Generator().manual_seed(2))
    moved, asked = on_gpu(tables, "adagrad"), Queries(triples, 20, answers=4, seed=1, known=known, inverses=True)
    here, there = AutogradStep(config, model, tables, CPU), AutogradStep(config, model, moved, GPU)
    for which in range(3):
        want, found = steps.done(here, asked.batch(which)), steps.done(there, asked.batch(which))
        steps.check(back(found), want)
        tables.push(want[0], 0.1)
        moved.push(found[0], 0.1)
        agree(tables, moved)
        for key, rows in tables.rows.items():  # a last digit can be a sign to TransE_l1
            moved.rows[key].copy_(rows)


@pytest.mark.parametrize("words", WAYS.values(), ids=WAYS)
def test_a_training_learns_resumes_and_is_ranked(bench: Bench, words: str) -> None:
    options = "--model_name ComplEx --hidden_dim 32 --lr .3 --max_step 150 --batch_size 32 --neg_sample_size 16 --seed 3".split()
    alone = mrr(bench.train(*options, "--test"))
    run = bench.train(*options, *words.split(), "--test", "--valid", "--eval_interval", "50")
    assert mrr(run) > 0.8 * alone
    here, there = (bench.eval(run, *more)["all"]["realistic"] for more in ([], ["--gpu", "0"]))
    for name, value in here.items():
        assert there[name] == pytest.approx(value, rel=1e-3), name
    bench.resume(run, "--max_step", "170", *words.split())


@pytest.mark.parametrize("name", ["ComplEx", "RESCAL", "TransE_l2"])
def test_a_training_against_all_entities(bench: Bench, name: str) -> None:
    """The same steps in the same order, so nearly the same rows."""
    options = f"--model_name {name} --hidden_dim 16 --candidates all --loss_genre Softmax --reciprocal --lr .1 --max_step 40"
    options += " --regularizer n3 -rc 1e-3 --optimizer adagrad --batch_size 16 --seed 3 --test"
    full = Full(bench.root, bench.capsys)
    here, there = (full.train(*options.split(), *more) for more in ([], ["--gpu", "0"]))
    for key, rows in embeddings(here).items():
        np.testing.assert_allclose(embeddings(there)[key], rows, rtol=1e-2, atol=2e-3)
    assert mrr(there) == pytest.approx(mrr(here), abs=0.02)
    rest = "--model_name DistMult --candidates all --loss_genre BCE --k_vs_all --compute_dtype bfloat16 --gpu 0"
    assert state(full.train(*rest.split(), "--hidden_dim", "16"))["step"] == b"20"


def test_an_encoder_learns(bench: Bench) -> None:
    options = "--model_name DistMult --encoder rgcn --encoder_dim 8 --num_bases 2 --max_step 30 --seed 3 --test".split()
    here, there = mrr(bench.train(*options)), mrr(bench.train(*options, "--gpu", "0"))
    assert there == pytest.approx(here, abs=0.05)


def test_answers_are_those_of_the_cpu(bench: Bench) -> None:
    run, lists = bench.train("--model_name", "ComplEx", "--max_step", "50", "--seed", "1"), bench.root / "names.txt"
    lists.write_text("0,0\n1,3\n2,2\n")
    told: dict[str, list[list[str]]] = {}
    for gpu in ("-1", "0"):
        output, told[gpu] = bench.root / f"result{gpu}.tsv", []
        asked = ["--head", "0,0", "1,3", "--relation", "right", "up", "--topK", "5"]
        similar = ["--format", "l_*", "--data_files", str(lists), "--topK", "3"]
        for command, words in ((predict, asked), (emb_sim, similar)):
            assert command.main([str(run), *words, "--gpu", gpu, "--output", str(output)]) == 0, bench.capsys.readouterr().err
            told[gpu] += [line.split("\t")[:-1] for line in output.read_text().splitlines()]
    assert told["-1"] == told["0"]
