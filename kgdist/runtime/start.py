"""Where the rows and the steps of a run start: at random, at rows that the user brings, or where this run has stopped."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import torch

from kgdist.base.errors import CheckpointError, OptionError
from kgdist.base.files import Moved, unwatched
from kgdist.base.log import log
from kgdist.data.dataset import Dataset
from kgdist.kvstore.tables import MemoryTables, initialise
from kgdist.models.base import Model
from kgdist.options.config import Config
from kgdist.runs import checkpoint, rundir
from kgdist.runtime.brought import OWN, Say, brought
from kgdist.runtime.checks import check_rows, features_of

# `best` of a `Place` before the first validation
NEVER: dict[str, Any] = {"mrr": -1.0, "step": 0, "counted": -1.0, "waited": 0, "lowered": 0, "validated": False}


def fresh(config: Config, model: Model, dataset: Dataset, tables: MemoryTables, say: Say) -> None:
    """Random rows, and over them those of `--init_vectors` or `--init_from`. Raises KgdistError when these do not fit."""
    for name in tables.names():
        if name in tables.specs:  # whoever added it fills it
            continue
        at_random(config, model, tables, name)
    if (
        source := brought(config, model, (dataset.entities, dataset.relations), lambda: tables.rows["entity"][:OWN], say)
    ) is None:
        return
    for table, ids, values in source.rows():
        rows = tables.rows[table]
        rows[torch.from_numpy(model.rows_of(table, ids)).to(rows.device), : values.shape[1]] = values.to(rows.device)


def at_random(
    config: Config,
    model: Model,
    tables: MemoryTables,
    name: str,
    *,
    first: int = 0,
    total: int | None = None,
    moved: Moved = unwatched,
) -> None:
    """Fill a table, or rows `first` and following of one of `total`, with what they start at."""
    kind, spread = model.initial.get(name, (config.init, model.init_range))
    if config.init_scale is not None and name not in model.initial and not (model.angles and name == "relation"):
        spread = config.init_scale * (3 if kind == "normal" else 1)
    stream = tables.names().index(name)
    initialise(tables.rows[name], kind, spread, seed=config.seed, stream=stream, first=first, total=total, moved=moved)


class Resumed(NamedTuple):
    """Where a run goes on."""

    steps: list[int]  # that each worker has done
    best: dict[str, Any]  # the best validation so far
    number: int  # of the checkpoint


def resumed(config: Config, dataset: Dataset, tables: MemoryTables, folder: Path, epoch: int) -> Resumed:
    """Load the last checkpoint of the run `folder`; where the training goes on whose workers make `epoch` steps an epoch.

    What killed processes have left in the folder is put right before (`checkpoint.sweep`), when nothing else keeps it from being
    resumed. Raises KgdistError when the run does not fit these options or this data.
    """
    run = rundir.open_run(folder)
    if run.vocabularies is None or any(
        old.digest != new.digest for old, new in zip(run.vocabularies, (dataset.entities, dataset.relations), strict=True)
    ):
        raise OptionError("--resume", f"{folder} was trained on other entities or relations than {dataset.name} has now")
    check_rows(config, run.config, folder)
    checkpoint.sweep(folder)

    def accept(found: checkpoint.Checkpoint) -> None:
        steps_done(found)
        _validations(found)
        take(found, tables)

    saved = checkpoint.latest(folder, accept)
    now = features_of(config).get("attributes")
    if saved.meta.get("attributes", now) != now:
        problem = f"{config.attributes} holds other features than {folder} was trained with"
        raise OptionError("--attributes", f"{problem}; name those, or train a new run")
    epochs = epoch if config.max_epoch is not None else None  # otherwise it is steps that count
    done, times = steps_done(saved), _times(saved, epochs)
    steps = shared_out(done, config.num_proc) if times == 1 else [int(Fraction(sum(done), len(done)) * times)] * config.num_proc
    return Resumed(steps, _validations(saved) | _best_saved(folder, epochs), saved.step)


def _times(saved: checkpoint.Checkpoint, epoch: int | None) -> Fraction:
    """How many steps are as much of an epoch, where it has `epoch` steps now, as one was when the checkpoint was written. 1 for
    None, and where that does not say it, being of an older kgdist."""
    was = saved.meta.get("epoch")
    return Fraction(epoch, was) if epoch is not None and type(was) is int and was > 0 else Fraction(1)


def steps_done(saved: checkpoint.Checkpoint) -> list[int]:
    """Of each worker, before the checkpoint. Raises CheckpointError."""
    steps = saved.meta.get("steps")
    if not isinstance(steps, list) or not steps or not all(type(step) is int and step >= 0 for step in steps):
        raise CheckpointError(f"{saved.path / 'manifest.json'}: the progress of the run is not in it (steps: {steps!r:.40})")
    return list(steps)


def shared_out(steps: list[int], workers: int) -> list[int]:
    """Where each of so many workers goes on: other ones than before share what has been done."""
    return steps if len(steps) == workers else [sum(steps) // workers] * workers


def _validations(saved: checkpoint.Checkpoint) -> dict[str, Any]:
    """`best` of a `Place` when the checkpoint was written. Raises CheckpointError."""
    best = saved.meta.get("best")
    found = NEVER | best if isinstance(best, dict) else {"waited": None}
    numbers = [found.get(name) for name in ("waited", "lowered")]
    if not all(type(count) is int and count >= 0 for count in numbers) or not isinstance(found["counted"], float | int):
        raise CheckpointError(f"{saved.path / 'manifest.json'}: the progress of the run is not in it (best: {best!r:.40})")
    return found


def take(saved: checkpoint.Checkpoint, tables: MemoryTables, moved: Moved = unwatched) -> None:
    """Read a checkpoint into the tables, in the pass that verifies it.

    Raises OptionError when its shapes are others; CheckpointError when it is damaged, and the tables then must be filled anew.
    """
    arrays = tables.arrays()
    for key in sorted(arrays.keys() | saved.arrays.keys()):
        shape, found = (of[key].shape if key in of else None for of in (arrays, saved.arrays))
        if found != shape:
            raise OptionError("--resume", f"{saved.path}: {key} is {found}, but these options make it {shape}")
    if all(rows.device.type == "cpu" for rows in tables.rows.values()):
        saved.read(arrays, moved)
    else:
        saved.read({}, moved)
        tables.load(saved.arrays)


def _best_saved(folder: Path, epoch: int | None) -> dict[str, Any]:
    """MRR and step of the run's best embeddings, which may be newer than its checkpoint. `epoch`: see `_times`."""
    nothing = {"mrr": NEVER["mrr"], "step": NEVER["step"]}
    if not (folder / "best").exists():
        return nothing
    try:
        best = checkpoint.opened(folder / "best")
        if not isinstance(mrr := best.meta.get("mrr"), float | int):
            raise CheckpointError(f"{best.path / 'manifest.json'}: the MRR is not in it")
    except CheckpointError as error:
        log.warning("%s; the best embeddings are looked for again", error)
        return nothing
    return {"mrr": float(mrr), "step": min(best.step, 1) and max(1, int(best.step * _times(best, epoch)))}
