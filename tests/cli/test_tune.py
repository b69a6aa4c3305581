"""kgdist-tune with real trials: a search, interrupted, killed and gone on with; what it leaves; what it refuses."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kgdist.base.errors import UsageError
from kgdist.cli import train, tune
from kgdist.models.registry import settle
from kgdist.options import parse
from kgdist.options.configfile import differing, read_run
from kgdist.report import run_facts
from kgdist.runs import checkpoint
from kgdist.runtime.processes.child import Child
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.tuning.trials import SearchFolder, start_trial, trial_config
from tests.cli.graphs import FILES, Bench, cored_splits, embeddings, metrics, random_splits, write
from tests.family import alive, descendants
from tests.own_models import as_before, forget
from tests.patience import patience

pytest.importorskip("optuna")
pytestmark = pytest.mark.timeout(300)  # a dozen processes that import torch, on machines that are busy
ROOT = Path(__file__).resolve().parents[2]
BASE = "--model_name DistMult --hidden_dim 8 --batch_size 16 --neg_sample_size 8 --max_step 1200 --seed 3 -rc 0".split()
SEARCH = "lr: [0.01, 0.5, log]\ngamma: [1, 9]\n"


class Tuning:
    """A graph, a space, and searches in folders of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.data = ["--data_path", str(root / "data"), "--dataset", "toy", "--format", "raw_udd_hrt", "--data_files", *FILES]
        for name, split in zip(FILES, random_splits(), strict=True):
            write(root / "data" / name, split)
        (root / "search.yaml").write_text(SEARCH)

    def words(self, out: str, *more: str) -> list[str]:
        """A whole command line."""
        search = ["--search", str(self.root / "search.yaml"), "--out", str(self.root / out), "--validations", "3"]
        return [*self.data, *BASE, *search, *more]

    def start(self, words: Sequence[str]) -> subprocess.Popen[bytes]:
        """The command in a process of its own."""
        return subprocess.Popen([sys.executable, "-m", "kgdist.cli.tune", *words], cwd=ROOT, stdout=subprocess.PIPE)

    def reported(self, out: str, number: int) -> bool:
        """Whether so many validations have been written down."""
        journal = self.root / out / "study.journal"
        whole = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        told = [json.loads(line) for line in whole]
        return sum("intermediate_value" in each or len(each.get("intermediate_values", ())) for each in told) >= number


@pytest.fixture(scope="module")
def tuning(tmp_path_factory: pytest.TempPathFactory) -> Tuning:
    return Tuning(tmp_path_factory.mktemp("tuning"))


@pytest.fixture(scope="module")
def searched(tuning: Tuning) -> dict[str, Any]:
    """What two trials, one after the other, came to."""
    process = tuning.start(tuning.words("whole", "--trials", "2", "--json"))
    out, _ = process.communicate(timeout=patience(200))
    assert process.returncode == 0
    found = json.loads(out)
    assert isinstance(found, dict)
    return found


def wait_for(done: Any, seconds: float = 200.0) -> None:
    """Wait until `done()`."""
    deadline = time.monotonic() + patience(seconds)
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
def test_the_best_options_train_the_best_trial_again(tuning: Tuning, searched: dict[str, Any], bench: Bench) -> None:
    best, rows = searched["best"], searched["trials"]
    assert [row["number"] for row in rows] == [0, 1] and not searched["interrupted"]
    finished = [row for row in rows if row["state"] == "finished"]
    assert best["mrr"] == max(row["mrr"] for row in finished) and best["validations"] == 3
    assert train.main(["--config", best["config"], "--save_path", str(bench.ckpts), "--quiet"]) == 0
    (again,) = bench.runs()
    kept = Path(best["run"])
    assert metrics(again, "valid.json") == metrics(kept, "valid.json")
    assert {name: rows.tobytes() for name, rows in embeddings(again).items()} == {
        name: rows.tobytes() for name, rows in embeddings(kept).items()
    }
    arrays = {path.parent for path in (tuning.root / "whole").rglob("*.npy")}
    assert arrays == {kept} and not list((tuning.root / "whole").rglob("ckpt-*"))
    for row in rows:
        assert list((tuning.root / "whole" / "trials" / f"{row['number']:04d}").glob("*/metrics.jsonl"))


