"""The Python API against brute force, the commands and the files; callbacks in one process, several and threads."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import kgdist
from kgdist.base.errors import CheckpointError, DataError, OptionError, UsageError
from kgdist.cli import eval as eval_command
from kgdist.runs import checkpoint
from tests.cli.graphs import MODELS, metrics, random_splits, rows, write
from tests.patience import patience

TRAIN, VALID, TEST = random_splits()
SMALL: dict[str, Any] = {
    "hidden_dim": 8,
    "gamma": 4,
    "batch_size": 16,
    "neg_sample_size": 8,
    "lr": 0.1,
    "max_step": 40,
    "log_interval": 10,
    "quiet": True,
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written without a folder goes here."""
    monkeypatch.chdir(tmp_path)


def train(**options: Any) -> kgdist.Run:
    return kgdist.train(kgdist.load_dataset(TRAIN, valid=VALID, test=TEST), **SMALL | options)


# ---------------------------------------------------------------------------------------------------------------- names
def test_every_name_is_there_and_type_checkers_see_the_same() -> None:
    source = Path(kgdist.__file__).read_text(encoding="utf-8")
    (block,) = (node for node in ast.parse(source).body if isinstance(node, ast.If))
    typed = {(str(node.module), alias.name) for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert {name for _, name in typed} == set(kgdist.__all__) - {"__version__"} == set(kgdist._HOMES)
    for home, name in typed:
        assert getattr(kgdist, name) is getattr(sys.modules[home], name) and name in dir(kgdist)
    assert dir(kgdist) == sorted(kgdist.__all__)
    for name in kgdist.__all__:
        thing = getattr(kgdist, name)
        assert not callable(thing) or thing.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = kgdist.trian


# ---------------------------------------------------------------------------------------------------------------- data
def test_the_same_triples_in_every_form_are_the_same_graph(tmp_path: Path) -> None:
    array = np.array(TRAIN, dtype=object)
    forms: list[Any] = [
        TRAIN,
        iter(TRAIN),
        [list(row) for row in TRAIN],
        array,
        array.astype(str),
        dict(zip(("head", "relation", "tail"), array.T.tolist(), strict=True)),
        {"weight_of_nothing": [0] * len(TRAIN), **dict(zip(("head", "relation", "tail"), array.T.tolist(), strict=True))},
        pa.table(dict(zip("spo", array.T.tolist(), strict=True))),
        pa.table({name: pa.array(column).dictionary_encode() for name, column in zip("spo", array.T.tolist(), strict=True)}),
    ]
    graphs = [kgdist.load_dataset(form) for form in forms]
    write(tmp_path / "mine" / "train.txt", TRAIN)
    graphs += [kgdist.load_dataset(Path("mine")), kgdist.load_dataset("mine", data_path=".")]
    write(tmp_path / "triples.tsv", TRAIN)
    graphs.append(kgdist.load_dataset("triples.tsv"))
    assert len({graph.digest for graph in graphs}) == 1
    assert len({graph.name for graph in graphs[:9]}) == 1 and len(list((tmp_path / "data").iterdir())) == 1
    names = [graphs[0].entities[i] for i in range(3)]
    assert names[0] == TRAIN[0][0] and [[*row] for row in graphs[0].train.array[:1]] == [[0, 0, 1]]


def test_a_data_frame_is_a_form(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TRAIN, columns=["subject", "predicate", "object"], index=range(5, 5 + len(TRAIN)))
    assert kgdist.load_dataset(frame).digest == kgdist.load_dataset(TRAIN).digest
    run = train()
    table = run.predict("e1", "r1", k=3)
    assert table.to_pandas()["tail"].tolist() == list(table["tail"])
    assert run.entity_embeddings.to_pandas().loc["e1"].to_numpy() == pytest.approx(run.entity_embeddings["e1"])


def test_integers_are_ids_and_stay_what_they_are() -> None:
    ids = np.random.default_rng(1).integers(0, 9, (60, 3)) % [9, 2, 9]
    ids[0] = (11, 3, 2)  # 12 entities, 4 relations, not all of which occur
    for form in (ids, ids.astype(np.int32), ids.tolist(), ids[::-1][::-1]):
        graph = kgdist.load_dataset(form, test=[(3, 1, 4)])
        assert (len(graph.entities), len(graph.relations)) == (12, 4)
        assert np.array_equal(graph.train.array, ids) and graph.test is not None and graph.test.array.tolist() == [[3, 1, 4]]
        assert graph.valid is None
    named = kgdist.load_dataset([(h, "xy"[r % 2], t) for h, r, t in ids.tolist()])
    assert np.array_equal(named.train.array[:, [0, 2]], ids[:, [0, 2]]) and len(named.relations) == 2


def test_weights_come_as_a_fourth_column() -> None:
    weighted = [(*triple, 1 + i % 3) for i, triple in enumerate(TRAIN)]
    graph = kgdist.load_dataset(weighted)
    assert graph.train.weights is not None and graph.train.weights.tolist() == [row[3] for row in weighted]
    plain = kgdist.train(TRAIN, seed=1, optimizer="sgd", **SMALL)
    other = kgdist.train(weighted, seed=1, optimizer="sgd", **SMALL)
    assert other.config.has_edge_importance and not np.allclose(plain.entity_embeddings, other.entity_embeddings)
    with pytest.raises(OptionError, match="no fourth column"):
        kgdist.load_dataset(TRAIN, has_edge_importance=True)


BAD: list[tuple[Any, str]] = [
    ([], "the train split has no triples"),
    (5, "must be rows or a table, not 5"),
    ([("a", "b")], r"rows of \(head, relation, tail\)"),
    ([("a", "r", "b"), ("a", "r", "b", 1)], r"rows of \(head, relation, tail\)"),
    (np.zeros((3, 2)), r"have the shape \[3, 2\], expected \[T, 3\]"),
    ([("a", "r", None)], "the tail of row 0 of the train triples is missing"),
    ([("a", 1.5, "b")], "the relations of the train triples are double"),
    ([("a", "r", "b"), (1, "r", "b")], "must be all text or all integers"),
    ([(1, "r", "b")], "some heads and tails are text and some are integers"),
    ([(-1, 0, 1)], "ids from -1 to 1"),
    ([(10**9, 0, 1)], "ids count from 0 without large gaps"),
    ([("a", "r", "b", "much")], "the weights of the train triples are"),
    ({"head": ["a"], "relation": ["r"]}, "expected head, relation, tail"),
    ({"head": ["a", "b"], "relation": ["r"], "tail": ["c"]}, "not of one length"),
    ("nowhere.tsv/x", "no such file or folder"),
    (b"abc", "must be rows or a table"),
]


@pytest.mark.parametrize(("data", "message"), BAD)
def test_what_is_no_triples_is_refused(data: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        kgdist.load_dataset(data)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: kgdist.train(TRAIN, lrr=1), "lrr: no such option; did you mean lr"),
        (lambda: kgdist.train(TRAIN, lr=-1), "--lr: must be a number > 0"),
        (lambda: kgdist.train(TRAIN, num_parts=3), "num_parts: no such option"),
        (lambda: kgdist.train(TRAIN, json=True), "is for commands"),
        (lambda: kgdist.train(TRAIN, no_save_emb=True), "made of what was saved"),
        (lambda: kgdist.train(TRAIN, format="udd_hrt"), "has no place beside triples in memory"),
        (lambda: kgdist.train(dataset="wordnet", valid=VALID), "True or False"),
        (lambda: kgdist.train("wordnet", test=TEST), "has its own valid and test"),
        (lambda: kgdist.train(TRAIN, max_step=2, max_epoch=1), "contradicts --max_epoch"),
        (lambda: kgdist.train(TRAIN, **SMALL, test=True), "has no test triples"),
        (lambda: kgdist.load_dataset(TRAIN, pathh="x"), "no such option"),
        (lambda: kgdist.load_dataset("wordnt"), "did you mean wordnet"),
        (lambda: kgdist.load("nowhere"), "no such run folder"),
        (lambda: kgdist.load_dataset([("", "r", "x")]), "head '' is empty"),
    ],
)
def test_what_cannot_be_is_refused_by_name(call: Any, message: str) -> None:
    with pytest.raises((OptionError, CheckpointError, UsageError, DataError), match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------------------------- a run
@pytest.mark.parametrize("model", [name for name in MODELS if name != "TransE"])
def test_predictions_are_those_of_all_scores_sorted(model: str) -> None:
    run = train(model_name=model)
    count, every = len(run.entities), np.arange(len(run.entities))
    known = {tuple(row) for split in (TRAIN, VALID, TEST) for row in split}
    scores = run.score("e3", "r2", every)
    assert scores.shape == (count,) and scores[5] == run.score(run.entities.id("e3"), 1 * run.relations.id("r2"), 5)
    order = sorted(range(count), key=lambda i: (-scores[i], i))
    for exclude in (False, True):
        wanted = [i for i in order if not (exclude and ("e3", "r2", run.entities[i]) in known)][:7]
        found = run.predict("e3", "r2", k=7, exclude_known=exclude)
        assert found.ids["tail"].tolist() == wanted and list(found["tail"]) == run.entities.names(wanted)
        assert found["score"] == pytest.approx(scores[wanted]) and found["rank"].tolist() == list(range(1, 8))
    heads = run.predict(relation="r2", tail=["e3", 0], k=2)
    assert [row.tail for row in heads] == ["e3", "e3", run.entities[0], run.entities[0]]
    best = np.argmax(run.score(every, "r2", "e3"))
    assert heads.ids["head"][0] == best and heads[0].rank == 1 and heads[3].rank == 2
    relations = run.score("e3", np.arange(4), "e9")
    assert run.predict(head="e3", tail="e9", k=1).ids["relation"].tolist() == [int(relations.argmax())]
    relation, tail = (ids.ravel() for ids in np.mgrid[:4, :count])
    pairs = dict(zip(zip(relation.tolist(), tail.tolist(), strict=True), run.score("e3", relation, tail), strict=True))
    top = run.predict("e3", k=3)
    assert list(zip(top.ids["relation"], top.ids["tail"], strict=True)) == sorted(pairs, key=lambda pair: -pairs[pair])[:3]


def test_an_evaluation_is_that_of_the_command_and_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    run = train(model_name="ComplEx")
    before = sorted(run.path.rglob("*"))
    capsys.readouterr()
    found, pessimistic = run.evaluate("test"), run.evaluate("test", rank_ties="pessimistic", no_eval_filter=True)
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "") and sorted(run.path.rglob("*")) == before
    assert eval_command.main([str(run.path)]) == 0
    saved = metrics(run.path)
    assert json.loads(json.dumps(found)) == saved
    assert found.mrr == saved["all"]["realistic"]["mrr"] and "filtered by train, valid, test" in repr(found)
    assert eval_command.main([str(run.path), "--rank_ties", "pessimistic", "--no_eval_filter"]) == 0
    assert pessimistic.hits10 == metrics(run.path)["all"]["pessimistic"]["hits@10"]
    assert pessimistic.auc_roc == metrics(run.path)["all"]["pessimistic"]["auc-roc"]
    assert run.evaluate("train").mr < found.mr
    for split, options, message in (
        ("tset", {}, "no tset triples"),
        ("test", {"lr": 1}, "not an option of evaluate"),
        ("test", {"neg_deg_sample_eval": True}, "--neg_deg_sample_eval: needs --no_eval_filter"),
    ):
        with pytest.raises(UsageError, match=message):
            run.evaluate(split, **options)


