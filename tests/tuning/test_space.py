"""What a search may choose: usual ranges, and files that say it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgdist.base.errors import DataError
from kgdist.cli.tune import first_trial
from kgdist.models.registry import settle
from kgdist.options import presets
from kgdist.options.built_in import BUILT_IN
from kgdist.options.config import OPTIONS, Config
from kgdist.tuning import space as spaces
from kgdist.tuning.space import Choices, Range, read_space, usual


@pytest.mark.parametrize("model", BUILT_IN)
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
    assert not base.neg_adversarial_sampling


def test_gamma_is_searched_where_it_is_a_margin_and_the_first_values_where_it_only_spreads_them() -> None:
    for model in BUILT_IN:
        space, _ = usual(Config(model_name=model), ())
        assert ("gamma" in space) == (model not in ("DistMult", "ComplEx", "RESCAL", "SimplE"))
        assert ("init_scale" in space) != ("gamma" in space)


def test_a_softmax_is_searched_by_its_first_values() -> None:
    softmax = Config(model_name="ComplEx", loss_genre="Softmax")
    space, base = usual(softmax, {"loss_genre"})
    assert "init_scale" in space and "neg_sample_size" in space and not base.neg_adversarial_sampling
    assert not {"gamma", "loss_genre", "adversarial_temperature"} & space.keys()
    assert "init_scale" not in usual(softmax.replace(init="xavier"), {"loss_genre", "init"})[0]
    everybody = softmax.replace(candidates="all", regularizer="n3")
    space, base = usual(everybody, {"loss_genre", "candidates", "regularizer"})
    assert space.keys() == {"lr", "init_scale", "regularization_coef", "batch_size"} and not base.neg_adversarial_sampling
    assert space["regularization_coef"].has(0.05)
    binary, base = usual(everybody.replace(loss_genre="BCE"), {"loss_genre", "candidates"})
    assert binary.keys() == {"lr", "init_scale", "regularization_coef", "batch_size"}
    settle(base, {"loss_genre", "candidates"})


@pytest.mark.parametrize(
    "row", [row for row in presets.ROWS if row.encoder == "none"], ids=lambda row: f"{row.dataset}-{row.name}-{row.kind}"
)
def test_a_space_is_made_to_hold_the_preset(row: presets.Preset) -> None:
    config = Config(model_name=row.model, dataset=row.dataset, **row.options)
    space, base = usual(config, ())
    wide = spaces.holding(space, row.options)
    assert wide.keys() == space.keys() and settle(base, row.options)
    for name, each in wide.items():
        wanted = row.options.get(name, OPTIONS[name].default)
        assert each.has(wanted) or (name == "regularization_coef" and wanted == 0) or name not in row.options
        assert all(each.has(end) for end in (getattr(space[name], "values", None) or (space[name].low, space[name].high)))


@pytest.mark.parametrize("row", presets.ROWS, ids=lambda row: f"{row.dataset}-{row.name}-{row.kind}")
def test_the_first_trial_begins_as_the_preset_does(row: presets.Preset) -> None:
    """Where a preset leaves the spread of first values to --gamma, it is a value of the search, not one that is drawn."""
    config = Config(model_name=row.model, dataset=row.dataset, preset="published", **row.options)
    first = first_trial(config)
    assert first["init_scale"] == (config.init_range if config.init_scale is None else config.init_scale)
    assert all(first[name] == getattr(config, name) for name in row.options)
    assert not first_trial(config.replace(preset="none"))


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
