"""kgdist-eval: the metrics of the training again, from our run folders and from those that DGL-KE writes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import kgdist
from tests.cli.graphs import FILES, MODELS, Bench, metrics, random_splits, rows, write

LATER = {"eval_filter": True, "soft_rel_part": False, "strict_rel_part": False, "num_workers": 8, "num_test_proc": 1}
WIDTHS = {  # model -> numbers per entity, per relation, of TransR's projection, at --hidden_dim 8
    **dict.fromkeys(MODELS, (8, 8, None)),
    "RESCAL": (8, 64, None),
    "TransR": (8, 8, 64),
    "RotatE": (16, 8, None),
    "PairRE": (8, 16, None),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_run_is_ranked_again_from_another_folder(bench: Bench, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bench.root)
    words = ["--model_name", model, "--test", "--data_path", "data", "--save_path", "ckpts", "--gamma", "5", "--seed", "3"]
    run = bench.train(*words)
    trained, content = metrics(run), (run / "config.json").read_bytes()
    (bench.root / "away").mkdir()
    monkeypatch.chdir(bench.root / "away")
    assert bench.eval(run) == trained and trained["all"]["realistic"]["mrr"] > 0 and trained["count"] == 24
    assert bench.eval(run, "--batch_size_eval", "3", "--num_thread", "2")["all"] == trained["all"]
    assert (run / "config.json").read_bytes() == content and not list((bench.root / "away").iterdir())


@pytest.mark.parametrize("model", MODELS)
def test_the_run_folder_has_the_layout_of_dglke(bench: Bench, model: str) -> None:
    run = bench.train("--model_name", model, "--valid", "--test")
    entity, relation, projection = WIDTHS[model]
    shapes = {f"toy_{model}_entity.npy": (30, entity), f"toy_{model}_relation.npy": (4, relation)}
    if projection:
        shapes[f"toy_{model}projection.npy"] = (4, projection)
    arrays = {path.name: np.load(path) for path in run.glob("*.npy")}
    assert {name: array.shape for name, array in arrays.items()} == shapes
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.float32)}
    maps = {}
    for name, count in (("entities.tsv", 30), ("relations.tsv", 4)):
        maps[name] = [line.split("\t") for line in (run / name).read_text().splitlines()]
        assert [number for number, _ in maps[name]] == [str(i) for i in range(count)]
    assert {name for _, name in maps["entities.tsv"]} == {f"e{i}" for i in range(30)}
    saved = json.loads((run / "config.json").read_text())
    expected = {"model_name": model, "model": model, "dataset": "toy", "hidden_dim": 8, "emb_size": 8, "gamma": 4.0, "lr": 0.1}
    expected |= {"emp_file": "entities.tsv", "emap_file": "entities.tsv", "rmap_file": "relations.tsv", "max_train_step": 20}
    assert {key: saved[key] for key in expected} == expected and saved["double_ent"] is (model == "RotatE")
    names = {"config.json", "metrics.jsonl", "test.json", "test.ranks.npz", "valid.json", "ckpt-20", "best", *maps, *shapes}
    assert {path.name for path in run.iterdir()} == names


def later(run: Path, **changes: Any) -> dict[str, Any]:
    """config.json as DGL-KE's later versions write it: its flags by name, no word of kgdist; here without its data files."""
    from kgdist.options.config import OPTIONS

    saved = json.loads((run / "config.json").read_text())
    flags = {name: saved[name] for name, row in OPTIONS.items() if "train" in row.dglke}
    maps = {"emp_file": "entities.tsv", "rmap_file": "relations.tsv"}
    return flags | LATER | maps | {"data_files": None} | changes


def early(run: Path) -> dict[str, Any]:
    """config.json of the first versions: neither the data's format nor its place."""
    words = "dataset model emb_size max_train_step batch_size neg_sample_size lr gamma double_ent double_rel"
    words += " neg_adversarial_sampling adversarial_temperature regularization_coef regularization_norm emap_file rmap_file"
    saved = json.loads((run / "config.json").read_text())
    return {key: saved[key] for key in words.split()}


