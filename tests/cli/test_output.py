"""What a training prints and leaves: log lines, curves, the best of its validations, nothing when told so."""

from __future__ import annotations

import json
import re
import sys

import numpy as np
import pytest

from kgdist.cli import train
from kgdist.runs import checkpoint
from tests.cli.graphs import FILES, Bench, embeddings, metrics, random_splits, rows, state, tree

NUMBER = r"-?[0-9.]+(e-?[0-9]+)?"
RESULTS = re.compile(r"(Test|Valid) average (MR|MRR|HITS@(1|3|10)|AUC-ROC) : [0-9.]+")


def test_log_lines_are_those_of_dglke(bench: Bench) -> None:
    bench.train("--max_step", "25", "-rc", "0.001")
    lines = bench.out().splitlines()
    for step in (10, 20):
        for name in ("pos_loss", "neg_loss", "loss", "regularization"):
            pattern = re.compile(rf"\[proc 0\]\[Train\]\({step}/25\) average {name}: {NUMBER}")
            assert sum(pattern.fullmatch(line) is not None for line in lines) == 1
    takes = [line for line in lines if re.fullmatch(rf"\[proc 0\]\[Train\] 10 steps take {NUMBER} seconds", line)]
    pattern = rf"\[proc 0\]sample: {NUMBER}, forward: {NUMBER}, backward: {NUMBER}, update: {NUMBER}"
    assert len(takes) == len([line for line in lines if re.fullmatch(pattern, line)]) == 2


def test_pairwise_training_has_one_loss(bench: Bench) -> None:
    bench.train("--pairwise", "--loss_genre", "Logistic", "-rc", "0")
    out = bench.out()
    assert "average loss" in out and "pos_loss" not in out and "regularization" not in out


def test_result_lines_and_quiet(bench: Bench) -> None:
    bench.train("--test", "--valid")
    loud = bench.out()
    assert len([line for line in loud.splitlines() if RESULTS.fullmatch(line)]) == 6
    assert loud.count("validated at step") == 10 and "Valid average" not in loud  # a line each; the table is the test's
    bench.train("--valid")
    assert "Valid average MRR" in bench.out()  # of the best, where nothing is tested
    run = bench.train("--test", "--valid", "--quiet", "--neg_sample_size", "5")  # 16 is rounded up to 20: a note
    shown = bench.capsys.readouterr()
    assert len([line for line in shown.out.splitlines() if RESULTS.fullmatch(line)]) == 6
    assert "[Train]" not in shown.out and "rounded" not in shown.out and "entities, " not in shown.out.split("validated")[0]
    assert shown.err == "" and str(run) in shown.out


def test_metrics_rows(bench: Bench) -> None:
    run = bench.train(*"--test --valid --eval_interval 15 --max_step 30".split())
    found = rows(run, "train")
    assert [row["step"] for row in found] == [10, 20, 30]
    speed = {"seconds", "triples_per_second"}
    assert set(found[0]) == {"time", "kind", "step", *speed, "pos_loss", "neg_loss", "loss", "regularization"}
    assert [row["step"] for row in rows(run, "valid")] == [15, 30]
    (test,) = rows(run, "test")
    assert test["step"] == 30 and test["mrr"] == metrics(run)["all"]["realistic"]["mrr"]
    bench.resume(run, "--max_step", "40")
    assert [row["step"] for row in rows(run, "train")] == [10, 20, 30, 40]
    assert [row["step"] for row in rows(run, "valid")] == [15, 30, 40]


@pytest.mark.parametrize("words", ["--candidates all", "--candidates all --reciprocal", "--num_proc 2", "--reciprocal"])
def test_a_triple_counts_once_an_epoch(bench: Bench, words: str) -> None:
    options = f"--model_name ComplEx --hidden_dim 8 --batch_size 10 --max_epoch 3 {words} --save_path {bench.ckpts}".split()
    assert train.main([*bench.source(), *options]) == 0
    (run,) = bench.runs()
    (told,) = re.findall(r"training took [0-9.]+ seconds: (\d+) triples, [\d,]+ triples/s", bench.out())
    (row,) = rows(run, "train")  # the last, though it is not --log_interval's 1000 steps
    triples = len(random_splits()[0])
    assert 3 * triples <= int(told) <= 3 * triples + 2 * 10  # a last batch of each process may be filled up
    assert row["seconds"] * row["triples_per_second"] == pytest.approx(int(told), rel=0.1)


# A rate that is far too high: the first validations are the best ones.
WORSE = "--model_name DistMult --optimizer sgd --lr 3 --valid --test --eval_interval 4 --max_step 40 --gamma 1".split()


def test_the_best_validation_is_kept(bench: Bench) -> None:
    run = bench.train(*WORSE)
    found = rows(run, "valid")
    assert [row["step"] for row in found] == list(range(4, 41, 4))  # the last step is not validated twice
    best = max(found, key=lambda row: row["mrr"])  # the first of the best
    saved = checkpoint.load(run / "best")
    assert saved.step == best["step"] < 40 and saved.meta["mrr"] == best["mrr"]
    kept = embeddings(run)
    assert np.array_equal(kept["entity"], saved.arrays["entity"]) and np.array_equal(kept["relation"], saved.arrays["relation"])
    last = checkpoint.latest(run)
    assert last.step == 40 and not np.array_equal(last.arrays["entity"], kept["entity"])  # resuming goes on from the last
    assert json.loads((run / "valid.json").read_text())["step"] == 40
    trained = metrics(run)
    assert bench.eval(run) == trained and f"kept: the embeddings of step {best['step']}," in bench.out()


