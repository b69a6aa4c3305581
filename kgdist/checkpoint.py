"""Checkpoints: numbered folders of `.npy` with a manifest that is written last.

    <run>/ckpt-<step>/<key>.npy ...      rows and optimiser state, float32
    <run>/ckpt-<step>/manifest.json      format, step, progress of every process, size and sha256 of every file

A folder gets its name by one rename when all of it is on disk, so a reader meets whole checkpoints only; what is damaged later is
found by size and hash. The newest two are kept, unless the caller decides (`drop`): a checkpoint of many machines is whole only
when all have written theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from kgdist.errors import CheckpointError, KgdistError
from kgdist.files import Moved, free_bytes, load_npy, read_json, sha256, sync_folder, unwatched, write_json
from kgdist.log import log

FORMAT = 1
KEEP = 2
BLOCK = 1 << 20  # bytes hashed and written at a time
FLUSH = 1 << 25  # bytes that may wait for the disk: who watches the progress would not hear of a flush of gigabytes for minutes
_NAME = re.compile(r"ckpt-(\d+)")
_NUMBERED = re.compile(r"(ckpt|best)-\d+")


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; `arrays` are memory-mapped."""

    path: Path
    step: int
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]


class _HashingFile:
    """A file that hashes what is written to it, so that nothing is read again."""

    def __init__(self, file: IO[bytes], moved: Moved) -> None:
        self.file = file
        self.digest = hashlib.sha256()
        self._moved, self._unsafe = moved, 0

    def write(self, data: bytes | memoryview) -> int:
        self.digest.update(data)
        written = self.file.write(data)
        self._unsafe += written
        if self._unsafe >= FLUSH:
            self.flush()
        self._moved(written)
        return written

    def flush(self) -> None:
        """Wait until the disk has it."""
        self.file.flush()
        os.fsync(self.file.fileno())
        self._unsafe = 0


def _write_array(file: _HashingFile, array: np.ndarray) -> None:
    """As np.save, without its copies of 16 MB."""
    array = np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    raw = array.reshape(-1).view(np.uint8).data  # uint8[bytes]
    for start in range(0, len(raw), BLOCK):
        file.write(raw[start : start + BLOCK])


def save(
    run: Path,
    step: int,
    arrays: dict[str, np.ndarray],
    meta: dict[str, Any],
    *,
    name: str | None = None,
    keep: int = KEEP,
    moved: Moved = unwatched,
) -> Path:
    """Write `run/ckpt-<step>` (or `run/name`) and drop all but the newest `keep` numbered ones (0: drop none).

    `meta` is JSON. Raises KgdistError (disk full, read-only folder, file too large) and then leaves what was there as it was.
    """
    folder = run / (name or f"ckpt-{step}")
    temporary = run / f".{folder.name}.{os.getpid()}.tmp"
    need = sum(array.nbytes for array in arrays.values())
    try:
        if free_bytes(run) < need * 1.01 + (1 << 20):
            raise KgdistError(
                f"{folder}: not enough disk space ({need / 1e9:.2f} GB needed); the previous checkpoint is unchanged"
            )
        temporary.mkdir()
        files = {}
        for key, array in arrays.items():
            with open(temporary / f"{key}.npy", "wb") as file:
                hashing = _HashingFile(file, moved)
                _write_array(hashing, array)
                hashing.flush()
                files[key] = {"bytes": file.tell(), "sha256": hashing.digest.hexdigest(), "shape": list(array.shape)}
        write_json(temporary / "manifest.json", {"format": FORMAT, "step": step, "files": files, "meta": meta})
        sync_folder(temporary)
        replaced = run / f".{folder.name}.{os.getpid()}.old"
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
        sync_folder(run)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        raise KgdistError(
            f"{folder}: cannot be written ({error.strerror or error}); the previous checkpoint is unchanged"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if name is None and keep:
        drop(run, {found.name for _, found in numbered(run)[:keep]})
    return folder


def sweep(run: Path) -> None:
    """Remove what processes left half written that were killed; for the only one that writes there, before it does."""
    for left in (*run.glob(".*.tmp"), *run.glob(".*.old")):
        shutil.rmtree(left, ignore_errors=True)


def drop(run: Path, keep: Collection[str]) -> None:
    """Remove the checkpoints `ckpt-<step>` and `best-<step>` whose names are not in `keep`, as far as the system lets us."""
    for old in run.glob("*-*"):
        if _NUMBERED.fullmatch(old.name) and old.name not in keep:
            with contextlib.suppress(OSError):
                shutil.rmtree(old)


def numbered(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every checkpoint of a run, newest first."""
    found = [(int(match[1]), path) for path in run.glob("ckpt-*") if (match := _NAME.fullmatch(path.name)) and path.is_dir()]
    return sorted(found, reverse=True)


def load(path: Path, moved: Moved = unwatched) -> Checkpoint:
    """Open one checkpoint folder, verifying every file. Raises CheckpointError naming what is wrong."""
    manifest = read_json(path / "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CheckpointError(f"{path / 'manifest.json'}: not a manifest of kgdist")
    if manifest["format"] > FORMAT:
        raise CheckpointError(f"{path}: written by a newer kgdist (format {manifest['format']}, this one reads {FORMAT})")
    try:
        step, meta, files = int(manifest["step"]), dict(manifest["meta"]), dict(manifest["files"])
        expected = {key: (int(entry["bytes"]), str(entry["sha256"]), tuple(entry["shape"])) for key, entry in files.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / 'manifest.json'}: incomplete ({error})") from error
    present = {file.stem for file in path.glob("*.npy")}
    if present != set(expected):
        odd = sorted(present ^ set(expected))[0]
        raise CheckpointError(f"{path / odd}.npy: {'missing' if odd in expected else 'not in the manifest'}")
    arrays = {}
    for key, (size, digest, shape) in expected.items():
        file = path / f"{key}.npy"
        if file.stat().st_size != size:
            raise CheckpointError(
                f"{file}: {file.stat().st_size} bytes, but the manifest says {size}; the file was cut or changed"
            )
        if sha256(file, moved) != digest:
            raise CheckpointError(f"{file}: its content has changed since it was written (sha256 differs)")
        arrays[key] = load_npy(file, mmap=True)
        if arrays[key].dtype != np.float32 or arrays[key].shape != shape:
            raise CheckpointError(f"{file}: expected float32{list(shape)}, found {arrays[key].dtype}{list(arrays[key].shape)}")
    return Checkpoint(path, step, meta, arrays)


def latest(run: Path) -> Checkpoint:
    """The newest checkpoint of a run that is whole, with a warning for each damaged one that is passed over.

    Raises CheckpointError when there is none, naming what is wrong with the newest.
    """
    if not run.is_dir():
        raise CheckpointError(f"{run}: no such run folder")
    problems = []
    for _, path in numbered(run):
        try:
            return load(path)
        except CheckpointError as error:
            problems.append(str(error))
            log.warning("%s; trying the checkpoint before it", error)
    raise CheckpointError(
        problems[0] if problems else f"{run}: has no checkpoint; --resume needs a folder with ckpt-<step> in it"
    )
