"""kgdist-train in one process: repeatable bit for bit, resumable bit for bit, and it learns."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import numpy as np
import pytest

from kgdist.cli import train
from kgdist.options.configfile import read_run
from kgdist.runs import checkpoint
from tests.cli.graphs import MODELS, Bench, embeddings, grid_splits, metrics, random_splits, rows, state, write
from tests.patience import patience

VARIANTS = [
    *(("ComplEx", f"--optimizer {name}") for name in ("adagrad", "adam", "sgd")),
    ("TransE_l2", "--lr_warmup 30"),
    ("DistMult", "--neg_deg_sample -adv"),
    ("TransR", "--neg_deg_sample"),
    ("RotatE", "--pairwise --loss_genre Hinge"),
]


@pytest.mark.parametrize(("model", "words"), [*((name, "") for name in MODELS), *VARIANTS])
def test_a_seed_repeats_itself_and_resuming_changes_nothing(bench: Bench, model: str, words: str) -> None:
    options = ["--model_name", model, *words.split()]
    first = bench.train(*options, "--seed", "1")
    once = state(first)
    assert once["step"] == b"20" and once == state(bench.train(*options, "--seed", "1"))
    other = state(bench.train(*options, "--seed", "2"))
    assert other.keys() == once.keys() and all(other[key] != once[key] for key in once if key.endswith("entity.npy"))
    bench.resume(first, "--max_step", "40")
    resumed = state(first)
    assert resumed["step"] == b"40" and resumed != once
    assert resumed == state(bench.train(*options, "--seed", "1", "--max_step", "40"))


@pytest.mark.parametrize("damage", ["cut", "changed", "no manifest", "no progress", "no best"])
def test_a_damaged_checkpoint_is_passed_over(bench: Bench, damage: str) -> None:
    run = bench.train("--checkpoint_interval", "10")
    assert [step for step, _ in checkpoint.numbered(run)] == [20, 10]
    file = run / "ckpt-20" / "entity.npy"
    content = file.read_bytes()
    if damage == "no manifest":
        (run / "ckpt-20" / "manifest.json").unlink()
    elif damage in ("no progress", "no best"):  # in one of a version whose manifests had no digest
        manifest = json.loads((run / "ckpt-20" / "manifest.json").read_text())
        del manifest["digest"], manifest["meta"]["steps" if damage == "no progress" else "best"]
        (run / "ckpt-20" / "manifest.json").write_text(json.dumps(manifest))
    else:
        file.write_bytes(content[:-4] if damage == "cut" else content[:-1] + bytes([content[-1] ^ 1]))
    bench.capsys.readouterr()
    bench.resume(run, "--max_step", "40")
    shown = bench.capsys.readouterr()
    assert "ckpt-20" in shown.err and shown.err.count("WARNING") == 1 and "at step 10 of 40" in shown.out
    assert state(run) == state(bench.train("--max_step", "40"))


@pytest.mark.parametrize("kind", ["old", "tmp"])
def test_what_a_killed_training_has_left_is_put_right(bench: Bench, kind: str) -> None:
    run = bench.train("--checkpoint_interval", "10")
    (run / "ckpt-20").rename(run / f".ckpt-20.{os.getpid()}-1-0123abcd.{kind}")
    half = run / f".ckpt-30.{os.getpid()}.tmp"
    half.mkdir()
    (half / "entity.npy").write_bytes(b"half")
    bench.capsys.readouterr()
    bench.resume(run, "--max_step", "40")
    shown = bench.capsys.readouterr()
    assert "ckpt-20: put back" in shown.err and "at step 20 of 40" in shown.out
    assert not list(run.glob(".*"))


def test_resuming_a_run_that_is_done_leaves_it_as_it_is(bench: Bench) -> None:
    run = bench.train("--max_step", "40")
    before = state(run)
    bench.resume(run, "--max_step", "20")
    assert "nothing is left to train" in bench.out()
    assert state(run) == before
    assert [step for step, _ in checkpoint.numbered(run)] == [40]  # and not rows of step 40 as step 20


def test_only_the_newest_two_checkpoints_are_kept(bench: Bench) -> None:
    run = bench.train("--checkpoint_interval", "5", "--max_step", "22")
    assert [step for step, _ in checkpoint.numbered(run)] == [22, 20]
    assert not [path for path in run.iterdir() if path.name.endswith((".tmp", ".old"))]


def test_epochs_are_steps(bench: Bench) -> None:
    run = bench.train("--max_epoch", "2.5", "--seed", "3")  # 150 triples, 16 a step
    assert checkpoint.latest(run).step == 25
    again = bench.train("--max_epoch", "1", "--seed", "3")
    assert checkpoint.latest(again).step == 10
    bench.resume(again, "--max_step", "25")
    assert state(again) == state(run)


@pytest.mark.parametrize(("words", "every"), [(["--max_step", "37"], 4), (["--max_epoch", "3"], 3), (["--max_step", "5"], 1)])
def test_ten_validations_unless_told_otherwise(bench: Bench, words: list[str], every: int) -> None:
    run = bench.train("--valid", *words)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["step"] for row in rows if row["kind"] == "valid"]
    last = checkpoint.latest(run).step
    assert steps == [*range(every, last, every), last]
    assert read_run(run).eval_interval == every, "a run that goes on keeps to it"


@pytest.mark.parametrize("more", [["--num_proc", "2", "--worker", "thread"], ["--batch_size", "32"]])
def test_epochs_go_on_where_they_were_whatever_an_epoch_has_now(bench: Bench, more: list[str]) -> None:
    """With half as many steps an epoch: numbers of checkpoints fall, and those that are written now are the newest ones."""
    run = bench.train("--max_epoch", "2", "--checkpoint_interval", "5", "--valid", "--eval_interval", "20")
    assert [step for step, _ in checkpoint.numbered(run)] == [20, 15] and checkpoint.load(run / "best").step == 20
    bench.out()
    bench.resume(run, "--max_epoch", "3", *more, "--no_save_emb")  # which saves nothing, and so renames nothing
    assert "at step 10 of 15" in bench.out() and [step for step, _ in checkpoint.numbered(run)] == [20, 15]
    bench.resume(run, "--max_epoch", "2", *more, "--no_save_emb=false")
    out = bench.out()
    assert "at step 10 of 10" in out and "nothing is left to train" in out
    assert [step for step, _ in checkpoint.numbered(run)] == [10]
    bench.resume(run, "--max_epoch", "4", *more)
    out = bench.out()
    assert "at step 10 of 20" in out and [step for step, _ in checkpoint.numbered(run)] == [20, 15]
    assert "validated at step 20 of 20" in out, "the best rows are of another step 20"
    back = ["--batch_size", "16"] if "--batch_size" in more else ["--num_proc", "1"]
    bench.resume(run, "--max_epoch", "5", *back)
    assert "at step 40 of 50" in bench.out() and [step for step, _ in checkpoint.numbered(run)] == [50, 45]


def test_steps_go_on_where_they_were_among_more_processes(bench: Bench) -> None:
    run = bench.train("--max_step", "20", "--checkpoint_interval", "10")
    bench.resume(run, "--num_proc", "2", "--worker", "thread", "--max_step", "15")
    assert "at step 10 of 15" in bench.out() and checkpoint.latest(run).meta["steps"] == [15, 15]


def test_a_new_run_never_takes_a_number_that_was_taken(bench: Bench) -> None:
    assert bench.train("--no_save_emb").name == "TransE_toy_0"
    (bench.ckpts / "TransE_toy_7").mkdir()
    (bench.ckpts / "TransE_toy_9").write_text("a file")
    (bench.ckpts / "TransE_toy_x").mkdir()
    (bench.ckpts / "TransE_toy_extra_40").mkdir()
    assert bench.train("--no_save_emb").name == "TransE_toy_10"
    assert bench.train("--no_save_emb", "--model_name", "DistMult").name == "DistMult_toy_0"
    assert (bench.ckpts / "TransE_toy_9").read_text() == "a file" and not list((bench.ckpts / "TransE_toy_7").iterdir())


@pytest.mark.parametrize(("model", "words"), [("TransE_l2", "-g 3"), ("ComplEx", "-g 20"), ("RotatE", "-g 6")])
def test_it_learns(bench: Bench, model: str, words: str) -> None:
    splits = grid_splits()
    bench.use(splits)
    known = {triple for split in splits for triple in split}
    assert len(known) == 80 and len(splits[2]) >= 6
    run = bench.train(
        "--model_name", model, *words.split(), *"--hidden_dim 16 --max_step 400 -adv --test --batch_size 32".split()
    )
    mrr = metrics(run)["all"]["pessimistic"]["mrr"]
    assert mrr > 0.6  # at random: the mean of 1/rank over some 24 candidates is 0.16
    losses = [row["loss"] for row in rows(run, "train")]
    assert len(losses) == 40 and losses[-1] < losses[0]


def test_weights_of_one_are_no_weights_and_others_count(bench: Bench) -> None:
    triples, valid, test = random_splits()
    plain = state(bench.train("--optimizer", "sgd"))
    for weight, same in ((1, True), (2, False)):
        bench.use([[(*triple, weight) for triple in triples], valid, test])
        assert (state(bench.train("--optimizer", "sgd", "--has_edge_importance")) == plain) is same
    bench.use([[(*triple, 1 + i % 2) for i, triple in enumerate(triples)], valid, test])
    assert state(bench.train("--has_edge_importance", "--loss_genre", "Logistic"))["step"] == b"20"


def test_init_from_copies_rows_by_name(bench: Bench) -> None:
    still = ["--lr", "1e-30", "--max_step", "1", "--model_name", "TransR"]
    old = bench.train("--model_name", "TransR")
    before = embeddings(old)
    names = [line.split("\t")[1] for line in (old / "entities.tsv").read_text().splitlines()]
    splits = random_splits()
    bench.use([[("new", "r3", "e4"), ("new", "fresh", "newer"), *splits[0][::-1]], splits[1], splits[2]])
    fresh, made = bench.train(*still), bench.train(*still, "--init_from", str(old))
    rows, start = embeddings(made), embeddings(fresh)
    order = [line.split("\t")[1] for line in (made / "entities.tsv").read_text().splitlines()]
    assert sorted(order) == sorted([*names, "new", "newer"]) and order != [*names, "new", "newer"]
    for row, name in enumerate(order):
        expected = before["entity"][names.index(name)] if name in names else start["entity"][row]
        assert np.array_equal(rows["entity"][row], expected)
    relations = [[line.split("\t")[1] for line in (run / "relations.tsv").read_text().splitlines()] for run in (old, made)]
    for row, name in enumerate(relations[1]):
        for table in ("relation", "toy_TransRprojection"):
            source, place = (before, relations[0].index(name)) if name in relations[0] else (start, row)
            key = next(key for key in rows if key.endswith(table.removeprefix("toy_")))
            assert np.array_equal(rows[key][row], source[key][place])


def test_an_option_file_and_relative_paths_work(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    write(bench.root / "options.yaml", [["model_name: DistMult"], ["max_step: 3"], ["save_path: elsewhere"]])
    monkeypatch.chdir(bench.root)
    words = "--config options.yaml --data_path data --dataset toy --format raw_udd_hrt --data_files train.tsv --max_step 2"
    assert train.main([*words.split(), "--hidden_dim", "4"]) == 0
    assert checkpoint.latest(bench.root / "elsewhere" / "DistMult_toy_0").step == 2


def test_an_interrupted_run_is_saved_and_goes_on(bench: Bench) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + patience(60)
        while time.monotonic() < deadline and not list(bench.ckpts.glob("*/metrics.jsonl")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    assert train.main(bench.flags("--max_step", "1000000", "--quiet")) == 130
    thread.join()
    (run,) = bench.runs()
    done = checkpoint.latest(run).step
    assert 10 <= done < 1000000 and not list(run.glob("*.npy")) and f"--resume {run}" in bench.out()
    bench.resume(run, "--max_step", str(done + 10), "--quiet")
    assert state(run) == state(bench.train("--max_step", str(done + 10), "--quiet"))
