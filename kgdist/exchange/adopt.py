"""Models that were trained elsewhere, as runs of ours: a folder with embeddings, names and options that every command reads.

A model becomes a run whole or not at all. A folder of DGL-KE is read here, one of PyKEEN by pykeen.py, of LibKGE by libkge.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError, UsageError
from kgdist.base.files import read_json
from kgdist.base.log import bar
from kgdist.data.dataset import open_dataset
from kgdist.data.vocabulary import Vocabulary
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.runs import rundir

Names = tuple[Vocabulary, Vocabulary]  # of entities, of relations
BLOCK = 1 << 20  # numbers converted at once


@dataclass(frozen=True)
class ForeignTable:
    """Rows that become rows of ours."""

    rows: int
    width: int  # of a row of ours
    read: Callable[[int, int], np.ndarray]  # rows start..stop -> float[stop - start, width]


@dataclass(frozen=True)
class Foreign:
    """A model as its folder has it."""

    config: Config
    tables: dict[str, ForeignTable]
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
    name_of, shapes = model.config.model_name, model_of(model.config).shapes(len(model.entities), len(model.relations))
    for name, shape in shapes.items():
        found = model.tables.get(name)
        if found is None or (found.rows, found.width) != shape:
            given = "is missing" if found is None else f"has {found.rows:,} rows of {found.width} numbers"
            raise CheckpointError(f"the table {name} {given}, {name_of} needs {shape[0]:,} rows of {shape[1]}")
    return shapes


def _blocks(name: str, table: ForeignTable, tick: Callable[[int], object]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
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


def read_dglke(folder: Path, config: Config, names: Names | None) -> Foreign:
    """The model that DGL-KE's training left in `folder`, trained with `config`: its arrays as they are.

    The names of its ids lie with its data, not with its model: entities.tsv and relations.tsv in --data_path (raw_udd), the
    dictionary files (udd), or the data set's own (built_in). Ids made again from the triples could be others, so they are not.
    `names` win over those that are found. Raises CheckpointError for a folder that is none of DGL-KE's, an array that is damaged
    or of another shape than options and names say, and for names that are nowhere.
    """
    opened = rundir.open_run(folder)
    saved = read_json(folder / "config.json")
    if "kgdist_version" in saved:
        raise UsageError(f"{folder}: is a run of kgdist already; every command reads it as it is")
    # Its release 0.1 does not say the format, and only raw_udd has maps in data_path.
    entities, relations = names or _names(opened, config if "format" in saved else config.replace(format="raw_udd_hrt"))
    tables = rundir.load_tables(opened, opened.config, model_of(opened.config), len(entities), len(relations)).rows
    return Foreign(config, {name: _as_it_is(rows.numpy()) for name, rows in tables.items()}, entities, relations)


def _as_it_is(rows: np.ndarray) -> ForeignTable:
    return ForeignTable(len(rows), rows.shape[1], lambda start, stop: rows[start:stop])


def _names(opened: rundir.RunFolder, config: Config) -> Names:
    try:
        with_maps = rundir.maps_with_data(opened, config)
        if with_maps.vocabularies is not None:
            return with_maps.vocabularies
        dataset = open_dataset(config)
    except KgdistError as error:
        raise CheckpointError(f"{error}; or give --entity_mfile and --rel_mfile") from error
    return dataset.entities, dataset.relations
