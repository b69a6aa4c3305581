"""The search as Optuna sees it: which options a trial gets, which trials are stopped early, what became of them, in a file.

Options are chosen by tree-structured Parzen estimators (Bergstra et al. 2011); trials that lag are stopped by asynchronous
successive halving (ASHA, Li et al. 2018). One process owns the study. What happens is appended to a journal at once, so a search
that ends in any way goes on from there. Each choice depends on the seed, the number of its trial and the trials before, and on
nothing that is lost: with one trial at a time an interrupted search chooses what an uninterrupted one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgdist.base.errors import KgdistError, UsageError
from kgdist.tuning.space import Choices, Space

if TYPE_CHECKING:
    import optuna

HALVING = 3  # of the trials that reach a rung the best third goes on, to three times as many validations
_NAME = "kgdist"
_STATES = {"COMPLETE": "finished", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "unfinished", "WAITING": "waiting"}


@dataclasses.dataclass(frozen=True)
class Row:
    """What is known of one trial."""

    number: int
    state: str  # finished, stopped, failed, unfinished
    params: Mapping[str, Any]
    mrr: float | None  # the best of its validations
    validations: int
    error: str | None


def library() -> Any:
    """Optuna, which is imported when first needed. Raises UsageError when it is not there."""
    try:
        import optuna
    except ImportError as error:
        raise UsageError(f"a search needs the package optuna ({error}); pip install 'kgdist[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class Study:
    """The trials of one search, in the journal `file`.

    Raises KgdistError when the journal cannot be read. A line that was being written when its process died is dropped: nothing
    was done yet that it tells of.
    """

    def __init__(self, file: Path, space: Space, seed: int) -> None:
        self._optuna = library()
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        self._seed = seed
        self._distributions = {name: self._distribution(name, space) for name in space}
        try:
            _mend(file)
            storage = JournalStorage(JournalFileBackend(str(file)))
            self._study: optuna.Study = self._optuna.create_study(
                storage=storage, study_name=_NAME, direction="maximize", load_if_exists=True
            )
            self._left = [trial for trial in self._study.get_trials(deepcopy=False) if trial.state.name == "RUNNING"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise KgdistError(f"{file}: the study cannot be read ({error}); take another --out") from error
        self._open: dict[int, optuna.Trial] = {}

    def _distribution(self, name: str, space: Space) -> Any:
        each, kinds = space[name], self._optuna.distributions
        if isinstance(each, Choices):
            return kinds.CategoricalDistribution(each.values)
        if isinstance(each.low, int) and isinstance(each.high, int):
            return kinds.IntDistribution(each.low, each.high, log=each.log)
        return kinds.FloatDistribution(each.low, each.high, log=each.log)

    def first(self, params: Mapping[str, Any]) -> None:
        """Let the first trial of a new search have these options; what is not among them is chosen as for the others."""
        if not self._study.get_trials(deepcopy=False) and params:
            self._study.enqueue_trial(dict(params))

    def ask(self, total: int) -> tuple[int, dict[str, Any]] | None:
        """Number and options of the next trial, one that an earlier process has left first; None after `total` trials."""
        if self._left:
            left = self._left.pop(0)
            trial = self._optuna.trial.Trial(self._study, left._trial_id)
        else:
            done = [each for each in self._study.get_trials(deepcopy=False) if each.state.name != "WAITING"]
            if len(done) >= total:
                return None
            draw = np.random.SeedSequence([self._seed, len(done)]).generate_state(1)
            with _silent():
                self._study.sampler = self._optuna.samplers.TPESampler(seed=int(draw[0]), constant_liar=True)
                trial = self._study.ask(self._distributions)
        self._open[trial.number] = trial
        return trial.number, dict(trial.params)

    def report(self, number: int, validation: int, mrr: float) -> bool:
        """The MRR of a trial's validation, counted from 1; returns whether the trial is to end, for others are better."""
        told = self._study.get_trials(deepcopy=False)[number].intermediate_values
        if validation not in told:  # else a trial that was begun again comes by once more
            self._open[number].report(mrr, validation)
        return self._lags(validation, mrr)

    def _lags(self, validation: int, mrr: float) -> bool:
        """Whether a trial is not among the best third of those that have come to this rung so far; the best never is.

        The rule of ASHA and of Optuna's SuccessiveHalvingPruner. That one keeps its own notes beside the values, so it would not
        judge again when the process has ended between a value and what was to follow.
        """
        rung = 1
        while rung < validation:
            rung *= HALVING
        if rung != validation:
            return False
        values = [each.intermediate_values.get(rung) for each in self._study.get_trials(deepcopy=False)]
        there = [value for value in values if value is not None]
        return sum(value > mrr for value in there) >= max(1, len(there) // HALVING)

    def finish(self, number: int, state: str, error: str | None = None) -> None:
        """A trial has ended: finished, stopped or failed. Its value is the best of its validations."""
        trial = self._open.pop(number)
        if error is not None:
            trial.set_user_attr("error", error)
        states = self._optuna.trial.TrialState
        if state == "failed":
            self._study.tell(trial, state=states.FAIL)
            return
        best = self._row(self._study.get_trials(deepcopy=False)[number]).mrr
        if best is None or not math.isfinite(best):
            trial.set_user_attr("error", "no validation was made")
            self._study.tell(trial, state=states.FAIL)
        elif state == "stopped":
            self._study.tell(trial, state=states.PRUNED)
        else:
            self._study.tell(trial, best)

    def rows(self) -> list[Row]:
        """All trials that have been begun, by number."""
        return [self._row(each) for each in self._study.get_trials(deepcopy=False) if each.state.name != "WAITING"]

    def _row(self, trial: optuna.trial.FrozenTrial) -> Row:
        values = list(trial.intermediate_values.values())
        best = max(values, default=None)
        return Row(trial.number, _STATES[trial.state.name], dict(trial.params), best, len(values), trial.user_attrs.get("error"))


def best_of(rows: list[Row]) -> Row | None:
    """The best of the trials that were trained to their end; the earliest of equals."""
    finished = [row for row in rows if row.state == "finished" and row.mrr is not None]
    return max(finished, key=lambda row: (row.mrr, -row.number), default=None)


def _mend(file: Path) -> None:
    """Take away what a process that was killed has left: half a line, and the lock that it held. The caller owns the folder."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(f"{file}.lock")
    if not file.exists():
        return
    with file.open("rb+") as journal:
        lines = journal.read().splitlines(keepends=True)
        whole = lines[:-1] if lines and not _whole(lines[-1]) else lines
        journal.truncate(sum(map(len, whole)))


def _whole(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return line.endswith(b"\n")


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Without Optuna's warnings that an argument may still change."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
