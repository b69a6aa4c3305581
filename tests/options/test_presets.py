"""The published rows: complete, runnable, divided over processes, and said aloud."""

from __future__ import annotations

import pytest

from kgdist.base.errors import OptionError
from kgdist.models.registry import settle
from kgdist.options import presets
from kgdist.options.config import OPTIONS, Config
from kgdist.options.parse import parse

PAIRS = {
    "FB15k": "TransE_l1 TransE_l2 DistMult ComplEx RESCAL TransR RotatE SimplE",
    "wn18": "TransE_l1 TransE_l2 DistMult ComplEx RESCAL TransR RotatE SimplE",
    "Freebase": "TransE_l2 DistMult ComplEx TransR RotatE",
    "wikikg2": "TransE_l2 DistMult ComplEx RotatE",
    "biokg": "TransE_l2 DistMult ComplEx RotatE",
    "FB15k-237": "ComplEx RotatE PairRE DistMult+rgcn DistMult+relgnn",
    "wn18rr": "ComplEx RotatE",
    "wordnet": "RotatE ComplEx TransE_l2 DistMult",
}


def test_the_pairs_that_were_published_are_there_once() -> None:
    found = [(row.dataset, row.name.replace(" behind ", "+")) for row in presets.ROWS if row.kind == "published"]
    assert sorted(found) == sorted((data, model) for data, models in PAIRS.items() for model in models.split())
    assert all(row.published for row in presets.ROWS if row.dataset in ("FB15k", "wn18", "Freebase", "wikikg2", "biokg"))


@pytest.mark.parametrize("row", presets.ROWS, ids=lambda row: f"{row.name}-{row.dataset}")
def test_a_row_is_a_run_without_contradictions_or_fill_ins(row: presets.Preset) -> None:
    config = Config(model_name=row.model, dataset=row.dataset, **row.values())
    assert settle(config) == (config, [])
    assert row.source
    if row.kind == "published":
        assert config.neg_adversarial_sampling and config.max_step == row.steps
    else:
        assert row.steps is None and config.max_epoch and config.valid and row.published
    assert all("train" in OPTIONS[name].commands for name in row.options)
    flags = parse("train", [*row.flags().split(), "--model_name", row.model, "--dataset", row.dataset, "--num_thread", "1"])
    assert flags.config == config  # the printed line is the row


@pytest.mark.parametrize(
    ("model", "dataset", "expected"),
    [
        (
            "TransE_l2",
            "FB15k",
            {"batch_size": 1000, "neg_sample_size": 200, "hidden_dim": 400, "gamma": 19.9, "lr": 0.25, "max_step": 24000},
        ),
        (
            "RotatE",
            "FB15k",
            {"batch_size": 2048, "neg_sample_size": 256, "neg_deg_sample": True, "double_ent": True, "lr": 0.009},
        ),
        ("SimplE", "FB15k", {"gamma": 295.0, "lr": 0.82, "regularization_coef": 1e-6, "double_rel": True}),
        ("ComplEx", "wn18", {"batch_size": 1024, "neg_sample_size": 1024, "hidden_dim": 512, "gamma": 200.0, "max_step": 20000}),
        ("TransE_l2", "Freebase", {"max_step": 2_400_000, "neg_sample_size_eval": 1000, "regularization_coef": 1e-9}),
    ],
)
def test_rows_hold_the_published_options(model: str, dataset: str, expected: dict[str, object]) -> None:
    values = presets.find(model, dataset).values()
    assert {name: values[name] for name in expected} == expected


def test_an_encoder_has_rows_of_its_own() -> None:
    words = ["--dataset", "FB15k-237", "--model_name", "DistMult", "--preset"]
    config = parse("train", [*words, "--encoder", "relgnn", "--num_proc", "1"]).config
    assert (config.hidden_dim, config.encoder_dim, config.encoder_lr, config.fanout) == (64, 32, 0.001, (25, 10))
    with pytest.raises(OptionError, match="there is none for DistMult behind sage on FB15k-237; .*DistMult behind rgcn"):
        parse("train", [*words, "--encoder", "sage"])
    with pytest.raises(OptionError, match="there is none for DistMult on FB15k-237; "):
        parse("train", words)


def test_names_are_looked_up_without_case_and_with_aliases() -> None:
    assert presets.find("RotatE", "WN18RR") is presets.find("RotatE", "wn18rr") is not presets.find("RotatE", "wn18")
    assert presets.find("ComplEx", "fb15k237").dataset == "FB15k-237"
    assert presets.find("ComplEx", "ogbl-wikikg2").dataset == "wikikg2"
    assert presets.find("TransE", "FB15k").model == "TransE_l2"


def test_a_pair_without_a_row_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        OptionError, match=r"^--preset: there is none for TransR on wordnet; there are FB15k \(TransE_l1, .*wordnet"
    ) as caught:
        presets.find("TransR", "wordnet")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("processes", [1, 2, 7, 48])
def test_steps_are_divided_over_the_processes(processes: int) -> None:
    row = presets.find("ComplEx", "wn18")
    steps = row.values(processes)["max_step"]
    assert row.steps <= steps * processes < row.steps + processes
    parsed = parse("train", f"--model ComplEx --dataset wn18 --preset --num_proc {processes}".split())
    assert parsed.config.max_step == steps
    assert any(f"{steps} for each of {processes} processes" in note for note in parsed.notes) == (processes > 1)


def test_what_a_preset_sets_is_printed_with_what_it_reached_and_what_the_user_changed() -> None:
    parsed = parse("train", ["--model", "ComplEx", "--dataset", "WN18", "--preset", *"--lr 0.2 --gamma 200 --num_proc 1".split()])
    text = "\n".join(parsed.notes)
    assert "--hidden_dim 512" in text and "--max_step 20000" in text and "MRR 0.932" in text and "DGL-KE, 1 GPU" in text
    assert "changed by you: --lr" in text and "--gamma 200" in text.splitlines()[0] and not text.endswith("--gamma")
    assert parsed.config.lr == 0.2 and parsed.config.hidden_dim == 512 and parsed.config.dataset == "WN18"


def test_a_preset_gives_way_to_options_that_contradict_it_and_says_so() -> None:
    words = "--model ComplEx --dataset wn18 --preset --num_proc 1 --loss_genre Softmax".split()
    parsed = parse("train", words)
    assert not parsed.config.neg_adversarial_sampling and parsed.config.hidden_dim == 512
    assert "left out of the preset, because your options contradict it: --neg_adversarial_sampling" in parsed.notes
    sampled = parse("train", "--model ComplEx --dataset wn18 --preset fast --neg_sample_size 100".split())
    assert sampled.config.candidates == "sampled" and sampled.config.regularizer == "n3"
    assert any(note.endswith("contradict it: --candidates") for note in sampled.notes)
    everybody = parse(
        "train", "--model ComplEx --dataset wordnet --preset --candidates all".split()
    )  # no draws are left in the run
    assert any(note.endswith("contradict it: --neg_adversarial_sampling --neg_sample_size") for note in everybody.notes)
    assert everybody.config.max_step == 4000  # threads share each step, whatever the cores
    late = parse("train", "--model ComplEx --dataset FB15k --preset fast --lr_schedule plateau --early_stop_patience 1".split())
    assert late.config.valid  # what is wrong is between two of the user's own, and not mended without it
    own = parse("train", [*words, "-adv"])  # two of the user's own: refused, as without a preset
    with pytest.raises(OptionError, match="contradicts --loss_genre Softmax"):
        settle(own.config, own.explicit)