def test_embeddings_are_the_files_and_known_by_name() -> None:
    run = train(model_name="TransR")
    for noun, embeddings in (("entity", run.entity_embeddings), ("relation", run.relation_embeddings)):
        (file,) = run.path.glob(f"*_{noun}.npy")
        saved = np.load(file)
        assert np.array_equal(embeddings, saved) and embeddings.shape == saved.shape and len(embeddings) == len(saved)
        name = embeddings.names[2]
        assert np.array_equal(embeddings[name], saved[2]) and np.array_equal(embeddings[[2, name]], saved[[2, 2]])
        assert np.array_equal(embeddings[1:3], saved[1:3]) and np.asarray(embeddings).base is not None
        table = embeddings.to_arrow()
        assert table["name"].to_pylist() == list(embeddings.names)
        assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), saved)
        with pytest.raises(ValueError, match="read-only"):
            embeddings.array[0, 0] = 1.0
    assert run.embeddings("projection").shape == (4, 64)
    with pytest.raises(UsageError, match="no table 'projektion'; its tables are entity, relation, projection"):
        run.embeddings("projektion")


def test_similar_ones_are_those_of_all_sorted() -> None:
    run = train()
    rows_ = np.asarray(run.entity_embeddings, np.float64)
    unit = rows_ / np.linalg.norm(rows_, axis=1, keepdims=True)
    order = [i for i in np.argsort(-(unit @ unit[4]), kind="stable").tolist() if i != 4][:5]
    found = run.similar(4, k=5)
    assert found.ids["right"].tolist() == order and set(found["left"]) == {run.entities[4]}
    assert found["score"] == pytest.approx((unit @ unit[4])[order])
    assert len(run.similar(["r1", "r2"], k=1, kind="relation", measure="l2")) == 2
    with pytest.raises(UsageError, match="similar: must be"):
        run.similar(4, measure="cosinus")


