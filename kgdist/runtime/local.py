"""A whole training on this machine, from options to a saved and tested run.

One process trains in place; several workers share the tables and are watched by `kgdist.runtime.processes.workers`. Either way
the same loop runs, and what happens when all of it stands still (validation, checkpoint, the end) happens here.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist.base.errors import KgdistError
from kgdist.base.files import write_json
from kgdist.base.log import background, log, say
from kgdist.data.dataset import Dataset
from kgdist.evaluation.evaluator import Evaluator
from kgdist.kvstore.shared_memory import huge_pages_refused
from kgdist.kvstore.tables import MemoryTables
from kgdist.options.config import Config
from kgdist.runs import rundir
from kgdist.runtime.checks import check_disk, check_memory, check_model, check_splits
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import (
    device_of,
    meetings_of,
    model_of,
    open_dataset,
    rhythm_of,
    steps_of,
    train_rank,
    trainer_of,
    warm_up,
)
from kgdist.runtime.kept import Kept
from kgdist.runtime.memory import keep_freed_memory, peak_of_this_process, used_now
from kgdist.runtime.observe import Observer, curves_writer, validation
from kgdist.runtime.processes.control import SharedControl, WorkerControl
from kgdist.runtime.processes.workers import Processes, Say, Threads, Workers
from kgdist.runtime.start import NEVER, fresh, resumed
from kgdist.training.callbacks import Callback, Callbacks
from kgdist.training.step import Losses


@dataclasses.dataclass(frozen=True)
class Result:
    """How a training ended."""

    folder: Path | None
    interrupted: bool
    metrics: dict[str, Any] | None  # of the test split


@background()
def train(config: Config, callbacks: Iterable[Callback] = ()) -> Result:
    """Train as `config` says (already resolved). Raises KgdistError; Ctrl-C ends it with a checkpoint and `interrupted`.

    A callback that raises does the same, and its exception is raised in the end. What was trained is saved whatever ends it.
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
        except KeyboardInterrupt:
            if not config.no_save_emb:
                log.warning("what was not saved is lost%s", session.kept.hint)
            raise
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
        self.rhythm = rhythm_of(config)
        self.start = [0] * config.num_proc  # steps done by each process before
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
            best = dict(NEVER)
            if config.resume:
                self.folder, best = self._resume(Path(config.resume))
            else:
                self.folder = self._new_run()
            self.kept = Kept(config, self.folder, self.tables, interrupts, best)
            self.steps = list(self.start)  # done by each process
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
            options, store = dataclasses.asdict(config), str(self.dataset.folder)
            job = {"role": "share", "config": options, "store": store, "tables": tables, "control": control}
            return Workers(Processes(config.num_proc, job, fds, threads=config.num_thread), shared)

        def work(rank: int, say: Say) -> int:
            return train_rank(config, self.dataset.train, self.tables, WorkerControl(shared, rank, self.meeting, say))

        return Workers(Threads(config.num_proc, work), shared)

    def _new_run(self) -> Path:
        config = self.config
        fresh(config, self.model, self.dataset, self.tables, self.say)
        check_disk(config, self.tables)
        folder = rundir.create(config.save_path, config.run_name)
        rundir.save_settings(folder, config, self.dataset.entities, self.dataset.relations)
        self.say(f"run folder: {folder}")
        return folder

    def _resume(self, folder: Path) -> tuple[Path, dict[str, Any]]:
        self.start, best = resumed(self.config, self.dataset, self.tables, folder)
        rundir.save_settings(folder, self.config, self.dataset.entities, self.dataset.relations)
        self.say(f"resumed {folder} at step {min(self.start)} of {self.total}")
        if min(self.start) >= self.total:
            say(f"nothing is left to train: it has done all {self.total} steps; give a larger --max_step to go on")
        return folder, best

    # ---- the course

    def train(self) -> None:
        """Run the loop to its end, early stop or Ctrl-C. An error that ends it is raised when what was trained is saved."""
        warm_up(self.config, weighted=self.dataset.train.weights is not None)
        self.observer.resume()  # compiling is no training
        self.rhythm.begin()
        try:
            if self.workers is None:
                trainer = trainer_of(self.config, self.dataset.train, self.tables, 0)
                self.steps = [trainer.run(_SoloControl(self), self.start[0])]
            else:
                self._watch(self.workers)
        except Exception as error:
            self.kept.rescue(error, self.steps, self.start)
            raise
        self.observer.pause()
        self.observer.bar.close()

    def _watch(self, workers: Workers) -> None:
        """Let the workers train, and do here what is to be done when all of them wait."""
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
            workers.watch(
                lambda step: self.meet(step, workers.steps()),
                tick,
                self.say,
                due=self.rhythm.by_clock,
                pause=lambda: self._checkpoint(workers.steps()),
            )
        finally:
            workers.close()  # now the rows stand still
            self.steps = workers.steps()

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
        self.observer.resume()
        if self.rhythm.due(step):
            self._checkpoint(steps)

    def _checkpoint(self, steps: list[int]) -> None:
        """All processes stand still, and a checkpoint is due."""
        self.observer.pause()
        began = time.monotonic()
        try:
            self.kept.checkpoint(steps)
        except KgdistError as error:
            log.warning("%s; training goes on", error)
        self.rhythm.written(time.monotonic() - began)
        self.observer.resume()

    def _validate(self, step: int) -> None:
        try:
            self.interrupts.at_once = True
            report = self.evaluator.run(self.model, self.tables, "valid")
        except KeyboardInterrupt:
            return  # the loop stops at its next step and saves
        finally:
            self.interrupts.at_once = False
        mrr, self.validated, best = report["all"]["realistic"]["mrr"], step, self.kept.best
        self.observer.write("valid", step=step, **report["all"]["realistic"])
        write_json(self.folder / "valid.json", report | {"step": step})
        self.callbacks.tell(validation(report, step, self.total, mrr > best["mrr"], self.folder))
        if mrr > best["mrr"]:
            self.kept.keep_best(step, mrr)
            return
        best["waited"] += 1
        if 0 < self.config.early_stop_patience <= best["waited"] and step < self.total:
            say(f"early stop at step {step}: no better MRR than {best['mrr']:.4f} at step {best['step']}")
            self.stop_early = True

    # ---- the end

    def finish(self) -> Result:
        """Save, test and say what was reached. Raises KgdistError when the embeddings could not be saved, or the test failed."""
        config, kept, keep, step = self.config, self.kept, not self.config.no_save_emb, min(self.steps)
        interrupted = self.interrupts.asked
        if interrupted or self.callbacks.failure is not None:
            if keep:
                say(f"saving at step {step}; another Ctrl-C leaves without it")
                kept.stop(self.steps)
            return self._left(step, interrupted)
        if self.callbacks.stop and step < self.total:
            say(f"stopped at step {self.steps[0]} of {self.total} by a callback")
        problem = kept.insist(lambda: kept.checkpoint(self.steps)) if keep else ""
        if problem:
            log.warning("%s; the embeddings themselves may find room", problem)
        if config.valid and self.interrupts.asked and not problem:
            return self._left(step, True)  # the last rows need not be the best ones: those are chosen when it goes on
        if config.valid:
            try:
                self._choose()
            except KgdistError as error:
                log.warning("%s; the embeddings of step %d are kept", error, step)
            except Exception:
                kept.embeddings()  # before it is told
                raise
        if keep and (problem := kept.insist(kept.embeddings)):
            raise KgdistError(problem)
        self.observer.say_speed()
        where = f"saved in {self.folder}" if keep else f"embeddings not saved (--no_save_emb); metrics in {self.folder}"
        metrics = None
        if config.test:
            try:
                metrics = self._test()
            except KeyboardInterrupt:
                say(f"interrupted; {where}")
                return Result(self.folder, True, None)
        memory = max(self.memory, peak_of_this_process())
        say(f"peak memory: {memory / 2**20:.0f} MiB")
        say(where)
        return Result(self.folder, False, metrics)

    def _left(self, step: int, interrupted: bool) -> Result:
        """It is to go on another time."""
        hint = f"interrupted at step {step}; go on with: {self.kept.command}"
        say("interrupted; nothing was saved, because of --no_save_emb" if self.config.no_save_emb else hint)
        return Result(self.folder, interrupted, None)

    def _choose(self) -> None:
        """Validate the last rows, where that was not done, and take the best ones. Raises KgdistError."""
        step, kept = self.steps[0], self.kept
        if step not in (kept.best["step"], self.validated):
            self._validate(step)
        best = kept.best
        if not self.config.no_save_emb and best["step"] not in (0, step):
            kept.take_best()
            say(f"the embeddings of step {best['step']} are kept, which had the best validation MRR, {best['mrr']:.4f}")

    def _test(self) -> dict[str, Any]:
        with self.interrupts.immediate():
            report = self.evaluator.run(self.model, self.tables, "test")
        write_json(self.folder / "test.json", report)
        self.observer.write("test", step=self.steps[0], **report["all"]["realistic"])
        return report

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

    def stopping(self) -> bool:
        """See Control."""
        return self.session.stopping()

    def report(self, step: int, positives: int, losses: Losses) -> None:
        """See Control."""
        self.sums += (losses.positive, losses.negative, losses.total, losses.regularization)
        self.positives += positives
        self.session.steps = [step]
        self.session.observer.update(step, self.positives, self.sums)

    def meeting(self, step: int) -> bool:
        """See Control."""
        return self.session.meeting(step) or self.session.rhythm.by_clock()

    def meet(self, step: int) -> None:
        """See Control."""
        self.session.meet(step, [step])
