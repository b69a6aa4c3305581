"""Whatever is lost while checkpoints of several machines are written, the last one that all had written is found again."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgdist.base.errors import PeersLost, UsageError
from kgdist.options.config import Config
from kgdist.runtime.cluster.fleet import AttemptFailed
from kgdist.runtime.cluster.saved import Saved

MACHINES = 3


class Machines:
    """A fleet whose machines hold nothing but the names and stamps of their checkpoints; commands reach some of them."""

    def __init__(self) -> None:
        self.held: list[dict[str, tuple[str, dict[str, Any]]]] = [{} for _ in range(MACHINES)]
        self.stamp = "job:0"
        self.full: set[int] = set()  # machines whose disk is full
        self.reached = MACHINES  # so many hear the next command; if these are not all, the attempt is over
        self.late = MACHINES  # so many hear the next "keep"

    def name(self, machine: int) -> str:
        return f"machine_{machine}"

    def ask(self, answer: str, do: str, seconds: float | None, **arguments: Any) -> dict[int, dict[str, str]]:
        assert do == "save"
        name = f"{'best' if arguments['best'] else 'ckpt'}-{arguments['step']}"
        for machine in range(self.reached):
            if machine not in self.full:
                self.held[machine][name] = self.stamp, arguments["meta"]
        self._die()
        return {machine: {"problem": "full" if machine in self.full else ""} for machine in range(MACHINES)}

    def tell(self, do: str, steps: list[int], best: list[int]) -> None:
        assert do == "keep"
        self.reached = min(self.reached, self.late)
        names = {f"ckpt-{step}" for step in steps} | {f"best-{step}" for step in best}
        for machine in range(self.reached):
            self.held[machine] = {name: value for name, value in self.held[machine].items() if name in names}
        self._die()

    def _die(self) -> None:
        if self.reached < MACHINES:
            raise AttemptFailed("a machine was lost")

    def answers(self) -> dict[int, list[list[Any]]]:
        """What `Shard.checkpoints` says."""
        return {
            machine: [
                [int(name.removeprefix("ckpt-")), stamp, meta.get("best", {}), 1]
                for name, (stamp, meta) in held.items()
                if name.startswith("ckpt-")
            ]
            for machine, held in enumerate(self.held)
        }


faults = st.fixed_dictionaries(
    {
        "best": st.booleans(),
        "full": st.sets(st.integers(0, MACHINES - 1), max_size=2),
        "reached": st.one_of(st.just(MACHINES), st.integers(0, MACHINES)),
        "late": st.booleans(),  # the loss comes after all have saved, while old ones are removed
        "fresh": st.booleans(),  # the launcher is another one, by --resume
    }
)


CONFIG = Config(resume="run", path="/work space", model_file="/own.py")


@given(st.lists(faults, max_size=30))
def test_the_last_whole_checkpoint_is_never_lost(schedule: list[dict[str, Any]]) -> None:
    fleet, saved, attempt, step, whole = Machines(), Saved(CONFIG.replace(resume=None)), 0, 0, 0
    for number, fault in enumerate(schedule):
        fleet.full, fleet.reached = fault["full"], MACHINES if fault["late"] else fault["reached"]
        step += 100
        fleet.late = fault["reached"] if fault["late"] else MACHINES
        try:
            if fault["best"]:
                saved.save_best(fleet, step, float(number))  # type: ignore[arg-type]
            if not saved.save(fleet, step):  # type: ignore[arg-type]
                whole = step
        except AttemptFailed:
            if all(f"ckpt-{step}" in held and held[f"ckpt-{step}"][0] == fleet.stamp for held in fleet.held):
                whole = step
            attempt += 1
            fleet.stamp, fleet.reached, fleet.late = f"job:{attempt}", MACHINES, MACHINES
            first = fault["fresh"] and whole > 0
            saved = Saved(CONFIG) if first else saved
            found = saved.find(fleet.answers(), first=first)
            assert (found or 0) == whole
            step = whole
            if found:
                assert len({held[f"ckpt-{found}"][0] for held in fleet.held}) == 1
        best = saved.best["step"]
        assert best == 0 or all(f"best-{best}" in held for held in fleet.held)


def test_steps_of_different_attempts_are_not_put_together() -> None:
    answers = {0: [[300, "a:1", {}, 1], [200, "a:0", {}, 2]], 1: [[300, "a:0", {}, 1], [200, "a:0", {}, 2]]}
    saved = Saved(CONFIG)
    assert saved.find(answers, first=False) == 200 and saved.trainers == 2
    words = "kgdist-dist-train --resume run --path '/work space' --model_file /own.py"
    assert saved.hint == f"; the last checkpoint is of step 200, go on with: {words}"
    with pytest.raises(UsageError, match="--resume run: no checkpoint of it is whole on all 2 machines"):
        saved.find({0: answers[0][:1], 1: answers[1][:1]}, first=True)
    assert "nothing to go on from" in saved.hint and not saved


def test_a_run_that_was_gone_on_with_is_not_begun_anew_when_its_checkpoints_are_lost(caplog: pytest.LogCaptureFixture) -> None:
    there: dict[int, list[list[Any]]] = {0: [[200, "a:0", {}, 2]], 1: [[200, "a:0", {}, 2]]}
    saved = Saved(CONFIG)
    assert saved.find(there, first=True) == 200
    with pytest.raises(PeersLost, match="--resume run: no checkpoint of it is whole on all 2 machines any more"):
        saved.find(there | {1: []}, first=False)
    new = Saved(CONFIG.replace(resume=None))
    assert new.find({0: [], 1: []}, first=False) is None and not caplog.records  # lost before its first checkpoint
    assert new.find(there, first=False) == 200
    assert new.find(there | {1: []}, first=False) is None
    assert "no checkpoint of it is whole on all 2 machines any more, so it begins anew" in caplog.text
