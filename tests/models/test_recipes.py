"""The rule behind --preset for graphs without a row: a run of every score function, on every size, without contradictions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.cli import train
from kgdist.models.recipes import Sizes, recipe, slow_start
from kgdist.models.registry import MODELS, settle
from kgdist.options import parse as parsing
from kgdist.options.built_in import BUILT_IN
from kgdist.options.config import Config
from kgdist.options.configfile import read_run
from kgdist.options.parse import parse
from kgdist.runtime.told import recipe_of
from tests.cli.graphs import FILES, random_splits, write

SIZES = st.builds(Sizes, st.integers(2, 10**8), st.integers(1, 10**4), st.integers(1, 10**9), st.booleans(), st.floats(0, 1))


@pytest.mark.parametrize("name", [name for name in BUILT_IN if name != "TransE"])
@settings(max_examples=30, deadline=None)
@given(sizes=SIZES, alone=st.booleans())
def test_every_size_of_graph_gets_a_run_without_contradictions_or_fill_ins(name: str, sizes: Sizes, alone: bool) -> None:
    row = recipe(MODELS[name], "mine", sizes, alone=alone)
    config = Config(model_name=name, dataset="mine", **row.values())
    assert settle(config) == (config, [])
    assert config.valid == sizes.valid and (alone or config.candidates == "sampled")
    flags = parse("train", [*row.flags().split(), "--model_name", name, "--dataset", "mine", "--num_thread", "1"])
    assert flags.config == config  # the printed line is the recipe


@given(entities=st.integers(2, 10**7), triples=st.integers(1, 10**8), more=st.integers(0, 10**8))
def test_the_rate_of_absolute_values_grows_with_the_triples_of_an_entity(entities: int, triples: int, more: int) -> None:
    for name, least, most in (("TransE_l1", 0.05, 0.25), ("TransR", 0.05, 0.25), ("PairRE", 0.15, 0.15)):
        rate, later = (
            recipe(MODELS[name], "mine", Sizes(entities, 3, number, True)).values()["lr"] for number in (triples, triples + more)
        )
        assert least <= rate <= later <= most
    few, many = (recipe(MODELS["TransE_l1"], "mine", Sizes(100, 3, number, True)).values()["lr"] for number in (2500, 8200))
    assert (few, many) == (0.05, 0.16)


@given(
    entities=st.integers(2, 10**6),
    triples=st.integers(1, 10**7),
    more=st.integers(0, 10**7),
    shares=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_what_many_triples_tell_of_or_other_relations_repeat_is_held_down_less(
    entities: int, triples: int, more: int, shares: tuple[float, float]
) -> None:
    for name in ("DistMult", "ComplEx", "SimplE", "RESCAL"):

        def coefficient(triples: int, implied: float, name: str = name) -> float:
            sizes = Sizes(entities, 3, triples, True, implied)
            return float(recipe(MODELS[name], "mine", sizes).values()["regularization_coef"])

        low, high = sorted(shares)
        assert 0.1 >= coefficient(triples, low) >= coefficient(triples + more, low) > 0
        assert coefficient(triples, low) >= coefficient(triples, high) > 0


def test_squared_distances_take_drawn_candidates_and_a_larger_rate_where_products_still_take_all() -> None:
    """Entities, relations, triples of Kinships, AIFB, FB15k-237, WN18RR, WordNet 3.0."""
    graphs = (104, 25, 8544), (2835, 22, 19526), (14541, 237, 272115), (40943, 11, 86835), (265010, 27, 500934)
    found = {
        name: [
            (values.get("candidates", "sampled"), values["lr"])
            for values in (recipe(MODELS[name], "mine", Sizes(*sizes, True)).values() for sizes in graphs)
        ]
        for name in ("TransE_l2", "ComplEx")
    }
    assert found["TransE_l2"] == [("all", 0.045), ("all", 0.07), ("sampled", 0.15), *[("sampled", 0.3)] * 2]
    assert found["ComplEx"] == [*[("all", 0.15)] * 4, ("sampled", 0.15)]
    alone, divided = (
        recipe(MODELS["TransE_l2"], "mine", Sizes(2835, 22, 19526, True), alone=one).values() for one in (True, False)
    )
    assert (alone["lr"], divided["lr"]) == (0.07, 0.29)


def test_the_penalty_is_what_was_measured_to_be_right() -> None:
    """Entities, relations, triples and what other relations repeat: of UMLS, AIFB, FB15k-237, WN18RR."""
    graphs = (135, 46, 5216, 0.0), (2835, 22, 19526, 0.51), (14541, 237, 272115, 0.03), (40943, 11, 86835, 0.0)
    found = [
        recipe(MODELS["ComplEx"], "mine", Sizes(entities, relations, triples, True, implied)).values()["regularization_coef"]
        for entities, relations, triples, implied in graphs
    ]
    assert found == [0.013, 0.013, 0.038, 0.05]


def test_a_graph_whose_relations_say_everything_twice_is_seen_to(tmp_path: Path) -> None:
    """The same counts twice: inverse relations, and relations of their own."""
    draw = np.random.default_rng(0)
    ends = np.unique(draw.integers(0, 60, (400, 2)), axis=0)
    coefficients = []
    for kind, turned in (("inverse", ends[:, ::-1]), ("own", np.stack([ends[:, 0], draw.permutation(ends[:, 1])], 1))):
        lines = [f"e{head}\t{relation}\te{tail}" for relation, pairs in (("r", ends), ("s", turned)) for head, tail in pairs]
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "train.txt").write_text("\n".join(lines) + "\n")
        options = {"dataset": kind, "data_path": str(tmp_path / kind), "format": "raw_udd_hrt", "data_files": ("train.txt",)}
        coefficients.append(recipe_of(Config(model_name="ComplEx", **options)).values()["regularization_coef"])
    assert coefficients == [0.013, 0.05]


def test_options_that_take_the_place_of_a_presets_take_along_what_belongs_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn candidates are of several processes, or of one that repeats itself; another penalty has another coefficient."""
    monkeypatch.setattr(parsing, "usable_cores", lambda: 4)
    usual, lp = Sizes(2000, 20, 20_000, True), Config().regularization_coef

    def taken(words: str, name: str = "ComplEx", sizes: Sizes = usual) -> Config:
        asked = ["--model_name", name, "--dataset", "mine", "--preset", *words.split()]
        return parse("train", asked, recipe=lambda config: recipe(MODELS[name], "mine", sizes)).config

    assert (taken("").candidates, taken("").num_proc) == ("all", 4)  # which become threads
    for words, processes in (("", 4), ("--seed 0", 1), ("--max_step 40", 1)):
        config = taken(f"--neg_sample_size 256 {words}")
        assert (config.candidates, config.num_proc, config.num_thread) == ("sampled", processes, 1)
    assert taken("--neg_sample_size 256", sizes=Sizes(100, 20, 20_000, True)).num_proc == 4  # whose preset has one thread
    assert taken("", "PairRE", Sizes(2, 1, 1, False)).num_proc == 1
    for words, coefficient in (("--regularizer lp", lp), ("-rn 3", lp), ("--regularizer lp -rc .5", 0.5), ("--lr 1", 0.05)):
        assert taken(words).regularization_coef == coefficient, words