def foreign(bench: Bench, run: Path, config: dict[str, Any]) -> Path:
    """The run as DGL-KE leaves one: arrays and config.json."""
    folder = bench.root / "dglke" / run.name
    folder.mkdir(parents=True)
    for path in run.glob("*.npy"):
        shutil.copy(path, folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def numbers(report: dict[str, Any]) -> dict[str, Any]:
    """What does not depend on names."""
    relations = {key: {k: v for k, v in part.items() if k != "name"} for key, part in report["relations"].items()}
    return {key: report[key] for key in ("all", "sides", "candidates", "categories", "count")} | {"relations": relations}


def as_built_in(bench: Bench, run: Path) -> list[str]:
    """Write the graph as a built-in set, dictionaries and all; the flags for it."""
    folder = bench.root / "sets" / "toy"
    folder.mkdir(parents=True)
    for file, dictionary in (("entities.tsv", "entities.dict"), ("relations.tsv", "relations.dict")):
        shutil.copy(run / file, folder / dictionary)
    for name in FILES:
        shutil.copy(bench.data / name, folder / f"{name.removesuffix('.tsv')}.txt")
    return ["--data_path", str(folder.parent), "--dataset", "toy", "--format", "built_in"]


def as_ids(bench: Bench, run: Path) -> list[str]:
    """Write the graph as integer ids, tail first; the flags for it."""
    folder = bench.root / "ids"
    folder.mkdir()
    ids = {}
    for file in ("entities.tsv", "relations.tsv"):
        shutil.copy(run / file, folder)
        ids |= {name: number for number, name in (line.split("\t") for line in (run / file).read_text().splitlines())}
    for name in FILES:
        triples = [line.split("\t") for line in (bench.data / name).read_text().splitlines()]
        write(folder / name, [(ids[t], ids[h], ids[r]) for h, r, t in triples])
    files = ["--data_files", "entities.tsv", "relations.tsv", *FILES]
    return ["--data_path", str(folder), "--dataset", "toy", "--format", "udd_thr", *files]


def as_names(bench: Bench, run: Path) -> list[str]:
    """The graph as names, in another order than at the training, with DGL-KE's maps beside it; the flags for it."""
    for file in ("entities.tsv", "relations.tsv"):
        shutil.copy(run / file, bench.data)
    train = bench.data / "train.tsv"
    train.write_text("".join(sorted(train.read_text().splitlines(keepends=True))))
    return bench.source()


@pytest.mark.parametrize("dialect", [later, early])
@pytest.mark.parametrize("source", [as_built_in, as_ids, as_names])
def test_a_run_of_dglke_gives_the_same_metrics(
    bench: Bench, source: Callable[[Bench, Path], list[str]], dialect: Callable[[Path], dict[str, Any]]
) -> None:
    run = bench.train("--model_name", "RotatE", "--test", "--max_step", "40")
    flags = source(bench, run)
    folder = foreign(bench, run, dialect(run))
    assert numbers(bench.eval(folder, *flags)) == numbers(metrics(run))


def test_a_later_config_names_its_data_itself(bench: Bench) -> None:
    run = bench.train("--model_name", "TransR", "--test")
    as_names(bench, run)
    folder = foreign(bench, run, later(run, data_files=list(FILES)))
    assert numbers(bench.eval(folder)) == numbers(metrics(run))
    assert bench.eval(folder, "--no_eval_filter")["protocol"]["filter"] == []


def _shape(run: Path) -> None:
    np.save(run / "toy_ComplEx_entity.npy", np.zeros((30, 9), np.float32))


def _kind(run: Path) -> None:
    np.save(run / "toy_ComplEx_entity.npy", np.zeros((30, 8), np.float64))


def _objects(run: Path) -> None:
    np.save(run / "toy_ComplEx_entity.npy", np.array([[{}] * 8] * 30), allow_pickle=True)


def _cut(run: Path) -> None:
    file = run / "toy_ComplEx_entity.npy"
    file.write_bytes(file.read_bytes()[:-1])


def _no_map(run: Path) -> None:
    (run / "entities.tsv").unlink()


def _other_map(run: Path) -> None:
    saved = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(saved | {"emap_file": "../else.tsv"}))


def _short_map(run: Path) -> None:
    (run / "relations.tsv").write_text("0\tr0\n")


def _config(text: str) -> Callable[[Path], None]:
    return lambda run: (run / "config.json").write_text(text) and None  # type: ignore[func-returns-value]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_shape, ["toy_ComplEx_entity.npy", "[30, 8]", "[30, 9]"]),
        (_kind, ["toy_ComplEx_entity.npy", "float64"]),
        (_objects, ["toy_ComplEx_entity.npy"]),
        (_cut, ["toy_ComplEx_entity.npy"]),
        (lambda run: (run / "toy_ComplEx_relation.npy").unlink(), ["toy_ComplEx_relation.npy", "no such file"]),
        (lambda run: (run / "config.json").unlink(), ["config.json"]),
        (_config("{"), ["config.json"]),
        (_config("[]"), ["config.json"]),
        (_config('{"model_name": "Magic"}'), ["config.json", "Magic"]),
        (_other_map, ["else.tsv", "--data_path"]),
        (_no_map, ["entities.tsv", "--data_path"]),
        (_short_map, ["train.tsv:", "'r"]),
    ],
)
def test_a_damaged_run_is_refused_by_file(bench: Bench, damage: Callable[[Path], None], words: list[str]) -> None:
    run = bench.train("--model_name", "ComplEx")
    damage(run)
    line = bench.eval_refused(run)
    assert all(word in line for word in words), line


