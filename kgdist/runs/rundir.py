"""Run folders: what a training leaves behind, and reading one back, also one that DGL-KE wrote.

<save_path>/<model>_<dataset>_<n>/
    config.json                             every option, in DGL-KE's dialect and ours
    <dataset>_<model>_entity.npy            float32[entities, entity_dim]
    <dataset>_<model>_relation.npy          float32[relations, width]
    <dataset>_<model>projection.npy         TransR only (no underscore: DGL-KE's name)
    entities.tsv, relations.tsv             id<TAB>name
    labels.tsv                              name<TAB>label, where --labels was given
    metrics.jsonl, test.json, valid.json    curves and metrics
    test.ranks.npz                          ranks of the test triples: see kgdist.evaluation.kept
    ckpt-<step>/, best/                     see kgdist.runs.checkpoint
    job.json                                of a training that others may begin again: what it is called there
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from kgdist.base.errors import CheckpointError, KgdistError, UsageError
from kgdist.base.files import Moved, atomic_write, check_room, load_npy, read_json, safe_join, save_npy, unwatched, write_json
from kgdist.base.log import log, tell
from kgdist.data.labels import Labels, Pair, read_labels, summary, write_labels
from kgdist.data.vocabulary import Vocabulary
from kgdist.kvstore.tables import MemoryTables
from kgdist.models.base import Model
from kgdist.models.registry import model_of
from kgdist.options.config import Config
from kgdist.options.configfile import read_run, run_json
from kgdist.runs.checkpoint import encoded_from, numbered
from kgdist.version import __version__

JOB = "job.json"  # of a run folder: which training it belongs to, however often that begins again
LABELS = "labels.tsv"
SPAN = 64 << 20  # bytes of a file that are flushed at a time
# Options of a launcher that a run does not remember, or that are needed to find it.
ELSEWHERE = ("path", "ip_config", "model_file", "job", "control", "storage", "ray_address", "ray_placement")


@dataclass(frozen=True)
class RunFolder:
    """A trained run. `vocabularies` is None for a DGL-KE folder whose maps lie with its data."""

    path: Path
    config: Config
    vocabularies: tuple[Vocabulary, Vocabulary] | None


def resume_command(command: str, run: object, config: Config) -> str:
    """What goes on with a run, as it is to be typed where `command` was: what the run itself does not remember is in it."""
    if command == "kgdist-dist-train" and config.save_path != Config.save_path:
        run = Path(config.save_path) / str(run)
    words = [command, "--resume", str(run)]
    for name in ("model_file",) if command == "kgdist-train" else ELSEWHERE:
        if (value := getattr(config, name)) != getattr(Config, name):
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def create(save_path: str | Path, name: str, besides: Iterable[str] = ()) -> Path:
    """Make the folder `<save_path>/<name>_<n>`, n one more than the highest there is, here or in the names `besides`.

    Raises UsageError when it cannot be made.
    """
    root = Path(save_path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        pattern = re.compile(re.escape(name) + r"_(\d+)")
        taken = [
            int(match[1]) for found in (*(path.name for path in root.iterdir()), *besides) if (match := pattern.fullmatch(found))
        ]
        number = max(taken, default=-1) + 1
        while True:  # another run may take the number first
            try:
                folder = root / f"{name}_{number}"
                folder.mkdir()
                return folder
            except FileExistsError:
                number += 1
    except OSError as error:
        why = "is a file, not a folder" if root.is_file() else f"cannot be written ({error.strerror or error})"
        raise UsageError(f"--save_path {root}: {why}; name a folder that can be written") from error


def array_names(config: Config) -> dict[str, str]:
    """Table -> file name, as DGL-KE has them."""
    stem = f"{config.dataset}_{config.model_name}"
    usual = {"projection": f"{stem}projection.npy"}
    return {table: usual.get(table, f"{stem}_{table}.npy") for table in model_of(config).tables(1, 1)}


def save_settings(folder: Path, config: Config, entities: Vocabulary, relations: Vocabulary, data: str = "") -> None:
    """Write config.json, with the digest of the data, and the maps: all that reading the embeddings needs besides themselves."""
    entities.write_tsv(folder / "entities.tsv")
    relations.write_tsv(folder / "relations.tsv")
    # The data must be found again from any working folder.
    absolute = config.replace(data_path=str(Path(config.data_path).absolute()))
    write_json(folder / "config.json", run_json(absolute, version=__version__, data=data))


def given_labels(file: str | None, entities: Vocabulary, relations: Vocabulary) -> Pair | None:
    """The labels in a file that the user gives, if so, and a line that says how many. Raises DataError (file:line)."""
    if file is None:
        return None
    labels = read_labels(file, entities, relations)
    tell(f"{file}: {summary(labels)}")
    return labels


def labels_of(folder: Path | None, entities: Vocabulary, relations: Vocabulary, file: str | None = None) -> Pair:
    """What the things with these names are called: by `file`, which the run in `folder` then keeps, or else by what it has kept.

    Raises DataError (file:line) for a file that is none of labels.
    """
    labels = given_labels(file, entities, relations)
    if labels is not None and folder is not None:
        try:
            write_labels(folder / LABELS, labels)
        except KgdistError as error:
            log.warning("%s; give --labels again next time", error)
    elif labels is None and folder is not None and (folder / LABELS).exists():
        labels = read_labels(folder / LABELS, entities, relations)
    return labels or (Labels.none(entities), Labels.none(relations))


def save_embeddings(folder: Path, config: Config, rows: dict[str, np.ndarray]) -> None:
    """Write the tables as float32 `.npy`, each atomically. Raises KgdistError and leaves what was there."""
    for table, name in array_names(config).items():
        check_room(folder / name, 4 * rows[table].size)
        save_npy(folder / name, rows[table].astype(np.float32, copy=False))


def save_rows(
    path: Path, shape: tuple[int, int], blocks: Iterable[tuple[np.ndarray, np.ndarray]], moved: Moved = unwatched
) -> None:
    """Write a float32 `.npy` of `shape` whose rows come in any order, some at a time: int[n] their numbers, float32[n, width].

    Atomic, as save_embeddings; the pages are the file's, so memory holds no more than the system likes to keep. `moved` hears of
    the room that is taken and of what has reached the disk, which for a large file takes minutes.
    """
    with atomic_write(path, "w+b") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        offset = file.tell()
        size = offset + 4 * math.prod(shape)
        file.flush()
        spans = [(start, min(SPAN, size - start)) for start in range(0, size, SPAN)]
        for start, count in spans:
            _reserve(file.fileno(), start, count)
            moved(count)
        array = np.memmap(file, "<f4", "r+", offset, shape)
        for places, rows in blocks:
            array[places] = rows
        del array  # which leaves its pages to the file
        with mmap.mmap(file.fileno(), 0) as pages:
            for start, count in spans:
                pages.flush(start, count)
                moved(count)


def _reserve(fd: int, start: int, count: int) -> None:
    """Give a part of a file with holes its blocks. Raises OSError when the disk is full: writing to its pages would kill the
    process."""
    with contextlib.suppress(AttributeError):
        try:
            os.posix_fallocate(fd, start, count)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system that cannot
                raise


def open_run(path: str | Path, save_path: str | Path | None = None) -> RunFolder:
    """Read a run folder's options and maps. Raises CheckpointError naming what is missing, and a folder of that name in
    `save_path`."""
    folder = Path(path)
    if not folder.is_dir():
        near = Path(save_path, folder.name) if save_path is not None else folder
        hint = f"; did you mean {near}?" if near.is_dir() else _runs_here()
        raise CheckpointError(f"{folder}: no such run folder{hint}")
    if not (folder / "config.json").exists():
        inside = sorted(child.parent.name for child in folder.glob("*/config.json"))
        hint = f"; it holds runs, name one: {', '.join(inside[:5])}" if inside else _runs_here()
        raise CheckpointError(f"{folder}: has no config.json, so it is not a run folder{hint}")
    config = read_run(folder)
    if encoded_from(folder) is not None:  # its data are in it, wherever it was moved
        config = config.replace(data_path=str(folder.absolute()))
    return RunFolder(folder, config, _maps(folder, folder, "\t"))


def _runs_here() -> str:
    """Which runs there are where trainings put them by default, for who has named none."""
    found = sorted(child.parent.name for child in Path(Config.save_path).glob("*/config.json"))
    return f"; runs in {Config.save_path}: {', '.join(found[:5])}{', ...' if len(found) > 5 else ''}" if found else ""


def maps_with_data(run: RunFolder, config: Config) -> RunFolder:
    """The run with the maps that DGL-KE left beside the data, where names got their ids from files of triples.

    Only raw_udd needs them: other formats state the ids themselves. Raises CheckpointError when they are not there, for ids made
    again from the files may differ.
    """
    if run.vocabularies is not None or not config.format.startswith("raw_udd"):
        return run
    found = _maps(run.path, Path(config.data_path), config.delimiter)
    if found is None:
        names = " and ".join(_map_names(run.path))
        message = f"{run.path}: {names} lie neither there nor in --data_path {config.data_path}"
        raise CheckpointError(f"{message}; copy the maps of the training into the run folder")
    return RunFolder(run.path, run.config, found)


def _map_names(run: Path) -> tuple[str, str]:
    """The files of the maps that config.json names (in either dialect), or the usual ones; entities, relations."""
    saved = read_json(run / "config.json")
    names = (saved.get("emap_file") or saved.get("emp_file") or "entities.tsv", saved.get("rmap_file") or "relations.tsv")
    entities, relations = (Path(str(name)).name for name in names)
    return entities, relations


def _maps(run: Path, folder: Path, delimiter: str) -> tuple[Vocabulary, Vocabulary] | None:
    """The maps of `run`, if `folder` has both."""
    files = [safe_join(folder, name) for name in _map_names(run)]
    if not all(file.is_file() for file in files):
        return None
    entities, relations = (Vocabulary.read_tsv(file, delimiter) for file in files)
    return entities, relations


def load_tables(
    run: RunFolder, config: Config, model: Model, num_entities: int, num_relations: int, device: str | torch.device = "cpu"
) -> MemoryTables:
    """The run's embeddings, memory-mapped (or copied to a GPU).

    `config`: the run's options, or those given over them. Raises CheckpointError when their shape is not what options and maps
    say.
    """
    names, rows = array_names(config), {}
    for table, shape in model.shapes(num_entities, num_relations).items():
        path = run.path / names[table]
        array = _load(run, path)
        if array.dtype != np.float32 or array.shape != shape:
            found = f"{array.dtype}{list(array.shape)}"
            message = f"{path}: expected float32{list(shape)} by config.json and the id maps, found {found}"
            raise CheckpointError(f"{message}; is this the data set and model it was trained with?")
        rows[table] = torch.from_numpy(array).to(device)
    return MemoryTables(rows, {table: {} for table in rows}, "sgd")


def rows_of(run: RunFolder, table: str) -> int:
    """How many rows a table of the run has. Raises CheckpointError when it has no such table."""
    path = run.path / array_names(run.config)[table]
    array = _load(run, path)
    if array.ndim != 2:
        raise CheckpointError(f"{path}: expected a table of float32, found {array.dtype}{list(array.shape)}")
    return len(array)


def _load(run: RunFolder, path: Path) -> np.ndarray:
    """An array of the run, mapped. Where it is not there, the error says what to do: a checkpoint is gone on with, of this
    machine or of several."""
    try:
        return load_npy(path, mmap=True)
    except CheckpointError as error:
        if path.exists():
            raise
        for place, command, name in (
            (run.path, "kgdist-train", run.path),
            (run.path / "machine_0", "kgdist-dist-train", run.path.name),
        ):
            if found := numbered(place):
                words = resume_command(command, name, run.config)
                hint = f"the run was interrupted at step {found[0][0]}: finish it with {words}"
                raise CheckpointError(f"{error}; {hint}") from error
        lost = "it was trained with --no_save_emb: train it again without" if run.config.no_save_emb else None
        raise CheckpointError(f"{error}; {lost or 'the run has not ended, or its embeddings were moved'}") from error
