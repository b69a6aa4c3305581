"""The folder of a search: what it was asked, a folder for each trial, and the options of the best trial.

<out>/
    tune.json       options, space and seed of the search
    study.journal   what was chosen and reported (see kgdist.tuning.study)
    best.yaml       the options of the best trial, for kgdist-train --config
    trials/0003/    run folder and log of a trial; embeddings are kept of the best one only
    rounds/1/       such a folder for each round before the last, if there are several; graph/ is what its trials train on

A trial is a training in a process of its own, which tells its owner of each validation. The owner ends it when others are
better, by ending the process; SIGTERM lets it save a checkpoint first, from which it goes on when it gets its run folder as
`resume`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kgdist.base.errors import CheckpointError, KgdistError, OptionError, UsageError
from kgdist.base.files import atomic_write, locked, read_json, write_json
from kgdist.data.dataset import Triples
from kgdist.models.registry import settle
from kgdist.options.config import OPTIONS, Config
from kgdist.options.configfile import differing, from_json, read_run, to_json
from kgdist.options.contradictions import every, of_a_run
from kgdist.options.model_file import bring, missing
from kgdist.options.resolve import meant
from kgdist.runs import checkpoint, rundir
from kgdist.runtime import local
from kgdist.runtime.job import steps_of
from kgdist.runtime.processes.child import Child, Owner
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.training.callbacks import Validation
from kgdist.tuning import space as spaces
from kgdist.tuning.space import Choices, Space
from kgdist.version import __version__

_MEASURES = ("eval_percent", "neg_sample_size_eval", "neg_deg_sample_eval", "no_eval_filter")  # short cuts of a search
_CHECKPOINTS = ("ckpt-*", "best", ".*")
LEAST, FEW = 0.01, 16  # of the negatives: a share, and a number where there are as many
SMALLEST = 64  # triples of a step on a part of a graph, where there are as many on the whole
# Beside these choices an option has no meaning, although it is refused for its value.
_IDLE: Mapping[str, Callable[[Config], bool]] = {
    "init_scale": lambda config: config.init == "xavier",
    "label_smoothing": lambda config: config.loss_genre != "Softmax" and config.candidates != "all",
    "neg_adversarial_sampling": lambda config: config.loss_genre == "Softmax",
    "pairwise": lambda config: config.loss_genre not in ("Hinge", "Logistic"),
}
_EMBEDDINGS = ("*.npy", "entities.tsv", "relations.tsv")


class Asked(NamedTuple):
    """What a search was asked for."""

    options: Config
    space: Space
    validations: int
    rounds: int
    trials: int  # in the end
    jobs: int | None = None  # at a time; None: as many as the cores allow


class Share(NamedTuple):
    """How much of a graph a part of it has."""

    triples: float = 1.0
    entities: float = 1.0


WHOLE = Share()


class SearchFolder:
    """The folder of one search."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked = root / "tune.json"
        self.journal = root / "study.journal"
        self.best = root / "best.yaml"
        self.graph = root / "graph"

    @contextlib.contextmanager
    def owned(self) -> Iterator[None]:
        """Have it for this process alone. Raises UsageError when it cannot be made, KgdistError when another search has it."""
        try:
            (self.root / "trials").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {self.root}: cannot be written ({error.strerror or error}); name another folder") from error
        with locked(self.root / ".lock", 1.0):
            yield

    def trial(self, number: int) -> Path:
        """The folder of a trial."""
        return self.root / "trials" / f"{number:04d}"

    def round(self, number: int) -> SearchFolder:
        """The folder of a round before the last one."""
        return SearchFolder(self.root / "rounds" / str(number))

    def run(self, number: int) -> Path | None:
        """The run folder of a trial, if it has got so far."""
        return next((path.parent for path in self.trial(number).glob("*/config.json")), None)

    def saved(self, number: int) -> Path | None:
        """The run folder of a trial that was interrupted and can go on; without a checkpoint, what is there goes away."""
        run = self.run(number)
        if run is not None:
            with contextlib.suppress(CheckpointError):
                checkpoint.sweep(run)
                checkpoint.latest(run)
                return run
        shutil.rmtree(self.trial(number), ignore_errors=True)
        return None

    def strip(self, number: int, *, keep_embeddings: bool = False) -> None:
        """Take away what is large: checkpoints, and embeddings with their names unless they are kept. Curves and options stay."""
        run = self.run(number)
        for pattern in (*_CHECKPOINTS, *(() if keep_embeddings else _EMBEDDINGS)):
            for path in run.glob(pattern) if run is not None else ():
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    # ---- what was asked

    def remember(self, asked: Asked) -> None:
        """Save what the search was asked for."""
        numbers = {name: getattr(asked, name) for name in ("validations", "rounds", "trials", "jobs")}
        found = {"kgdist_version": __version__, **numbers, "space": spaces.to_json(asked.space)}
        write_json(self.asked, found | {"options": to_json(asked.options)})

    def recall(self) -> Asked | None:
        """What an earlier call was asked for; None when there was none. Raises CheckpointError."""
        if not self.asked.exists():
            return None
        saved = read_json(self.asked)
        try:
            options, space = from_json(saved["options"]), spaces.from_json(saved["space"])
            jobs = None if saved.get("jobs") is None else int(saved["jobs"])
            numbers = int(saved["validations"]), int(saved.get("rounds", 1)), int(saved.get("trials", 0))
            return Asked(options, space, *numbers, jobs)
        except (KeyError, TypeError, ValueError, OptionError) as error:
            if isinstance(error, OptionError) and (advice := missing(*map(saved["options"].get, ("model_name", "model_file")))):
                raise CheckpointError(f"{self.asked}: {str(error).removeprefix('--')}{advice}") from error
            raise CheckpointError(f"{self.asked}: not what kgdist-tune has written ({error}); take another --out") from error

    def check_new(self) -> None:
        """Raise UsageError where a new search would put its files among others."""
        own = {"trials", "rounds", ".lock", self.journal.name, self.best.name, self.graph.name}
        inside = {path.name for path in self.root.iterdir()} if self.root.is_dir() else set()
        if strange := inside - own:
            raise UsageError(f"--out {self.root}: holds other files ({min(strange)}); name a new folder")

    # ---- what came out

    def write_best(self, number: int, mrr: float, told: str) -> None:
        """Write the options of a trial for kgdist-train --config. `told` says where it stands in the search.

        They do not say how it was measured: a test after the search ranks all triples among all entities unless told otherwise.
        """
        run = self.run(number)
        if run is None:
            raise KgdistError(f"{self.trial(number)}: the run of the best trial is gone; take another --out")
        kept = {name: value for name, value in differing(read_run(run)).items() if name not in ("save_path", *_MEASURES)}
        with atomic_write(self.best, "w") as file:
            again = shlex.join(["kgdist-train", "--config", str(self.best), "--test"])
            file.write(f"# kgdist-tune, {told}: MRR {mrr:.4f} on the valid split. {again}\n")
            file.writelines(f"{name}: {json.dumps(value)}\n" for name, value in kept.items())


