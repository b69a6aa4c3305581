"""Rounds on parts of a graph: what each costs and is given, who goes on, however a search ends."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError
from kgdist.data.dataset import Dataset, load_dataset
from kgdist.options.config import Config
from kgdist.tuning.kcore import core_numbers, core_sizes
from kgdist.tuning.trials import SearchFolder, Share, trial_config
from tests.cli.graphs import FILES, cored_splits, random_splits, write

pytest.importorskip("optuna")
from kgdist.tuning import rounds
from kgdist.tuning import study as studies
from tests.tuning.worlds import SPACE, Killed, NoForks, World


def loaded(folder: Path, splits: list[list[tuple[str, str, str]]]) -> Dataset:
    for name, split in zip(FILES, splits, strict=True):
        write(folder / name, split)
    return load_dataset(path=folder, name="mine", format="raw_udd_hrt", files=FILES)


@pytest.fixture(scope="module")
def cored(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return loaded(tmp_path_factory.mktemp("cored"), cored_splits())


@given(st.integers(2, 6), st.integers(0, 1000))
def test_each_round_keeps_half_at_most_and_the_last_one(number: int, more: int) -> None:
    counts = rounds.trials_of(2 ** (number - 1) + more, number)
    assert counts[0] == 2 ** (number - 1) + more and counts[-1] == 1 and len(counts) == number
    ratios = [before / after for before, after in itertools.pairwise(counts)]
    assert min(ratios) >= 1.5 and max(ratios) <= 2 * min(ratios)  # alike, but that they are whole


def test_rounds_cost_a_training_each_on_the_largest_cores_that_fit(tmp_path: Path) -> None:
    graph = loaded(tmp_path, random_splits(80, 3, train=2000))
    cores = core_numbers(graph.train.array, 80)
    sizes = core_sizes(graph.train.array, cores)
    for each, trials in zip(rounds.plan(graph, 64, 4, fewest=1), (64, 16, 4, 1), strict=True):
        assert (each.trials, each.cost) == (trials, 1 / trials)
        fits = [k for k in range(len(sizes)) if sizes[k] <= 2000 / trials**0.5]
        core = fits[0] if fits else len(sizes) - 1
        if each.part is None:
            assert each.core == 0 and each.triples == each.entities == 1
            assert trials == 1 or not any(rounds.Subgraph(graph, cores >= k).valid for k in range(1, core + 1) if sizes[k] < 2000)
        else:
            assert each.core <= core and each.triples == sizes[each.core] / 2000
            assert all(rounds.Subgraph(graph, cores >= k).valid < 1 for k in range(each.core + 1, core + 1))
        assert each.triples * each.epochs == pytest.approx(each.cost) or each.epochs == 1
    (only,) = rounds.plan(graph, 7, 1)
    assert only.config(Config(dataset="mine"), SearchFolder(tmp_path)) == Config(dataset="mine")
    assert [each.core for each in rounds.plan(graph, 4, 2)] == [0, 0]  # 12 valid triples tell nothing


def test_what_trials_on_a_part_are_given(cored: Dataset, tmp_path: Path) -> None:
    early, last = rounds.plan(cored, 4, 2)
    assert (early.triples, early.entities, early.part and early.part.valid) == (800 / 1980, 40 / 640, 250)
    assert early.epochs == pytest.approx(0.25 * 1980 / 800) and last.epochs == 1
    base, folder = Config(dataset="mine", max_step=1000, data_files=("a", "b")), SearchFolder(tmp_path)
    config = early.config(base, folder)
    assert config.max_step == 250 and config.data_path == str(tmp_path / "graph") and len(config.data_files) == 4
    assert last.config(base, folder) == base
    warm = early.config(base.replace(lr_warmup=100), folder)
    assert (warm.max_step, warm.lr_warmup) == (250, 25), "else a short round would end before the rate is what it is to be"
    assert early.config(base.replace(max_epoch=8.0), folder).max_epoch == pytest.approx(8 * early.epochs)
    given: dict[str, Any] = {"triples": 800, "validations": 1, "save_path": tmp_path}
    for size, entities, wanted in ((512, early.entities, 32), (256, 0.001, 16), (10, early.entities, 10)):
        share = Share(entities=entities)
        made = trial_config(base.replace(data_files=()), {"neg_sample_size": size}, share=share, **given)
        assert made.neg_sample_size == wanted and made.eval_interval == 1000
    warm = base.replace(data_files=(), batch_size=500, lr_warmup=100, neg_sample_size=4)
    for size, triples, wanted in ((500, 0.4, 200), (1000, 0.4, 400), (500, 0.1, 64), (40, 0.1, 40)):
        made = trial_config(warm, {"batch_size": size}, share=Share(triples=triples), **given)
        assert made.batch_size == wanted
        assert made.max_step == made.eval_interval == math.ceil(1000 * 500 / wanted), "as many triples are seen"
        assert made.lr_warmup == math.ceil(100 * size / wanted), "as on the whole graph, and larger by what steps are more"
    epochs = trial_config(warm.replace(max_epoch=5.0), {}, share=Share(triples=0.4), **given)
    assert (epochs.batch_size, epochs.eval_interval) == (200, 20)


class Searches:
    """Searches of 9 trials in 3 rounds, without trainings."""

    def __init__(self, root: Path, graph: Dataset) -> None:
        self.root, self.graph = root, graph

    def run(
        self,
        name: str,
        at_report: Callable[[int, int], None] | None = None,
        first: Mapping[str, Any] = MappingProxyType({"lr": 0.25, "batch_size": 16}),
        quality: Callable[[dict[str, Any], int], float] | None = None,
    ) -> list[rounds.Done]:
        world = World(*([at_report] if at_report else []))
        world.quality = quality or (
            lambda params, validation: 1 / (1 + abs(params["lr"] - 0.1) + params["max_step"] * params["gamma"] % 1)
        )
        folder, base = SearchFolder(self.root / name), Config(dataset="mine", max_step=900, seed=3)
        with folder.owned(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(studies, "ForkServer", NoForks)
            patch.setattr(studies, "start_trial", world.start_trial)
            plan = rounds.plan(self.graph, 9, 3)
            assert [each.trials for each in plan] == [9, 3, 1]
            asked: dict[str, Any] = {"jobs": 1, "validations": 9, "first": first}
            found, interrupted = rounds.search(folder, base, SPACE, plan, self.graph, **asked)
        assert not interrupted
        return found


@pytest.fixture
def searches(tmp_path: Path, cored: Dataset) -> Searches:
    return Searches(tmp_path, cored)


def ranked(done: rounds.Done) -> list[Any]:
    rows = [row for row in done.rows if row.state == "finished"]
    return [row.params for row in sorted(rows, key=lambda row: (-(row.mrr or 0), row.number))]


def test_the_best_of_a_round_go_on_however_the_search_is_killed(searches: Searches) -> None:
    whole = searches.run("whole")
    assert [len(done.rows) for done in whole] == [9, 3, 2]
    assert whole[0].rows[0].params["lr"] == 0.25 and whole[0].rows[0].params["batch_size"] == 16
    assert [[row.validations for row in done.rows] for done in whole] == [[1] * 9, [1] * 3, [9] * 2]
    for before, after, count in zip(whole, whole[1:], (3, 1), strict=False):
        assert [row.params for row in after.rows][:count] == ranked(before)[:count]
    assert whole[2].rows[1].params == whole[0].rows[0].params  # what is known to be good, though others went on
    for leave_after in (0, 5, 1, 4, 0):
        countdown = iter(range(leave_after, -1, -1))

        def leave(number: int, validation: int, countdown: Iterator[int] = countdown) -> None:
            if next(countdown, 0) == 0:
                raise Killed

        with contextlib.suppress(Killed):
            searches.run("torn", leave)
    torn = searches.run("torn")
    assert [done.rows for done in torn] == [done.rows for done in whole]
    assert (searches.root / "torn" / "best.yaml").exists() and not list(searches.root.glob("torn/rounds/*/.*.tmp"))


def test_those_that_fail_lose_and_the_next_best_goes_on(searches: Searches) -> None:
    reports: list[int] = []

    def fail(number: int, validation: int) -> None:
        reports.append(number)
        if len(reports) in (2, 3, 10, 11, 12):  # two of the first round, and all that are to go on
            raise KgdistError("the loss became nan")

    first, second = searches.run("failing", fail)[:2]
    assert [row.state for row in first.rows].count("failed") == 2
    assert [row.state for row in second.rows] == ["failed"] * 3 + ["finished"]
    assert [row.params for row in second.rows] == ranked(first)[:4]


def test_what_is_known_to_be_good_is_in_the_last_round_but_once(searches: Searches) -> None:
    """Where it has won, too, and not where nothing is known."""
    known = {"lr": 0.1, "batch_size": 16, "gamma": 8.0, "hidden_dim": 8}
    won = searches.run("won", first=known, quality=lambda params, validation: 1 / (1 + abs(params["gamma"] - 8)))
    assert [len(done.rows) for done in won] == [9, 3, 1]
    assert won[2].rows[0].params == won[0].rows[0].params == known
    assert [len(done.rows) for done in searches.run("nothing", first={})] == [9, 3, 1]


def test_early_rounds_choose_whatever_trials_have_shown(searches: Searches) -> None:
    """So what goes on is not one trial many times over."""
    one, other = searches.run("one"), searches.run("other", quality=lambda params, validation: params["lr"])
    assert [row.params for row in one[0].rows] == [row.params for row in other[0].rows]
    assert ranked(one[0]) != ranked(other[0])


def test_a_round_without_survivors_ends_the_search(searches: Searches) -> None:
    reports: list[int] = []

    def fail(number: int, validation: int) -> None:
        reports.append(number)
        if len(reports) > 9:
            raise KgdistError("the loss became nan")

    with pytest.raises(KgdistError, match="all 9 trials failed, the last one: the loss became nan"):
        searches.run("lost", fail)
    assert np.bincount(reports[9:]).tolist() == [1] * 9
