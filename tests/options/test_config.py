"""The table against DGL-KE's, typed in here independently, and the laws that every row of it obeys."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError
from kgdist.options.config import OPTIONS, Config

# DGL-KE's options of training: long name -> (default, short flag)
DGLKE_TRAIN: dict[str, tuple[Any, str | None]] = {
    "model_name": ("TransE", None),
    "data_path": ("data", None),
    "dataset": ("FB15k", None),
    "format": ("built_in", None),
    "data_files": ((), None),
    "delimiter": ("\t", None),
    "save_path": ("ckpts", None),
    "no_save_emb": (False, None),
    "max_step": (80000, None),
    "batch_size": (1024, None),
    "batch_size_eval": (8, None),
    "neg_sample_size": (256, None),
    "neg_deg_sample": (False, None),
    "neg_deg_sample_eval": (False, None),
    "neg_sample_size_eval": (-1, None),
    "eval_percent": (1.0, None),
    "no_eval_filter": (False, None),
    "log_interval": (1000, "-log"),
    "eval_interval": (0, None),  # a tenth of the training, 10,000 of DGL-KE at most: docs/from-dgl-ke.md
    "test": (False, None),
    "num_proc": (1, None),
    "num_thread": (1, None),
    "force_sync_interval": (-1, None),
    "hidden_dim": (400, None),
    "lr": (0.01, None),
    "gamma": (12.0, "-g"),
    "double_ent": (False, "-de"),
    "double_rel": (False, "-dr"),
    "neg_adversarial_sampling": (False, "-adv"),
    "adversarial_temperature": (1.0, "-a"),
    "regularization_coef": (0.000002, "-rc"),
    "regularization_norm": (3, "-rn"),
    "pairwise": (False, "-pw"),
    "loss_genre": ("Logsigmoid", None),
    "margin": (1.0, "-m"),
    "gpu": ((-1,), None),
    "mix_cpu_gpu": (False, None),
    "valid": (False, None),
    "rel_part": (False, None),
    "async_update": (False, None),
    "has_edge_importance": (False, None),
}
DGLKE_EVAL = [
    "model_name",
    "data_path",
    "dataset",
    "format",
    "data_files",
    "delimiter",
    "model_path",
    "batch_size_eval",
    "neg_sample_size_eval",
    "neg_deg_sample_eval",
    "hidden_dim",
    "gamma",
    "eval_percent",
    "no_eval_filter",
    "gpu",
    "mix_cpu_gpu",
    "double_ent",
    "double_rel",
    "num_proc",
    "num_thread",
]
OURS = {
    "reciprocal": (False, {"train"}),
    "init_scale": (None, {"train"}),
    "plateau_factor": (0.5, {"train"}),
    "plateau_patience": (2, {"train"}),
    "entity_dropout": (0.0, {"train"}),
    "relation_dropout": (0.0, {"train"}),
    "candidates": ("sampled", {"train"}),
    "answers": (4, {"train"}),
    "k_vs_all": (False, {"train"}),
    "label_smoothing": (0.0, {"train"}),
    "relation_loss": (0.0, {"train"}),
    "bernoulli": (False, {"train"}),
    "subsampling": (False, {"train"}),
    "answer_weight": (1.0, {"train"}),
    "regularizer": ("lp", {"train"}),
    "relation_regularization_coef": (None, {"train"}),
    "neg_sampler": ("uniform", {"train"}),
    "entity_types": (None, {"train"}),
    "mask_known": (False, {"train"}),
    "yes": (False, {"train"}),
    "config": (None, {"train", "eval"}),
    "preset": ("none", {"train"}),
    "seed": (0, {"train", "eval"}),
    "init": ("uniform", {"train"}),
    "optimizer": ("adagrad_row", {"train"}),
    "lr_schedule": ("constant", {"train"}),
    "lr_warmup": (0, {"train"}),
    "max_epoch": (None, {"train"}),
    "checkpoint_interval": ("10m", {"train"}),
    "early_stop_patience": (0, {"train"}),
    "resume": (None, {"train"}),
    "init_from": (None, {"train"}),
    "labels": (None, {"train", "eval"}),
    "init_vectors": ((), {"train"}),
    "freeze": ("none", {"train"}),
    "data_url": (None, {"train", "eval"}),
    "header": ("no", {"train", "eval"}),
    "quoted": (False, {"train", "eval"}),
    "split": ((), {"train", "eval"}),
    "tensorboard": (False, {"train"}),
    "report": (False, {"train", "eval"}),
    "rank_ties": ("realistic", {"train", "eval"}),
    "rank_relations": (False, {"eval"}),
    "skip_unknown": (False, {"eval"}),
    "classify": (False, {"eval"}),
    "classify_files": ((), {"eval"}),
    "hits": ((1, 3, 10), {"train", "eval"}),
    "debug": (False, {"train", "eval"}),
    "quiet": (False, {"train", "eval"}),
    "model_file": (None, {"train", "eval"}),
    "json": (False, {"train", "eval"}),
    "worker": ("process", {"train"}),
    "huge_pages": (False, {"train"}),
    "compute_dtype": ("float32", {"train"}),
    "encoder": ("none", {"train"}),
    "attributes": (None, {"train"}),
    "num_layers": (2, {"train"}),
    "encoder_dim": (64, {"train"}),
    "encoder_lr": (0.01, {"train"}),
    "fanout": ((), {"train"}),
    "no_inverse": (False, {"train"}),
    "num_bases": (16, {"train"}),
    "relation_blocks": (False, {"train"}),
    "num_heads": (4, {"train"}),
    "dropout": (0.2, {"train"}),
    "neighbor_dropout": (0.0, {"train"}),
    "own_rows": (False, {"train"}),
    "weight_decay": (0.0, {"train"}),
    "max_grad_norm": (1.0, {"train"}),
}


def test_every_option_of_dglke_training_is_there_with_its_default_and_short_flag() -> None:
    table = {name: (row.default, row.short) for name, row in OPTIONS.items() if "train" in row.dglke}
    assert table == DGLKE_TRAIN
    assert [type(value) for value, _ in table.values()] == [type(DGLKE_TRAIN[name][0]) for name in table]


def test_every_option_of_dglke_evaluation_is_there() -> None:
    assert {name for name, row in OPTIONS.items() if "eval" in row.dglke} == set(DGLKE_EVAL)
    assert OPTIONS["model_path"].default == "ckpts"


def test_the_rest_is_ours() -> None:
    one = {"train", "eval"}  # the commands of one machine
    rows = {name: (row.default, set(row.ours) & one) for name, row in OPTIONS.items() if not row.dglke and set(row.ours) & one}
    assert rows == OURS


def test_every_option_of_the_distributed_training_document_is_there() -> None:
    document = """model_name data_path dataset format save_path no_save_emb max_step batch_size batch_size_eval neg_sample_size
        neg_deg_sample neg_deg_sample_eval neg_sample_size_eval eval_percent no_eval_filter log_interval test num_proc num_thread
        force_sync_interval hidden_dim lr gamma double_ent double_rel neg_adversarial_sampling adversarial_temperature
        regularization_coef regularization_norm path ssh_key ip_config num_client_proc"""
    assert set(document.split()) <= {name for name, row in OPTIONS.items() if "dist-train" in row.dglke}
    assert OPTIONS["no_save_emb"].synonyms == ("--no_save_embed",)


def test_choices_are_those_of_dglke() -> None:
    models = {"TransE", "TransE_l1", "TransE_l2", "TransR", "RESCAL", "DistMult", "ComplEx", "RotatE", "SimplE", "PairRE"}
    assert set(OPTIONS["model_name"].choices) == models
    assert set(OPTIONS["loss_genre"].choices) == {"Hinge", "Logistic", "Logsigmoid", "BCE"} | {"Softmax"}  # the last is ours


def test_rows_obey_the_laws_of_the_table() -> None:
    spellings = [flag for row in OPTIONS.values() for flag in row.flags]
    assert len(spellings) == len(set(spellings))
    for name, row in OPTIONS.items():
        assert row.flag == f"--{name}"
        assert row.commands and len(set(row.commands)) == len(row.commands)
        assert row.help and not row.help.endswith(".") and "  " not in row.help
        assert row.default is None or row.check(row.default) == row.default
        assert not row.choices or row.default in row.choices
    assert sorted(OPTIONS) == sorted(field.name for field in dataclasses.fields(Config))


def test_config_is_frozen_and_compares_by_value() -> None:
    assert Config() == Config() != Config(lr=0.5)
    assert hash(Config()) == hash(Config())
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize("name", [n for n, row in OPTIONS.items() if row.kind is float and not row.many])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, "1", True, [1.0], 10**400])
def test_a_number_that_cannot_be_is_refused_by_name_and_range(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=rf"^--{name}: must be a (finite )?number >=? ?\d.*, not ") as caught:
        Config(**{name: value})
    assert "\n" not in str(caught.value) and caught.value.exit_code == 2


@pytest.mark.parametrize("name", [n for n, row in OPTIONS.items() if row.kind is float and row.above is not None])
def test_zero_is_refused_where_it_has_no_meaning(name: str) -> None:
    zero: Any = 0.0
    with pytest.raises(OptionError, match=f"--{name}: must be a number > 0"):
        Config(**{name: zero})


@pytest.mark.parametrize("name", [n for n, row in OPTIONS.items() if row.kind is int and not row.many])
@pytest.mark.parametrize("value", [-2, 1.0, "1", True, None, 10**400, 2**63])
def test_an_integer_that_cannot_be_is_refused_by_name_and_range(name: str, value: Any) -> None:
    if value is None and OPTIONS[name].optional:
        return  # not set
    with pytest.raises(OptionError, match=rf"^--{name}: must be an integer >= \d"):
        Config(**{name: value})


@pytest.mark.parametrize(
    "name",
    ["hidden_dim", "max_step", "batch_size", "neg_sample_size", "neg_sample_size_eval", "num_proc", "num_thread", "log_interval"],
)
def test_counts_start_at_one(name: str) -> None:
    zero: Any = 0
    with pytest.raises(OptionError, match=f"--{name}: .*>= 1"):
        Config(**{name: zero})


@pytest.mark.parametrize("name", [n for n, row in OPTIONS.items() if row.kind is bool])
@pytest.mark.parametrize("value", [0, 1, "true", None])
def test_only_a_boolean_is_a_switch(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^--{name}: must be true or false, not {value!r}"):
        Config(**{name: value})


@pytest.mark.parametrize("name", [n for n, row in OPTIONS.items() if row.kind is str and not row.many and not row.form])
@pytest.mark.parametrize("value", ["", "a\0b", 3, b"x", ["x"]])
def test_text_is_text(name: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"^--{name}: must "):
        Config(**{name: value})


@pytest.mark.parametrize("value", ["../x", "a/b", "/abs", ".", "..", "a\\b", "c:", "a\nb", "a\x1b[2J"])
def test_a_data_set_is_a_plain_name(value: str) -> None:
    with pytest.raises(OptionError, match="--dataset: must be a plain name"):
        Config(dataset=value)


@pytest.mark.parametrize("value", ["FB15k-237", "my data.v2", "Wörter", "$(rm)", "-x"])
def test_odd_but_plain_names_are_kept(value: str) -> None:
    assert Config(dataset=value).dataset == value


@pytest.mark.parametrize("order", ["hrt", "htr", "rht", "rth", "thr", "trh"])
@pytest.mark.parametrize("kind", ["raw_udd", "udd"])
def test_formats_with_and_without_braces(kind: str, order: str) -> None:
    assert Config(format=f"{kind}_{{{order}}}").format == Config(format=f"{kind}_{order}").format == f"{kind}_{order}"


@pytest.mark.parametrize(
    "value", ["udd", "raw_udd_", "raw_udd_hhh", "udd_{hrt", "udd_hrtt", "HRT", "builtin", "xudd_hrt", "udd_hrt\n"]
)
def test_other_formats_are_refused(value: str) -> None:
    with pytest.raises(OptionError, match="--format: must be built_in, or raw_udd_XYZ"):
        Config(format=value)


def test_a_wrong_choice_is_told_the_near_one() -> None:
    with pytest.raises(OptionError, match=r"--model_name: must be one of .*, not 'Rotate'; did you mean RotatE\?"):
        Config(model_name="Rotate")


def test_a_tab_may_be_written_as_it_is_typed() -> None:
    assert Config(delimiter="\\t").delimiter == "\t"
    with pytest.raises(OptionError, match="--delimiter: must not hold a line break"):
        Config(delimiter="\n")


def test_lists_become_tuples_and_integers_floats() -> None:
    config = Config(gpu=[0, 1], data_files=["a", "b"], lr=1)  # type: ignore[arg-type]
    assert config.gpu == (0, 1) and config.data_files == ("a", "b") and type(config.lr) is float
    with pytest.raises(OptionError, match="--gpu: needs at least 1 value"):
        Config(gpu=())
    with pytest.raises(OptionError, match="--gpu: must be a list, each an integer"):
        Config(gpu=0)  # type: ignore[arg-type]


@given(st.integers(1, 1000), st.floats(0.1, 1e3), st.booleans(), st.booleans())
def test_dimensions_and_range(hidden: int, gamma: float, ent: bool, rel: bool) -> None:
    config = Config(hidden_dim=hidden, gamma=gamma, double_ent=ent, double_rel=rel)
    assert config.entity_dim == hidden + ent * hidden and config.relation_dim == hidden + rel * hidden
    assert config.init_range == (gamma + 2) / hidden  # not the doubled size


def test_run_name_is_the_literal_model_name() -> None:
    assert Config(model_name="TransE", dataset="wn18").run_name == "TransE_wn18"


def test_replace_checks_again() -> None:
    assert Config().replace(lr=0.5).lr == 0.5
    with pytest.raises(OptionError, match="--lr"):
        Config().replace(lr=-1)
