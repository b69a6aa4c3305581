"""What a training is told: the options of a command line or of Python by name, those of the run that it goes on with, and, among
several workers, those of the first."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgdist.base.errors import CheckpointError, OptionError
from kgdist.base.files import read_json
from kgdist.base.log import silence, tell
from kgdist.data.dataset import open_dataset
from kgdist.data.leaks import implied
from kgdist.models.recipes import Sizes, recipe, slow_start
from kgdist.models.registry import MODELS, settle
from kgdist.options.config import OPTIONS, Config
from kgdist.options.model_file import bring
from kgdist.options.option import unknown_option
from kgdist.options.parse import Parsed, understand
from kgdist.options.presets import Preset
from kgdist.options.resolve import doubts
from kgdist.runs import checkpoint, rundir
from kgdist.runs.rundir import JOB
from kgdist.runtime.checks import WORK, check_rows, check_same, tell_changes
from kgdist.training.peers import Peers

# Groups of options that are the same for all workers, and others that are; of the first, what is each machine's own.
GROUPS, ALIKE = (*WORK, "evaluation"), ("negatives", "checkpoint_interval")
OWN = ("attributes", "model_file")


def recipe_of(config: Config) -> Preset:
    """What --preset means for the data set that the options name, which is read for what the rule asks. Raises KgdistError."""
    data = open_dataset(config)
    valid = "valid" in data.splits
    relations = len(data.relations)
    known = implied([triples.array for triples in data.splits.values()], relations)
    sizes = Sizes(len(data.entities), relations, len(data.train), valid, known)
    return recipe(MODELS[config.model_name], config.dataset, sizes)


def ready(parsed: Parsed) -> Config:
    """The options to train with; what was filled in is told. Raises OptionError, CheckpointError."""
    config = parsed.config
    if run := config.resume:
        saved = rundir.open_run(run, config.save_path).config
        config = parsed.over(saved).replace(resume=run)
        check_same(config, saved)
        check_rows(config, saved, run)
        tell_changes(config, saved)
    elif config.format == "built_in" and "dataset" not in parsed.explicit:
        tell(f"--dataset {config.dataset}: the default, for none was named")
    config, notes = settle(config, set(parsed.explicit))
    slow = slow_start(MODELS[config.model_name], config, parsed.explicit)
    for note in (*parsed.notes, *notes, *doubts(config, parsed.explicit), *slow):
        tell(note)
    return config


def understood(options: Mapping[str, Any], rank: int, workers: int) -> Config:
    """The options of worker `rank` of so many, as commands understand them: files of score functions and of options are read,
    a preset's steps are divided, a run that goes on has its own. Raises KgdistError."""
    known = [name for name, row in OPTIONS.items() if {"train", "dist-train"} & {*row.commands}]
    for name in options:
        if name not in known:
            raise unknown_option(name, known)
    if options.get("report"):
        raise OptionError("--report", "is of kgdist-train; kgdist.load(run).report() writes the page of a run")
    given = {name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()}
    given = {name: value for name, value in given.items() if name not in ("num_proc", "num_client_proc")}
    if given.get("model_file"):
        bring(given["model_file"])
    parsed = understand("dist-train", given, lambda config: max(1, workers // len(config.gpu)))
    with silence() if rank else contextlib.nullcontext():
        if rank and parsed.config.resume and not Path(parsed.config.resume).is_dir():  # it is elsewhere: the first one has it
            return settle(parsed.config.replace(resume=None), parsed.explicit.keys())[0]
        return ready(parsed)


def as_the_first(config: Config, peers: Peers) -> Config:
    """With the options of the first worker in all that workers do alike: their rows stay equal, and they meet at the same
    steps. It alone may have the run that goes on."""
    names = [name for name, row in OPTIONS.items() if (row.group in GROUPS or name in ALIKE) and name not in OWN]
    return config.replace(**json.loads(peers.texts(json.dumps({name: getattr(config, name) for name in names}))[0]))


def gone_on(config: Config, run: str) -> Config:
    """With the run folder to resume, where this training has left one with a checkpoint."""
    for path in sorted(Path(config.save_path).glob(f"*/{JOB}")):
        with contextlib.suppress(CheckpointError):
            if read_json(path) == {"run": run} and checkpoint.numbered(path.parent):
                return config.replace(resume=str(path.parent))
    return config