def trial_config(
    base: Config, params: Mapping[str, Any], *, triples: Triples | int, validations: int, save_path: Path, share: Share = WHOLE
) -> Config:
    """The options of one trial: `base` with `params`, resolved. Raises OptionError for options that contradict one another.

    All trials see equally many triples: where --max_step counts and the batch size is searched, larger batches take fewer steps.
    On a graph that is a `share` of another, negatives are as large a part of its entities, 1 % of them all and 16 at least
    (GraSH), and batches of its triples, 64 at least: an epoch has as many steps, and a trial of few epochs learns something.
    Options that other choices of the same space make meaningless are left out.
    """
    config = base.replace(**params, save_path=str(save_path), valid=True, quiet=True)
    left_out = _idle(config, params)
    config = config.replace(**{name: OPTIONS[name].default for name in left_out})
    if share.entities < 1 and config.candidates == "sampled":
        scaled = math.ceil(config.neg_sample_size * max(share.entities, LEAST))
        config = config.replace(neg_sample_size=max(scaled, min(config.neg_sample_size, FEW)))
    if share.triples < 1:
        whole, least = config.batch_size, min(config.batch_size, SMALLEST)
        config = config.replace(batch_size=max(math.ceil(whole * share.triples), least))
        config = config.replace(lr_warmup=math.ceil(config.lr_warmup * whole / config.batch_size))  # as large a part of the steps
    config, _ = settle(config, {*params, *meant(base)} - left_out)
    if config.max_epoch is None and ("batch_size" in params or share.triples < 1):
        config = config.replace(max_step=math.ceil(base.max_step * base.batch_size / config.batch_size))
    return config.replace(eval_interval=math.ceil(steps_of(config, triples) / validations))


def _idle(config: Config, params: Mapping[str, Any]) -> set[str]:
    """The options of a trial that mean nothing beside its others: what is refused for no more than being given, and `_IDLE`.

    Those of all trials count, too, where they are not the defaults: --config, which takes best.yaml, would refuse them.
    """
    given = {name for name, row in OPTIONS.items() if name in params or getattr(config, name) != row.default}
    problems = every(of_a_run(config, given))
    found = {name for name, idle in _IDLE.items() if name in given and idle(config)}
    for name in {option for option, _ in problems} & given - {*spaces.FIXED}:
        gone = len(every(of_a_run(config, given - {name}))) < len(problems)  # although its value is the same
        if gone and OPTIONS[name].group in spaces.GROUPS:
            found.add(name)
    return found


def idle_in_all(base: Config, space: Space) -> list[str]:
    """The searched options that mean nothing beside `base`, nor where any one of the other choices is made."""
    some = {name: [*each.values] if isinstance(each, Choices) else [each.low, each.high] for name, each in space.items()}
    ways = [{}, *({name: value} for name, values in some.items() for value in values if OPTIONS[name].kind in (str, bool))]

    def idle(name: str, beside: Mapping[str, Any]) -> bool:
        return any(name in _idle(base.replace(**{**beside, name: value}), {name: value}) for value in some[name][-2:])

    return [name for name in space if all(idle(name, beside) for beside in ways if name not in beside)]


def train_trial(job: dict[str, Any], owner: Owner) -> bool:
    """The work of the process: train as `job["config"]` says; returns whether it was interrupted."""
    file = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    if job["config"]["model_file"]:
        bring(job["config"]["model_file"])
    config = Config(**job["config"])

    def told(event: object) -> None:
        if isinstance(event, Validation):
            validation = -(-event.step // config.eval_interval)  # the last one may come early
            owner.send(validation=validation, mrr=event.mrr, step=event.step, total=event.total)
            while owner.receive(60.0) is None:  # it may have been put to sleep; when it ends, so does this process
                pass

    return local.train(config, callbacks=[told]).interrupted


def start_trial(forks: ForkServer, number: int, config: Config, folder: Path, resume: Path | None) -> Child:
    """Such a process, which the caller closes. It tells {validation, mrr, step, total} each time and waits for an answer, and as
    the last one {done: interrupted}, {error} or {lost}."""
    folder.mkdir(parents=True, exist_ok=True)
    if resume is not None:
        config = rundir.open_run(resume).config.replace(resume=str(resume), quiet=True)
    child = Child(forks, name=f"trial-{number}")
    child.send({"role": "trial", "config": dataclasses.asdict(config), "log": str(folder / "log.txt")})
    return child
