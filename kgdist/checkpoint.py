"""Checkpoints: numbered folders of `.npy` with a manifest that is written last.

    <run>/ckpt-<step>/<key>.npy ...      rows and optimiser state, float32
    <run>/ckpt-<step>/manifest.json      format, step, progress of every process, size and digests of every file

A folder gets its name by one rename when all of it is on disk, so a reader meets whole checkpoints only; what is damaged later is
found by size, and by the digests of its pieces (`kgdist.pieces`) while it is read. The newest two are kept, unless the caller
decides (`drop`): a checkpoint of many machines is whole only when all have written theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.errors import CheckpointError, KgdistError
from kgdist.files import Moved, check_room, load_npy, read_json, sync_files, sync_folder, unwatched, write_json
from kgdist.log import log
from kgdist.pieces import HASHES, Entry, Pieces

FORMAT = 2  # 1 had one sha256 for each file, and is still read
KEEP = 2
_NAME = re.compile(r"ckpt-(\d+)")
_NUMBERED = re.compile(r"(ckpt|best)-\d+")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have the names and sizes that the manifest says; `arrays` are memory-mapped.

    Their content is as it was written only when `read` or `load` has said so.
    """

    path: Path
    step: int
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]
    entries: dict[str, Entry]

    def read(self, into: Mapping[str, np.ndarray], moved: Moved = unwatched) -> None:
        """Verify every file, in one pass that also reads the arrays into those of `into` (float32, contiguous, of their shape).

        Raises CheckpointError naming the file; what is in `into` then is worth nothing.
        """
        pieces = Pieces(moved)
        for key, entry in self.entries.items():
            pieces.read(self.path / f"{key}.npy", entry, into.get(key))
        try:
            pieces.done()
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error.strerror or error})") from error


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
        check_room(folder, int(need * 1.01) + (1 << 20))
        temporary.mkdir()
        pieces = Pieces(moved)
        entries = {key: pieces.write(temporary / f"{key}.npy", array) for key, array in arrays.items()}
        pieces.done()
        files = {key: dataclasses.asdict(entry()) for key, entry in entries.items()}
        write_json(temporary / "manifest.json", {"format": FORMAT, "step": step, "files": files, "meta": meta})
        sync_files(temporary)
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


def opened(path: Path) -> Checkpoint:
    """Open one checkpoint folder: its manifest, names, sizes and shapes. Raises CheckpointError naming what is wrong."""
    manifest = read_json(path / "manifest.json")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CheckpointError(f"{path / 'manifest.json'}: not a manifest of kgdist")
    if manifest["format"] > FORMAT:
        raise CheckpointError(f"{path}: written by a newer kgdist (format {manifest['format']}, this one reads {FORMAT})")
    try:
        step, meta, files = int(manifest["step"]), dict(manifest["meta"]), dict(manifest["files"])
        entries = {key: _entry(facts) for key, facts in files.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path / 'manifest.json'}: incomplete ({error})") from error
    present = {file.stem for file in path.glob("*.npy")}
    if present != set(entries):
        odd = sorted(present ^ set(entries))[0]
        raise CheckpointError(f"{path / odd}.npy: {'missing' if odd in entries else 'not in the manifest'}")
    arrays = {}
    for key, entry in entries.items():
        file = path / f"{key}.npy"
        if (size := file.stat().st_size) != entry.bytes:
            raise CheckpointError(f"{file}: {size} bytes, but the manifest says {entry.bytes}; the file was cut or changed")
        arrays[key] = load_npy(file, mmap=True)
        if arrays[key].dtype != np.float32 or arrays[key].shape != entry.shape:
            found = f"{arrays[key].dtype}{list(arrays[key].shape)}"
            raise CheckpointError(f"{file}: expected float32{list(entry.shape)}, found {found}")
    return Checkpoint(path, step, meta, arrays, entries)


def _entry(facts: dict[str, Any]) -> Entry:
    """What the manifest says of a file. Raises KeyError, TypeError, ValueError."""
    size, shape = int(facts["bytes"]), tuple(int(length) for length in facts["shape"])
    if "sha256" in facts:  # format 1
        return Entry(size, shape, "sha256", max(size, 1), (str(facts["sha256"]),))
    entry = Entry(size, shape, str(facts["hash"]), int(facts["piece"]), tuple(str(digest) for digest in facts["digests"]))
    if entry.hash not in HASHES or entry.piece < 1 or len(entry.digests) != max(1, -(-(size - entry.header) // entry.piece)):
        raise ValueError(f"hash {entry.hash!r:.20}, {len(entry.digests)} digests of pieces of {entry.piece} bytes")
    return entry


def load(path: Path, moved: Moved = unwatched) -> Checkpoint:
    """Open one checkpoint folder, verifying every file. Raises CheckpointError naming what is wrong."""
    saved = opened(path)
    saved.read({}, moved)
    return saved


def latest(run: Path, take: Callable[[Checkpoint], None] = lambda saved: saved.read({})) -> Checkpoint:
    """The newest checkpoint of a run that is whole, with a warning for each damaged one that is passed over.

    `take` does with each what verifies it. Raises CheckpointError when there is none, naming what is wrong with the newest.
    """
    if not run.is_dir():
        raise CheckpointError(f"{run}: no such run folder")
    problems = []
    for _, path in numbered(run):
        try:
            saved = opened(path)
            take(saved)
            return saved
        except CheckpointError as error:
            problems.append(str(error))
            log.warning("%s; trying the checkpoint before it", error)
    raise CheckpointError(
        problems[0] if problems else f"{run}: has no checkpoint; --resume needs a folder with ckpt-<step> in it"
    )
