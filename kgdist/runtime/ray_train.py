"""Ray Train starts the workers of a graph encoder: `train_gnn` in its TorchTrainer, with its restarts, checkpoints and metrics.

A checkpoint that Ray Train keeps is a run folder with that one checkpoint in it, so a worker that is placed where the run folder
cannot be seen has it from there.
"""

from __future__ import annotations

import logging
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgdist.base.errors import KgdistError, PeersLost, UsageError, counted
from kgdist.base.files import read_json
from kgdist.base.log import complain, log, say, setup
from kgdist.options.config import Config
from kgdist.options.configfile import from_json, to_json
from kgdist.options.model_file import bring
from kgdist.runs import checkpoint
from kgdist.runs.rundir import JOB, resume_command
from kgdist.runtime.cluster.encoder_job import found, hint_of, newest, partition_of
from kgdist.runtime.cluster.training_plan import data_folder, run_folder
from kgdist.runtime.course import Result
from kgdist.runtime.gnn import train_gnn
from kgdist.runtime.ip_config import unplaced
from kgdist.runtime.ray_agents import RayCluster
from kgdist.runtime.ray_session import first_line
from kgdist.runtime.share import check_partitions

KEPT = ("config.json", "entities.tsv", "relations.tsv", "metrics.jsonl", "valid.json", JOB)  # of a run folder, besides
BEST = "best"  # the checkpoint of the best rows so far
RAY_TRAIN = ".ray_train"  # beside the run folders, and not one of them: what Ray Train keeps
WORKER, CONTROLLER = "RayTrainWorker", "TrainController"  # what Ray Train calls its processes
OURS = ("DEBUG: ", "INFO: ", "WARNING: ", "ERROR: ")  # how lines of ours begin on stderr; it writes there, too
START = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"  # seconds that Ray Train waits for places


def train_worker(given: dict[str, Any]) -> None:
    """What each worker of Ray Train does, the `train_loop_per_worker` of its TorchTrainer.

    Args:
        given: `config`, options by name, as `train_gnn` takes them; `run`, what names this training when it is begun again,
            from whatever Ray Train has kept. The command gives all options as `json`.
    """
    from ray import train

    config: Config | dict[str, Any] = given.get("config", {})
    save_path = Path(given.get("config", {}).get("save_path", Config.save_path))
    if "json" in given:
        config = from_json(given["json"])
        setup(debug=config.debug, quiet=config.quiet, who=f"worker {train.get_context().get_world_rank()}")
        save_path = Path(config.save_path)
        if config.model_file:
            bring(config.model_file)
    last = train.get_checkpoint()
    if last is not None and train.get_context().get_world_rank() == 0:
        with last.as_directory() as folder:
            _restore(Path(folder), save_path)

    def report(metrics: dict[str, Any], folder: Path | None, step: int) -> None:
        if folder is None:
            train.report(metrics)
            return
        staged = folder.with_name(f".{folder.name}.staged")  # what a killed process has left there goes
        try:
            _stage(folder, step, staged / folder.name)
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(staged))
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    train_gnn(config, run=given.get("run"), resuming=given.get("resuming"), reports=report)


def _stage(folder: Path, step: int, target: Path) -> None:
    """A run folder with one checkpoint, the best rows so far, and the files that a training goes on with; of links, for Ray Train
    copies it: another copy would cost as long as writing the checkpoint, and as much room."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for name in (f"ckpt-{step}", BEST):
        if (folder / name).exists():
            shutil.copytree(folder / name, target / name, copy_function=_link)
    for name in KEPT:
        if (folder / name).exists():
            _link(folder / name, target / name)


def _link(source: str | Path, target: str | Path) -> None:
    """The same file under another name too; a copy where the file system has no such names."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _restore(kept: Path, save_path: Path) -> None:
    """Put the run folder that Ray Train has kept where the training looks for it, unless what is there has come further."""
    for folder in kept.iterdir():
        place, last = save_path / folder.name, newest(folder)
        if last is None or (newest(place) or 0) >= last:
            continue
        place.mkdir(parents=True, exist_ok=True)
        for name in (BEST, f"ckpt-{last}"):  # what is there without its checkpoint is not gone on with
            if (folder / name).exists():
                with checkpoint.whole(place / name) as half:
                    shutil.copytree(folder / name, half, dirs_exist_ok=True)
        for name in KEPT:
            if (folder / name).exists():
                shutil.copy2(folder / name, place / name)


def launch(config: Config) -> Result:
    """Train as `config` says (already resolved) by Ray Train, one worker a partition.

    Raises what `ray_of` raises; UsageError for a cluster that is too small, or has no room in time; PeersLost when workers were
    lost too often; KgdistError for what one of them has failed of.
    """
    part = partition_of(config)
    workers = len(part.manifest.common.contents)
    check_partitions(config, part, workers)
    root = run_folder(config)
    run = uuid.uuid4().hex[:16]
    # A worker of Ray begins in a folder of Ray's.
    told = config.replace(save_path=str(root.absolute()), data_path=str(data_folder(config).absolute()))
    if config.resume:
        told = told.replace(resume=str(run_folder(config, config.resume).absolute()))
    given = {"json": to_json(told), "run": run, "resuming": resume_command("kgdist-dist-train", run, config)}
    with RayCluster(config, unplaced(workers)) as cluster:
        cluster.begin(_tell)
        logging.getLogger("ray").setLevel(logging.ERROR)
        os.environ.setdefault(START, f"{cluster.patience:g}")
        try:
            trainer = _trainer(told, given, workers)
        except ImportError as error:
            raise UsageError(f"--backend ray-train needs Ray Train ({error}): pip install 'kgdist[ray-train]'") from error
        cluster.find_room()
        if not config.quiet:
            kept = Path(told.save_path) / RAY_TRAIN / f"kgdist-{run}"
            say(f"{part.name}: {workers} workers by Ray Train, which keeps its two last checkpoints in {kept}")
        try:
            trainer.fit()
        except (KeyboardInterrupt, SystemExit):  # Ray Train has ended the workers, and means to end this process
            log.warning("interrupted%s", hint_of(config, run))
            return Result(found(config, run), True, None)
        except Exception as error:
            cause = _cause(error)
            if isinstance(cause, KgdistError) and not isinstance(cause, PeersLost):
                raise cause from error
            late = type(cause).__name__ == "WorkerGroupStartupTimeoutError"
            reason = str(cause) if isinstance(cause, PeersLost) else cluster.no_place if late else _last_line(error)
            raise PeersLost(f"--backend ray-train: {reason}{hint_of(config, run)}") from error
    folder = found(config, run)
    tested = config.test and folder is not None and (folder / "test.json").exists()
    return Result(folder, False, read_json(folder / "test.json") if tested and folder is not None else None)


