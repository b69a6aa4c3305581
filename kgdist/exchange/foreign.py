"""Models that were trained elsewhere, as runs of ours: a folder with embeddings, names and options that every command reads.

What a folder of DGL-KE or PyKEEN holds is said by from_dglke.py and from_pykeen.py; here it becomes a run, whole or not at all.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.progress import bar
from kgdist.data.vocabulary import Vocabulary
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runs import rundir

BLOCK = 1 << 20  # numbers converted at once


@dataclass(frozen=True)
class Table:
    """Rows that become rows of ours."""

    rows: int
    width: int  # of a row of ours
    read: Callable[[int, int], np.ndarray]  # rows start..stop -> float[stop - start, width]


@dataclass(frozen=True)
class Foreign:
    """A model as its folder has it."""

    config: Config
    tables: dict[str, Table]
    entities: Vocabulary
    relations: Vocabulary


def adopt(model: Foreign, save_path: str | Path) -> Path:
    """Make the run `<save_path>/<model>_<dataset>_<n>`, and return its folder. Memory: a block of rows, and the names.

    Raises CheckpointError (tables of other shapes than model and names ask for, or numbers that are not finite), KgdistError
    (disk full); then nothing is left.
    """
    config, shapes = model.config, check(model)
    folder = rundir.create(save_path, config.run_name)
    try:
        with bar(total=sum(rows for rows, _ in shapes.values()), desc=f"reading {config.model_name}", unit=" rows") as progress:
            for name, file in rundir.array_names(config).items():
                rundir.save_rows(folder / file, shapes[name], _blocks(name, model.tables[name], progress.update))
        rundir.save_settings(folder, config, model.entities, model.relations)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def check(model: Foreign) -> dict[str, tuple[int, int]]:
    """The shapes that the model's tables must have, by name. Raises CheckpointError when they have others."""
    name_of, shapes = model.config.model_name, model_of(model.config).tables(len(model.entities), len(model.relations))
    for name, shape in shapes.items():
        found = model.tables.get(name)
        if found is None or (found.rows, found.width) != shape:
            given = "is missing" if found is None else f"has {found.rows:,} rows of {found.width} numbers"
            raise CheckpointError(f"the table {name} {given}, {name_of} needs {shape[0]:,} rows of {shape[1]}")
    return shapes


def _blocks(name: str, table: Table, tick: Callable[[int], object]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    step = max(1, BLOCK // max(table.width, 1))
    for start in range(0, table.rows, step):
        stop = min(start + step, table.rows)
        with np.errstate(over="ignore"):  # told below
            rows = table.read(start, stop).astype(np.float32, copy=False)
        if not np.isfinite(rows).all():
            bad = start + int(np.flatnonzero(~np.isfinite(rows).all(axis=1))[0])
            raise CheckpointError(f"row {bad} of the table {name} is not finite in float32; was this model trained to its end?")
        yield np.arange(start, stop), rows
        tick(stop - start)
