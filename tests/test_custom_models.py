"""Score functions of the user's own: the laws of models, every command, and what is refused."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import kgdist
from kgdist.base.errors import CheckpointError, OptionError, UsageError
from kgdist.base.types import Batch, RelationRows, Side
from kgdist.cli import predict as predict_command
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import MODELS, make_model, settle
from kgdist.options import model_file, parse
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import read_run
from kgdist.partition.book import Book
from kgdist.runtime.cluster.training_plan import TrainingPlan
from kgdist.runtime.ip_config import Machine
from kgdist.training.autograd_step import AutogradStep
from kgdist.training.loop import make_step
from kgdist.training.step import Clock
from tests.cli.graphs import Bench, metrics, state
from tests.laws.test_models import relation_rows, rows_of
from tests.own_models import as_before, forget

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "custom_model" / "quate.py"
SIZES = {"hidden_dim": 8, "entity_dim": 8, "relation_dim": 8, "gamma": 4.0}


@pytest.fixture
def bench(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Bench:
    """A random graph of 30 entities, and the commands on it."""
    return Bench(tmp_path, capsys)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """What a test registers is gone after it."""
    with as_before():
        yield


def quaternion(x: torch.Tensor) -> torch.Tensor:
    """float[8] -> complex[2,2,2]: two quaternions as matrices, whose product is theirs."""
    a, b, c, d = x.view(4, 2)
    return torch.stack([torch.complex(a, b), torch.complex(c, d), torch.complex(-c, d), torch.complex(a, -b)], -1).view(2, 2, 2)


def quate(h: torch.Tensor, r: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """The formula of the example for one triple: half of Re tr(A B^*) is the dot product of quaternions."""
    hq, rq, tq = quaternion(h), quaternion(r), quaternion(t)
    length = r.view(4, 2).norm(dim=0)
    return 0.5 * torch.einsum("kij,kjl,kil->k", hq, rq, tq.conj()).real.div(length).sum()


@pytest.mark.parametrize("side", Side)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_example_obeys_the_laws_of_models(side: Side, dtype: torch.dtype) -> None:
    model_file.bring(str(EXAMPLE))
    model = make_model("QuatE", **SIZES)
    assert model.kernel is None
    tables = rows_of(model, dtype, seed=1)
    heads, relations, tails = torch.tensor([[0, 1, 2, 3, 4, 0, 7], [1, 0, 3, 1, 1, 2, 3], [5, 6, 2, 0, 4, 5, 9]])
    relation, entity = relation_rows(tables, relations), tables["entity"]
    queries = model.queries(side.pick(head=entity[tails], tail=entity[heads]), relation, side)
    positive = model.pair(queries, entity[side.pick(head=heads, tail=tails)], relation, side)
    scores = model.cross(queries, entity.expand(3, -1, -1), relation, 3, side)
    tolerance = {"rtol": 1e-4, "atol": 2e-5} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-9}
    torch.testing.assert_close(scores[torch.arange(7), side.pick(head=heads, tail=tails)], positive, **tolerance)
    for i, (h, r, t) in enumerate(zip(heads.tolist(), relations.tolist(), tails.tolist(), strict=True)):
        for candidate in range(12):
            one, other = side.pick(head=(candidate, t), tail=(h, candidate))
            expected = quate(entity[one], tables["relation"][r], entity[other])
            torch.testing.assert_close(scores[i, candidate], expected, **tolerance)


# ---------------------------------------------------------------------------------------------------------------- commands
@pytest.mark.timeout(240)
def test_every_command_knows_it_by_its_file(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained by one process, resumed, ranked and asked; two processes import the file themselves."""
    monkeypatch.chdir(bench.root)
    shutil.copy(EXAMPLE, bench.root / "mine.py")
    own = ["--model_file", "mine.py"]
    assert "QuatE" in bench.train_refused("--model_name", "QuatE")
    run = bench.train(*own, "--model_name", "QuatE", "--test", "--seed", "3")
    assert run.name == "QuatE_toy_0"
    trained = metrics(run)
    assert bench.eval(run, *own) == trained
    saved = json.loads((run / "config.json").read_text())
    assert saved["model_file"] == str(bench.root / "mine.py") and saved["model_name"] == "QuatE"
    bench.resume(run, *own, "--max_step", "40")
    again = bench.train(*own, "--model_name", "QuatE", "--seed", "3", "--max_step", "40")
    assert state(run) == state(again)

    several = bench.train(*own, "--model_name", "QuatE", "--num_proc", "2", "--test")
    assert metrics(several)["count"] == trained["count"]
    bench.capsys.readouterr()
    assert predict_command.main([*own, str(run), "--head", "e1", "--relation", "r1", "--topK", "3", "--output", "-"]) == 0
    shown = [line.split() for line in bench.out().splitlines()]
    ours = kgdist.load(run).predict("e1", "r1", k=3)
    assert [row[2] for row in shown[1:4]] == list(ours["tail"])


