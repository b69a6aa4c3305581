"""A training that is one trial of a search, in a process of its own: it tells its owner of each validation.

Its words go into a log file. The owner ends it when others are better, by ending the process; SIGTERM lets it save a checkpoint
first, from which it goes on when it gets its run folder as `resume`.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from pathlib import Path
from typing import Any

from kgdist.options.config import Config
from kgdist.options.model_file import bring
from kgdist.runs import rundir
from kgdist.runtime import local
from kgdist.runtime.processes.child import LAST, Child
from kgdist.runtime.processes.forkserver import ForkServer
from kgdist.runtime.processes.owner import Owner
from kgdist.training.callbacks import Validation

GRACE = 60.0  # seconds to finish a step and save


def train_trial(job: dict[str, Any], owner: Owner) -> bool:
    """The work of the process: train as `job["config"]` says, to the end; returns whether it was interrupted."""
    file = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    if job["config"]["model_file"]:
        bring(job["config"]["model_file"])

    def told(event: object) -> None:
        if isinstance(event, Validation):
            owner.send(step=event.step, total=event.total, mrr=event.mrr)
            while owner.receive(60.0) is None:  # it may have been put to sleep; when it ends, so does this process
                pass

    return local.train(Config(**job["config"]), callbacks=[told]).interrupted


class Trial:
    """Such a process, as its owner sees it. `forks` starts it at once; `close` ends it in any case."""

    def __init__(self, forks: ForkServer, number: int, config: Config, folder: Path, resume: Path | None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        if resume is not None:
            config = rundir.open_run(resume).config.replace(resume=str(resume), quiet=True)
        self.number, self.interval = number, config.eval_interval
        self.child = Child(forks, name=f"trial-{number}")
        try:
            self.child.send({"role": "trial", "config": dataclasses.asdict(config), "log": str(folder / "log.txt")})
        except BaseException:
            self.close()
            raise
        self._asked = False

    def events(self) -> list[dict[str, Any]]:
        """What it has said since: each time validation, mrr, step, total; as last one {done: interrupted}, {error}, {lost}."""
        found = []
        for event in self.child.events():
            if "mrr" in event:
                event["validation"] = -(-event["step"] // self.interval)
            if "mrr" in event or any(key in event for key in LAST):
                found.append(event)
        return found

    def go_on(self) -> None:
        """Answer a validation."""
        self.child.send({"go": True})

    def interrupt(self) -> None:
        """Ask it to save and end, once."""
        if not self._asked:
            self._asked = True
            self.child.send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End it now, and the processes that it has started with it."""
        self.child.close(time.monotonic())