def test_names_that_are_not_known_are_refused_with_those_like_them() -> None:
    run = train()
    for call, message in (
        (lambda: run.predict("e1x", "r1"), "no entity is called 'e1x'; did you mean 'e1'"),
        (lambda: run.predict(99, "r1"), "entity id 99 is out of range, allowed: 0 to 29"),
        (lambda: run.predict(-1, "r1"), "entity id -1 is out of range"),
        (lambda: run.score("e1", 1.5, "e2"), "1.5 is not a valid relation"),
        (lambda: run.score("e1", True, "e2"), "True is not a valid relation"),
        (lambda: run.score(["e1", "e2"], "r1", ["e1"] * 3), "of one length, not 2 heads, 1 relations, 3 tails"),
        (lambda: run.predict(), "give one or two of head, relation and tail"),
        (lambda: run.predict("e1", "r1", "e2"), "score\\(\\) takes all three"),
        (lambda: run.predict("e1", "r1", k=0), "k must be at least 1"),
        (lambda: run.entity_embeddings["e1x"], "no entity is called 'e1x'"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
    assert len(run.score([], [], [])) == 0 and len(run.predict("e1", "r1", k=10**6)) == 30


def test_a_table_is_columns_rows_and_text() -> None:
    table = kgdist.Table({"name": ["<b>", "é"], "score": [1.5, -2.0]})
    assert [tuple(row) for row in table] == [("<b>", 1.5), ("é", -2.0)] and table[1].name == "é" and len(table) == 2
    assert type(table[0].score) is float and type(table[0].name) is str and table["score"].dtype == np.float64
    assert "&lt;b&gt;" in table._repr_html_() and repr(table).splitlines()[0].split() == ["name", "score"]
    assert table.to_arrow().to_pydict() == {"name": ["<b>", "é"], "score": [1.5, -2.0]}
    long = kgdist.Table({"n": range(100)})
    assert len(repr(long).splitlines()) == 22 and "100 rows" in repr(long)
    with pytest.raises(ValueError, match="different lengths"):
        kgdist.Table({"a": [1], "b": [1, 2]})


def test_a_run_is_loaded_from_anywhere_and_exported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = train(seed=4)
    score = run.score("e1", "r1", "e2")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    again = kgdist.load(run.path if run.path.is_absolute() else tmp_path / run.path)
    assert again.score("e1", "r1", "e2") == score and again.evaluate().mrr > 0
    files = again.export("word2vec", "vectors", tables="entity")
    assert any(file.name.startswith("entit") for file in files) and all(file.is_file() for file in files)
    with pytest.raises(UsageError):
        again.export("word2vec", "vectors")
    (tmp_path / "data").rename(tmp_path / "moved")
    with pytest.raises(UsageError):
        kgdist.load(again.path).evaluate()
    assert kgdist.load(again.path, data_path=tmp_path / "moved").evaluate().mrr == again.evaluate().mrr


# ---------------------------------------------------------------------------------------------------------------- callbacks
@pytest.mark.parametrize("how", [{}, {"num_proc": 2, "worker": "thread"}])
def test_callbacks_hear_what_metrics_jsonl_says(how: dict[str, Any]) -> None:
    events: list[Any] = []
    here = threading.get_ident()
    where: set[int] = set()
    run = train(valid=True, eval_interval=20, callbacks=[events.append, lambda event: where.add(threading.get_ident())], **how)
    assert where == {here} and {event.folder for event in events} == {str(run.path)}
    for kind, row in (("train", kgdist.Progress), ("valid", kgdist.Validation)):
        heard, written = [event for event in events if isinstance(event, row)], rows(run.path, kind)
        assert [event.step for event in heard] == [line["step"] for line in written] and heard
        assert all(event.total == 40 for event in heard)
        name = "loss" if kind == "train" else "mrr"
        assert [getattr(event, name) for event in heard] == [line[name] for line in written]
    validations = [event for event in events if isinstance(event, kgdist.Validation)]
    found = validations[0].report["all"]["realistic"]
    assert validations[0].best and (validations[0].hits10, validations[0].auc_roc) == (found["hits@10"], found["auc-roc"])


@pytest.mark.parametrize("how", [{}, {"num_proc": 2, "worker": "thread"}], ids=str)
def test_stop_ends_a_training_as_its_last_step_does(how: dict[str, Any]) -> None:
    def enough(event: Any) -> object:
        return kgdist.STOP if event.step >= 20 else None

    run = train(callbacks=[enough], **how | {"max_step": 10**6})
    saved = checkpoint.latest(run.path)
    assert 20 <= max(saved.meta["steps"]) < 10**6 and list(run.path.glob("*_entity.npy"))
    assert np.array_equal(run.entity_embeddings, saved.arrays["entity"])
    if not how:
        assert saved.step == 20
        resumed = kgdist.train(resume=str(run.path), max_step=40, quiet=True)
        assert resumed.path == run.path and np.array_equal(resumed.entity_embeddings, train().entity_embeddings)


@pytest.mark.parametrize("how", [{}, {"num_proc": 2, "worker": "thread"}, {"valid": True, "eval_interval": 20}])
def test_what_a_callback_raises_comes_out_and_the_run_is_saved(how: dict[str, Any], capfd: pytest.CaptureFixture[str]) -> None:
    class Mine(Exception):
        pass

    calls = []

    def fail(event: Any) -> None:
        calls.append(event)
        if "valid" not in how or isinstance(event, kgdist.Validation):
            raise Mine("no more")

    with pytest.raises(Mine, match="no more"):
        train(callbacks=[fail, calls.append], **how | {"max_step": 10**6})
    assert isinstance(calls[-1], kgdist.Validation if "valid" in how else kgdist.Progress)
    (folder,) = Path("ckpts").iterdir()
    step = checkpoint.latest(folder).step
    assert step < 10**6 and not list(folder.glob("*.npy"))
    run = kgdist.train(resume=folder, max_step=step + 10, quiet=True)
    assert checkpoint.latest(run.path).step == step + 10
    with pytest.raises(TypeError, match="cannot be called"):
        train(callbacks=[3])


def test_ctrl_c_saves_and_says_how_to_go_on() -> None:
    with pytest.raises(KeyboardInterrupt, match=r"kgdist\.train\(resume='ckpts/TransE_triples-") as caught:
        train(callbacks=[lambda event: os.kill(os.getpid(), signal.SIGINT)], max_step=10**6)
    folder = str(caught.value).split("'")[1]
    assert checkpoint.latest(Path(folder)).step < 10**6
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_report_is_written_when_asked_for() -> None:
    pytest.importorskip("plotly")
    run = train(report=True, test=True)
    assert (run.path / "report.html").stat().st_size > 1000
    (run.path / "report.html").unlink()
    assert run.report().is_file()


@pytest.mark.timeout(400)
def test_a_script_needs_no_guard_for_its_workers_nor_the_main_thread(tmp_path: Path) -> None:
    """Nothing is printed, and the threads of torch are as before."""
    script = f"""
import threading, torch, kgdist
torch.set_num_threads(3)
print("started")
made, heard = [], []
options = {SMALL | {"num_proc": 2}!r}
thread = threading.Thread(target=lambda: made.append(kgdist.train({TRAIN!r}, test={TEST!r}, callbacks=[heard.append], **options)))
thread.start()
thread.join({patience(300)})
kinds = [(type(event), event.step) for event in heard]
print(made[0].config.num_proc, torch.get_num_threads(), made[0].path.name, 1 < len(kinds) == len(set(kinds)))
"""
    (tmp_path / "script.py").write_text(script)
    paths = os.pathsep.join(filter(None, (str(Path(kgdist.__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    words = [sys.executable, "script.py"]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": paths}, capture_output=True, text=True, timeout=patience(300))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first == "started" and second.startswith("2 3 TransE_triples-") and second.endswith(" True")