def test_a_run_of_it_is_never_opened_without_its_file(bench: Bench) -> None:
    marker = bench.root / "imported"
    file = bench.root / "mine.py"
    file.write_text(EXAMPLE.read_text() + f"\nopen({str(marker)!r}, 'a').write('x')\n")
    run = bench.train("--model_file", str(file), "--model_name", "QuatE")
    assert marker.read_text() == "x"
    forget()
    for refused in (bench.eval_refused(run), bench.resume_refused(run)):
        assert f"--model_file {file}" in refused and "QuatE" in refused
    with pytest.raises(CheckpointError, match="one of your own"):
        kgdist.load(run)
    assert marker.read_text() == "x"
    assert kgdist.load(run, model_file=str(file)).model.name == "QuatE"


@pytest.mark.parametrize("order", [("model_name: QuatE", "model_file: {}"), ("model_file: {}", "model_name: QuatE")])
def test_a_file_of_options_may_name_it_in_any_line(order: tuple[str, str], tmp_path: Path) -> None:
    file = tmp_path / "options.yaml"
    file.write_text("\n".join(line.format(EXAMPLE) for line in order) + "\n")
    config = parse.parse("train", ["--config", str(file)]).config
    assert config.model_name == "QuatE" and config.model_file == str(EXAMPLE)
    assert "QuatE" in parse.parser("train").format_help()


def test_workers_that_are_processes_need_the_file(bench: Bench) -> None:
    model_file.bring(str(EXAMPLE))
    assert "--model_file" in bench.train_refused("--model_name", "QuatE", "--num_proc", "2")
    assert bench.train("--model_name", "QuatE", "--num_proc", "2", "--worker", "thread").is_dir()


def test_every_machine_has_the_launchers_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    shutil.copy(EXAMPLE, file)
    model_file.bring(str(file))
    config = Config(model_name="QuatE", model_file=str(file), hidden_dim=8)
    book, machines = Book(np.array([0, 9]), np.array([0, 2])), [Machine("127.0.0.1", 30050, 1, 0)]
    sent = TrainingPlan(config, machines, "run", 0, "g", book, 9, models=model_file.digest_of(file)).to_json()
    assert TrainingPlan.from_json(sent).shapes["entity"] == (9, 8)
    file.write_text(file.read_text() + "# another\n")
    with pytest.raises(OptionError, match="not the file that the launcher has"):
        TrainingPlan.from_json(sent)
    file.unlink()
    with pytest.raises(OptionError, match="cannot be read"):
        TrainingPlan.from_json(sent)


# ---------------------------------------------------------------------------------------------------------------- what is refused
GOOD = 'import kgdist\n@kgdist.register\nclass A(kgdist.Model):\n    name = "A"\n    compare = "dot"\n'
QUERY = "    def query(self, anchor, relation, side):\n        return anchor * relation\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "registers no score function"),
        ("x = (\n", r"mine\.py:1: "),
        ("import kgdist\n\n1 / 0\n", r"mine\.py:3: ZeroDivisionError"),
        (GOOD, "needs a method query"),
        (GOOD.replace('"dot"', '"cosine"') + QUERY, "compare is 'cosine', must be one of dot"),
        (GOOD.replace('"A"', '"a b"') + QUERY, "needs a name"),
        (GOOD.replace('    name = "A"\n', "") + QUERY, "needs a name"),
        (GOOD.replace('"A"', '"RotatE"') + QUERY, "the name RotatE is taken by kgdist itself"),
        (GOOD + QUERY + (GOOD + QUERY).replace("class A", "class B"), "the name A is taken by"),
        (GOOD + QUERY + QUERY.replace("query", "pair"), "put the formula into query"),
        ("import kgdist\nkgdist.register(int)\n", "derived from kgdist.Model"),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    for _ in range(2):  # and again
        with pytest.raises(OptionError, match=message) as caught:
            parse.parse("train", ["--model_file", str(file), "--model_name", "A"])
        assert "\n" not in str(caught.value)


def test_no_file_and_no_python_are_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(GOOD + QUERY)
    for name, message in (("nowhere.py", "cannot be read"), ("mine.txt", "is not a Python file"), (".", "cannot be read")):
        with pytest.raises(OptionError, match=message):
            parse.parse("eval", [f"--model_file={tmp_path / name}"])


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return anchor[:, :3] * relation[:, :3]", "the query for a missing head does not work with rows of 8 numbers"),
        ("return (anchor * relation).sum(-1)", "does not work"),
        ("return anchor @ relation", "does not work"),
        ("return (anchor * relation).float()", "gives float32|does not work"),
        ("return None", "does not work"),
    ],
)
def test_a_query_of_the_wrong_shape_is_told_before_anything_is_written(bench: Bench, body: str, message: str) -> None:
    file = bench.root / "mine.py"
    file.write_text(GOOD + QUERY.replace("return anchor * relation", body))
    assert message.split("|")[-1] in bench.train_refused("--model_file", str(file), "--model_name", "A")