def test_triples_that_a_run_cannot_know_are_refused_or_left_out(bench: Bench) -> None:
    run = bench.train("--test", "--valid")
    train, valid, test = random_splits()
    strange = [("nobody", "r1", "e1"), ("e1", "r1", "nobody"), ("e1", "no relation", "e2")]
    bench.use([train, [*strange[:1], *valid], [*test[:5], *strange, *test[5:]]])
    refused = bench.eval_refused(run)
    assert "valid.tsv:1: head 'nobody' is not in the entities of the trained model" in refused
    assert refused.endswith("; kgdist-eval --skip_unknown leaves such triples out")
    trained = metrics(run)
    assert bench.eval(run, "--skip_unknown") == trained  # those that are left are ranked as they were
    bench.use([train, valid, strange])
    assert "none of its 3 triples has only entities and relations that the run knows" in bench.eval_refused(run, "--skip_unknown")
    bench.use([[*train, strange[0]], valid, test])
    assert "train.tsv:151: head 'nobody'" in bench.eval_refused(run, "--skip_unknown")  # that is another graph


def test_how_many_a_run_cannot_know_is_said(bench: Bench) -> None:
    run = bench.train()
    train, valid, test = random_splits()
    for strange, said in (([("nobody", "r1", "e1")], ["1 of 13 valid triples"]), ([], [])):
        bench.use([train, [*strange, *valid], test])
        bench.capsys.readouterr()
        bench.eval(run, "--skip_unknown")
        told = [line for line in bench.capsys.readouterr().err.splitlines() if "--skip_unknown" in line]
        why = "have an entity or relation that the run does not know, and are left out (--skip_unknown)"
        assert told == [f"WARNING: toy: {what} {why}" for what in said]


def test_what_is_no_run_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench.train("--no_save_emb")
    assert "TransE_toy_0" in bench.eval_refused(bench.ckpts)  # the folder of runs
    assert "no such run folder" in bench.eval_refused(bench.ckpts / "nothing")
    monkeypatch.chdir(bench.root)
    assert bench.eval_refused("nothing").endswith("nothing: no such run folder; runs in ckpts: TransE_toy_0")
    assert bench.eval_refused(bench.data).endswith("it is not a run folder; runs in ckpts: TransE_toy_0")
    assert "no such run folder" in bench.eval_refused(bench.data / "train.tsv")
    assert bench.eval_refused(run).endswith("no such file; it was trained with --no_save_emb: train it again without")
    said = bench.eval_refused(bench.train(), "--model_name", "RotatE")
    assert said.startswith("error: --model_name: ") and said.endswith("is a run of TransE; drop it")
    without = bench.train("--data_files", "train.tsv")
    assert "test" in bench.eval_refused(without)


def test_a_run_that_was_interrupted_says_how_to_finish_it(bench: Bench) -> None:
    run = bench.train()
    for file in run.glob("*.npy"):
        file.unlink()
    told = bench.eval_refused(run)
    assert told.endswith(
        f"_entity.npy: no such file; the run was interrupted at step 20: finish it with kgdist-train --resume {run}"
    )
    (run / "machine_0").mkdir()
    (run / "ckpt-20").rename(run / "machine_0" / "ckpt-17")
    assert bench.eval_refused(run).endswith(f"at step 17: finish it with kgdist-dist-train --resume {run}")


def test_nothing_is_told_of_options_that_an_evaluation_lacks(bench: Bench) -> None:
    run = bench.train()
    bench.capsys.readouterr()
    bench.eval(run, "--num_proc", "2")
    assert "force_sync_interval" not in bench.capsys.readouterr().err


def test_a_baseline_stands_beside_the_model_and_any_k_is_counted(bench: Bench) -> None:
    run = bench.train("--test", "--valid", "--eval_interval", "10", "--hits", "2", "20")
    trained, printed = metrics(run), bench.out()
    baseline = trained["baselines"]["frequent"]
    assert 0 < baseline["mrr"] < 1 and list(baseline) == list(trained["all"]["realistic"])
    assert [name for name in baseline if "@" in name] == [f"hits@{k}" for k in (1, 2, 3, 10, 20)]
    assert {row["hits@20"] <= 1 for row in rows(run, "valid")} == {True} and "baselines" not in metrics(run, "valid.json")
    low, high = (trained["intervals"][end] for end in ("low", "high"))
    assert all(low[name] <= trained["all"]["realistic"][name] <= high[name] for name in low) and "hits@20" in low
    assert "intervals" not in metrics(run, "valid.json") and "  95 %: from" in printed
    assert printed.count("baseline: most frequent answers") == 1 and "Test average HITS@20" in printed
    below = trained["all"]["realistic"]["mrr"] <= baseline["mrr"]  # the line is a verdict on this, whichever it is
    assert printed.count(f"no better than the most frequent answers (MRR {baseline['mrr']:.4f})") == below
    again = bench.eval(run, "--hits", "5")
    assert again["baselines"]["frequent"]["mrr"] == baseline["mrr"] and "hits@5" in again["relations"]["0"]
    found = bench.eval(run, "--rank_relations")["missing_relations"]
    assert found["count"] == 12 and 0 < found["mrr"] <= 1 and found["hits@10"] == 1 and "relations (realistic)" in bench.out()
    assert kgdist.load(run).evaluate(rank_relations=True, hits=(1,))["missing_relations"] == found
    assert "--hits: must be an integer >= 1" in bench.eval_refused(run, "--hits", "0")
    assert "--hits: must be an integer >= 1" in bench.train_refused("--hits", "ten")
