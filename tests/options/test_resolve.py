"""Fill-ins are right and said, and resolving twice is resolving once."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import OptionError
from kgdist.models.registry import settle
from kgdist.options.built_in import BUILT_IN
from kgdist.options.config import Config
from kgdist.options.configfile import differing
from kgdist.options.parse import parse
from kgdist.options.resolve import doubts
from kgdist.report.run_facts import command

SAME = ("TransE", "TransE_l1", "TransE_l2", "RESCAL", "DistMult", "ComplEx", "SimplE")


@given(
    st.sampled_from(list(BUILT_IN)),
    st.integers(1, 40),
    st.booleans(),
    st.booleans(),
    st.integers(1, 50),
    st.integers(1, 50),
    st.integers(1, 3),
)
def test_resolved_shapes_fit_the_model_and_resolving_is_idempotent(
    model: str, hidden: int, ent: bool, rel: bool, batch: int, negatives: int, processes: int
) -> None:
    config = Config(
        model_name=model,
        hidden_dim=hidden,
        double_ent=ent,
        double_rel=rel,
        batch_size=batch,
        neg_sample_size=negatives,
        num_proc=processes,
    )
    try:
        fixed, notes = settle(config)
    except OptionError as error:
        refused_rotate = model == "RotatE" and rel
        refused_pair = model == "PairRE" and ent
        refused_halves = model in ("ComplEx", "SimplE") and hidden % 2 == 1 and not (ent or rel)
        assert refused_rotate or refused_pair or refused_halves, error
        return
    if model == "RotatE":
        assert fixed.entity_dim == 2 * fixed.relation_dim == 2 * hidden
    elif model == "PairRE":
        assert fixed.relation_dim == 2 * fixed.entity_dim == 2 * hidden
    elif model in SAME:
        assert fixed.entity_dim == fixed.relation_dim
    else:
        assert (fixed.double_ent, fixed.double_rel) == (ent, rel)
    if model in ("ComplEx", "SimplE"):
        assert fixed.entity_dim % 2 == 0
    assert batch <= fixed.batch_size < batch + max(negatives, 1)
    assert fixed.batch_size % negatives == 0 or fixed.batch_size == batch < negatives
    assert fixed.force_sync_interval == (1000 if processes > 1 else -1)
    assert (fixed == config) == (not notes)
    assert settle(fixed) == (fixed, [])


@pytest.mark.parametrize(
    ("options", "note"),
    [
        ({"model_name": "RotatE", "hidden_dim": 200}, "--double_ent added: RotatE .*400 numbers, and relations of 200 angles"),
        (
            {"model_name": "PairRE", "hidden_dim": 200},
            "--double_rel added: PairRE .*200 numbers and relations of two vectors of 200",
        ),
        (
            {"model_name": "SimplE", "double_ent": True},
            "--double_rel added: SimplE needs entities and relations of one size, 800",
        ),
        ({"model_name": "TransE_l1", "double_rel": True}, "--double_ent added: TransE_l1"),
        ({"batch_size": 1000}, "--batch_size 1024: rounded up from 1000 to a multiple of --neg_sample_size 256"),
        ({"num_proc": 2}, "--force_sync_interval 1000"),
        ({"format": "raw_udd_hrt", "data_files": ["x/my.tsv.gz", "v"]}, "--dataset my: the name is taken from x/my.tsv.gz"),
        ({"format": "udd_hrt", "data_files": ["e", "r", "d\\mine.txt"]}, "--dataset mine: "),
    ],
)
def test_what_is_filled_in_is_said(options: dict[str, Any], note: str) -> None:
    _, notes = settle(Config(**options))
    assert len(notes) == 1
    assert re.match(note, notes[0]), notes


def test_a_margin_that_a_product_lacks_is_said_where_first_values_are_given_too() -> None:
    given = {"model_name": "DistMult", "gamma": 30.0, "init_scale": 0.01}
    assert settle(Config(**given), given)[1] == ["--gamma 30 has no effect: DistMult has no margin, and --init_scale is given"]
    softmax = given | {"model_name": "TransE_l2", "loss_genre": "Softmax"}
    assert settle(Config(**softmax), softmax)[1] == [
        "--gamma 30 has no effect: a softmax knows no margin, and --init_scale is given"
    ]
    for fine in (given | {"model_name": "TransE_l2"}, given | {"init_scale": None}, given | {"gamma": Config().gamma}):
        assert settle(Config(**fine), fine)[1] == []


def test_a_penalty_of_angles_is_said_to_have_no_effect() -> None:
    given: dict[str, Any] = {"model_name": "RotatE", "double_ent": True, "relation_regularization_coef": 0.5, "regularizer": "n3"}
    given |= {"regularization_coef": 0.01}
    none = "--relation_regularization_coef 0.5 has no effect: relations of RotatE are angles, whose size means nothing to n3"
    assert settle(Config(**given), given)[1] == [none]
    for fine in (
        given | {"regularizer": "lp"},
        given | {"relation_regularization_coef": 0.0},
        given | {"model_name": "ComplEx", "double_ent": False},
    ):
        assert settle(Config(**fine), fine)[1] == []


def test_a_runs_own_threads_are_not_taken_once_more_by_each_process_of_a_resumed_one() -> None:
    saved: dict[str, Any] = {"candidates": "all", "num_thread": 2, "num_proc": 2}
    for more, threads in (({}, 4), ({"resume": "run"}, 2)):
        assert settle(Config(**saved, **more), {"num_proc"})[0].num_thread == threads
    assert settle(Config(**saved, resume="run"), {"num_proc", "num_thread"})[0].num_thread == 4


@pytest.mark.parametrize("name", ["TransR", "PairRE"])
def test_models_that_take_triples_by_relation_draw_no_candidates_by_degree_for_a_softmax(name: str) -> None:
    given: dict[str, Any] = {"model_name": name, "neg_deg_sample": True}
    settle(Config(**given), given)
    with pytest.raises(OptionError, match=f"--neg_deg_sample: {name} takes triples by relation"):
        settle(Config(**given, loss_genre="Softmax"), given)


def test_what_will_hardly_do_anything_is_said_of_a_new_training() -> None:
    weak, late = {"model_name": "ComplEx", "regularizer": "n3"}, {"lr_schedule": "plateau", "valid": True}
    late |= {"max_step": 900, "eval_interval": 400}
    (note,) = doubts(Config(**weak), weak)
    assert note.startswith("--regularization_coef 2e-06 is what lp takes; n3 does little below .001")
    (note,) = doubts(Config(**late), late)
    assert note.startswith("--eval_interval 400: only 2 validations before the last step")
    idle = {"margin": 3.0, "adversarial_temperature": 2.0}
    assert [note.partition(" has no effect ")[::2] for note in doubts(Config(**idle), idle)] == [
        ("--margin 3", "without --loss_genre Hinge"),
        ("--adversarial_temperature 2", "without --neg_adversarial_sampling"),
    ]
    used = idle | {"loss_genre": "Hinge", "neg_adversarial_sampling": True}
    weak_but = weak | {"regularization_coef": 2e-6}
    for fine in (used, {"margin": 1.0}, weak_but, weak | {"resume": "ckpts/a"}, late | {"eval_interval": 300}):
        assert not list(doubts(Config(**fine), fine))


@pytest.mark.parametrize(
    ("options", "option", "hint"),
    [
        ({"model_name": "RotatE", "double_rel": True}, "--double_rel", "angle"),
        ({"model_name": "PairRE", "double_ent": True}, "--double_ent", "--hidden_dim"),
        ({"model_name": "ComplEx", "hidden_dim": 5}, "--hidden_dim", "even"),
        ({"model_name": "SimplE", "hidden_dim": 5}, "--hidden_dim", "even"),
        ({"batch_size": 2**31 - 1, "neg_sample_size": 2**30}, "--batch_size", "must be"),
    ],
)
def test_what_cannot_be_filled_in_is_refused_in_one_line(options: dict[str, Any], option: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        settle(Config(**options))
    assert caught.value.option == option and hint in str(caught.value) and "\n" not in str(caught.value)


def test_a_resumed_run_keeps_its_folder() -> None:
    config = Config(resume="ckpts/a", save_path="elsewhere")
    assert settle(config)[0] == config  # the run's own --save_path
    with pytest.raises(OptionError, match="--save_path: has no place beside --resume: .* in its own folder, ckpts/a; drop it"):
        settle(config, ("resume", "save_path"))


def test_answers_of_a_run_stay_when_it_goes_on() -> None:
    given = {"candidates": "all", "k_vs_all": True, "loss_genre": "BCE"}
    assert settle(Config(**given), set(given))[0].answers == 0
    for answers in (2, 4, 7):
        run, _ = settle(Config(**given, answers=answers), {*given, "answers"})
        assert run.answers == answers == settle(run.replace(resume="ckpts/a"), ("resume",))[0].answers


@pytest.mark.parametrize("answers", [0, 2, 4])
@pytest.mark.parametrize("k_vs_all", [False, True])
@pytest.mark.parametrize("threads", [1, 3])
def test_what_makes_a_run_again_makes_that_run(answers: int, k_vs_all: bool, threads: int) -> None:
    """Where nobody gives them, --answers is 0 with --k_vs_all, and --num_thread all cores with --candidates all."""
    given = {"candidates": "all", "k_vs_all": k_vs_all, "loss_genre": "BCE", "answers": answers, "num_thread": threads}
    run, _ = settle(Config(**given), set(given))
    words = [word for part in command(run)[1:] for word in shlex.split(part)]
    for again in (parse("train", words), parse("train", [f"--{name}={value}" for name, value in differing(run).items()])):
        made, _ = settle(again.config, set(again.explicit))
        assert (made.answers, made.num_thread, made.k_vs_all) == (answers, threads, k_vs_all)


def test_max_step_and_max_epoch_contradict_only_when_both_were_asked_for() -> None:
    config = Config(max_step=10, max_epoch=2.0)
    assert settle(config, ("max_epoch",)) == (config, [])
    with pytest.raises(OptionError, match="--max_step: contradicts --max_epoch"):
        settle(config, ("max_step", "max_epoch"))


def test_what_is_right_stays() -> None:
    for options in (
        {"pairwise": True, "loss_genre": "Hinge"},
        {"neg_sample_size": 2000, "batch_size": 10},
        {"neg_deg_sample_eval": True, "no_eval_filter": True, "neg_sample_size_eval": 10},
        {"format": "raw_udd_trh", "data_files": ("a", "b"), "dataset": "mine"},
        {"rel_part": True},
    ):
        config = Config(**options)
        assert settle(config) == (config, [])
    own = Config(format="raw_udd_hrt", data_files=("a",))
    assert settle(own, ("dataset",))[0].dataset == "FB15k"  # asked for by name


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_refused_by_asking_torch() -> None:
    with pytest.raises(OptionError, match=r"^--gpu 0: no CUDA device can be used here; drop the flag"):
        settle(Config(gpu=(0,)))


def test_several_gpus_share_the_processes_and_the_table() -> None:
    with pytest.raises(OptionError, match=r"^--gpu 0 2: this machine has the GPUs 0 to 1$"):
        settle(Config(gpu=(0, 2)), devices=2)
    with pytest.raises(OptionError, match=r"--num_proc: must be a multiple of the 2 GPUs, not 3"):
        settle(Config(gpu=(0, 1), num_proc=3), devices=2)
    fixed, notes = settle(Config(gpu=(0, 1)), devices=2)
    assert fixed.num_proc == 2 and fixed.mix_cpu_gpu and fixed.force_sync_interval == 1000 and len(notes) == 3
    assert settle(fixed, devices=2) == (fixed, [])
    one = Config(gpu=(1,), async_update=True)
    assert settle(one, devices=2) == (one, [])


@pytest.mark.parametrize("model", ["TransE_l1", "RotatE", "TransR"])
def test_bfloat16_is_refused_where_nothing_is_multiplied(model: str) -> None:
    with pytest.raises(
        OptionError, match=f"--compute_dtype.*bfloat16 is for models that multiply matrices; {model} sums distances"
    ):
        settle(Config(model_name=model, compute_dtype="bfloat16"))