@pytest.mark.long
def test_a_search_that_is_interrupted_and_killed_comes_to_the_same(tuning: Tuning, searched: dict[str, Any]) -> None:
    words = tuning.words("torn", "--trials", "2")
    first = tuning.start(words)
    wait_for(lambda: tuning.reported("torn", 1))
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=patience(200))
    assert first.returncode == 130 and b"interrupted; go on with: kgdist-tune --out" in out
    second = tuning.start(words)
    wait_for(lambda: tuning.reported("torn", 4))
    below = descendants(second.pid)
    second.kill()
    second.communicate(timeout=patience(200))
    wait_for(lambda: not any(map(alive, below)), 10)
    third = tuning.start(["--out", str(tuning.root / "torn"), "--trials", "2", "--json", "--quiet"])
    out, _ = third.communicate(timeout=patience(200))
    assert third.returncode == 0
    found = json.loads(out)
    assert found["trials"] == searched["trials"]
    assert metrics(Path(found["best"]["run"]), "valid.json") == metrics(Path(searched["best"]["run"]), "valid.json")


@pytest.mark.slow
def test_who_interrupts_twice_at_once_loses_no_trial(tuning: Tuning) -> None:
    first = tuning.start(tuning.words("twice", "--trials", "2"))
    wait_for(lambda: tuning.reported("twice", 1))
    for child in (*descendants(first.pid), first.pid, first.pid):  # as from a terminal, and from one who is impatient
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT)
    out, _ = first.communicate(timeout=patience(200))
    assert first.returncode == 130 and b"failed" not in out


@pytest.mark.slow
def test_rounds_begin_on_a_part_of_the_graph_and_go_on_when_interrupted(tuning: Tuning, bench: Bench) -> None:
    bench.use(cored_splits())
    words = [*tuning.words("rounds", "--trials", "4", "--rounds", "2", "--max_step", "200"), "--data_path", str(bench.data)]
    first = tuning.start(words)
    wait_for(lambda: tuning.reported("rounds/rounds/1", 1))
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=patience(200))
    assert first.returncode == 130 and b"2 rounds of 4 + 1 that cost about 2 trainings" in out
    second = tuning.start(["--out", str(tuning.root / "rounds"), "--json", "--quiet"])
    out, _ = second.communicate(timeout=patience(200))
    assert second.returncode == 0
    found = json.loads(out)
    early, last = found["rounds"]
    assert early["core"] > 0 and early["entities"] == 40 / 640 and early["triples"] == 800 / 1980 and last["core"] == 0
    (leader,) = (row for row in early["trials"] if row["mrr"] == max(row["mrr"] for row in early["trials"]))
    assert [row["params"] for row in last["trials"]] == [leader["params"]] and len(early["trials"]) == 4
    run = read_run(next((tuning.root / "rounds" / "rounds" / "1" / "trials" / "0000").glob("*/config.json")).parent)
    assert run.neg_sample_size == 8 and run.max_step == 50  # so few are not made fewer
    assert train.main(["--config", found["best"]["config"], "--save_path", str(bench.ckpts), "--quiet"]) == 0
    (again,) = bench.runs()
    assert metrics(again, "valid.json") == metrics(Path(found["best"]["run"]), "valid.json")
    assert not list((tuning.root / "rounds" / "rounds").rglob("trials/**/*.npy"))


def test_without_a_file_the_search_begins_with_the_preset_and_is_never_below_it(
    tuning: Tuning, capsys: pytest.CaptureFixture[str]
) -> None:
    more = "--model_name DistMult --hidden_dim 8 --max_epoch 4 --trials 2 --validations 2 --jobs 1 --json"
    words = [*tuning.data, *more.split()]
    assert tune.main([*words, "--out", str(tuning.root / "preset")]) == 0
    found = json.loads(capsys.readouterr().out)
    first, best = found["trials"][0], found["best"]
    assert first["state"] == "finished" and best["mrr"] >= first["mrr"]
    assert first["params"] == {"lr": 0.1, "init_scale": 1e-3, "regularization_coef": first["params"]["regularization_coef"]} | {
        "batch_size": 64
    }
    config = read_run(next((tuning.root / "preset" / "trials").glob("0000/*/config.json")))
    assert (config.hidden_dim, config.candidates, config.reciprocal) == (8, "all", True)


