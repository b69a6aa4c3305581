"""What cannot be done is refused: exit code 2, one line, and nothing below --save_path has changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kgdist.cli import train
from tests.cli.graphs import Bench, random_splits, write
from tests.patience import patience

COMMAND_LINES = [
    ("--model_name TransX", "--model_name"),
    ("--modle_name TransE", "--modle_name"),
    ("--hidden_dim 0", "--hidden_dim"),
    ("--hidden_dim eight", "--hidden_dim"),
    ("--lr -1", "--lr"),
    ("--lr nan", "--lr"),
    ("--batch_size", "--batch_size"),
    ("--max_step 5 --max_epoch 1 --max_step 6", "--max_step"),
    ("--early_stop_patience 3", "--early_stop_patience"),
    ("--pairwise", "--pairwise"),
    ("--model_name RotatE --double_rel", "--double_rel"),
    ("--model_name ComplEx --hidden_dim 7", "--hidden_dim"),
    ("--model_name RESCAL --hidden_dim 1000000", "--hidden_dim"),  # some 16 TB
    ("--async_update", "--async_update"),
    ("--dataset ../toy", "--dataset"),
    ("--data_files no.tsv", "no.tsv"),
    ("--data_files train.tsv valid.tsv test.tsv train.tsv", "--data_files"),
    ("--test --data_files train.tsv valid.tsv", "--test"),
    ("--valid --data_files train.tsv", "--valid"),
    ("--num_proc 4 --data_files few.tsv", "--num_proc"),
    ("--num_proc 4 --rel_part --data_files few.tsv", "--num_proc"),
    ("--neg_deg_sample_eval --test", "--neg_deg_sample_eval"),
    ("--test --neg_sample_size_eval 31", "--neg_sample_size_eval"),
    ("--has_edge_importance", "train.tsv:1"),
    ("--preset fast", "--preset"),
    ("--config no.yaml", "no.yaml"),
    ("--resume no/run", "no/run"),
    ("--init_from no/run", "no/run"),
    ("--format raw_udd_hr", "--format"),
    ("--delimiter ; --data_files train.tsv", "train.tsv:1"),
    ("--gpu 0", "--gpu 0"),
]


@pytest.mark.parametrize(("words", "place"), COMMAND_LINES)
def test_a_command_line_is_refused(bench: Bench, words: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    if "--gpu" in words and torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    monkeypatch.chdir(bench.root)
    write(bench.data / "few.tsv", [("a", "r", "b"), ("b", "s", "c"), ("c", "r", "d")])
    line = bench.train_refused(*words.split())
    assert place in line
    assert not bench.ckpts.exists()


def test_as_many_processes_as_triples_pass_the_check(bench: Bench) -> None:
    """The counterpart of the refusal above: at one triple each the data is enough, and the folder is what fails."""
    bench.ckpts.write_text("")
    bench.use([random_splits()[0][:3]])
    assert "--save_path" in bench.train_refused("--num_proc", "3", "--data_files", "train.tsv")


@pytest.mark.parametrize("below", [False, True])
def test_a_save_path_that_is_a_file(bench: Bench, below: bool) -> None:
    bench.ckpts.write_text("mine")
    target = bench.ckpts / "below" if below else bench.ckpts
    line = bench.train_refused("--save_path", str(target))
    assert "--save_path" in line and bench.ckpts.read_text() == "mine"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_save_path_that_is_read_only(bench: Bench) -> None:
    bench.ckpts.mkdir(mode=0o555)
    assert "--save_path" in bench.train_refused()


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("--dataset other", "--dataset"),
        ("--model_name DistMult", "--model_name"),
        ("--hidden_dim 16", "--hidden_dim"),
        ("--double_ent --double_rel", "--double_ent"),
        ("--optimizer adagrad", "--optimizer"),
        ("--optimizer sgd", "--optimizer"),  # its state is a part of what was saved: nothing must be dropped in silence
        ("--preset", "--preset"),
        ("--init_from {run}", "--init_from"),
    ],
)
def test_another_run_is_not_resumed(bench: Bench, words: str, place: str) -> None:
    run = bench.train("--model_name", "TransE_l2")
    assert place in bench.resume_refused(run, "--max_step", "40", *words.format(run=run).split())


def test_a_run_is_not_resumed_on_other_data(bench: Bench) -> None:
    run = bench.train()
    splits = random_splits()
    bench.use([[("new", "r0", "e1"), *splits[0]], *splits[1:]])
    assert "other entities or relations" in bench.resume_refused(run)
    bench.use([splits[0][::-1], *splits[1:]])  # the same names, numbered otherwise
    assert "other entities or relations" in bench.resume_refused(run)


def test_a_run_without_its_folder_is_found_below_save_path(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench.train()
    monkeypatch.chdir(bench.root)
    assert bench.resume_refused(Path(run.name)).endswith(f"{run.name}: no such run folder; did you mean ckpts/{run.name}?")
    assert bench.resume_refused(Path("other")).endswith(f"no such run folder; runs in ckpts: {run.name}")


def test_what_is_no_run_is_not_resumed(bench: Bench) -> None:
    run = bench.train("--no_save_emb")
    assert "no checkpoint" in bench.resume_refused(run)
    (run / "config.json").unlink()
    assert "config.json" in bench.resume_refused(run)
    whole = bench.train()
    for part in whole.glob("ckpt-*/entity.npy"):
        part.write_bytes(b"")
    assert "entity.npy" in bench.resume_refused(whole)
    assert "it holds runs" in bench.resume_refused(bench.ckpts)
    assert "no such run folder" in bench.resume_refused(bench.root / "nothing")


@pytest.mark.parametrize(
    ("words", "place"),
    [
        ("--model_name DistMult", "--model_name"),
        ("--hidden_dim 16", "--hidden_dim"),
        ("--model_name TransE_l2 -de", "--double_ent"),
    ],
)
def test_embeddings_of_another_shape_are_no_start(bench: Bench, words: str, place: str) -> None:
    run = bench.train("--model_name", "TransE_l2")
    assert place in bench.train_refused("--model_name", "TransE_l2", "--init_from", str(run), *words.split())


def test_a_start_needs_names_and_rows(bench: Bench) -> None:
    run = bench.train("--no_save_emb")
    assert "toy_TransE_entity.npy" in bench.train_refused("--init_from", str(run))
    (run / "entities.tsv").unlink()
    assert "entities.tsv" in bench.train_refused("--init_from", str(run))


@pytest.mark.parametrize("content", ["a\tr\n", "a\tr\tb\tc\td\n", "", "\n\n"])
def test_a_bad_train_file(bench: Bench, content: str) -> None:
    (bench.data / "train.tsv").write_text(content)
    assert "train.tsv" in bench.train_refused()


def test_the_exit_code_and_the_line_are_those_of_the_process(bench: Bench) -> None:
    command = [sys.executable, "-m", "kgdist.cli.train", *bench.flags("--hidden_dim", "-3")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(120), check=False)
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")


def test_debug_shows_where_an_error_comes_from(bench: Bench) -> None:
    assert train.main(bench.flags("--quiet", "--debug")) == 2
    error = bench.capsys.readouterr().err
    assert error.startswith("Traceback") and error.splitlines()[-1].startswith("error: --debug: contradicts --quiet")
