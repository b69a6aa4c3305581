"""A whole training on this machine, from options to a saved and tested run.

One process trains in place; several share the tables and are run by `kgdist.runtime.workers`. Either way the same loop runs, and
what happens when all of it stands still (validation, checkpoint, the end) happens here.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kgdist import checkpoint, runs
from kgdist.config import Config
from kgdist.data.store import Dataset
from kgdist.errors import CheckpointError, KgdistError, OptionError
from kgdist.evaluator import Evaluator
from kgdist.files import write_json
from kgdist.kvstore.tables import MemoryTables, initialise
from kgdist.log import log, say
from kgdist.models.base import Model
from kgdist.runtime.control import SharedControl
from kgdist.runtime.interrupt import Interrupts
from kgdist.runtime.job import device_of, meetings_of, model_of, open_dataset, steps_of, trainer_of
from kgdist.runtime.memory import keep_freed_memory, peak_of_this_process, used_now
from kgdist.runtime.observe import Observer, curves_writer
from kgdist.runtime.refuse import check_disk, check_memory, check_splits, different
from kgdist.runtime.workers import Workers
from kgdist.trainer import Losses


@dataclasses.dataclass(frozen=True)
class Result:
    """How a training ended."""

    folder: Path | None
    interrupted: bool
    metrics: dict[str, Any] | None  # of the test split


def train(config: Config) -> Result:
    """Train as `config` says (already resolved). Raises KgdistError; Ctrl-C ends it with a checkpoint and `interrupted`."""
    keep_freed_memory()
    torch.set_num_threads(config.num_thread)
    dataset = open_dataset(config)
    check_splits(config, dataset)
    if not config.quiet:
        sizes = f"{len(dataset.entities)} entities, {len(dataset.relations)} relations, {len(dataset.train)} training triples"
        say(f"{dataset.name}: {sizes}")
    with Interrupts() as interrupts:
        session = Session(config, dataset, interrupts)
        try:
            session.train()
            return session.finish()
        finally:
            session.close()


class Session:
    """One training: its tables, its folder, and what is known of its course."""

    def __init__(self, config: Config, dataset: Dataset, interrupts: Interrupts) -> None:
        self.config = config
        self.dataset = dataset
        self.interrupts = interrupts
        self.model = model_of(config)
        self.total = steps_of(config, len(dataset.train))
        self.meeting = meetings_of(config)
        self.start = [0] * config.num_proc  # steps done by each process
        self.best: dict[str, Any] = {"mrr": -1.0, "step": 0, "waited": 0}
        self.validated = 0  # the step of the last validation
        self.stop_early = False
        self.memory = 0
        shapes = self.model.tables(len(dataset.entities), len(dataset.relations))
        check_memory(config, shapes)
        one_gpu = config.num_proc == 1 and config.gpu[0] >= 0 and not config.mix_cpu_gpu
        device = device_of(config, 0) if one_gpu else torch.device("cpu")
        self.tables = MemoryTables.create(shapes, config.optimizer, shared=config.num_proc > 1, device=device)
        try:
            self._refuse()
            self.evaluator = Evaluator(dataset, config)
            self.folder = self._resume(Path(config.resume)) if config.resume else self._new_run()
            self.observer = Observer(config, self.folder, total=self.total * config.num_proc, initial=sum(self.start))
        except BaseException:
            self.tables.close()
            raise

    def _refuse(self) -> None:
        """What cannot be trained is refused while nothing has been written."""
        config = self.config
        if config.num_proc > 1:  # the share that is empty first is the last one of relations, and the first one of slices
            trainer_of(config, self.dataset.train, self.tables, config.num_proc - 1 if config.rel_part else 0)
        if config.tensorboard:
            curves_writer()

    def _new_run(self) -> Path:
        config = self.config
        self._initialise()
        check_disk(config, self.tables)
        folder = runs.create(config.save_path, config.run_name)
        runs.save_settings(folder, config, self.dataset.entities, self.dataset.relations)
        self.say(f"run folder: {folder}")
        return folder

    # ---- where the rows start

    def _initialise(self) -> None:
        config = self.config
        for stream, name in enumerate(self.tables.names()):
            # TransR's projections start in U(-1, 1) whatever --init says, as in DGL-KE.
            kind, spread = (config.init, self.model.init_range) if name != "projection" else ("uniform", 1.0)
            initialise(self.tables.rows[name], kind, spread, seed=config.seed, stream=stream)
        if config.init_from:
            self._warm_start(Path(config.init_from))

    def _warm_start(self, path: Path) -> None:
        """Copy the rows of every name that run `path` knows; others keep their random start."""
        run = runs.open_run(path)
        if run.vocabularies is None:
            raise OptionError("--init_from", f"{path} has no entities.tsv and relations.tsv, so its rows have no names")
        if array := different(run.config, self.config):
            raise OptionError("--init_from", f"{path} was trained with {array}")
        old = runs.load_tables(run, run.config, self.model, len(run.vocabularies[0]), len(run.vocabularies[1]))
        ours = (self.dataset.entities, self.dataset.relations)
        for table in self.tables.names():
            which = 0 if table == "entity" else 1
            found = run.vocabularies[which].find(ours[which].names(np.arange(len(ours[which]))))  # int64, -1: not there
            known = np.flatnonzero(found >= 0)
            self.tables.rows[table][torch.from_numpy(known)] = old.rows[table][torch.from_numpy(found[known])].to(
                self.tables.rows[table].device
            )
            self.say(f"--init_from: {len(known)} of {len(found)} rows of {table} taken from {path}, the others start at random")

    def _resume(self, folder: Path) -> Path:
        saved = checkpoint.latest(folder)
        run = runs.open_run(folder)
        if run.vocabularies is None or any(
            old.digest != new.digest
            for old, new in zip(run.vocabularies, (self.dataset.entities, self.dataset.relations), strict=True)
        ):
            raise OptionError("--resume", f"{folder} was trained on other entities or relations than {self.dataset.name} has now")
        if difference := different(run.config, self.config, "optimizer"):
            raise OptionError("--resume", f"{folder} was trained with {difference}")
        shapes = {key: array.shape for key, array in self.tables.arrays().items()}
        for key in sorted(shapes.keys() | saved.arrays.keys()):
            shape, found = shapes.get(key), saved.arrays[key].shape if key in saved.arrays else None
            if found != shape:
                raise OptionError("--resume", f"{saved.path}: {key} is {found}, but these options make it {shape}")
        self.tables.load(saved.arrays)
        try:
            steps = [int(step) for step in saved.meta["steps"]]
            self.best = {"waited": int(saved.meta["best"]["waited"])} | self._best_saved(folder)
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"{saved.path / 'manifest.json'}: the progress of the run is not in it ({error})") from error
        self.start = steps if len(steps) == self.config.num_proc else [sum(steps) // self.config.num_proc] * self.config.num_proc
        runs.save_settings(folder, self.config, self.dataset.entities, self.dataset.relations)
        self.say(f"resumed {folder} at step {min(self.start)} of {self.total}")
        if min(self.start) >= self.total:
            say(f"nothing is left to train: it has done all {self.total} steps; give a larger --max_step to go on")
        return folder

    def _best_saved(self, folder: Path) -> dict[str, Any]:
        """MRR and step of the run's best embeddings, which may be newer than its checkpoint."""
        if not (folder / "best").exists():
            return {"mrr": -1.0, "step": 0}
        try:
            best = checkpoint.load(folder / "best")
        except CheckpointError as error:
            log.warning("%s; the best embeddings are looked for again", error)
            return {"mrr": -1.0, "step": 0}
        return {"mrr": float(best.meta["mrr"]), "step": best.step}

    # ---- the course

    def train(self) -> None:
        """Run the loop to its end, early stop or Ctrl-C."""
        if self.config.num_proc == 1:
            trainer = trainer_of(self.config, self.dataset.train, self.tables, 0)
            self.start = [trainer.run(_SoloControl(self), self.start[0])]
        else:
            self._train_processes()
        self.observer.pause()
        self.observer.bar.close()

    def _train_processes(self) -> None:
        config = self.config
        warm_up(self.model)
        handles = self.tables.handles()
        job = {
            "config": dataclasses.asdict(config),
            "store": str(self.dataset.folder),
            "tables": handles,
            "start": self.start,
            "threads": config.num_thread,
        }
        workers = Workers(config.num_proc, job, [handle["fd"] for handle in handles.values()], threads=config.num_thread)
        ticks = 0

        def done() -> list[int]:
            return [max(step, start) for step, start in zip(workers.steps(), self.start, strict=True)]

        def tick(shared: SharedControl) -> None:
            nonlocal ticks
            if self.interrupts.asked or self.stop_early:
                shared.stop()
            if ticks % 50 == 0:
                self.memory = max(self.memory, used_now(workers.pids()))
            ticks += 1
            self.observer.update(sum(done()), workers.positives(), workers.sums())

        def met(step: int) -> None:
            self.meet(step, done())

        try:
            self.start = workers.watch(met, tick, self.say)
        finally:
            workers.close()

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
        if interrupted:
            if config.no_save_emb:
                say("interrupted; nothing was saved, because of --no_save_emb")
            else:
                say(f"interrupted at step {min(self.start)}; go on with: kgdist-train --resume {self.folder}")
            return Result(self.folder, True, None)
        if config.valid and self.start[0] not in (self.best["step"], self.validated):
            self._validate(self.start[0])
        if config.valid and not config.no_save_emb and self.best["step"] not in (0, self.start[0]):
            self.tables.load(checkpoint.load(self.folder / "best").arrays)
            say(f"the embeddings of step {self.best['step']} are kept, which had the best validation MRR, {self.best['mrr']:.4f}")
        if not config.no_save_emb:
            runs.save_embeddings(self.folder, config, {n: a for n, a in self.tables.arrays().items() if "." not in n})
        self._say_speed()
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

    def _say_speed(self) -> None:
        seconds = self.observer.seconds
        if self.observer.positives:
            rate = self.observer.positives / max(seconds, 1e-9)
            say(f"training took {seconds:.1f} seconds: {self.observer.positives} triples, {rate:,.0f} triples/s")

    def close(self) -> None:
        """Give up bar, files and shared memory."""
        self.observer.close()
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
        return self.session.interrupts.asked or self.session.stop_early

    def report(self, step: int, positives: int, losses: Losses) -> None:
        """See Control."""
        self.sums += (losses.positive, losses.negative, losses.total, losses.regularization)
        self.positives += positives
        self.session.observer.update(step, self.positives, self.sums)

    def meet(self, step: int) -> None:
        """See Control."""
        self.session.meet(step, [step])


def warm_up(model: Model) -> None:
    """Compile what the model's comparator needs, before several processes would each compile it."""
    q = torch.rand(1, 2, 4, requires_grad=True)
    model.comparator.cross(q, torch.rand(1, 3, 4, requires_grad=True)).sum().backward()  # type: ignore[no-untyped-call]
