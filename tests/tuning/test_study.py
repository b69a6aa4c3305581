"""Searches without trainings: what is chosen, stopped and remembered, however they end."""

from __future__ import annotations

import contextlib
import errno
import importlib
import json
import os
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import write_json
from kgdist.options.config import Config
from kgdist.options.configfile import read_yaml, to_json
from kgdist.tuning.trials import SearchFolder
from tests.patience import patience

pytest.importorskip("optuna")
from kgdist.tuning import study as studies
from tests.tuning.worlds import SPACE, Killed, World


@settings(max_examples=3, deadline=None)
@given(st.integers(0, 2**40), st.lists(st.integers(0, 25), max_size=3), st.booleans())
@pytest.mark.slow
def test_a_search_that_is_killed_anywhere_chooses_the_same(
    tmp_path_factory: pytest.TempPathFactory, seed: int, leaves: list[int], torn: bool
) -> None:
    folder = tmp_path_factory.mktemp("study")
    whole = World().run(folder / "whole", 12, seed=seed).rows()
    for leave_after in leaves:
        countdown = iter(range(leave_after, -1, -1))

        def leave(number: int, validation: int, countdown: Iterator[int] = countdown) -> None:
            if next(countdown, 0) == 0:
                raise Killed

        with contextlib.suppress(Killed):
            World(leave).run(folder / "torn", 12, seed=seed)
        if torn:
            with (folder / "torn" / "study.journal").open("ab") as journal:
                journal.write(b'{"op_code": 7, "tri')  # the process was killed in the middle of a line
            (folder / "torn" / "study.journal.lock").symlink_to("torn")
    other = World().run(folder / "torn", 12, seed=seed).rows()
    assert whole == other and [row.number for row in whole] == list(range(12))
    assert all(SPACE[name].has(value) for row in whole for name, value in row.params.items())
    assert len({row.params["lr"] for row in whole}) == 12
    assert (folder / "whole" / "best.yaml").read_text().split("kgdist-train")[0] == (
        folder / "torn" / "best.yaml"
    ).read_text().split("kgdist-train")[0]


