"""Searches without trainings: validations of a made-up quality, in the place of processes."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kgdist.base.errors import KgdistError
from kgdist.base.files import write_json
from kgdist.options.config import Config
from kgdist.options.configfile import to_json
from kgdist.tuning import study as studies
from kgdist.tuning.space import Choices, Range, Space
from kgdist.tuning.trials import SearchFolder

SPACE: Space = {
    "lr": Range(0.01, 1.0, True),
    "gamma": Range(1.0, 9.0),
    "batch_size": Choices((16, 32)),
    "hidden_dim": Range(4, 64),
}


def quality(params: dict[str, Any], validation: int) -> float:
    """A made-up MRR: the best lr is 0.1, and it shows more and more."""
    return 1 / (1 + abs(params["lr"] - 0.1) + 1 / validation + params["gamma"] / 100)


class Killed(BaseException):
    """What nobody catches."""


class NoForks:
    """A fork server that is not needed."""

    def __init__(self, threads: int) -> None:
        self.close = lambda: None


class World:
    """Trainings that are none: validations of a made-up quality. `at_report(number, validation)` is called before each."""

    def __init__(self, at_report: Callable[[int, int], None] = lambda number, validation: None) -> None:
        self.at_report = at_report
        self.quality = quality
        self.told: list[tuple[int, int, float]] = []  # trial, validation, MRR
        self.gone_on: set[tuple[int, int]] = set()

    def start_trial(self, forks: object, number: int, config: Config, folder: Path, resume: Path | None) -> Training:
        (folder / "run").mkdir(parents=True)
        write_json(folder / "run" / "config.json", to_json(config))
        return Training(self, number, config)

    def search(self, root: Path, trials: int, jobs: int = 1, seed: int = 3) -> studies.Search:
        folder, base = SearchFolder(root), Config(dataset="mine", max_step=900, seed=seed)
        with folder.owned(), pytest.MonkeyPatch.context() as patch:
            patch.setattr(studies, "ForkServer", NoForks)
            return studies.Search(folder, base, SPACE, trials=trials, jobs=jobs, validations=9, triples=100)

    def run(self, root: Path, trials: int, jobs: int = 1, seed: int = 3, first: dict[str, Any] | None = None) -> studies.Search:
        """A search from beginning to end."""
        search = self.search(root, trials, jobs, seed)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(studies, "start_trial", self.start_trial)
            search.run([first] if first else [])
        return search


class Training:
    """One of them, with what its owner uses of a `Child`."""

    def __init__(self, world: World, number: int, config: Config) -> None:
        self.world, self.number, self.config = world, number, config
        self.validation, self.waits, self.last = 0, False, None
        self.most = -(-config.max_step // config.eval_interval)
        self.stdout = open(os.devnull, "rb")  # noqa: SIM115 - it can always be read, until `close`

    def events(self) -> Iterator[dict[str, Any]]:
        if self.waits:
            return
        if self.last is not None:
            yield self.last
            return
        if self.validation == self.most:
            yield {"done": False}
            return
        self.validation += 1
        try:
            self.world.at_report(self.number, self.validation)
        except KgdistError as error:
            yield {"error": str(error)}
            return
        mrr = self.world.quality(dataclasses.asdict(self.config), self.validation)
        self.world.told.append((self.number, self.validation, mrr))
        self.waits = True
        yield {"validation": self.validation, "mrr": mrr, "step": 100 * self.validation, "total": 100 * self.most}

    def send(self, message: dict[str, Any]) -> None:
        assert message == {"go": True}
        self.world.gone_on.add((self.number, self.validation))
        self.waits = False

    def send_signal(self, which: signal.Signals) -> None:
        assert which == signal.SIGTERM
        self.last = {"done": True}

    def close(self, deadline: float) -> None:
        self.stdout.close()
