"""A training that is one trial of a search, in a process of its own: it tells its owner of each validation.

Its words go into a log file. The owner ends it when others are better, by ending the process; SIGTERM lets it save a checkpoint
first, from which it goes on when it gets its run folder as `resume`.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

from kgdist.options.config import Config
from kgdist.options.model_file import bring
from kgdist.runs import rundir
from kgdist.runtime import local
from kgdist.runtime.processes.child import Child, Owner
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.training.callbacks import Validation


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