def test_successive_halving(tmp_path: Path) -> None:
    """Against its definition: at validations 1 and 3 a trial goes on if it is among the best third that came so far."""
    world, rng = World(), random.Random(5)
    world.quality = lambda params, validation: rng.random()
    rows = world.run(tmp_path, 24).rows()
    rungs: dict[int, list[float]] = {1: [], 3: []}
    for number, validation, mrr in world.told:
        goes_on = True
        if validation in rungs:
            rungs[validation].append(mrr)
            goes_on = mrr in sorted(rungs[validation], reverse=True)[: max(1, len(rungs[validation]) // studies.HALVING)]
        assert ((number, validation) in world.gone_on) == goes_on
    assert len(rungs[1]) == 24 > len(rungs[3]) > sum(row.state == "finished" for row in rows) > 0
    assert {(row.state, row.validations) for row in rows} == {("stopped", 1), ("stopped", 3), ("finished", 9)}
    best = studies.best_of(rows)
    assert best is not None and best.mrr == max(row.mrr or 0 for row in rows if row.state == "finished")


def test_a_trial_that_fails_is_recorded_and_the_search_goes_on(tmp_path: Path) -> None:
    def fail(number: int, validation: int) -> None:
        if number in (0, 2):
            raise KgdistError(f"the loss of {number} became nan")

    rows = World(fail).run(tmp_path, 4, first={"lr": 0.5, "gamma": 99.0, "batch_size": 16, "max_step": 7}).rows()
    assert [row.state for row in rows][:3] == ["failed", "finished", "failed"]
    assert (rows[0].error, rows[2].error) == ("the loss of 0 became nan", "the loss of 2 became nan")
    assert rows[0].params["lr"] == 0.5 and rows[0].params["batch_size"] == 16 and rows[0].params["gamma"] <= 9.0
    assert str(rows[0]).startswith("trial 0 failed: the loss of 0 became nan (lr 0.5, ")
    assert read_yaml(tmp_path / "best.yaml", "train")["lr"] == rows[1].params["lr"]
    more = World().run(tmp_path, 6).rows()
    assert more[:4] == rows and [row.number for row in more] == list(range(6))


def test_when_all_trials_fail_the_search_ends(tmp_path: Path) -> None:
    def fail(number: int, validation: int) -> None:
        raise KgdistError("the loss became nan")

    with pytest.raises(KgdistError, match="all 5 trials failed, the last one: the loss became nan"):
        World(fail).run(tmp_path / "one", 50)
    with pytest.raises(KgdistError, match=r"all [5-8] trials failed, the last one: the loss became nan"):
        World(fail).run(tmp_path / "four", 50, jobs=4)


def test_several_trials_at_a_time(tmp_path: Path) -> None:
    world = World()
    rows = world.run(tmp_path, 30, jobs=4).rows()
    assert [row.number for row in rows] == list(range(30)) and {row.state for row in rows} == {"finished", "stopped"}
    assert len({row.params["lr"] for row in rows}) == 30
    best = studies.best_of(rows)
    assert best is not None and f"MRR {best.mrr:.4f}" in (tmp_path / "best.yaml").read_text()


@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("again", [False, True])
def test_an_interrupted_search_goes_on(tmp_path: Path, jobs: int, again: bool) -> None:
    """Once: trials save and end. Twice: they are left."""
    world, alike, asked = World(), World(), threading.Event()

    def flat(params: dict[str, Any], validation: int) -> float:
        return 0.5  # nobody lags

    alike.quality = flat

    def interrupt(number: int, validation: int) -> None:
        if number == 4 and validation == 1:
            search._interrupts.asked = True
            search._interrupts.leaving = again
            asked.set()
        assert number <= 4 or asked.wait(patience(30))

    world.at_report, world.quality = interrupt, flat
    search = world.search(tmp_path, 12, jobs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "start_trial", world.start_trial)
        assert search.run([])
    rows = search.rows()
    assert 4 < len(rows) < 12 and 1 <= sum(row.state == "unfinished" for row in rows) <= jobs
    over = sum(row.state != "unfinished" for row in rows)
    assert alike.run(tmp_path, over, jobs).rows() == rows  # of so many trials nothing is left to do
    after = alike.run(tmp_path, 12, jobs).rows()
    assert [row.number for row in after] == list(range(12)) and "unfinished" not in {row.state for row in after}
    assert [row.params for row in after[: len(rows)]] == [row.params for row in rows]
    if jobs == 1:
        assert after == alike.run(tmp_path / "whole", 12).rows()


def test_what_cannot_be_written_ends_the_search(tmp_path: Path) -> None:
    def full(number: int, validation: int) -> None:
        if number == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for jobs in (1, 2):
        with pytest.raises(KgdistError, match="No space left on device; the same call goes on|not all could be written"):
            World(full).run(tmp_path / str(jobs), 2, jobs)
        rows = World().run(tmp_path / str(jobs), 2).rows()
        assert len(rows) == 2 and {row.state for row in rows} <= {"finished", "stopped"}


def test_a_study_of_before_is_read(tmp_path: Path) -> None:
    """One of four trials: finished, stopped, failed, and one at work when its process was killed."""
    lr = json.dumps({"name": "FloatDistribution", "attributes": {"step": None, "low": 0.01, "high": 1.0, "log": True}})
    gamma = json.dumps({"name": "FloatDistribution", "attributes": {"step": None, "low": 1.0, "high": 9.0, "log": False}})
    size = json.dumps({"name": "CategoricalDistribution", "attributes": {"choices": [16, 32]}})
    dim = json.dumps({"name": "IntDistribution", "attributes": {"log": False, "step": 1, "low": 4, "high": 64}})
    lines: list[dict[str, Any]] = [{"op_code": 0, "study_name": "kgdist", "directions": [2]}]
    time = "2026-01-01T00:00:00.000000+00:00"
    for number, values in enumerate(([0.1, 0.2], [0.05], [], [0.3])):
        lines.append({"op_code": 4, "study_id": 0, "datetime_start": time})
        for name, value, each in (("lr", 0.5, lr), ("gamma", 3.0, gamma), ("batch_size", 1, size), ("hidden_dim", 8, dim)):
            lines.append({"op_code": 5, "trial_id": number, "param_name": name, "param_value_internal": value})
            lines[-1]["distribution"] = each
        for step, value in enumerate(values, 1):
            lines.append({"op_code": 7, "trial_id": number, "step": step, "intermediate_value": value})
        if number == 2:
            lines.append({"op_code": 8, "trial_id": 2, "user_attr": {"error": "the loss became nan"}})
        if number < 3:
            end = {"state": number + 1, "values": values[-1:] or None, "datetime_complete": time}
            lines.append({"op_code": 6, "trial_id": number, **end})
    (tmp_path / "study.journal").write_text("".join(json.dumps(line | {"worker_id": "a"}) + "\n" for line in lines))
    params = {"lr": 0.5, "gamma": 3.0, "batch_size": 32, "hidden_dim": 8}
    run = SearchFolder(tmp_path).trial(0) / "run"
    run.mkdir(parents=True)
    write_json(run / "config.json", to_json(Config(lr=0.5)))
    search = World().search(tmp_path, 5)
    rows = search.rows()
    assert [row.state for row in rows] == ["finished", "stopped", "failed", "unfinished"]
    assert [row.mrr for row in rows] == [0.2, 0.05, None, 0.3] and all(row.params == params for row in rows)
    rows = World().run(tmp_path, 5).rows()
    assert [row.state for row in rows[:4]] == ["finished", "stopped", "failed", "finished"] and len(rows) == 5


def test_a_journal_that_is_none(tmp_path: Path) -> None:
    for text in ("hello\n{}\n", "{}\n", '{"op_code": 99}\n', "[]\n"):
        (tmp_path / "study.journal").write_text(text)
        with pytest.raises(KgdistError, match="cannot be read"):
            studies.open_study(tmp_path / "study.journal", SPACE)
        assert (tmp_path / "study.journal").read_text() == text


def test_optuna_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    monkeypatch.delitem(sys.modules, "kgdist.tuning.study")
    with pytest.raises(UsageError, match=r"pip install 'kgdist\[tune\]'"):
        importlib.import_module("kgdist.tuning.study")