def test_a_resumed_run_remembers_its_best(bench: Bench) -> None:
    run = bench.train(*WORSE)
    best = checkpoint.load(run / "best")
    bench.resume(run, "--max_step", "48")
    assert checkpoint.load(run / "best").step == best.step
    assert np.array_equal(embeddings(run)["entity"], best.arrays["entity"])
    half = bench.train(*WORSE, "--max_step", "21")
    bench.resume(half, "--max_step", "48")
    whole = bench.train(*WORSE, "--max_step", "48")
    steps = [row["step"] for row in rows(half, "valid")]
    assert steps == [*range(4, 21, 4), 21, *range(24, 49, 4)]
    assert state(half)["entity"] == state(whole)["entity"]


def test_a_best_without_its_mrr_is_looked_for_again(bench: Bench) -> None:
    run = bench.train(*WORSE)
    manifest = json.loads((run / "best" / "manifest.json").read_text())
    del manifest["digest"], manifest["meta"]["mrr"]  # of a version whose manifests had no digest
    (run / "best" / "manifest.json").write_text(json.dumps(manifest))
    bench.capsys.readouterr()
    bench.resume(run, "--max_step", "48")
    assert "best/manifest.json: the MRR is not in it; the best embeddings are looked for again" in bench.capsys.readouterr().err
    assert checkpoint.load(run / "best").step > 40


def test_the_best_may_be_newer_than_the_checkpoint(bench: Bench) -> None:
    run = bench.train("--model_name", "DistMult", "--optimizer", "sgd", "--valid", "--eval_interval", "100")
    best = checkpoint.load(run / "best")
    assert best.step == 20 and checkpoint.latest(run).meta["best"]["step"] == 0  # saved before the last validation
    bench.resume(run, "--max_step", "40", "--lr", "30")
    first, second = rows(run, "valid")
    assert second["mrr"] < first["mrr"]
    assert np.array_equal(embeddings(run)["entity"], best.arrays["entity"])


def test_early_stop(bench: Bench) -> None:
    run = bench.train(*WORSE, "--early_stop_patience", "2")
    mrr = [row["mrr"] for row in rows(run, "valid")]
    steps = [row["step"] for row in rows(run, "valid")]
    best = int(np.argmax(mrr))
    assert len(mrr) == best + 3 < 10 and checkpoint.latest(run).step == steps[-1]
    assert f"early stop at step {steps[-1]}" in bench.out() and checkpoint.load(run / "best").step == steps[best]


def test_nothing_is_saved_when_told_so(bench: Bench) -> None:
    run = bench.train("--no_save_emb", "--test", "--valid", "--eval_interval", "10", "--checkpoint_interval", "5")
    assert {path.name for path in run.iterdir()} == {
        *("config.json", "entities.tsv", "relations.tsv", "metrics.jsonl", "test.json", "test.ranks.npz", "valid.json")
    }


def test_tensorboard_has_the_curves(bench: Bench) -> None:
    pytest.importorskip("tensorboard")
    run = bench.train("--tensorboard", "--test", "--valid")
    files = list((run / "tensorboard").glob("events.out.tfevents.*"))
    assert len(files) == 1
    content = files[0].read_bytes()
    assert all(name in content for name in (b"train/pos_loss", b"train/triples_per_second", b"valid/mrr", b"test/mrr"))


def test_tensorboard_that_is_not_there_is_refused_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert "pip install 'kgdist[tensorboard]'" in bench.train_refused("--tensorboard")


def test_a_preset_is_printed_and_flags_win(bench: Bench) -> None:
    words = [*"--model_name ComplEx --dataset wn18 --preset --max_step 3 --hidden_dim 8".split(), "--data_path", str(bench.data)]
    data = ["--format", "raw_udd_hrt", "--data_files", *FILES, "--save_path", str(bench.ckpts)]
    assert train.main([*words, *data, "--batch_size", "64", "--neg_sample_size", "16"]) == 0
    out = bench.out()
    assert "--gamma 200" in out and "changed by you" in out and "--hidden_dim" in out
    saved = json.loads((bench.ckpts / "ComplEx_wn18_0" / "config.json").read_text())
    assert {key: saved[key] for key in ("gamma", "lr", "neg_adversarial_sampling", "hidden_dim", "max_step", "batch_size")} == {
        **{"gamma": 200.0, "lr": 0.1, "neg_adversarial_sampling": True, "hidden_dim": 8, "max_step": 3, "batch_size": 64}
    }


def test_the_data_folder_keeps_its_files(bench: Bench) -> None:
    before = {name: (bench.data / name).read_bytes() for name in FILES}
    bench.train("--test")
    after = {path: content for path, content in tree(bench.data).items() if ".kgdist" not in path}
    assert after == {str(bench.data / name): content for name, content in before.items()}
