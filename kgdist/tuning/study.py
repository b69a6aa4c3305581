"""A search by Optuna: what each trial is trained with, which trials are stopped early, what became of them.

Options are chosen by tree-structured Parzen estimators (Bergstra et al. 2011), or at random; trials that lag are stopped by
asynchronous successive halving (ASHA, Li et al. 2018). Each trial is trained in a process of its own, which one of Optuna's
threads follows.
All that happens goes into a journal at once, so a search that ends in any way goes on: on Ctrl-C its trials save and end, when it
is killed the system ends them, and the next search begins with them. Choices depend on the seed, the number of the trial and the
trials before: with one trial at a time an interrupted search chooses what an uninterrupted one does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.log import bar, log, tell
from kgdist.data.dataset import Triples
from kgdist.options.config import Config
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.processes.pipes import ready
from kgdist.tuning.space import Choices, Dimension, Space, typed
from kgdist.tuning.trials import WHOLE, SearchFolder, Share, start_trial, trial_config

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState
except ImportError as error:
    raise UsageError(f"a search needs the package optuna ({error}); pip install 'kgdist[tune]'") from error

HALVING = 3  # of the trials that reach a rung the best third goes on, to three times as many validations
HOPELESS = 5  # trials; when that many have failed and no other has got anywhere, the search ends
COMPARED = 5  # trials; fewer do not tell which option mattered
EVALUATORS: Mapping[str, Callable[[], Any]] = {
    "fANOVA": partial(optuna.importance.FanovaImportanceEvaluator, seed=0),
    "PED-ANOVA": optuna.importance.PedAnovaImportanceEvaluator,
}
POLL = 0.5  # seconds between two looks at a trial that says nothing
GRACE = 60.0  # seconds for a trial to finish a step and save
_NAME = "kgdist"
_RUNGS = {f"completed_rung_{number}": HALVING**number for number in range(20)}  # the pruner's notes: at which validation each is
optuna.logging.set_verbosity(optuna.logging.ERROR)  # trials are told of here
warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
warnings.filterwarnings("ignore", module="optuna.importance")


@dataclasses.dataclass(frozen=True)
class Row:
    """What is known of one trial."""

    number: int
    state: str  # finished, stopped, failed, unfinished
    params: Mapping[str, Any]
    mrr: float | None  # the best of its validations
    validations: int
    error: str | None
    curve: tuple[float, ...] = ()  # MRR of each validation

    @classmethod
    def of(cls, trial: FrozenTrial) -> Row:
        """The trial as Optuna has it. One that failed and does not say why did not come to its end."""
        error, values = (
            trial.user_attrs.get("error"),
            tuple(trial.intermediate_values[at] for at in sorted(trial.intermediate_values)),
        )
        states = {"COMPLETE": "finished", "PRUNED": "stopped", "FAIL": "failed" if error else "unfinished"}
        state = states.get(trial.state.name, "unfinished")
        params = {name: _chosen(trial, name) for name in trial.params}
        return cls(trial.number, state, params, max(values, default=None), len(values), error, values)

    def __str__(self) -> str:
        values = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in self.params.items()}
        options = ", ".join(f"{name} {value}" for name, value in values.items())
        if self.state == "failed":
            return f"trial {self.number} failed: {self.error} ({options})"
        word = "MRR" if self.state == "finished" else f"stopped after validation {self.validations}, MRR"
        return f"trial {self.number}: {word} {self.mrr:.4f} ({options})"


def _chosen(trial: FrozenTrial, name: str) -> Any:
    """An option of the trial, as it was trained."""
    value, among = trial.params[name], trial.distributions[name]
    return typed(value, among.low, among.high) if isinstance(among, optuna.distributions.FloatDistribution) else value


def best_of(rows: Iterable[Row]) -> Row | None:
    """The best of the trials that were trained to their end; the earliest of equals."""
    return max((row for row in rows if row.state == "finished"), key=lambda row: (row.mrr, -row.number), default=None)


class Importance(NamedTuple):
    """How much of the difference between trials each option makes."""

    trials: int
    validation: int  # whose MRR is compared: the last one that all of these trials have reached
    shares: Mapping[str, Mapping[str, float]]  # evaluator -> option -> share of 1, the largest first


def importance(rows: Iterable[Row], space: Space) -> Importance | None:
    """By Optuna's evaluators: fANOVA (Hutter et al. 2014), where scikit-learn is installed, and PED-ANOVA (Watanabe et al. 2023).

    Trials that were stopped count, too, so MRRs of one validation are compared. None where trials are too few, or all alike.
    """
    told = [row for row in rows if row.curve and row.params.keys() == space.keys()]
    if len(told) < COMPARED:
        return None
    validation = min(len(row.curve) for row in told)
    values = [row.curve[validation - 1] for row in told]
    if len(set(values)) == 1:
        return None
    distributions = {name: _distribution(each) for name, each in space.items()}
    study = optuna.create_study(direction="maximize")
    study.add_trials(
        [
            optuna.trial.create_trial(params=dict(row.params), distributions=distributions, value=value)
            for row, value in zip(told, values, strict=True)
        ]
    )
    shares = {}
    for name, evaluator in EVALUATORS.items():
        with contextlib.suppress(ImportError, RuntimeError):  # no scikit-learn; trees that tell nothing apart
            found = optuna.importance.get_param_importances(study, evaluator=evaluator())
            shares[name] = {option: float(share) for option, share in found.items()}
    return Importance(len(told), validation, shares)


def _distribution(each: Dimension) -> optuna.distributions.BaseDistribution:
    """What Optuna calls the values that `Dimension.choose` has."""
    if isinstance(each, Choices):
        return optuna.distributions.CategoricalDistribution(each.values)
    if each.whole:
        return optuna.distributions.IntDistribution(int(each.low), int(each.high), log=each.log)
    return optuna.distributions.FloatDistribution(each.low, each.high, log=each.log)


def open_study(journal: Path, names: Collection[str]) -> optuna.Study:
    """The study in `journal`, or a new one; the caller owns the folder. Raises KgdistError when it cannot be read.

    Trials that an earlier search has left wait under their numbers, with what they have told, to be trained first. Optuna knows
    no way back to waiting, so the journal is written anew, without the half line that a killed process may have left.
    """

    def storage(file: Path) -> JournalStorage:
        return JournalStorage(JournalFileBackend(str(file)))

    for left in journal.parent.glob(f"{journal.name}.*"):  # the lock of a process that was killed, half a copy
        left.unlink()
    try:
        found = storage(journal)
        trials = optuna.load_study(storage=found, study_name=_NAME).get_trials() if found.get_all_studies() else []
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise KgdistError(f"{journal}: the study cannot be read ({error}); take another --out") from error
    for trial in trials:
        if trial.state == TrialState.RUNNING or (trial.state == TrialState.FAIL and "error" not in trial.user_attrs):
            trial.state, trial.datetime_start, trial.datetime_complete, trial.user_attrs = TrialState.WAITING, None, None, {}
            if trial.params.keys() != set(names):  # it ended while they were chosen
                trial.params, trial.distributions = {}, {}
            last = max(trial.intermediate_values, default=0)  # it may have ended before it was judged by this one
            trial.system_attrs = {name: note for name, note in trial.system_attrs.items() if _RUNGS.get(name) != last}
    fresh = journal.with_name(f"{journal.name}.new")
    optuna.create_study(storage=storage(fresh), study_name=_NAME, direction="maximize").add_trials(trials)
    os.replace(fresh, journal)
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=HALVING)
    return optuna.load_study(storage=storage(journal), study_name=_NAME, pruner=pruner)


class Search:
    """A search at work.

    Args:
        trials: in the end, those of earlier searches in this folder among them.
        triples: of the train split, or how many there are.
        share: how much of another graph it is trained on.
        title: of its bar.
        hopeless: that many trials must fail, and no other get anywhere, for the search to end.
        learning: options are chosen by what trials have shown, not at random.
    """

    def __init__(
        self,
        folder: SearchFolder,
        base: Config,
        space: Space,
        *,
        trials: int,
        jobs: int,
        validations: int,
        triples: Triples | int,
        share: Share = WHOLE,
        title: str = "tune",
        hopeless: int | None = None,
        learning: bool = True,
    ) -> None:
        self.folder, self.base, self.space = folder, base, space
        self.trials, self.jobs, self.validations = trials, jobs, validations
        self._graph: dict[str, Any] = {"triples": triples, "share": share}
        self._title, self._hopeless, self._learning = title, hopeless or min(HOPELESS, trials), learning
        self.study = open_study(folder.journal, space)
        self._interrupts = Interrupts()
        self._forks = ForkServer(threads=base.num_thread)
        self._lock = threading.Lock()  # of what is done when a trial has ended
        self._best: Row | None = None
        self._spared = 0
        self._failure: KgdistError | None = None  # which ends the search

    def rows(self) -> list[Row]:
        """All trials that have been begun, by number."""
        return [Row.of(trial) for trial in self.study.get_trials(deepcopy=False) if trial.params]

    def run(self, first: Sequence[Mapping[str, Any]], spared: int = 1) -> bool:
        """Train what is left of all trials; the first ones have the options `first`, as far as they are searched, and so many of
        these are trained to their end whatever they show: a search is held against them.

        Returns whether it was interrupted. Raises KgdistError when no trial gets anywhere, or nothing can be written.
        """
        for params in first[len(self.study.get_trials(deepcopy=False)) : self.trials]:
            wanted = {name: value for name, value in params.items() if name in self.space and self.space[name].has(value)}
            if wanted:
                self.study.enqueue_trial(wanted)
        self._spared = min(spared, len(first))
        over = self._over()
        with self._interrupts, bar(total=self.trials, desc=self._title, unit="trial", initial=over) as self._bar:
            try:
                self._keep_best()
                if over < self.trials:
                    self._seed()
                    catch, ended = (KgdistError, _Left), [self._ended]
                    self.study.optimize(self._train, self.trials - over, n_jobs=self.jobs, catch=catch, callbacks=ended)
                self._keep_best()
            except OSError as error:
                raise self._unwritten(error) from error
            finally:
                self._forks.close()
        if self._failure is not None:
            raise self._failure
        if not self._interrupts.asked and self._over() < self.trials:  # Optuna does not tell of the last errors of its threads
            raise KgdistError(f"{self.folder.journal}: not all could be written; the same call goes on")
        return self._interrupts.asked

    def _over(self) -> int:
        return sum(row.state != "unfinished" for row in self.rows())

    def _seed(self) -> None:
        """Let the next choices depend on nothing that is lost when this process ends."""
        number = sum(trial.state != TrialState.WAITING for trial in self.study.get_trials(deepcopy=False))
        draw = np.random.SeedSequence([self.base.seed, number]).generate_state(1)
        sampler = partial(optuna.samplers.TPESampler, constant_liar=True) if self._learning else optuna.samplers.RandomSampler
        self.study.sampler = sampler(seed=int(draw[0]))

    def _train(self, trial: optuna.Trial) -> float:
        """The objective: the best MRR of a training to its end. Raises KgdistError when it fails, TrialPruned when it lags."""
        try:
            params = {name: each.choose(trial, name) for name, each in self.space.items()}
            return self._follow(trial, params)
        except KgdistError as error:
            trial.set_user_attr("error", str(error))
            raise
        except OSError as error:  # the others are to leave, too
            self._failure = self._unwritten(error)
            raise

    def _unwritten(self, error: OSError) -> KgdistError:
        return KgdistError(f"{self.folder.root}: {error.strerror or error}; the same call goes on")

    def _follow(self, trial: optuna.Trial, params: Mapping[str, Any]) -> float:
        home, resume = self.folder.trial(trial.number), self.folder.saved(trial.number)
        config = trial_config(self.base, params, validations=self.validations, save_path=home, **self._graph)
        told = dict(self.study.get_trials(deepcopy=False)[trial.number].intermediate_values)
        spared = trial.number < self._spared
        if told and max(told) < self.validations and not spared and trial.should_prune():
            raise optuna.TrialPruned
        deadline = None
        child = start_trial(self._forks, trial.number, config, home, resume)
        try:
            while True:
                ready(child.stdout, POLL)
                for event in child.events():
                    if "mrr" in event:
                        if event["validation"] not in told:  # else a trial that was begun again comes by once more
                            trial.report(event["mrr"], event["validation"])
                            told[event["validation"]] = event["mrr"]
                        early = event["step"] < event["total"]  # at the end nothing is saved by stopping
                        if early and not spared and trial.should_prune():
                            raise optuna.TrialPruned
                        child.send({"go": True})
                    elif event.get("done") is False:
                        if not told:
                            raise KgdistError("no validation was made")
                        return max(told.values())
                    elif self._interrupts.asked:  # perhaps twice, which ends its process before it was told to save
                        raise _Left
                    else:
                        raise KgdistError(str(event.get("error") or f"its process {event.get('lost', 'was ended')}"))
                if self._interrupts.asked and deadline is None:
                    deadline = time.monotonic() + GRACE
                    log.info("trial %d saves and ends; another Ctrl-C quits without saving", trial.number)
                    child.send_signal(signal.SIGTERM)
                if self._failure or self._interrupts.leaving or (deadline is not None and time.monotonic() > deadline):
                    raise _Left
        finally:
            child.close(time.monotonic())

    def _ended(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """A trial is over: say so, and keep of its files what is needed."""
        with self._lock:
            if self._interrupts.asked:
                study.stop()
            if self.jobs == 1:  # Optuna draws new seeds for threads
                self._seed()
            row = Row.of(trial)
            if row.state == "unfinished":
                return
            self._bar.update(1)
            tell(str(row))
            self._keep_best()
            if row != self._best:
                self.folder.strip(row.number)
            failed = [row for row in self.rows() if row.state == "failed"]
            if len(failed) >= self._hopeless and not any(row.validations for row in self.rows()):
                self._failure = KgdistError(f"all {len(failed)} trials failed, the last one: {failed[-1].error}")
                study.stop()

    def _keep_best(self) -> None:
        best, before = best_of(self.rows()), self._best
        if best is None or best.mrr is None or best == before:
            return
        self.folder.strip(best.number, keep_embeddings=True)
        self.folder.write_best(best.number, best.mrr, f"trial {best.number} of {self.trials}")
        if before is not None:
            self.folder.strip(before.number)
        self._best = best
        self._bar.set_postfix({"best MRR": f"{best.mrr:.4f}"})


class _Left(Exception):
    """A trial did not come to its end, and goes on with the next search."""
