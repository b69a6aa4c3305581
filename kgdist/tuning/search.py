"""A search from beginning to end: trials in processes of their own, several at a time, each validation reported to the study.

The process that calls owns the study and all trials: on Ctrl-C they save and end, and go on with the next call; when it is
killed, the system ends them. A trial that fails (its loss becomes NaN, memory runs out) is recorded, and the search goes on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import selectors
import sys
import time
from collections.abc import Iterator
from typing import Any

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.files import locked
from kgdist.base.log import log, tell
from kgdist.base.progress import bar
from kgdist.base.text_table import TextTable
from kgdist.options.config import Config
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.tuning.space import Space
from kgdist.tuning.study import Row, Study, best_of
from kgdist.tuning.trial import GRACE, Trial
from kgdist.tuning.trials import Folder, trial_config

POLL = 0.5  # seconds between two looks at trials that say nothing
HOPELESS = 5  # trials; when that many have failed and no other has got anywhere, the search ends


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a search ended."""

    rows: list[Row]
    interrupted: bool

    @property
    def best(self) -> Row | None:
        """The best trial that was trained to its end."""
        return best_of(self.rows)


class Search:
    """One search at work.

    Args:
        triples: of the train split.
    """

    def __init__(
        self, folder: Folder, base: Config, space: Space, *, trials: int, jobs: int, validations: int, triples: int
    ) -> None:
        self.folder, self.base, self.space = folder, base, space
        self.trials, self.jobs, self.validations, self.triples = trials, jobs, validations, triples
        self.study = Study(folder.journal, space, base.seed)
        self.running: dict[int, Trial] = {}
        self.selector = selectors.DefaultSelector()
        self.forks = ForkServer(threads=self.base.num_thread)
        self.best = best_of(self.study.rows())

    def run(self, first: dict[str, Any]) -> Outcome:
        """Train all trials; the first one of a new search has the options `first`, as far as they are searched.

        Raises KgdistError when none of them gets anywhere.
        """
        self.study.first({name: value for name, value in first.items() if name in self.space and self.space[name].has(value)})
        over = [row for row in self.study.rows() if row.state != "unfinished"]
        with Interrupts() as interrupts, bar(total=self.trials, desc="tune", unit="trial", initial=len(over)) as self.bar:
            try:
                self._work(interrupts)
            finally:
                for trial in self.running.values():
                    trial.close()
                self.forks.close()
                self.selector.close()
        return Outcome(self.study.rows(), interrupts.asked)

    def _work(self, interrupts: Interrupts) -> None:
        deadline = None
        while True:
            if interrupts.asked and deadline is None:
                deadline = time.monotonic() + GRACE
                if self.running:
                    log.info("the trials that are being trained are saved; Ctrl-C again leaves them")
                for trial in self.running.values():
                    trial.interrupt()
            while deadline is None and len(self.running) < self.jobs and (asked := self.study.ask(self.trials)) is not None:
                self._start(*asked)
            if not self.running or (deadline is not None and time.monotonic() > deadline):
                return
            self.selector.select(POLL)
            for trial in list(self.running.values()):
                for event in trial.events():
                    if trial.number in self.running:
                        self._hear(trial, event, interrupted=deadline is not None)

    def _start(self, number: int, params: dict[str, Any]) -> None:
        resume = self.folder.saved(number)
        home = self.folder.trial(number)
        try:
            config = trial_config(self.base, params, triples=self.triples, validations=self.validations, save_path=home)
        except OptionError as error:
            self._end(number, "failed", str(error))
            return
        trial = Trial(self.forks, number, config, home, resume)
        self.running[number] = trial
        self.selector.register(trial.child.stdout, selectors.EVENT_READ)

    def _hear(self, trial: Trial, event: dict[str, Any], *, interrupted: bool) -> None:
        number = trial.number
        if "mrr" in event:
            lags = self.study.report(number, event["validation"], event["mrr"])
            if lags and event["step"] < event["total"]:  # at the end there is nothing to be saved by stopping
                self._close(trial)
                self._end(number, "stopped")
            else:
                trial.go_on()
            return
        self._close(trial)
        if event.get("done") is False:
            self._end(number, "finished")
        elif not interrupted:  # else it stays unfinished, and goes on when the search does
            self._end(number, "failed", str(event.get("error") or f"its process {event.get('lost', 'was ended')}"))

    def _close(self, trial: Trial) -> None:
        self.selector.unregister(trial.child.stdout)
        del self.running[trial.number]
        trial.close()

    def _end(self, number: int, state: str, error: str | None = None) -> None:
        """A trial is over: record it, keep of its files what is needed, and say so."""
        self.study.finish(number, state, error)
        rows = self.study.rows()
        row = rows[number]
        self.bar.update(1)
        tell(told(row))
        better = row.state == "finished" and best_of(rows) == row
        self.folder.strip(number, keep_embeddings=better)
        if better and row.mrr is not None:
            if self.best is not None:
                self.folder.strip(self.best.number)
            self.best = row
            self.folder.write_best(number, row.mrr, f"trial {number} of {self.trials}")
            self.bar.set_postfix({"best MRR": f"{row.mrr:.4f}"})
        failed = [each for each in rows if each.state == "failed"]
        if len(failed) >= min(HOPELESS, self.trials) and not any(each.validations for each in rows):
            raise KgdistError(f"all {len(failed)} trials failed, the last one: {failed[-1].error}")


def told(row: Row) -> str:
    """One trial in a line."""
    values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in row.params.items()}
    options = ", ".join(f"{name} {value}" for name, value in values.items())
    if row.state == "failed":
        return f"trial {row.number} failed: {row.error} ({options})"
    word = "MRR" if row.state == "finished" else f"stopped after validation {row.validations}, MRR"
    return f"trial {row.number}: {word} {row.mrr:.4f} ({options})"


@contextlib.contextmanager
def owned(folder: Folder) -> Iterator[None]:
    """The folder for this process alone. Raises KgdistError when another search is at work there."""
    folder.make()
    with locked(folder.root / ".lock", 1.0):
        yield


def summary(rows: list[Row], most: int = 10) -> list[str]:
    """The best trials as a table for people, and how many ended how."""
    shown = sorted((row for row in rows if row.mrr is not None), key=lambda row: (row.state != "finished", -(row.mrr or 0)))[
        :most
    ]
    names = list(rows[0].params) if rows else []
    lines = []
    if shown:
        table = TextTable(["trial", "MRR", "state", *names], sys.stdout)
        columns: list[list[Any]] = [[row.number for row in shown], [row.mrr for row in shown], [row.state for row in shown]]
        lines = table.lines([*columns, *([row.params.get(name) for row in shown] for name in names)])
    counts = {state: sum(row.state == state for row in rows) for state in ("finished", "stopped", "failed", "unfinished")}
    return [*lines, f"{len(rows)} trials: " + ", ".join(f"{count} {state}" for state, count in counts.items() if count)]
