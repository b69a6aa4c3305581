"""One machine's rows in a training on several: filled, shared with its processes, saved and loaded. No processes here.

A machine saves its rows by itself, below the run folder in a folder of its own; whether a checkpoint is one of the whole job is
known to the launcher alone (`kgdist.runtime.cluster.saved`), which also says what may be removed. Where there is a storage, what
it keeps is what counts: each checkpoint is sent there before it is one, and is fetched where it is not here.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, KgdistError, ProtocolError
from kgdist.base.files import Moved, unwatched
from kgdist.base.log import log
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.registry import model_of
from kgdist.runs import checkpoint
from kgdist.runtime.checks import STATE, meaning
from kgdist.runtime.cluster.training_plan import TrainingPlan, run_folder
from kgdist.runtime.processes.control import DONE, RELEASED, SharedControl
from kgdist.runtime.start import at_random, shared_out, steps_done, take
from kgdist.runtime.storage import Storage


class Shard:
    """The rows of machine `number`, and the numbers that its processes share; none before `fill`."""

    def __init__(self, plan: TrainingPlan, number: int) -> None:
        self.plan, self.number, self.config = plan, number, plan.config
        self._tables: MemoryTables | None = None
        self._control: SharedControl | None = None
        self.storage = Storage.of(self.config)
        self._taken: Path | None = None  # the checkpoint that the rows are of

    @property
    def ready(self) -> bool:
        """Whether there are rows."""
        return self._control is not None

    @property
    def tables(self) -> MemoryTables:
        """The rows."""
        assert self._tables is not None
        return self._tables

    @property
    def control(self) -> SharedControl:
        """The shared numbers."""
        assert self._control is not None
        return self._control

    def folder(self, run: str) -> Path:
        """The run folder on this machine."""
        return run_folder(self.config, run)

    def place(self, run: str) -> Path:
        """Where this machine keeps its checkpoints."""
        return self.plan.checkpoints(self.number, run)

    def fill(self, run: str, resume: int | None, moved: Moved = unwatched) -> None:
        """Make the tables: at random, or as of the checkpoint of step `resume`. Raises KgdistError."""
        model, layout = model_of(self.config), self.plan.layout()
        self._make()
        self.place(run).mkdir(parents=True, exist_ok=True)
        checkpoint.sweep(self.place(run), moved)
        steps = [0] * self.config.num_proc
        if self.storage is not None and self.number == 0 and resume is not None:
            self.storage.fetch_run(self.folder(run), ("metrics.jsonl",), moved)
        if resume is None:
            for name in self.tables.names():
                first, _ = layout.machine_range(name, self.number)
                at_random(self.config, model, self.tables, name, first=first, total=self.plan.shapes[name][0], moved=moved)
        else:
            path = self.place(run) / f"ckpt-{resume}"
            saved = checkpoint.opened(path) if self._taken == path else self._read(path, moved)
            steps = shared_out(steps_done(saved), self.config.num_proc)
        control = SharedControl.create(self.config.num_proc)
        control.workers[:, DONE] = steps
        control.header[RELEASED] = max(0, min(steps) - 1)  # a meeting there may not have been over
        self._control = control

    def bring(self, table: str, rows: str, values: str) -> None:
        """Let rows start at what the user brings: int64 numbers of rows of this machine, and float32 values for the first columns
        of each, both in base64. Raises ProtocolError for what is no such thing."""
        try:
            target = self.tables.rows[table]
            where = np.frombuffer(base64.b64decode(rows, validate=True), "<i8").astype(np.int64)
            numbers = np.frombuffer(base64.b64decode(values, validate=True), "<f4").astype(np.float32).reshape(len(where), -1)
            if not 0 < numbers.shape[1] <= target.shape[1] or where.min() < 0 or where.max() >= len(target):
                raise ValueError(f"{list(numbers.shape)} values for a table of {list(target.shape)}")
        except (KeyError, ValueError) as error:
            raise ProtocolError(f"the launcher brings rows that have no place here: {error}") from error
        target[torch.from_numpy(where), : numbers.shape[1]] = torch.from_numpy(numbers)

    def _load(self, arrays: dict[str, np.ndarray], moved: Moved) -> None:
        shapes = {key: array.shape for key, array in self.tables.arrays().items()}
        for key, array in arrays.items():
            if shapes.get(key) != array.shape:
                raise CheckpointError(f"checkpoint: {key} is {array.shape}, but these options make it {shapes.get(key)}")
        self.tables.load(arrays, moved)

    def save(self, run: str, step: int, meta: dict[str, Any], *, best: bool, moved: Moved = unwatched) -> None:
        """Write `ckpt-<step>`, or `best-<step>` of the rows alone; nothing is removed. Raises KgdistError."""
        arrays = self.tables.arrays()
        if best:
            arrays = {key: array for key, array in arrays.items() if "." not in key}
        steps = [int(done) for done in self.control.workers[:, DONE]]
        made = {"graph": self.plan.graph, "options": meaning(self.config, *STATE)}  # preflight compares both before it is taken
        meta = meta | {"steps": steps, "stamp": self.plan.stamp} | made
        name = f"best-{step}" if best else None
        path = checkpoint.save(self.place(run), step, arrays, meta, name=name, keep=0, moved=moved)
        if self.storage is not None:
            self.storage.check_claim(run, self.plan.stamp)
            self.storage.send_checkpoint(path, moved)
            if self.number == 0:
                self.send(run, rows=False, moved=moved)

    def keep(self, run: str, steps: list[int], best: list[int]) -> None:
        """Remove all checkpoints but those of `steps`, and all best rows but those of the steps `best`."""
        names = {f"ckpt-{step}" for step in steps} | {f"best-{step}" for step in best}
        checkpoint.drop(self.place(run), names)
        if self.storage is not None:
            try:
                self.storage.check_claim(run, self.plan.stamp)
            except KgdistError as error:
                log.warning("%s", error)
            else:
                self.storage.keep(self.place(run), names)

    def send(self, run: str, *, rows: bool, moved: Moved = unwatched) -> None:
        """Keep the files of the run folder in the storage; without `rows`, settings and metrics alone. Raises KgdistError."""
        if self.storage is not None:
            self.storage.check_claim(run, self.plan.stamp)
            self.storage.send_run(self.folder(run), moved, suffixes=() if rows else (".json", ".jsonl"))

    def claim(self, run: str) -> None:
        """Let the storage know whose run it is from now on. Raises KgdistError."""
        if self.storage is not None and self.number == 0:
            self.storage.claim(run, self.plan.stamp)

    def taken(self) -> list[str]:
        """Names of runs that are known besides those that are here. Raises KgdistError."""
        return self.storage.runs() if self.storage is not None else []

    def best(self, run: str, step: int, *, trial: bool, moved: Moved = unwatched) -> None:
        """Take the best rows, those of `step`; a `trial` before only verifies them. Raises KgdistError."""
        saved = self._opened(run, f"best-{step}", moved)
        if trial:
            saved.read({}, moved)
        else:
            self._load(saved.arrays, moved)

    def _opened(self, run: str, name: str, moved: Moved) -> checkpoint.Checkpoint:
        """The checkpoint of that name, fetched where it is not here. Raises KgdistError."""
        return self._here(self.place(run) / name, moved)

    def _here(self, path: Path, moved: Moved, *, anew: bool = False) -> checkpoint.Checkpoint:
        """The checkpoint `path`, fetched where it is not here, or `anew`; one that could not be sent is here alone."""
        kept = self.storage is not None and self.storage.fetch_checkpoint(path, moved, anew=anew)
        if anew and not kept:
            raise CheckpointError(f"{path}: there is no other copy of it")
        return checkpoint.opened(path)

    def _read(self, path: Path, moved: Moved) -> checkpoint.Checkpoint:
        """The same, and the tables are as of it; one that was damaged here is fetched again. Raises KgdistError."""
        saved = self._here(path, moved)
        try:
            take(saved, self.tables, moved)
        except CheckpointError as error:
            if self.storage is None:
                raise
            log.warning("%s; it is fetched again", error)
            saved = self._here(path, moved, anew=True)
            take(saved, self.tables, moved)
        return saved

    def _make(self) -> None:
        if self._tables is None:
            shapes = self.plan.shapes_of(self.number)
            self._tables = MemoryTables.create(shapes, self.config.optimizer, shared=True, huge=self.config.huge_pages)

    def checkpoints(self, run: str, moved: Moved = unwatched) -> list[list[Any]]:
        """[step, stamp, best validation so far, trainers] of every checkpoint here that is whole, newest first.

        The newest one is read into the tables, for it will nearly always be the one that is asked for: it is verified meanwhile,
        and the older ones are when they are read.
        """
        found: list[list[Any]] = []
        place = self.place(run)
        checkpoint.sweep(place, moved)
        kept = None if self.storage is None else {each.path: each for each in self.storage.checkpoints(place)}
        for path in self._numbered(place, kept):
            try:
                if found:
                    saved = kept[path] if kept is not None and path in kept else checkpoint.opened(path)
                else:
                    self._make()
                    saved = self._read(path, moved)
                trainers = len(steps_done(saved))
                if not found:
                    self._taken = path
                    if not {"graph", "options"} <= saved.meta.keys():
                        log.warning("%s: does not say what it was trained on (an older kgdist wrote it); it is taken", path)
                meta = saved.meta
                found.append([saved.step, str(meta.get("stamp")), meta.get("best", {}), trainers])
            except CheckpointError as error:
                log.warning("%s; it is passed over", error)
        return found

    @staticmethod
    def _numbered(place: Path, kept: dict[Path, checkpoint.Checkpoint] | None) -> list[Path]:
        """The checkpoints that count, newest first: those that are `kept` in the storage, and newer ones that are here, which
        could not be sent."""
        here = checkpoint.numbered(place)
        if kept is None:
            return [path for _, path in here]
        newest = max((each.step for each in kept.values()), default=-1)
        return [*(path for step, path in here if step > newest), *kept]

    def close(self) -> None:
        """Give up the rows."""
        if self._tables is not None:
            self._tables.close()
        if self._control is not None:
            self._control.close()