class Failures:
    """What becomes of a training whose workers fail. `restarts`: how often all begin again with no checkpoint between."""

    def __init__(self, restarts: int) -> None:
        self._restarts, self._attempt, self._lost, self._step = restarts, 1, 0, 0
        self._told = ""

    def saved(self, step: int) -> None:
        """There is a checkpoint of that step."""
        self._step, self._lost = step, 0

    def failed(self, errors: Mapping[int, Exception], seen: int = 0) -> str:
        """What to say of the errors of workers, by rank, before all begin again; empty if it was said. `seen`: the step of the
        last checkpoint that is there, for the first worker saves what it has when it misses another one.

        Raises the error that ends the training: UsageError or KgdistError for what a worker has failed of by itself; PeersLost
        when workers were lost too often.
        """
        gone = [rank for rank in sorted(errors) if type(errors[rank]).__module__.partition(".")[0] == "ray"]
        for rank, error in sorted(errors.items()) if not gone else ():  # else whatever the others say may come of that
            if not isinstance(error, PeersLost):
                kind = UsageError if isinstance(error, UsageError) else KgdistError
                name = "" if isinstance(error, KgdistError) else f"{type(error).__name__}: "
                raise kind(f"worker {rank}: {name}{first_line(error)}")
        rank = min(gone or errors)
        reason = getattr(errors[rank], "health_check_failure", errors[rank])
        lost = f"worker {rank} {'was lost' if gone else 'misses another one'} ({first_line(reason)})"
        step = max(self._step, seen)
        again = f"{lost}; all begin again{f' at the checkpoint of step {step}' if step else ''}"
        if getattr(reason, "preempted", False):  # a node was taken back, which is no fault; Ray Train tells of it again and again
            self._told, again = again, again if again != self._told else ""
            return again
        self._attempt, self._lost = self._attempt + 1, self._lost + 1
        if self._lost > self._restarts:
            raise PeersLost(f"{lost}, after {counted(self._attempt - 1, 'attempt')}")
        return f"{again}, attempt {self._attempt} of {self._attempt + self._restarts - self._lost}"


def _trainer(config: Config, given: dict[str, Any], workers: int) -> Any:
    import ray.train
    from ray.train.torch import TorchConfig, TorchTrainer

    train: Any = ray.train  # whose types are those of its first version
    failures, quiet = Failures(config.max_restarts), config.quiet

    class Told(train.UserCallback):  # type: ignore[misc]
        """Hears of the workers, in a process of Ray Train's; what it raises ends the training."""

        def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
            if checkpoint is not None:
                failures.saved(metrics[0]["step"])

        def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
            setup(quiet=quiet)
            folder = found(config, given["run"])
            seen = 0 if folder is None else newest(folder) or 0
            if line := failures.failed(worker_exceptions, seen):
                log.warning("%s", line)

    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    placement = {"strict_spread": "STRICT_SPREAD", "spread": "SPREAD"}[config.ray_placement]
    # `Told` counts failures of workers; those to find places count here.
    failing = train.FailureConfig(max_failures=-1, controller_failure_limit=config.max_restarts)
    return TorchTrainer(
        train_worker,
        train_loop_config=given,
        torch_config=TorchConfig(backend="gloo", timeout_s=int(config.stall_timeout)),
        scaling_config=train.ScalingConfig(
            num_workers=workers, resources_per_worker={"CPU": config.cores}, placement_strategy=placement
        ),
        run_config=train.RunConfig(
            name=f"kgdist-{given['run']}",
            storage_path=str(Path(config.save_path) / RAY_TRAIN),
            failure_config=failing,
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
            callbacks=[Told()],
        ),
    )


def _tell(data: Mapping[str, Any]) -> None:
    """Lines of the workers, and what is said of them, as they are; what Ray says of itself is for --debug."""
    name = str(data.get("actor_name") or "")
    for line in data["lines"]:
        if data["is_err"] and line.startswith(OURS) and (WORKER in name or CONTROLLER in name):
            complain(line)
        elif data["is_err"] or WORKER not in name:
            log.debug("Ray: %s", line)
        else:
            say(line)


def _cause(error: Exception) -> Exception:
    """What Ray Train has met: an error of its own, or the one that our callback has raised."""
    return getattr(error, "controller_failure", None) or getattr(error, "cause", None) or error


def _last_line(error: Exception) -> str:
    """Of an error that many have passed on."""
    told = [line.strip() for line in str(error).splitlines() if line.strip()]
    return told[-1] if told else first_line(error)