def test_rotate_learns_faster_where_triples_are_few_but_not_where_an_entity_has_few() -> None:
    def rates(*sizes: tuple[int, int]) -> list[float]:
        return [recipe(MODELS["RotatE"], "mine", Sizes(entities, 3, triples, True)).values()["lr"] for entities, triples in sizes]

    assert rates((2, 100), (14, 1600), (100, 5000), (100, 8500), (100, 10**6)) == [0.15, 0.15, 0.05, 0.03, 0.03]
    assert rates((100, 100), (167, 439), (271, 1111), (2296, 6880)) == [0.015, 0.02, 0.031, 0.022]
    assert rates((10**6, 10**6)) == [0.03]  # against drawn candidates


def test_a_graph_of_ones_own_is_trained_by_it_and_options_win(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, split in zip(FILES, random_splits(), strict=True):
        write(tmp_path / name, split)
    words = f"--data_path {tmp_path} --format raw_udd_hrt --data_files {' '.join(FILES)} --save_path {tmp_path / 'runs'}".split()
    more = "--model_name ComplEx --preset --max_epoch 2 --hidden_dim 6 --num_thread 1".split()
    assert train.main([*words, *more]) == 0
    shown = capsys.readouterr()
    said = shown.out + shown.err
    assert re.search(r"preset ComplEx on \w+: .*--lr 0.15 .*--candidates all", said)
    assert "preset changed by you: --max_epoch --hidden_dim" in said or "preset changed by you: --hidden_dim --max_epoch" in said
    (run,) = (tmp_path / "runs").iterdir()
    config = read_run(run)
    assert (config.hidden_dim, config.max_epoch, config.loss_genre, config.reciprocal) == (6, 2.0, "Softmax", True)


def test_a_start_that_is_known_to_learn_badly_is_told() -> None:
    def line(name: str = "ComplEx", **options: Any) -> list[str]:
        return list(slow_start(MODELS[name], Config(model_name=name, **options), options))

    (both,) = line()
    assert both.startswith("ComplEx begins at numbers within ±0.035 and with --lr 0.01, from which dot products learn slowly")
    assert "--preset" in both
    assert "give --init_scale 0.2 --lr 0.1 (" in both
    (rate,) = line("DistMult", gamma=143.0)
    assert "numbers" not in rate
    assert "give --lr 0.1 (" in rate
    (start,) = line("SimplE", lr=0.01, init_scale=0.001)  # a rate that the user has set is theirs
    assert "within ±0.001," in start
    assert "--lr" not in start
    for fine in (
        {"gamma": 143.0, "lr": 0.1},
        {"loss_genre": "Softmax"},
        {"resume": "run"},
        {"init_from": "run"},
        {"preset": "best"},
    ):
        assert not line(**fine)
    assert not line("TransE_l2")
    assert not line("RotatE")
