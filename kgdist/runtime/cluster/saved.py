"""The checkpoints of a job on several machines, seen from the launcher: which ones are whole on all of them, and how one is made.

Every machine saves its own rows. A checkpoint counts when all machines have it, of one step and of one attempt at the job; only
then is an older one removed, everywhere. So whatever is lost while one is written, there is one that all machines have, and
shards of different ages are never put together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kgdist.base.errors import PeersLost, UsageError
from kgdist.base.log import log
from kgdist.options.config import Config
from kgdist.runs.checkpoint import KEEP
from kgdist.runs.rundir import resume_command
from kgdist.runtime.cluster.fleet import Fleet
from kgdist.runtime.course import better_than
from kgdist.runtime.job import last_words
from kgdist.runtime.start import NEVER
from kgdist.runtime.storage import FLAG


class Saved:
    """The checkpoints of the run that `config` resumes, or of a new one.

    Attributes:
        run: its name, empty for a new one.
        best: the best validation so far, see `Place`.
        trainers: of each machine, when the checkpoint that `find` found was written; its step is one of theirs.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.run = config.resume or ""
        self.best = dict(NEVER)
        self.trainers = 0
        self._unsent = 0  # the step of the newest checkpoint, where it is whole on all machines and could not be sent
        self._whole: dict[int, int] = {}  # step -> the step of the best rows then; checkpoints that all machines have

    def __bool__(self) -> bool:
        return bool(self._whole)

    @property
    def hint(self) -> str:
        """How to go on from here."""
        if self._unsent:
            whole = f"the checkpoint of step {self._unsent} lies on the machines, and could not be sent to the storage"
            return f"; {whole}; go on with: {self.command}"
        return last_words(max(self._whole, default=None), self.command)

    @property
    def command(self) -> str:
        """What goes on with the run."""
        return resume_command("kgdist-dist-train", self.run, self.config)

    def find(self, answers: Mapping[int, list[list[Any]]], *, first: bool) -> int | None:
        """The newest step that all machines have, of one attempt, given what each has (`Shard.checkpoints`); None: begin anew.

        Raises UsageError when there is none and this is the `first` attempt: the user asked for it; and PeersLost in a later one
        of a run that the user went on with, whose rows before are not made anew.
        """
        machines = [{(step, stamp): (best, trainers) for step, stamp, best, trainers in found} for found in answers.values()]
        common = sorted(set.intersection(*(set(found) for found in machines)))
        had, self._whole = bool(self._whole), {}
        if not common:
            none = f"no checkpoint of it is whole on all {len(machines)} machines"
            if first:
                raise UsageError(f"--resume {self.run}: {none}")
            if self.config.resume:
                raise PeersLost(f"--resume {self.run}: {none} any more; what is left of them stays where it is")
            if had:
                log.warning("%s: %s any more, so it begins anew", self.run, none)
            return None
        found = {int(step): machines[0][step, stamp] for step, stamp in common}
        self._whole = {step: int((NEVER | best)["step"]) for step, (best, _) in found.items()}
        step = max(found)
        best, self.trainers = found[step]
        if first:
            self.best = NEVER | best
        else:  # rows as good are still there; what came after this step comes again
            self.best |= {name: value for name, value in (NEVER | best).items() if name not in ("mrr", "step")}
        return step

    def save(self, fleet: Fleet, step: int) -> list[str]:
        """Write a checkpoint on every machine; what went wrong, by machine. Raises AttemptFailed."""
        problems = self._ask(fleet, "saved", "save", step=step, meta={"best": self.best}, best=False)
        # What could not be sent is whole on the machines: it is kept there until a newer one is.
        self._unsent = step if problems and all(f": {FLAG} " in problem for problem in problems) else 0
        if not problems:
            self._whole = {old: best for old, best in self._whole.items() if old < step} | {step: int(self.best["step"])}
        self._tidy(fleet)
        return problems

    def save_best(self, fleet: Fleet, step: int, mrr: float) -> list[str]:
        """Keep the rows of this step as the best ones; what went wrong, by machine. Raises AttemptFailed."""
        problems = self._ask(fleet, "saved", "save", step=step, meta={"mrr": mrr}, best=True)
        if not problems:
            self.best = better_than(self.best, mrr, step)
        self._tidy(fleet)
        return problems

    def take_best(self, fleet: Fleet) -> list[str]:
        """Let every machine take its best rows; where one of them cannot, none does, and it is said what is wrong."""
        step = self.best["step"]
        return self._ask(fleet, "loaded", "best", step=step, trial=True) or self._ask(
            fleet, "loaded", "best", step=step, trial=False
        )

    def _ask(self, fleet: Fleet, answer: str, do: str, **arguments: Any) -> list[str]:
        answers = fleet.ask(answer, do, None, **arguments)
        return [f"{fleet.name(machine)}: {found['problem']}" for machine, found in sorted(answers.items()) if found["problem"]]

    def _tidy(self, fleet: Fleet) -> None:
        """Remove what is not whole on all machines, and what is too old; never the last one that is whole."""
        if self._whole:
            steps = sorted(self._whole)[-KEEP:]
            self._whole = {step: self._whole[step] for step in steps}
        steps = [*self._whole, *([self._unsent] if self._unsent else [])]
        fleet.tell("keep", steps=steps, best=sorted({*self._whole.values(), int(self.best["step"])}))
