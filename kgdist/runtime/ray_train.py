"""Ray Train starts the workers of a graph encoder: `train_gnn` in its TorchTrainer, with its restarts, checkpoints and metrics.

A checkpoint that Ray Train keeps is a run folder with that one checkpoint in it, so a worker that is placed where the run folder
cannot be seen has it from there.
"""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kgdist.base.errors import PeersLost, UsageError
from kgdist.base.files import read_json
from kgdist.base.log import complain, log, say
from kgdist.options.config import Config
from kgdist.options.configfile import from_json, to_json
from kgdist.options.model_file import bring
from kgdist.runs import checkpoint
from kgdist.runs.rundir import JOB, resume_command
from kgdist.runtime.cluster.encoder_job import found, partition_of
from kgdist.runtime.cluster.training_plan import data_folder, run_folder
from kgdist.runtime.course import Result
from kgdist.runtime.gnn import train_gnn
from kgdist.runtime.ip_config import unplaced
from kgdist.runtime.job import last_words
from kgdist.runtime.ray_agents import RayCluster
from kgdist.runtime.ray_session import first_line
from kgdist.runtime.share import check_partitions

KEPT = ("config.json", "entities.tsv", "relations.tsv", JOB)  # of a run folder, besides the checkpoint
RAY_TRAIN = ".ray_train"  # beside the run folders, and not one of them: what Ray Train keeps
WORKER = "RayTrainWorker"  # what Ray Train calls them
OURS = ("WARNING: ", "ERROR: ")  # how lines of ours begin on stderr; it writes there, too


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
        with tempfile.TemporaryDirectory(prefix="kgdist-") as staged:
            _stage(folder, step, Path(staged) / folder.name)
            train.report(metrics, checkpoint=train.Checkpoint.from_directory(staged))

    train_gnn(config, run=given.get("run"), resuming=given.get("resuming"), reports=report)


def _stage(folder: Path, step: int, target: Path) -> None:
    """A run folder with one checkpoint, and nothing else."""
    shutil.copytree(folder / f"ckpt-{step}", target / f"ckpt-{step}")
    for name in KEPT:
        if (folder / name).exists():
            shutil.copy2(folder / name, target / name)


def _restore(kept: Path, save_path: Path) -> None:
    """Put the run folder that Ray Train has kept where the training looks for it, unless it is there."""
    for folder in kept.iterdir():
        for found_there in folder.glob("ckpt-*"):
            target = save_path / folder.name / found_there.name
            if not target.exists():
                half = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
                shutil.copytree(found_there, half)
                half.rename(target)
        for name in KEPT:
            if (folder / name).exists() and not (save_path / folder.name / name).exists():
                shutil.copy2(folder / name, save_path / folder.name / name)


def launch(config: Config) -> Result:
    """Train as `config` says (already resolved) by Ray Train, one worker a partition.

    Raises what `ray_of` raises; UsageError for a cluster that is too small; PeersLost when workers failed too often.
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
        cluster.check()
        logging.getLogger("ray").setLevel(logging.ERROR)
        try:
            trainer = _trainer(told, given, workers)
        except ImportError as error:
            raise UsageError(f"--backend ray-train needs Ray Train ({error}): pip install 'kgdist[ray-train]'") from error
        if not config.quiet:
            kept = Path(told.save_path) / RAY_TRAIN / f"kgdist-{run}"
            say(f"{part.name}: {workers} workers by Ray Train, which keeps its two last checkpoints in {kept}")
        try:
            trainer.fit()
        except (KeyboardInterrupt, SystemExit):  # Ray Train has ended the workers, and means to end this process
            folder = found(config, run)
            last = None if folder is None else max((step for step, _ in checkpoint.numbered(folder)), default=None)
            command = resume_command("kgdist-dist-train", run if folder is None else folder.name, config)
            log.warning("interrupted%s", last_words(last, command))
            return Result(folder, True, None)
        except Exception as error:  # whatever came of a worker, in Ray's words
            raise PeersLost(f"--backend ray-train: {_reason(error)}") from error
    folder = found(config, run)
    tested = config.test and folder is not None and (folder / "test.json").exists()
    return Result(folder, False, read_json(folder / "test.json") if tested and folder is not None else None)


def _trainer(config: Config, given: dict[str, Any], workers: int) -> Any:
    from ray import train
    from ray.train.torch import TorchConfig, TorchTrainer

    os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")
    placement = {"strict_spread": "STRICT_SPREAD", "spread": "SPREAD"}[config.ray_placement]
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
            failure_config=train.FailureConfig(max_failures=config.max_restarts),
            checkpoint_config=train.CheckpointConfig(num_to_keep=2),
        ),
    )


def _tell(data: Mapping[str, Any]) -> None:
    """Lines of the workers, as they are; what Ray says of itself is for --debug."""
    for line in data["lines"]:
        if WORKER not in str(data.get("actor_name") or "") or (data["is_err"] and not line.startswith(OURS)):
            log.debug("Ray: %s", line)
        elif data["is_err"]:
            complain(line)
        else:
            say(line)


def _reason(error: Exception) -> str:
    """The last line of an error that many have passed on."""
    told = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in told if line.startswith("kgdist.base.errors.")]
    return own[-1].partition(": ")[2] if own else (told[-1] if told else first_line(error))
