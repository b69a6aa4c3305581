"""A whole training on this machine, from options to a saved and tested run.

One process trains in place; several workers share the tables and are watched by `kgdist.runtime.workers`. Either way the same
loop runs, and what happens when all of it stands still (validation, checkpoint, the end) happens here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist import checkpoint, runs
from kgdist.callbacks import Callback, Callbacks
from kgdist.config import Config
from kgdist.data.store import Dataset
from kgdist.errors import KgdistError
from kgdist.evaluator import Evaluator
from kgdist.files import write_json
from kgdist.kvstore.shm import huge_pages_refused
from kgdist.kvstore.tables import MemoryTables
from kgdist.log import background, log, say
from kgdist.runtime.control import SharedControl, WorkerControl
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import device_of, meetings_of, model_of, open_dataset, steps_of, train_rank, trainer_of
from kgdist.runtime.memory import keep_freed_memory, peak_of_this_process, used_now
from kgdist.runtime.observe import Observer, curves_writer, validation
from kgdist.runtime.processes import Processes
from kgdist.runtime.refuse import check_disk, check_memory, check_model, check_splits
from kgdist.runtime.start import NEVER, fresh, resumed
from kgdist.runtime.threads import Threads
from kgdist.runtime.warm import warm_up
from kgdist.runtime.workers import Say, Workers
from kgdist.step import Losses


@dataclasses.dataclass(frozen=True)
class Result:
    """How a training ended."""

    folder: Path | None
    interrupted: bool
    metrics: dict[str, Any] | None  # of the test split


@background()
def train(config: Config, callbacks: Iterable[Callback] = ()) -> Result:
    """Train as `config` says (already resolved). Raises KgdistError; Ctrl-C ends it with a checkpoint and `interrupted`.

    A callback that raises does the same, and its exception is raised in the end.
    """
    heard = Callbacks(callbacks)
    check_model(config)
    keep_freed_memory()
    torch.set_num_threads(config.num_thread)
    dataset = open_dataset(config)
    check_splits(config, dataset)
    if not config.quiet:
        sizes = f"{len(dataset.entities)} entities, {len(dataset.relations)} relations, {len(dataset.train)} training triples"
        say(f"{dataset.name}: {sizes}")
    with Interrupts() as interrupts:
        session = Session(config, dataset, interrupts, heard)
        try:
            session.train()
            result = session.finish()
        finally:
            session.close()
    if heard.failure is not None:
        raise heard.failure
    return result


class Session:
    """One training: its tables, its folder, and what is known of its course."""

    def __init__(self, config: Config, dataset: Dataset, interrupts: Interrupts, callbacks: Callbacks) -> None:
        self.config = config
        self.callbacks = callbacks
        self.dataset = dataset
        self.interrupts = interrupts
        self.model = model_of(config)
        self.total = steps_of(config, len(dataset.train))
        self.meeting = meetings_of(config)
        self.start = [0] * config.num_proc  # steps done by each process
        self.best = dict(NEVER)
        self.validated = 0  # the step of the last validation
        self.stop_early = False
        self.memory = 0
        shapes = self.model.tables(len(dataset.entities), len(dataset.relations))
        check_memory(config, shapes)
        one_gpu = config.num_proc == 1 and config.gpu[0] >= 0 and not config.mix_cpu_gpu
        device = device_of(config, 0) if one_gpu else torch.device("cpu")
        several = config.num_proc > 1
        apart = several and config.worker == "process"
        if config.huge_pages and (reason := huge_pages_refused(shared=apart)):
            log.warning("--huge_pages: %s", reason)
        self.tables = MemoryTables.create(shapes, config.optimizer, shared=apart, device=device, huge=config.huge_pages)
        self.workers: Workers | None = None  # one process trains in place
        try:
            self._refuse()
            if several:
                self.workers = self._workers()
            self.evaluator = Evaluator(dataset, config)
            self.folder = self._resume(Path(config.resume)) if config.resume else self._new_run()
            steps, done = self.total * config.num_proc, sum(self.start)
            self.observer = Observer(config, self.folder, total=steps, initial=done, heard=callbacks.tell)
        except BaseException:
            self._release()
            raise

    def _refuse(self) -> None:
        """What cannot be trained is refused while nothing has been written."""
        config = self.config
        if config.num_proc > 1:  # the share that is empty first is the last one of relations, and the first one of slices
            trainer_of(config, self.dataset.train, self.tables, config.num_proc - 1 if config.rel_part else 0)
        if config.tensorboard:
            curves_writer()

    def _workers(self) -> Workers:
        """The workers, still without work: processes import meanwhile."""
        config, shared = self.config, SharedControl.create(self.config.num_proc)
        if config.worker == "process":
            tables, control = self.tables.handles(), shared.handles()
            fds = [handle["fd"] for handle in (*tables.values(), *control)]
            job = {"config": dataclasses.asdict(config), "store": str(self.dataset.folder), "tables": tables, "control": control}
            return Workers(Processes(config.num_proc, job, fds, threads=config.num_thread), shared)

        def work(rank: int, say: Say) -> int:
            return train_rank(config, self.dataset.train, self.tables, WorkerControl(shared, rank, self.meeting, say))

        return Workers(Threads(config.num_proc, work), shared)

    def _new_run(self) -> Path:
        config = self.config
        fresh(config, self.model, self.dataset, self.tables, self.say)
        check_disk(config, self.tables)
        folder = runs.create(config.save_path, config.run_name)
        runs.save_settings(folder, config, self.dataset.entities, self.dataset.relations)
        self.say(f"run folder: {folder}")
        return folder

    def _resume(self, folder: Path) -> Path:
        self.start, self.best = resumed(self.config, self.dataset, self.tables, folder)
        runs.save_settings(folder, self.config, self.dataset.entities, self.dataset.relations)
        self.say(f"resumed {folder} at step {min(self.start)} of {self.total}")
        if min(self.start) >= self.total:
            say(f"nothing is left to train: it has done all {self.total} steps; give a larger --max_step to go on")
        return folder

    # ---- the course

    def train(self) -> None:
        """Run the loop to its end, early stop or Ctrl-C."""
        warm_up(self.config, weighted=self.dataset.train.weights is not None)
        self.observer.resume()  # compiling is no training
        if self.workers is None:
            trainer = trainer_of(self.config, self.dataset.train, self.tables, 0)
            self.start = [trainer.run(_SoloControl(self), self.start[0])]
        else:
            self.start = self._watch(self.workers)
        self.observer.pause()
        self.observer.bar.close()

    def _watch(self, workers: Workers) -> list[int]:
        """Let the workers train, and do here what is to be done when all of them wait; returns the steps each has done."""
        ticks = 0

        def tick(shared: SharedControl) -> None:
            nonlocal ticks
            if self.stopping():
                shared.stop()
            if ticks % 50 == 0:
                self.memory = max(self.memory, used_now(workers.crew.pids()))
            ticks += 1
            self.observer.update(sum(workers.steps()), workers.positives(), workers.sums())

        workers.begin(self.start)
        try:
            return workers.watch(lambda step: self.meet(step, workers.steps()), tick, self.say)
        finally:
            workers.close()

    def stopping(self) -> bool:
        """Whether to end before the next step."""
        return self.interrupts.asked or self.stop_early or self.callbacks.stop

    def say(self, line: str) -> None:
        """A line of the log, unless --quiet."""
        if not self.config.quiet:
            say(line)

    def meet(self, step: int, steps: list[int]) -> None:
        """All processes stand still after `step` steps."""
        config = self.config
        self.observer.pause()
        if config.valid and step % config.eval_interval == 0 and not self.interrupts.asked:
            try:
                self._validate(step)
            except KgdistError as error:
                log.warning("%s; training goes on", error)
        if config.checkpoint_interval and step % config.checkpoint_interval == 0 and not config.no_save_emb:
            try:
                self._checkpoint(steps)
            except KgdistError as error:
                log.warning("%s; training goes on", error)
        self.observer.resume()

    def _validate(self, step: int) -> None:
        try:
            self.interrupts.at_once = True
            report = self.evaluator.run(self.model, self.tables, "valid")
        except KeyboardInterrupt:
            return  # the loop stops at its next step and saves
        finally:
            self.interrupts.at_once = False
        mrr, self.validated = report["all"]["realistic"]["mrr"], step
        self.observer.write("valid", step=step, **report["all"]["realistic"])
        write_json(self.folder / "valid.json", report | {"step": step})
        self.callbacks.tell(validation(report, step, self.total, mrr > self.best["mrr"], self.folder))
        if mrr > self.best["mrr"]:
            if not self.config.no_save_emb:
                rows = {name: array for name, array in self.tables.arrays().items() if "." not in name}
                checkpoint.save(self.folder, step, rows, {"mrr": mrr}, name="best")
            self.best = {"mrr": mrr, "step": step, "waited": 0}  # only now that it is saved
            return
        self.best["waited"] += 1
        if 0 < self.config.early_stop_patience <= self.best["waited"] and step < self.total:
            say(f"early stop at step {step}: no better MRR than {self.best['mrr']:.4f} at step {self.best['step']}")
            self.stop_early = True

    def _checkpoint(self, steps: list[int]) -> None:
        checkpoint.save(self.folder, min(steps), self.tables.arrays(), {"steps": steps, "best": self.best})

    # ---- the end

    def finish(self) -> Result:
        """Save, test and say what was reached."""
        config, interrupted = self.config, self.interrupts.asked
        if not config.no_save_emb:
            self._checkpoint(self.start)
        if interrupted or self.callbacks.failure is not None:
            if config.no_save_emb:
                say("interrupted; nothing was saved, because of --no_save_emb")
            else:
                say(f"interrupted at step {min(self.start)}; go on with: kgdist-train --resume {self.folder}")
            return Result(self.folder, interrupted, None)
        if self.callbacks.stop and min(self.start) < self.total:
            say(f"stopped at step {self.start[0]} of {self.total} by a callback")
        if config.valid and self.start[0] not in (self.best["step"], self.validated):
            self._validate(self.start[0])
        if config.valid and not config.no_save_emb and self.best["step"] not in (0, self.start[0]):
            self.tables.load(checkpoint.load(self.folder / "best").arrays)
            say(f"the embeddings of step {self.best['step']} are kept, which had the best validation MRR, {self.best['mrr']:.4f}")
        if not config.no_save_emb:
            runs.save_embeddings(self.folder, config, {n: a for n, a in self.tables.arrays().items() if "." not in n})
        self.observer.say_speed()
        metrics = None
        if config.test:
            self.interrupts.at_once = True
            metrics = self.evaluator.run(self.model, self.tables, "test")
            write_json(self.folder / "test.json", metrics)
            self.observer.write("test", step=self.start[0], **metrics["all"]["realistic"])
        memory = max(self.memory, peak_of_this_process())
        say(f"peak memory: {memory / 2**20:.0f} MiB")
        say(
            f"saved in {self.folder}"
            if not config.no_save_emb
            else f"embeddings not saved (--no_save_emb); metrics in {self.folder}"
        )
        return Result(self.folder, False, metrics)

    def close(self) -> None:
        """Give up bar, files, workers and shared memory."""
        self.observer.close()
        self._release()

    def _release(self) -> None:
        if self.workers is not None:
            self.workers.close()
        self.tables.close()


class _SoloControl:
    """`Control` of a loop in this process."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.sums = np.zeros(4)
        self.positives = 0
        self.say = session.say
        self.meeting = session.meeting

    def stopping(self) -> bool:
        """See Control."""
        return self.session.stopping()

    def report(self, step: int, positives: int, losses: Losses) -> None:
        """See Control."""
        self.sums += (losses.positive, losses.negative, losses.total, losses.regularization)
        self.positives += positives
        self.session.observer.update(step, self.positives, self.sums)

    def meet(self, step: int) -> None:
        """See Control."""
        self.session.meet(step, [step])