def test_a_score_that_depends_on_the_side_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    @kgdist.register
    class Lopsided(kgdist.Model):
        name = "Lopsided"
        compare = "dot"

        def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
            return anchor + relation

    with caplog.at_level(logging.WARNING):
        make_model("Lopsided", **SIZES)
        make_model("Lopsided", **SIZES)
    assert sum("two scores" in record.message for record in caplog.records) == 1


def test_the_same_class_again_replaces_itself_and_another_does_not() -> None:
    def define(factor: float) -> type[Model]:
        @kgdist.register
        class Mine(kgdist.Model):
            name = "Mine"
            compare = "dot"

            def query(self, anchor: torch.Tensor, relation: torch.Tensor, side: Side) -> torch.Tensor:
                return factor * anchor * relation

        return Mine

    define(1.0)
    second = define(2.0)
    assert MODELS["Mine"] is second and OPTIONS["model_name"].choices.count("Mine") == 1
    with pytest.raises(UsageError, match="is taken by"):
        kgdist.register(type("Other", (second,), {"name": "Mine"}))


def test_a_variant_of_a_built_in_model_is_not_done_by_its_loops() -> None:
    renamed = kgdist.register(type("MyRotatE", (MODELS["RotatE"],), {"name": "MyRotatE"}))
    assert renamed.kernel is None and MODELS["RotatE"].kernel == "rotate"


# ---------------------------------------------------------------------------------------------------------------- more tables
class Biased(Model):
    """sum_k h_k r_k t_k with a second vector that shifts the relation: r = relation * shift."""

    name = "Biased"
    compare = "dot"
    vectors = ("relation", "shift")

    def tables(self, num_entities: int, num_relations: int) -> dict[str, tuple[int, int]]:
        return super().tables(num_entities, num_relations) | {"shift": (num_relations, self.relation_dim)}

    def queries(self, anchors: torch.Tensor, relation: RelationRows, side: Side) -> torch.Tensor:
        return anchors * relation.per_triple("relation") * relation.per_triple("shift")


def test_further_tables_are_trained_saved_and_read(bench: Bench) -> None:
    kgdist.register(Biased)
    run = bench.train("--model_name", "Biased", "--test")
    assert bench.eval(run) == metrics(run)
    opened = kgdist.load(run)
    assert opened.embeddings("shift").shape == (4, 8) and (run / "toy_Biased_shift.npy").is_file()
    start = bench.train("--model_name", "Biased", "--lr", "1e-30", "--max_step", "1")
    assert not np.allclose(np.load(start / "toy_Biased_shift.npy"), opened.embeddings("shift"))


def test_gradients_of_further_vectors_are_summed_by_row() -> None:
    kgdist.register(Biased)
    config, model = Config(model_name="Biased", neg_sample_size=4, regularization_coef=0.0), make_model("Biased", **SIZES)
    tables = MemoryTables.create(model.tables(9, 3), "sgd")
    generator = torch.Generator().manual_seed(0)
    for rows in tables.rows.values():
        rows.copy_(torch.rand(rows.shape, generator=generator) - 0.5)
    ids = np.arange(6)
    batch = Batch(ids, ids % 2, (ids + 1) % 9, np.arange(8).reshape(2, 4), Side.TAIL, 3)
    assert batch.masked is None
    step = make_step(config, model, tables, torch.device("cpu"))
    assert isinstance(step, AutogradStep)
    updates, _ = step(step.plan(batch), Clock())
    relation, shift = (tables.rows[name][:2] for name in ("relation", "shift"))
    # A product does not know its factors apart, so r dL/dr = s dL/ds.
    torch.testing.assert_close(updates["shift"].grads * shift, updates["relation"].grads * relation)
    assert updates["shift"].grads.abs().sum() > 0 and list(updates["shift"].ids) == [0, 1]


def test_bfloat16_is_refused_where_nothing_is_multiplied() -> None:
    kgdist.register(type("MyL1", (MODELS["TransE_l1"],), {"name": "MyL1"}))
    with pytest.raises(OptionError, match="sums distances"):
        settle(Config(model_name="MyL1", compute_dtype="bfloat16"))


def test_a_config_that_names_an_unknown_model_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_name": "Mine", "model_file": "/somewhere/mine.py"}')
    with pytest.raises(CheckpointError, match=r"'Mine' is one of your own.*--model_file /somewhere/mine\.py"):
        read_run(tmp_path)
