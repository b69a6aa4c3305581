"""Searches without trainings: spaces and their files, what a study chooses, stops and remembers, what a folder keeps."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import DataError, KgdistError, OptionError, UsageError
from kgdist.base.files import write_json
from kgdist.options import presets
from kgdist.options.config import MODELS, OPTIONS, Config
from kgdist.options.configfile import read_yaml, to_json
from kgdist.tuning import space as spaces
from kgdist.tuning import study as studies
from kgdist.tuning.space import Choices, Range, Space, read_space, usual
from kgdist.tuning.trials import Folder, trial_config

pytest.importorskip("optuna")
SPACE: Space = {
    "lr": Range(0.01, 1.0, True),
    "gamma": Range(1.0, 9.0),
    "batch_size": Choices((16, 32)),
    "hidden_dim": Range(4, 64),
}


# ---------------------------------------------------------------------------------------------------------------- spaces
@pytest.mark.parametrize("model", MODELS)
def test_usual_spaces_hold_the_published_options(model: str) -> None:
    space, base = usual(Config(model_name=model), ())
    assert base.neg_adversarial_sampling and all(spaces.searchable(OPTIONS[name]) for name in space)
    rows = [
        row for row in presets.ROWS if row.model == model and not (row.source.startswith("DGL-KE, 8") or row.dataset == "biokg")
    ]
    inside = [space["lr"].has(row.options["lr"]) for row in rows]
    assert sum(inside) >= len(inside) * 0.8
    for name, each in space.items():
        values = each.values if isinstance(each, Choices) else (each.low, each.high)
        assert all(OPTIONS[name].check(value) == value for value in values)
    assert spaces.from_json(spaces.to_json(space)) == space


def test_what_is_given_is_not_searched() -> None:
    space, base = usual(Config(lr=0.1, neg_adversarial_sampling=False), {"lr", "neg_adversarial_sampling"})
    assert "lr" not in space and "adversarial_temperature" not in space and not base.neg_adversarial_sampling
    space, base = usual(Config(pairwise=True, loss_genre="Hinge"), {"pairwise", "loss_genre"})
    assert "loss_genre" not in space and not base.neg_adversarial_sampling


def test_a_space_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(
        "lr: [0.01, 0.3, log]  # a comment\ngamma: [2, 20]\nhidden_dim: {choices: [100, 200]}\nneg_sample_size: [8, 64]\n"
        "loss_genre: [Hinge, BCE]\nneg_deg_sample: [true, false]\n"
    )
    assert read_space(file) == {
        "lr": Range(0.01, 0.3, True),
        "gamma": Range(2.0, 20.0),
        "hidden_dim": Choices((100, 200)),
        "neg_sample_size": Range(8, 64),
        "loss_genre": Choices(("Hinge", "BCE")),
        "neg_deg_sample": Choices((True, False)),
    }


@pytest.mark.parametrize(
    ("text", "line", "wanted"),
    [
        ("lr: [0.3, 0.01]", 1, "from the lower to the higher"),
        ("lr: [0.3, 0.3]", 1, "from the lower to the higher"),
        ("gamma: [1, 2]\nlr: [-1, 0.3]", 2, "must be a number > 0"),
        ("regularization_coef: [0, 0.1, log]", 1, "begins above 0"),
        ("lr: 0.1", 1, "given as a flag"),
        ("lr: [0.1, 0.2, linear]", 1, "expected [low, high]"),
        ("lr: {choices: []}", 1, "expected [low, high]"),
        ("lr: {low: 1}", 1, "{choices: [...]}"),
        ("hidden_dim: {choices: [100, 100]}", 1, "twice"),
        ("hidden_dim: [10.5, 20]", 1, "must be an integer"),
        ("lr: [1, 2]\nlr: [1, 2]", 2, "lr: set already in line 1"),
        ("learning_rate: [1, 2]", 1, "no such option"),
        ("max_step: [100, 200]", 1, "the same for all trials"),
        ("dataset: [a, b]", 1, "the same for all trials"),
        ("gpu: [0, 1]", 1, "the same for all trials"),
        ("loss_genre: [Hinge, Hing]", 1, "did you mean Hinge"),
        ("lr: [[1], 2]", 1, "must be a number > 0, not [1]"),
        ("lr: {choices: [1], choices: [2]}", 1, "choices: set already in line 1"),
        ("a", 1, "one option per line"),
        ("lr: &x [1, 2]", 1, "anchors"),
        ("", None, "names no option"),
    ],
)
def test_bad_files_are_refused_by_line(text: str, line: int | None, wanted: str, tmp_path: Path) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(text)
    with pytest.raises(DataError, match="search.yaml") as refused:
        read_space(file)
    assert refused.value.line == line and wanted in str(refused.value)


# ---------------------------------------------------------------------------------------------------------------- studies
def quality(params: dict[str, Any], validation: int) -> float:
    """A made-up MRR: the best lr is 0.1, and it shows more and more."""
    return 1 / (1 + abs(params["lr"] - 0.1) + 1 / validation + params["gamma"] / 100)


def work(study: studies.Study, total: int, *, leave_after: int | None = None) -> None:
    """All trials of a search one after another, nine validations each; stop in the middle of one after so many reports."""
    reports = 0
    while (asked := study.ask(total)) is not None:
        number, params = asked
        for validation in range(1, 10):
            if reports == leave_after:
                return
            reports += 1
            if study.report(number, validation, quality(params, validation)):
                study.finish(number, "stopped")
                break
        else:
            study.finish(number, "finished")


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**40), st.lists(st.integers(0, 25), max_size=3), st.booleans())
def test_a_study_that_is_left_anywhere_chooses_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, leaves: list[int], torn: bool
) -> None:
    folder = tmp_path_factory.mktemp("study")
    work(studies.Study(folder / "whole", SPACE, seed), 12)
    for leave_after in leaves:
        work(studies.Study(folder / "torn", SPACE, seed), 12, leave_after=leave_after)
        if torn:
            with (folder / "torn").open("ab") as journal:
                journal.write(b'{"op_code": 7, "tri')  # the process was killed in the middle of a line
            (folder / "torn.lock").symlink_to("torn")
    work(studies.Study(folder / "torn", SPACE, seed), 12)
    whole, other = (studies.Study(folder / name, SPACE, seed).rows() for name in ("whole", "torn"))
    assert whole == other and len(whole) == 12
    assert all(SPACE[name].has(value) for row in whole for name, value in row.params.items())
    assert len({row.params["lr"] for row in whole}) == 12


def test_successive_halving(tmp_path: Path) -> None:
    """Against its definition: at validations 1, 3 and 9 a trial goes on if it is among the best third that came so far."""
    study, rng = studies.Study(tmp_path / "journal", SPACE, 3), random.Random(5)
    rungs: dict[int, list[float]] = {1: [], 3: [], 9: []}
    for _ in range(24):
        asked = study.ask(100)
        assert asked is not None
        for validation in range(1, 10):
            mrr = rng.random()
            stop = study.report(asked[0], validation, mrr)
            if validation in rungs:
                rungs[validation].append(mrr)
                best = sorted(rungs[validation], reverse=True)[: max(1, len(rungs[validation]) // studies.HALVING)]
                assert stop == (mrr not in best)
            assert validation in rungs or not stop
            if stop:
                break
        study.finish(asked[0], "stopped" if stop else "finished")
    assert len(rungs[1]) == 24 > len(rungs[3]) > len(rungs[9])
    rows = study.rows()
    best = studies.best_of(rows)
    assert best is not None and best.mrr == max(row.mrr or 0 for row in rows if row.state == "finished")


def test_failed_trials_do_not_count_as_results(tmp_path: Path) -> None:
    study = studies.Study(tmp_path / "journal", SPACE, 0)
    study.first({"lr": 0.5})
    assert study.ask(2) == (0, study.rows()[0].params) and study.rows()[0].params["lr"] == 0.5
    study.finish(0, "failed", "the loss became nan")
    study.ask(2)
    study.finish(1, "finished")  # although it was never validated
    assert study.ask(2) is None
    assert [(row.state, row.error) for row in study.rows()] == [
        ("failed", "the loss became nan"),
        ("failed", "no validation was made"),
    ]
    assert studies.best_of(study.rows()) is None


def test_a_journal_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("hello\n{}\n")
    with pytest.raises(KgdistError, match="cannot be read"):
        studies.Study(tmp_path / "journal", SPACE, 0)


def test_optuna_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError, match=r"pip install 'kgdist\[tune\]'"):
        studies.library()


# ---------------------------------------------------------------------------------------------------------------- folders
def test_trials_train_equally_long(tmp_path: Path) -> None:
    base = Config(max_step=1000, batch_size=1024, dataset="wordnet")
    large = trial_config(base, {"batch_size": 2048}, triples=10**6, validations=9, save_path=tmp_path)
    assert (large.max_step, large.eval_interval) == (500, 56) and large.valid and large.quiet
    same = trial_config(base, {"lr": 0.5}, triples=10**6, validations=9, save_path=tmp_path)
    assert (same.max_step, same.eval_interval, same.lr) == (1000, 112, 0.5)
    epochs = trial_config(base.replace(max_epoch=4.0), {"batch_size": 2000}, triples=10**5, validations=4, save_path=tmp_path)
    assert epochs.eval_interval == 49  # a quarter of 4 epochs: batches are rounded up to 2048, and 49 make an epoch
    with pytest.raises(OptionError, match="half"):
        trial_config(base.replace(model_name="ComplEx"), {"hidden_dim": 7}, triples=9, validations=1, save_path=tmp_path)


def test_what_a_folder_remembers(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "tune")
    assert folder.recall() is None
    folder.make()
    base = Config(lr=0.3, dataset="mine", preset=False)
    folder.remember(base, SPACE, 5)
    assert folder.recall() == (base, SPACE, 5)
    folder.asked.write_text("{}")
    with pytest.raises(UsageError, match=r"tune.json: not what kgdist-tune has written"):
        folder.recall()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        Folder(tmp_path / "file" / "tune").make()


def test_the_best_options_are_a_file_for_training(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    run = folder.trial(3) / "ComplEx_mine_0"
    run.mkdir(parents=True)
    config = Config(
        model_name="ComplEx", dataset="mine", lr=1e-5, delimiter="\t", data_files=("a b.tsv", 'c"d.tsv'), max_epoch=3.0
    )
    write_json(run / "config.json", to_json(config))
    folder.write_best(3, 0.25, "trial 3 of 9")
    read = read_yaml(folder.best, "train")
    assert Config(**read) == config and "max_step" not in read and read["num_proc"] == 1
    assert folder.best.read_text().startswith("# kgdist-tune, trial 3 of 9: MRR 0.2500")
