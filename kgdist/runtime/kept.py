"""What a training on one machine has on disk, and how what is in memory gets there, whatever happens: full disks, failures.

The checkpoints of several machines are `kgdist.runtime.cluster.saved`'s; both save what would be lost otherwise by one rule
(`insist`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import Diverged, KgdistError
from kgdist.base.log import log, say
from kgdist.kvstore.tables import MemoryTables
from kgdist.options.config import Config
from kgdist.runs import checkpoint, rundir
from kgdist.runtime.insist import Insist
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import last_words, resume_command
from kgdist.runtime.silence import watched

ROWS = 4096  # looked at together


class Kept:
    """Of the run in `folder`, whose rows are in `tables`.

    Attributes:
        best: the best validation so far, {"mrr", "step", "waited"}; the rows of that step are kept.
    """

    def __init__(self, config: Config, folder: Path, tables: MemoryTables, interrupts: Interrupts, best: dict[str, Any]) -> None:
        self.config, self.folder, self.tables, self.interrupts = config, folder, tables, interrupts
        self.best = dict(best)
        self._insist = Insist()

    def rows(self) -> dict[str, np.ndarray]:
        """The embeddings, without the optimiser's state."""
        return {name: array for name, array in self.tables.arrays().items() if "." not in name}

    def checkpoint(self, steps: list[int]) -> None:
        """Save all there is, after so many steps of each worker. Raises KgdistError."""
        meta = {"steps": steps, "best": self.best}
        with watched(self.folder) as moved:
            checkpoint.save(self.folder, min(steps), self.tables.arrays(), meta, moved=moved)

    def keep_best(self, step: int, mrr: float) -> None:
        """Keep the rows of this step as the best ones. Raises KgdistError, and the ones before stay the best."""
        if not self.config.no_save_emb:
            with watched(self.folder) as moved:
                checkpoint.save(self.folder, step, self.rows(), {"mrr": mrr}, name="best", moved=moved)
        self.best = {"mrr": mrr, "step": step, "waited": 0}

    def take_best(self) -> None:
        """Put the best rows in the place of the last ones. Raises KgdistError, and nothing is changed."""
        self.tables.load(checkpoint.load(self.folder / "best").arrays)

    def embeddings(self) -> None:
        """Save the embeddings, as they are to be used. Raises KgdistError."""
        rundir.save_embeddings(self.folder, self.config, self.rows())

    @property
    def command(self) -> str:
        """What goes on with the run."""
        return resume_command("kgdist-train", self.folder, self.config)

    @property
    def hint(self) -> str:
        """How to go on from here when nothing more is saved."""
        return last_words(max((step for step, _ in checkpoint.numbered(self.folder)), default=None), self.command)

    def insist(self, work: Callable[[], None], *, patient: bool = False) -> str:
        """Do what saves, waiting for room where there is none; why it cannot be done, if so. Only who is `patient` waits when the
        user wants to leave."""

        def tried() -> list[str]:
            try:
                work()
            except KgdistError as error:
                return [str(error)]
            return []

        return "".join(self._insist(tried, lambda: self.interrupts.asked and not patient, lambda: time.sleep(0.1)))

    def stop(self, steps: list[int]) -> None:
        """Save a training that is to go on another time; where rows and state find no room, the embeddings alone may. Where
        neither does, and there is no checkpoint of before, it waits for room.

        Raises KgdistError when the checkpoint could not be written.
        """
        work = partial(self.checkpoint, steps)
        problem = self.insist(work)
        if problem and not self.insist(self.embeddings):
            raise KgdistError(f"{problem}; the embeddings of step {min(steps)} are saved in {self.folder}")
        if problem and self.folder.is_dir() and not checkpoint.numbered(self.folder):
            log.warning("nothing of this training is saved yet: make room, or press Ctrl-C again to leave without it")
            problem = self.insist(work, patient=True)
        if problem:
            raise KgdistError(problem + self.hint)

    def rescue(self, error: Exception, steps: list[int], begun: list[int]) -> None:
        """Save what was trained since `begun` before `error` is told, which has ended it; rows that diverge are not worth it.

        What cannot be saved is logged: `error` is what the user has to hear.
        """
        if self.config.no_save_emb or steps == begun or isinstance(error, Diverged):
            return
        try:
            for key, array in self.tables.arrays().items():
                if not all(np.isfinite(array[start : start + ROWS]).all() for start in range(0, len(array), ROWS)):
                    log.error("%s holds numbers that are not finite, so nothing is saved; the last checkpoint is as it was", key)
                    return
            self.stop(steps)
        except Exception as another:  # whatever it is, it came second
            log.error("what was trained could not be saved: %s", another)
            return
        say(f"what was trained is saved at step {min(steps)}; go on with: {self.command}")
