"""The folder of a search: what it remembers, and the options that it leaves for training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kgdist.base.errors import OptionError, UsageError
from kgdist.base.files import read_json, write_json
from kgdist.models.registry import settle
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import read_yaml, to_json
from kgdist.tuning.space import Choices, Range, Space
from kgdist.tuning.trials import Asked, SearchFolder, idle_in_all, trial_config

SPACE: Space = {"lr": Range(0.01, 1.0, True), "batch_size": Choices((16, 32))}


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


@pytest.mark.parametrize(("schedule", "factor"), [("constant", 0.5), ("plateau", 0.2)])
def test_what_another_choice_leaves_idle_is_not_asked_of_a_trial(tmp_path: Path, schedule: str, factor: float) -> None:
    params = {"lr_schedule": schedule, "plateau_factor": 0.2}
    made = trial_config(Config(max_step=99), params, triples=999, validations=9, save_path=tmp_path)
    assert (made.lr_schedule, made.plateau_factor) == (schedule, factor)


@pytest.mark.parametrize(
    ("params", "left_out"),
    [
        ({"regularizer": "n3", "regularization_norm": 2}, {"regularization_norm"}),
        ({"regularizer": "lp", "regularization_norm": 2}, set()),
        (
            {"candidates": "all", "neg_sample_size": 64, "k_vs_all": True, "neg_adversarial_sampling": True},
            {"neg_sample_size", "neg_adversarial_sampling"},
        ),
        ({"candidates": "sampled", "neg_sample_size": 64, "k_vs_all": True, "answers": 2}, {"k_vs_all", "answers"}),
        ({"loss_genre": "BCE", "label_smoothing": 0.1, "pairwise": True}, {"label_smoothing", "pairwise"}),
        ({"loss_genre": "Softmax", "label_smoothing": 0.1, "neg_adversarial_sampling": True}, {"neg_adversarial_sampling"}),
        ({"init": "xavier", "init_scale": 0.1}, {"init_scale"}),
        ({"encoder": "gat", "num_bases": 4, "num_heads": 2}, {"num_bases"}),
    ],
)
def test_options_that_other_choices_make_meaningless_are_left_out(
    tmp_path: Path, params: dict[str, Any], left_out: set[str]
) -> None:
    made = trial_config(Config(max_step=99), params, triples=999, validations=9, save_path=tmp_path)
    for name, value in params.items():
        assert getattr(made, name) == (OPTIONS[name].default if name in left_out else value)
    settle(made, {name for name, row in OPTIONS.items() if getattr(made, name) != row.default} - {"max_step"})  # best.yaml


def test_what_all_trials_have_is_left_out_where_a_choice_makes_it_meaningless(tmp_path: Path) -> None:
    """Else kgdist-train --config best.yaml would refuse it; what contradicts, and is not meaningless, is refused as before."""
    base = Config(max_step=99, neg_sample_size=64, regularization_norm=2)
    made = trial_config(base, {"candidates": "all", "regularizer": "n3"}, triples=999, validations=9, save_path=tmp_path)
    assert (made.neg_sample_size, made.regularization_norm) == (256, 3)
    for params in ({"loss_genre": "Hinge", "candidates": "all"}, {"label_smoothing": 1.5, "loss_genre": "Softmax"}):
        with pytest.raises(OptionError, match="margin|share"):
            trial_config(base, params, triples=999, validations=9, save_path=tmp_path)


@pytest.mark.parametrize("answers", [0, 4])
def test_trials_take_as_many_answers_as_the_search_was_asked_for(tmp_path: Path, answers: int) -> None:
    base = Config(candidates="all", k_vs_all=True, answers=answers, max_epoch=1.0, yes=True)
    made = trial_config(base, {"lr": 0.1}, triples=999, validations=9, save_path=tmp_path)
    assert made.answers == answers and made.yes


def test_options_that_no_trial_has_a_use_for() -> None:
    norm: Space = {"regularization_norm": Range(1, 4), "lr": Range(0.1, 0.2)}
    assert idle_in_all(Config(), norm) == []
    assert idle_in_all(Config(regularizer="n3"), norm) == ["regularization_norm"]
    assert idle_in_all(Config(regularizer="n3"), norm | {"regularizer": Choices(("n3", "lp"))}) == []


def test_what_a_folder_remembers(tmp_path: Path) -> None:
    folder = SearchFolder(tmp_path / "tune")
    assert folder.recall() is None
    with folder.owned():
        pass
    base = Config(lr=0.3, dataset="mine", preset=False)
    asked = Asked(base, SPACE, 5, 3, 64, 2)
    folder.remember(asked)
    assert folder.recall() == asked
    saved = read_json(folder.asked)
    del saved["rounds"], saved["trials"], saved["jobs"]  # as before there were rounds
    write_json(folder.asked, saved)
    assert folder.recall() == Asked(base, SPACE, 5, 1, 0)
    folder.asked.write_text("{}")
    with pytest.raises(UsageError, match=r"tune.json: not what kgdist-tune has written"):
        folder.recall()
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"), SearchFolder(tmp_path / "file" / "tune").owned():
        pass


def test_the_best_options_are_a_file_for_training(tmp_path: Path) -> None:
    folder = SearchFolder(tmp_path)
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


def test_a_search_is_not_put_among_other_files(tmp_path: Path) -> None:
    folder = SearchFolder(tmp_path / "out")
    folder.check_new()
    with folder.owned():
        folder.check_new()  # what a call that came to nothing leaves
    (tmp_path / "out" / "train.tsv").touch()
    with pytest.raises(UsageError, match=r"--out .*out: holds other files \(train.tsv\); name a new folder"):
        folder.check_new()
