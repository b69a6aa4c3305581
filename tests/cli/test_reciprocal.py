"""Runs with --reciprocal through every command: what it makes of both rows of a relation, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from kgdist.cli import compare as compare_command
from kgdist.cli import emb_sim as emb_sim_command
from kgdist.cli import encode as encode_command
from kgdist.cli import eval as eval_command
from kgdist.cli import export as export_command
from kgdist.cli import predict as predict_command
from kgdist.cli import tune as tune_command
from kgdist.runs.opened import open_model
from tests.cli.graphs import MODELS, Bench, embeddings, metrics, random_splits, state

RECIPROCAL = ("--reciprocal", "--hidden_dim", "8")


def names_of(run: Path, file: str = "relations.tsv") -> list[str]:
    return [line.split("\t")[1] for line in (run / file).read_text().splitlines()]


def both(names: list[str]) -> list[str]:
    return [name + suffix for name in names for suffix in ("", "_inverse")]


@pytest.mark.parametrize("model", MODELS)
def test_every_model_is_trained_saved_and_ranked(bench: Bench, model: str) -> None:
    run = bench.train("--model_name", model, *RECIPROCAL, "--test", "--valid", "--eval_interval", "10")
    made = embeddings(run)
    assert all(len(rows) == (30 if name == "entity" else 8) for name, rows in made.items())
    tested = metrics(run)
    assert bench.eval(run) == tested and json.loads((run / "config.json").read_text())["reciprocal"] is True
    part = bench.train("--model_name", model, *RECIPROCAL, "--max_step", "10")
    bench.resume(part, "--max_step", "20")
    assert state(part) == state(bench.train("--model_name", model, *RECIPROCAL))


def test_several_workers_train_inverses_too(bench: Bench) -> None:
    still = bench.train(*RECIPROCAL, "--num_proc", "2", "--worker", "thread", "--lr", "1e-30", "--max_step", "30")
    for worker in ("thread", "process"):
        run = bench.train(*RECIPROCAL, "--num_proc", "2", "--worker", worker, "--rel_part", "--max_step", "30")
        assert (np.abs(embeddings(run)["relation"] - embeddings(still)["relation"]).max(axis=1) > 1e-3).all()


@pytest.mark.parametrize(
    "workers",
    [
        [],
        ["--num_proc", "2", "--worker", "thread"],
        pytest.param(["--num_proc", "2", "--worker", "process"], marks=pytest.mark.slow),
    ],
)
def test_an_encoder_makes_entities_for_both_rows(bench: Bench, workers: list[str]) -> None:
    words = ["--model_name", "DistMult", "--encoder", "rgcn", "--encoder_dim", "6", "--num_bases", "2", *RECIPROCAL]
    run = bench.train(*words, "--test", *workers)
    assert embeddings(run)["relation"].shape == (8, 8)
    tested = metrics(run)
    assert bench.eval(run) == tested
    (bench.root / "new.tsv").write_text("new\tr0\te1\ne2\tr1\tnew\n")
    grown = bench.root / "grown"
    assert encode_command.main([str(run), "--triples", str(bench.root / "new.tsv"), "--out", str(grown)]) == 0
    assert np.array_equal(embeddings(grown)["relation"], embeddings(run)["relation"])


def test_a_run_without_names_has_half_as_many_relations_as_rows(bench: Bench) -> None:
    run = bench.train(*RECIPROCAL)
    for name in ("entities.tsv", "relations.tsv"):
        (run / name).unlink()
    shutil.rmtree(bench.data)
    assert (open_model(run).num_entities, open_model(run).num_relations) == (30, 4)
    assert list(open_model(run).row_names("relation")) == [f"{n}{suffix}" for n in range(4) for suffix in ("", "_inverse")]


# ---- rows and their names
def test_relations_are_exported_with_their_inverses(bench: Bench) -> None:
    run = bench.train(*RECIPROCAL, "--model_name", "TransR")
    made, names = embeddings(run), both(names_of(run))
    for target in ("npy", "safetensors", "parquet", "word2vec", "projector"):
        assert export_command.main([str(run), "--to", target, "--tables", "relation"]) == 0
        folder = run / "export" / target
        assert names_of(folder) == names and json.loads((folder / "export.json").read_text())["tables"]["relation"]["rows"] == 8
    assert np.array_equal(np.load(run / "export/npy/relation.npy"), made["relation"])
    table = pyarrow.parquet.read_table(run / "export/parquet/relation.parquet")
    assert table["name"].to_pylist() == names and table["id"].to_pylist() == list(range(8))
    assert np.array_equal(np.array(table["embedding"].to_pylist(), np.float32), made["relation"])
    lines = (run / "export/word2vec/relation.txt").read_text().splitlines()[1:]
    assert [line.split(" ")[0] for line in lines] == names
    assert "reciprocal" in json.loads((run / "export/npy/export.json").read_text())


def test_the_layout_of_dgl_ke_cannot_hold_them(bench: Bench) -> None:
    run = bench.train(*RECIPROCAL)
    line = bench.refused(export_command.main, [str(run), "--to", "dglke", "--out", str(bench.root / "dglke")])
    assert line == (
        "error: --to: DGL-KE has one row for a relation, and this run two; take another format, or train with --reciprocal=false"
    )
    assert not (bench.root / "dglke").exists()


def test_relations_are_similar_to_inverses(bench: Bench) -> None:
    run = bench.train(*RECIPROCAL, "--model_name", "DistMult")
    relation, names = embeddings(run)["relation"].astype(float), both(names_of(run))
    unit = relation / np.linalg.norm(relation, axis=1, keepdims=True)
    out = bench.root / "similar.tsv"
    words = ["--kind", "relation", "--left", "r1", "r2_inverse", "--exec_mode", "batch_left", "--topK", "7"]
    assert emb_sim_command.main(["--model_path", str(run), *words, "--output", str(out)]) == 0
    rows = [line.split("\t") for line in out.read_text().splitlines()[1:]]
    assert len(rows) == 14 and {row[0] for row in rows} == {"r1", "r2_inverse"} and {row[1] for row in rows} == set(names)
    for left, right, score in rows:
        assert float(score) == pytest.approx(float(unit[names.index(left)] @ unit[names.index(right)]), abs=1e-5)


def test_runs_of_either_kind_are_compared(bench: Bench) -> None:
    runs = [bench.train("--test"), bench.train("--test", *RECIPROCAL)]
    out = bench.root / "runs.json"
    assert compare_command.main([*map(str, runs), "--output", str(out)]) == 0
    text = out.read_text()
    assert "reciprocal" in text and all(run.name in text for run in runs)


# ---- going on, and beginning with the rows of another run
def test_a_run_keeps_its_rows(bench: Bench) -> None:
    words = ("--model_name", "ComplEx", "--hidden_dim", "8")
    runs = {given: bench.train(*words, *(["--reciprocal"] if given else [])) for given in (False, True)}
    for given, run in runs.items():
        other = ["--reciprocal" if not given else "--reciprocal=false"]
        line = bench.resume_refused(run, "--max_step", "40", *other)
        assert line == f"error: --resume: {run} was trained with --reciprocal {given}, not {not given}"
        line = bench.train_refused(*words, "--init_from", str(run), *other)
        assert line == f"error: --init_from: {run} was trained with --reciprocal {given}, not {not given}"


@pytest.mark.parametrize("model", ["ComplEx", "TransR"])
def test_init_from_takes_both_rows_of_a_relation(bench: Bench, model: str) -> None:
    old = bench.train("--model_name", model, *RECIPROCAL)
    before, known = embeddings(old), names_of(old)
    train, valid, test = random_splits()
    bench.use([[("e1", "r3", "e4"), ("e1", "fresh", "e2"), *train[::-1]], valid, test])
    still = ["--lr", "1e-30", "--max_step", "1", "--model_name", model, *RECIPROCAL]
    start, made = embeddings(bench.train(*still)), bench.train(*still, "--init_from", str(old))
    order = names_of(made)
    assert order != known and set(order) == {*known, "fresh"}
    for table, rows in embeddings(made).items():
        for row, name in enumerate(both(order) if table != "entity" else ()):
            there = both(known).index(name) if name in both(known) else -1
            assert np.array_equal(rows[row], before[table][there] if there >= 0 else start[table][row])


# ---- asking
def answers(bench: Bench, run: Path, *words: str) -> list[list[str]]:
    """The lines that kgdist-predict writes, without the title."""
    out = bench.root / "answers.tsv"
    assert predict_command.main([str(run), *words, "--output", str(out)]) == 0, bench.capsys.readouterr().err
    return [line.split("\t") for line in out.read_text().splitlines()[1:]]


def test_a_missing_head_is_the_missing_tail_of_the_inverse(bench: Bench) -> None:
    run = bench.train("--model_name", "DistMult", *RECIPROCAL)
    rows, entities, names = embeddings(run), names_of(run, "entities.tsv"), both(names_of(run))
    entity, relation = rows["entity"].astype(float), rows["relation"].astype(float)
    given = entities.index("e5")
    for row, words, column in (("r1", ["--head", "e5"], 2), ("r1_inverse", ["--tail", "e5"], 0)):
        scores = entity @ (entity[given] * relation[names.index(row)])
        best = np.argsort(-scores)[:5]
        for more in ([], ["--index"]):
            found = answers(bench, run, *words, "--relation", "r1", "--topK", "5", *more)
            assert [each[column] for each in found] == [entities[n] for n in best]
            assert np.allclose([float(each[3]) for each in found], scores[best], atol=1e-5)
        explained = answers(bench, run, *words, "--relation", "r1", "--topK", "5", "--explain")
        assert [each[:4] for each in explained] == found
        assert all(1 <= int(each[4]) <= 30 and 1 <= int(each[5]) <= 30 and 0 < float(each[6]) < 1 for each in explained)


def test_a_report_shows_relations_and_no_inverses(bench: Bench) -> None:
    run = bench.train(*RECIPROCAL, "--test", "--valid")
    assert eval_command.main([str(run), "--report"]) == 0
    text = (run / "report.html").read_text()
    assert "reciprocal" in text and "r1_inverse" not in text and set(metrics(run)["relations"]) <= {"0", "1", "2", "3"}


def test_options_are_searched_with_inverses(bench: Bench) -> None:
    out = bench.root / "tune"
    words = [*bench.source(), "--model_name", "DistMult", "--hidden_dim", "8", "--reciprocal", "--max_step", "40", "--seed", "1"]
    assert tune_command.main([*words, "--trials", "2", "--validations", "1", "--out", str(out), "--batch_size", "16"]) == 0
    assert "reciprocal: true" in (out / "best.yaml").read_text()