def test_a_file_that_excludes_the_preset_is_told_so(tuning: Tuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "search.yaml").write_text("lr: [0.3, 0.5]\nhidden_dim: {choices: [20, 30]}\n")
    words = [*tuning.data, *"--model_name DistMult --preset --max_epoch 2 --trials 3 --validations 1 --jobs 1".split()]
    for rounds in ("1", "2"):
        out = str(tmp_path / f"in {rounds}")
        assert tune.main([*words, "--search", str(tmp_path / "search.yaml"), "--out", out, "--rounds", rounds]) == 0
        shown = capsys.readouterr().out
        assert shown.count("the preset is none of the trials, for the search leaves out its --lr 0.1 --hidden_dim 200") == 1
        assert "and the preset" not in shown and "the preset's among them" not in shown
    assert tune.main([*words, "--out", str(tmp_path / "usual")]) == 0
    assert "none of the trials" not in capsys.readouterr().out


def test_choices_that_exclude_one_another_train(tuning: Tuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And what they were trained with, kgdist-train takes as it is."""
    text = "candidates: [sampled, all]\nneg_sample_size: {choices: [4, 8]}\nregularizer: [n3, lp]\nregularization_norm: [2, 4]\n"
    (tmp_path / "search.yaml").write_text(text)
    words = [*tuning.data, *"--model_name DistMult --hidden_dim 8 --max_epoch 1 --trials 6 --validations 1 --seed 3".split()]
    assert tune.main([*words, "--search", str(tmp_path / "search.yaml"), "--out", str(tmp_path / "mixed"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["state"] for row in found["trials"]} <= {"finished", "stopped"}
    chosen = [row["params"] for row in found["trials"]]
    assert any(each["candidates"] == "all" for each in chosen) and any(each["regularizer"] == "n3" for each in chosen)
    for run in (tmp_path / "mixed" / "trials").glob("*/*/config.json"):
        config = read_run(run)
        settle(config, differing(config).keys() - {"num_proc", "seed"})
    (tmp_path / "search.yaml").write_text("neg_sample_size: {choices: [4, 8]}\n")
    words += ["--candidates", "all", "--search", str(tmp_path / "search.yaml"), "--out", str(tmp_path / "idle")]
    assert tune.main(words) == 2 and not (tmp_path / "idle").exists()
    assert capsys.readouterr().err.startswith("error: --neg_sample_size: is searched by ")


def test_a_search_that_goes_on_keeps_its_jobs_and_names_no_preset(
    tuning: Tuning, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tune, "usable_cores", lambda: 4)
    assert tune.main(tuning.words("jobs", "--trials", "1", "--max_step", "20")) == 0
    assert tune.main(["--out", str(tuning.root / "jobs"), "--trials", "2"]) == 0
    shown = capsys.readouterr()
    assert "2 trials, 1 at a time" in shown.out and "preset" not in shown.out + shown.err
    assert tune.main(["--out", str(tuning.root / "jobs"), "--trials", "4", "--jobs", "2"]) == 0
    assert tune.main(["--out", str(tuning.root / "jobs"), "--trials", "4"]) == 0
    assert capsys.readouterr().out.count("4 trials, 2 at a time") == 2


@pytest.mark.slow
def test_what_is_printed_of_a_model_of_ones_own_works_as_printed(
    tuning: Tuning, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my own.py").write_text((ROOT / "examples" / "custom_model" / "quate.py").read_text())
    with as_before():
        own = ["--model_file", "my own.py", "--model_name", "QuatE", "--max_step", "20", "--trials", "1"]
        assert tune.main([*tuning.words("whatever"), *own, "--out", "a search"]) == 0
        lines = capsys.readouterr().out.splitlines()
        again, brief, full = (
            shlex.split(next(line.split(told)[1] for line in lines if told in line))
            for told in ("a page of the search: ", "train with its options: ", "in full: ")
        )
        forget()
        assert tune.main(["--out", "a search", "--trials", "1"]) == 2, "a folder brings no code by itself"
        assert f"--model_file {tmp_path / 'my own.py'}" in capsys.readouterr().err
        assert again[0] == "kgdist-tune" and again[-1] == "--report" and tune.main(again[1:]) == 0
        for words in (brief, full):
            forget()
            assert words[0] == "kgdist-train" and train.main([*words[1:], "--save_path", "ckpts", "--quiet"]) == 0


@pytest.mark.slow
def test_a_small_graph_is_taken_whole(tuning: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main(tuning.words("small", "--trials", "2", "--rounds", "2", "--max_step", "20")) == 0
    shown = capsys.readouterr().out
    assert "1 before the last on the whole graph, for no smaller part tells trials apart" in shown
    assert "round 1: 2 trials on the whole graph, 50.0% of the epochs; the best: trial" in shown
    assert "in full: kgdist-train --dataset toy --data_path" in shown and "--lr" in shown
    assert tune.main(tuning.words("small", "--trials", "3", "--rounds", "2")) == 2
    assert tune.main(["--out", str(tuning.root / "small"), "--rounds", "3", "--trials", "4"]) == 2
    refused = capsys.readouterr().err
    assert "--max_step: 1200 now, but 20 before" in refused and "--rounds: 3 now, but 2 before" in refused


def test_a_trial_that_is_interrupted_is_saved_and_goes_on(tuning: Tuning) -> None:
    _, _, parsed = parse.parse_tune(tuning.words("alone", "--max_step", "1000000", "--gamma", "4"))
    folder = SearchFolder(tuning.root / "alone")
    config = trial_config(parsed.config, {"lr": 0.1}, triples=150, validations=10_000, save_path=folder.trial(0))
    assert config.eval_interval == 100 and folder.saved(0) is None
    forks = ForkServer(threads=1)
    first = start_trial(forks, 0, config, folder.trial(0), None)
    try:
        (told,) = heard(first)
        assert (told["validation"], told["step"], told["total"]) == (1, 100, 1_000_000) and 0 < told["mrr"] <= 1
        first.send_signal(signal.SIGTERM)
        first.send({"go": True})
        assert heard(first) == [{"done": True}]
    finally:
        first.close(time.monotonic())
    saved = folder.saved(0)
    assert saved is not None and checkpoint.latest(saved).step in (100, 101)
    second = start_trial(forks, 0, config, folder.trial(0), saved)
    try:
        (told,) = heard(second)
        assert (told["validation"], told["step"]) == (2, 200)
    finally:
        second.close(time.monotonic())
    forks.close()
    assert not alive(first.pid) and not alive(second.pid)
    assert "Traceback" not in (folder.trial(0) / "log.txt").read_text()


def heard(child: Child) -> list[dict[str, Any]]:
    """What a trial says next."""
    found: list[dict[str, Any]] = []
    wait_for(lambda: found.extend(child.events()) or found)
    return found


def test_all_trials_failing_is_an_error_and_jobs_run_side_by_side(
    tuning: Tuning, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "search.yaml").write_text("lr: [1.0e25, 1.0e30, log]\n")
    words = [*tuning.words("failed"), "--search", str(tmp_path / "search.yaml"), "--optimizer", "sgd"]
    assert tune.main([*words, "--trials", "2", "--jobs", "2"]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith("error: all 2 trials failed, the last one: the loss became") and "trial 1 failed" in shown.out
    logs = [(tuning.root / "failed" / "trials" / f"000{number}" / "log.txt") for number in (0, 1)]
    assert all(log.exists() for log in logs)


@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (["--lr", "0.1"], "--lr: is searched by"),
        (["--test"], "--test: not an option of kgdist-tune"),
        (["--trials", "0"], "--trials: must be an integer >= 1"),
        (["--trails", "9"], "--trails: no such option; did you mean --trials?"),
        (["--pairwise", "--loss_genre", "BCE"], "--pairwise: is not defined for"),
        (["--data_files", FILES[0]], "--data_files: toy has no valid triples, and by their ranks"),
    ],
)
def test_what_is_refused_leaves_nothing(more: list[str], wanted: str, tuning: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune.main([*tuning.words("refused"), *more]) == 2
    assert capsys.readouterr().err.startswith(f"error: {wanted}") and not (tuning.root / "refused").exists()


@pytest.mark.usefixtures("searched")
@pytest.mark.parametrize(
    ("more", "wanted"),
    [
        (["--hidden_dim", "9"], "--hidden_dim: 9 now, but 8 before"),
        (["--preset", "--init", "normal"], "--init: normal now, but uniform before"),  # and not what follows from the preset
        (["--validations", "2"], "--validations: 2 now, but 3"),
    ],
)
def test_a_search_goes_on_as_it_was_asked(
    more: list[str], wanted: str, tuning: Tuning, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune.main([*tuning.words("whole"), *more]) == 2
    assert capsys.readouterr().err.startswith(f"error: {wanted}")
    assert tune.main([*tuning.words("whole"), "--trials", "2", "--report"]) == 0  # nothing is left to do
    shown = capsys.readouterr().out
    assert "\n2 trials: " in shown and f"report: {tuning.root / 'whole' / 'report.html'}" in shown
    assert "--hidden_dim 8" in (tuning.root / "whole" / "report.html").read_text()


def test_another_space_is_named_before_what_follows_from_it(tuning: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*tuning.data, "--model_name", "ComplEx", "--max_epoch", "1", "--trials", "1", "--jobs", "1"]
    words += ["--out", str(tuning.root / "usual")]
    assert tune.main(words) == 0
    (tuning.root / "other.yaml").write_text("gamma: [1.0, 9.0]\n")
    capsys.readouterr()
    assert tune.main([*words, "--search", str(tuning.root / "other.yaml")]) == 2
    assert capsys.readouterr().err.startswith("error: --search: describes another space than before")


@pytest.mark.slow
def test_trials_start_at_the_users_vectors_and_so_does_the_best_again(tuning: Tuning, bench: Bench) -> None:
    vectors = tuning.root / "vectors.tsv"
    names = sorted({name for split in random_splits() for row in split for name in (row[0], row[2])})
    rows = np.random.default_rng(0).normal(size=(len(names), 8))
    text = "".join(f"{name} {' '.join(map(str, row))}\n" for name, row in zip(names, rows.tolist(), strict=True))
    vectors.write_text(f"{len(names)} 8\n{text}")
    more = ["--init_vectors", str(vectors), "--freeze", "entities", "--max_step", "30", "--json"]
    process = tuning.start(tuning.words("begun", "--trials", "1", *more))
    out, _ = process.communicate(timeout=patience(200))
    assert process.returncode == 0
    best = json.loads(out)["best"]
    assert train.main(["--config", best["config"], "--save_path", str(bench.ckpts), "--quiet"]) == 0
    (again,) = bench.runs()
    for run in (Path(best["run"]), again):
        order = (run / "entities.tsv").read_text().split()[1::2]
        wanted = rows[[names.index(name) for name in order]]
        found = embeddings(run)["entity"]
        assert found == pytest.approx(wanted * (np.square(found).mean() / np.square(wanted).mean()) ** 0.5, rel=1e-5)
    assert f"--init_vectors {vectors}" in " ".join(run_facts.command(read_run(again)))


def test_without_an_option_to_search_nothing_is_trained(tuning: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    given = "--model_name DistMult --lr .1 --init_scale .001 -rc .05 --batch_size 64 --max_epoch 3 --trials 2".split()
    assert tune.main([*tuning.data, *given, "--out", str(tuning.root / "none")]) == 2
    refused = capsys.readouterr().err
    assert "nothing is left to search; leave out one of --lr --init_scale --regularization_coef --batch_size, or name" in refused
    assert not (tuning.root / "none").exists()


def test_one_search_a_folder(tuning: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    with SearchFolder(tuning.root / "taken").owned():
        assert tune.main(tuning.words("taken")) == 1
    assert "end that process first" in capsys.readouterr().err
    assert sorted(os.listdir(tuning.root / "taken")) == [".lock", "trials"]


def test_no_space_and_no_folder(tmp_path: Path, tuning: Tuning, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*tuning.words("nothing"), "--search", str(tmp_path / "nothing.yaml")]
    assert tune.main(words) == UsageError.exit_code
    assert "--search wants a YAML file" in capsys.readouterr().err
