"""A whole training on this machine, from options to a saved and tested run.

One process trains in place; several workers share the tables and are watched by `kgdist.runtime.processes.workers`. Either way
the same loop runs, and what happens when all of it stands still (validation, checkpoint, the end) happens here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import Diverged, KgdistError, PeersLost
from kgdist.base.files import write_json
from kgdist.base.log import background, bar, log, say
from kgdist.base.machine import keep_freed_memory, peak_of_this_process, used_now
from kgdist.data.dataset import Dataset, Triples, open_dataset
from kgdist.data.entity_types import types_of
from kgdist.data.labels import write_labels
from kgdist.evaluation.evaluator import Evaluator
from kgdist.kvstore.shared_memory import SharedArray, huge_pages_refused
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.encoders.encode import encode_tables
from kgdist.models.encoders.encoder import TABLE as ENCODER
from kgdist.models.encoders.encoder import Encoding
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runs import checkpoint, rundir
from kgdist.runtime.checks import check_data, check_disk, check_memory, check_start, features_of
from kgdist.runtime.course import Course, Result, better_than
from kgdist.runtime.estimate import bytes_beside, estimate
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import (
    device_of,
    epoch_of,
    last_words,
    meetings_of,
    shapes_of,
    steps_of,
    train_rank,
    trainer_of,
    warm_up,
    weights_of,
    with_interval,
)
from kgdist.runtime.observe import Observer, curves_writer, watched
from kgdist.runtime.processes.control import SharedControl, WorkerControl
from kgdist.runtime.processes.workers import Processes, Say, Threads, Workers
from kgdist.runtime.solo import SoloControl
from kgdist.runtime.start import NEVER, fresh, resumed
from kgdist.training.callbacks import Callback, Callbacks
from kgdist.training.loop import Control, Trainer

ROWS = 4096  # looked at together


@background()
def train(config: Config, callbacks: Iterable[Callback] = (), *, run: str | None = None) -> Result:
    """Train as `config` says (already resolved). Raises KgdistError; Ctrl-C ends it with a checkpoint and `interrupted`. `run`:
    what names this training to whoever may begin it again (rundir.JOB).

    A callback that raises does the same, and its exception is raised in the end. What was trained is saved whatever ends it.
    """
    heard = Callbacks(callbacks)
    check_start(config)
    keep_freed_memory()
    torch.set_num_threads(config.num_thread)
    dataset = open_dataset(config)
    check_data(config, dataset)
    if not config.quiet:
        sizes = f"{len(dataset.entities)} entities, {len(dataset.relations)} relations, {len(dataset.train)} training triples"
        say(f"{dataset.name}: {sizes}")
    with Interrupts() as interrupts:
        session = Session(config, dataset, interrupts, heard, run=run)
        try:
            session.train()
            result = session.course.finish(session.step)
        except KeyboardInterrupt:
            if not config.no_save_emb:
                log.warning("what was not saved is lost%s", session.hint)
            raise
        finally:
            session.close()
    if heard.failure is not None:
        raise heard.failure
    return result


class Session:
    """One training: its tables, its workers and its folder, which together are the `Place` of its course."""

    def __init__(
        self, config: Config, dataset: Dataset, interrupts: Interrupts, callbacks: Callbacks, *, run: str | None = None
    ) -> None:
        self.config = config
        self.run = run
        self.callbacks = callbacks
        self.dataset = dataset
        self.labels = rundir.given_labels(config.labels, dataset.entities, dataset.relations)
        self.interrupts = interrupts
        self.model = model_of(config)
        self.epoch, self.total = (count(config, *self._shared()) for count in (epoch_of, steps_of))
        self.config = config = with_interval(config, self.total)
        self.meeting = meetings_of(config)
        self.start = [0] * config.num_proc  # steps done by each process before
        self.best, self.features = dict(NEVER), features_of(config)
        self._memory = 0  # bytes, the most that was seen
        self.sizes = len(dataset.entities), len(dataset.relations)
        shapes = shapes_of(config, self.model, *self.sizes)
        check_memory(config, shapes, bytes_beside(config, *shapes["entity"]) if config.candidates == "all" else 0)
        one_gpu = config.num_proc == 1 and config.gpu[0] >= 0 and not config.mix_cpu_gpu
        device = device_of(config, 0) if one_gpu else torch.device("cpu")
        several = config.num_proc > 1
        apart = several and config.worker == "process"
        if config.huge_pages and (reason := huge_pages_refused(shared=apart)):
            log.warning("--huge_pages: %s", reason)
        self.types = self._types()
        self.tables = MemoryTables.create(shapes, config.optimizer, shared=apart, device=device, huge=config.huge_pages)
        self.encoding = self._encoding()
        self.weights = weights_of(self.encoding, shared=apart) if self.encoding is not None else None
        if self.weights is not None:
            self.tables.add(self.weights)
        self.workers: Workers | None = None  # one process trains in place
        try:
            self._refuse()
            if several:
                self.workers = self._workers()
            self.evaluator = Evaluator(dataset, config)
            self.folder = self._resume(Path(config.resume)) if config.resume else self._new_run()
            self.steps = list(self.start)  # done by each process
            steps, done = self.total * config.num_proc, sum(self.start)
            self.observer = Observer(config, self.folder, total=steps, initial=done, heard=callbacks.tell)
            self.course = Course(config, self, self.total, interrupts, self.observer, callbacks)
        except BaseException:
            self._release()
            raise

    def _refuse(self) -> None:
        """What cannot be trained is refused while nothing has been written."""
        config = self.config
        if config.num_proc > 1:  # the share that is empty first is the last one of relations, and the first one of slices
            self._trainer(config.num_proc - 1 if config.rel_part else 0)
        if config.tensorboard:
            curves_writer()
        if config.candidates == "all" and not config.resume:
            self.say(estimate(config, self._trainer(0)))

    def _shared(self) -> tuple[Triples | int, int]:
        """Training triples, or how many, and how many machines share them."""
        return self.dataset.train, 1

    def _encoding(self) -> Encoding | None:
        return Encoding.of(self.config, self.dataset.train.array, *self.sizes)

    def _types(self) -> SharedArray | None:
        """int32[n, 2], the types of entities, if they are given. Raises DataError."""
        if (found := types_of(self.config, self.dataset.entities)) is None:
            return None
        memory = SharedArray.allocate(found.shape, found.dtype)
        memory.array[:] = found
        return memory

    def _trainer(self, rank: int) -> Trainer:
        types = self.types.array if self.types is not None else None
        return trainer_of(self.config, self.dataset.train, self.tables, rank, encoding=self.encoding, types=types)

    def _control(self) -> Control:
        return SoloControl(self)

    def _workers(self) -> Workers:
        """The workers, still without work: processes import meanwhile."""
        config, shared = self.config, SharedControl.create(self.config.num_proc)
        if config.worker == "process":
            tables, control = self.tables.handles(), shared.handles()
            types = [self.types.handle()] if self.types is not None else []
            fds = [handle["fd"] for handle in (*tables.values(), *control, *types)]
            options, store = dataclasses.asdict(config), str(self.dataset.folder)
            job = {"role": "share", "config": options, "store": store, "tables": tables, "control": control, "types": types}
            job["weights"] = self.weights.handles() if self.weights is not None else {}
            return Workers(Processes(config.num_proc, job, fds, threads=config.num_thread), shared)

        def work(rank: int, say: Say) -> int:
            types = self.types.array if self.types is not None else None
            control, encoding = WorkerControl(shared, rank, self.meeting, say), self._encoding()
            return train_rank(config, self.dataset.train, self.tables, control, encoding, types)

        return Workers(Threads(config.num_proc, work), shared)

    def _new_run(self) -> Path:
        config = self.config
        fresh(config, self.model, self.dataset, self.tables, self.say)
        if self.encoding is not None:
            self.tables.rows[ENCODER].copy_(self.encoding.encoder.weights())
            self.say(self.encoding.encoder.described(config))
        check_disk(config, self.tables)
        folder = rundir.create(config.save_path, config.run_name)
        self._describe(folder)
        self.say(f"run folder: {folder}")
        return folder

    def _resume(self, folder: Path) -> Path:
        self.start, self.best, number = resumed(self.config, self.dataset, self.tables, folder, self.epoch)
        self._describe(folder)
        if min(self.start) < number and not self.config.no_save_emb:
            # Workers are more, or an epoch is shorter, so steps are fewer: what is saved must not look older than what is there.
            checkpoint.save(folder, min(self.start), self.tables.arrays(), self._progress(self.start), keep=0)
            checkpoint.drop(folder, {f"ckpt-{min(self.start)}"})
        self.say(f"resumed {folder} at step {min(self.start)} of {self.total}")
        if min(self.start) >= self.total:
            longer = "--max_step" if self.config.max_epoch is None else "--max_epoch"
            say(f"nothing is left to train: it has done all {self.total} steps; give a larger {longer} to go on")
        elif self.config.candidates == "all":
            self.say(estimate(self.config, self._trainer(0), self.start[0]))
        return folder

    def _describe(self, folder: Path) -> None:
        rundir.save_settings(folder, self.config, self.dataset.entities, self.dataset.relations, self.dataset.digest)
        if self.labels is not None:
            write_labels(folder / rundir.LABELS, self.labels)
        if self.run is not None:
            write_json(folder / rundir.JOB, {"run": self.run})

    # ---- training

    def train(self) -> None:
        """Run the loop to its end, early stop or Ctrl-C. An error that ends it is raised when what was trained is saved."""
        warm_up(self.config, weighted=self.dataset.train.weights is not None)
        self.course.begin(self.step)  # compiling is no training
        try:
            if self.workers is None:
                self.steps = [self._trainer(0).run(self._control(), self.start[0])]
            else:
                self._watch(self.workers)
        except Exception as error:
            self._rescue(error)
            raise
        self.observer.end()

    @property
    def step(self) -> int:
        """How far the slowest process has come."""
        return min(self.steps)

    def _rescue(self, error: Exception) -> None:
        """Save what was trained before `error` is told, which has ended it; rows that diverge are not worth it.

        What cannot be saved is logged: `error` is what the user has to hear.
        """
        if self.config.no_save_emb or self.steps == self.start or isinstance(error, Diverged):
            return
        try:
            for key, array in self.tables.arrays().items():
                if not all(np.isfinite(array[start : start + ROWS]).all() for start in range(0, len(array), ROWS)):
                    log.error("%s holds numbers that are not finite, so nothing is saved; the last checkpoint is as it was", key)
                    return
            self.course.stop(self.step)
        except Exception as another:  # whatever it is, it came second
            log.error("what was trained could not be saved: %s", another)
            return
        # Where it was another worker that ended, whoever started them begins all again, or says what to do.
        then = "" if isinstance(error, PeersLost) else f"; go on with: {self.command}"
        say(f"what was trained is saved at step {self.step}{then}")

    def _watch(self, workers: Workers) -> None:
        """Let the workers train, and do here what is to be done when all of them wait."""
        ticks = 0

        def tick(shared: SharedControl) -> None:
            nonlocal ticks
            self.steps = workers.steps()
            if self.course.stopping():
                shared.stop()
            if ticks % 50 == 0:
                self._memory = max(self._memory, used_now(workers.crew.pids()))
            ticks += 1
            self.observer.update(sum(self.steps), workers.positives(), workers.sums())

        def met(step: int) -> None:
            self.steps = workers.steps()
            self.course.meet(step)
            workers.shared.lower(self.best["lowered"])

        def pause() -> None:
            self.steps = workers.steps()
            self.course.checkpoint(self.step)

        workers.shared.lower(self.best["lowered"])
        workers.begin(self.start)
        try:
            workers.watch(met, tick, self.say, due=self.course.rhythm.by_clock, pause=pause)
        finally:
            workers.close()  # now the rows stand still
            self.steps = workers.steps()

    def say(self, line: str) -> None:
        """A line of the log, unless --quiet."""
        if not self.config.quiet:
            say(line)

    # ---- as the place of its course

    @property
    def where(self) -> str:
        return str(self.folder)

    @property
    def command(self) -> str:
        return rundir.resume_command("kgdist-train", self.folder, self.config)

    @property
    def hint(self) -> str:
        return last_words(max((step for step, _ in checkpoint.numbered(self.folder)), default=None), self.command)

    @property
    def unsaved(self) -> bool:
        return self.folder.is_dir() and not checkpoint.numbered(self.folder)

    def evaluate(self, split: str) -> dict[str, Any]:
        with self.interrupts.immediate():
            return self.evaluator.run(self.model, self._embeddings(), split, self.folder)

    def save(self, step: int) -> list[str]:
        """See Place; what each process has done goes with it."""
        return self._written(partial(checkpoint.save, self.folder, step, self._arrays(), self._progress(self.steps)))

    def _progress(self, steps: list[int]) -> dict[str, Any]:
        """What a checkpoint says of itself: with how many workers and how large a batch steps were made, says the epoch."""
        return {"steps": steps, "epoch": self.epoch, "best": self.best, **self.features}

    def save_best(self, step: int, mrr: float) -> list[str]:
        meta = {"mrr": mrr, "epoch": self.epoch}
        problems = self._written(partial(checkpoint.save, self.folder, step, self._rows(), meta, name="best"))
        if not problems:
            self.best = better_than(self.best, mrr, step)
        return problems

    def take_best(self) -> list[str]:
        return _problems(lambda: self.tables.load(checkpoint.load(self.folder / "best").arrays))

    def publish(self) -> list[str]:
        return _problems(lambda: rundir.save_embeddings(self.folder, self.config, self._embeddings().arrays()))

    def write(self, name: str, value: dict[str, Any]) -> list[str]:
        return _problems(lambda: write_json(self.folder / name, value))

    def rest(self) -> None:
        time.sleep(0.1)

    def memory(self) -> str:
        return f"peak memory: {max(self._memory, peak_of_this_process()) / 2**20:.0f} MiB"

    def _embeddings(self) -> MemoryTables:
        """The rows that the score function reads: what is trained, or what the encoder makes of it."""
        if self.encoding is None:
            return self.tables
        with bar(total=len(self.encoding.encoder.layers) * self.sizes[0], desc="encoding", unit="entity") as shown:
            made = encode_tables(self.encoding, self.tables.rows["entity"], self.tables.rows[ENCODER], shown.update)
        rows = {name: made if name == "entity" else self.tables.rows[name] for name in self.model.tables(1, 1)}
        return MemoryTables(rows, {name: {} for name in rows}, "sgd")

    def _arrays(self) -> dict[str, np.ndarray]:
        """What a checkpoint holds, by key."""
        return self.tables.arrays()

    def _rows(self) -> dict[str, np.ndarray]:
        """The embeddings, without the optimiser's state."""
        return {name: array for name, array in self._arrays().items() if "." not in name}

    def _written(self, save: Callable[..., object]) -> list[str]:
        with watched(self.folder) as moved:
            return _problems(lambda: save(moved=moved))

    def close(self) -> None:
        """Give up bar, files, workers and shared memory."""
        del self.course  # which leads back here: the tables go now, not when Python looks for circles
        self.observer.close()
        self._release()

    def _release(self) -> None:
        if self.workers is not None:
            self.workers.close()
        if self.types is not None:
            self.types.close()
            self.types = None
        self.tables.close()


def _problems(work: Callable[[], object]) -> list[str]:
    try:
        work()
    except KgdistError as error:
        return [str(error)]
    return []
