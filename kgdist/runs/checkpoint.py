"""Checkpoints: numbered folders of `.npy` with a manifest that is written last.

    <run>/ckpt-<step>/<key>.npy ...      rows and optimiser state, float32
    <run>/ckpt-<step>/manifest.json      format, step, progress of every process, size and digests of every file, its own digest

A folder gets its name by one rename when all of it is on disk, so a reader meets whole checkpoints only; what is damaged later
is found by size, and by the digests of its pieces (`kgdist.runs.pieces`) while it is read. Until then it is
`.<name>.<process>.tmp`, and one that it replaces is `.<name>.<process>.old` for the moment between two renames: `sweep` puts
right what a killed process has left. The newest two are kept, unless the caller decides (`drop`): a checkpoint of many machines
is whole only when all have written theirs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.files import (
    Moved,
    check_room,
    load_npy,
    read_json,
    sha256_of_json,
    sync_files,
    sync_folder,
    unwatched,
    write_json,
)
from kgdist.base.log import log
from kgdist.runs.pieces import HASHES, FileEntry, Pieces

FORMAT = 2  # 1 had one sha256 for each file, and is still read
KEEP = 2
MANIFEST = "manifest.json"
ENCODED = "encoded.json"  # in the folder of a run that kgdist-encode has made: of which run, and how many entities are new
NAME = re.compile(r"ckpt-(\d+)")
NUMBERED = re.compile(r"(?:ckpt|best)-(\d+)")  # names of those of one machine of several
_KEYS = {"format", "step", "files", "meta", "digest"}  # of a manifest; the last one is missing in older ones
# The name it is to have, the process that writes it, and, but in older versions, when that began and what no other folder has.
_LEFT = re.compile(r"\.((?:ckpt|best)-\d+|best)\.(\d{1,9})(?:-(\d+)-[0-9a-f]{8})?\.(?:tmp|old)")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose files have the names and sizes that the manifest says; `arrays` are memory-mapped.

    Their content is as it was written only when `read` or `load` has said so.
    """

    path: Path
    step: int
    meta: dict[str, Any]
    arrays: dict[str, np.ndarray]
    entries: dict[str, FileEntry]

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

    `meta` is JSON. Raises KgdistError (disk full, read-only folder, file too large) and then leaves what was there as it was, or
    says where it is.
    """
    folder = run / (name or f"ckpt-{step}")
    with whole(folder) as temporary:
        check_room(folder, int(sum(array.nbytes for array in arrays.values()) * 1.01) + (1 << 20))
        pieces = Pieces(moved)
        entries = {key: pieces.write(temporary / f"{key}.npy", array) for key, array in arrays.items()}
        pieces.done()
        files = {key: dataclasses.asdict(entry()) for key, entry in entries.items()}
        manifest = {"format": FORMAT, "step": step, "files": files, "meta": meta}
        write_json(temporary / MANIFEST, manifest | {"digest": sha256_of_json(manifest)})
    if name is None and keep:
        drop(run, {found.name for _, found in numbered(run)[:keep]})
    return folder


@contextlib.contextmanager
def whole(folder: Path) -> Iterator[Path]:
    """An empty folder to write a checkpoint into, which takes the name `folder` when the block ends without an error; one that
    had it is gone then. Raises KgdistError, as `save`."""
    run = folder.parent
    mark = f"{os.getpid()}-{_began(os.getpid()) or 0}-{secrets.token_hex(4)}"  # numbers of processes are used again
    temporary, replaced = (run / f".{folder.name}.{mark}.{kind}" for kind in ("tmp", "old"))
    try:
        temporary.mkdir()
        yield temporary
        sync_files(temporary)
        _replace(temporary, folder, replaced)
        sync_folder(run)
        shutil.rmtree(replaced, ignore_errors=True)
    except OSError as error:
        before = f"is whole in {replaced}; it gets its name back when the run is resumed" if replaced.exists() else "is unchanged"
        raise KgdistError(f"{folder}: cannot be written ({error.strerror or error}); the previous checkpoint {before}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replace(temporary: Path, folder: Path, replaced: Path) -> None:
    """Give `temporary` the name `folder`; one of that name is `replaced` then. Raises OSError, and the old one has its name back
    if the system lets us."""
    try:
        if folder.exists():
            folder.rename(replaced)
        temporary.rename(folder)
    except BaseException:  # Ctrl-C comes between any two lines
        if replaced.exists() and not folder.exists():
            with contextlib.suppress(OSError):
                replaced.rename(folder)
        raise


def sweep(run: Path, moved: Moved = unwatched) -> None:
    """Put right what killed processes have left, for the only one that writes there, before it does.

    A checkpoint that had lost its name to one that did not get it has one again: the newest that is whole, which is verified, and
    `moved` hears of it. All else that is half written is removed. What a living process writes stays as it is.
    """
    left: dict[str, list[Path]] = {}
    busy = set()
    for path in run.glob(".*"):
        if (match := _LEFT.fullmatch(path.name)) and path.is_dir():
            left.setdefault(match[1], []).append(path)
            if _lives(int(match[2]), match[3]):
                busy.add(match[1])
    for name in left.keys() - busy:
        if not (run / name).exists() and not _put_back(run / name, left[name], moved):
            left[name] = [path for path in left[name] if path.suffix == ".tmp"]  # the others may be all that there is
        for path in left[name]:
            shutil.rmtree(path, ignore_errors=True)


def _put_back(folder: Path, found: list[Path], moved: Moved) -> bool:
    """Give the newest of `found` that is whole the name `folder`; whether there was one."""
    for path in sorted(found, key=_written, reverse=True):
        try:
            load(path, moved)
            path.rename(folder)
        except (CheckpointError, OSError) as error:
            log.debug("%s: not put back (%s)", path, error)
            continue
        sync_folder(folder.parent)
        log.warning("%s: put back; a process was killed when it was to get its name", folder)
        return True
    return False


def _written(path: Path) -> float:
    """When a folder got its last file, 0 for one that is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _began(pid: int) -> str | None:
    """When a process began, in ticks of the system; empty for one that has ended, None where that cannot be told."""
    try:
        state, *others = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return "" if state in (b"Z", b"X") else others[18].decode("ascii")
    except (OSError, ValueError, IndexError):
        return None


def _lives(pid: int, began: str | None) -> bool:
    """Whether a process that began then still runs. Not this one: what is there of it is of a save that is over."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it is somebody else's
        pass
    now = _began(pid)
    return now is None or (now != "" and began in (None, "0", now))


def drop(run: Path, keep: Collection[str]) -> None:
    """Remove the checkpoints `ckpt-<step>` and `best-<step>` whose names are not in `keep`, as far as the system lets us."""
    for old in run.glob("*-*"):
        if NUMBERED.fullmatch(old.name) and old.name not in keep:
            with contextlib.suppress(OSError):
                shutil.rmtree(old)


def numbered(run: Path) -> list[tuple[int, Path]]:
    """(step, folder) of every checkpoint of a run, newest first."""
    found = [(int(match[1]), path) for path in run.glob("ckpt-*") if (match := NAME.fullmatch(path.name)) and path.is_dir()]
    return sorted(found, reverse=True)


def opened(path: Path) -> Checkpoint:
    """Open one checkpoint folder: its manifest, names, sizes and shapes. Raises CheckpointError naming what is wrong."""
    saved = described(read_json(path / MANIFEST), path)
    entries = saved.entries
    present = {file.stem for file in path.glob("*.npy")}
    if present != set(entries):
        name = sorted(present ^ set(entries))[0]
        raise CheckpointError(f"{path / name}.npy: {'missing' if name in entries else 'not in the manifest'}")
    arrays = {}
    for key, entry in entries.items():
        file = path / f"{key}.npy"
        if (size := file.stat().st_size) != entry.bytes:
            raise CheckpointError(f"{file}: {size} bytes, but the manifest says {entry.bytes}; the file was cut or changed")
        arrays[key] = load_npy(file, mmap=True)
        if arrays[key].dtype != np.float32 or arrays[key].shape != entry.shape:
            found = f"{arrays[key].dtype}{list(arrays[key].shape)}"
            raise CheckpointError(f"{file}: expected float32{list(entry.shape)}, found {found}")
    return dataclasses.replace(saved, arrays=arrays)


def described(manifest: Any, path: Path) -> Checkpoint:
    """The checkpoint `path` as its manifest says, without arrays. Raises CheckpointError naming what is wrong."""
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise CheckpointError(f"{path / MANIFEST}: not a manifest of kgdist")
    if manifest["format"] > FORMAT:
        raise CheckpointError(f"{path}: written by a newer kgdist (format {manifest['format']}, this one reads {FORMAT})")
    try:
        if odd := sorted(manifest.keys() - _KEYS):
            raise ValueError(f"{odd[0]!r:.20} is not known")
        if "digest" in manifest and manifest.pop("digest") != sha256_of_json(manifest):
            raise CheckpointError(f"{path / MANIFEST}: its content has changed since it was written (sha256 differs)")
        step, meta, files = int(manifest["step"]), dict(manifest["meta"]), dict(manifest["files"])
        entries = {key: _entry(facts) for key, facts in files.items()}
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path / MANIFEST}: incomplete ({error})") from error
    if (match := NUMBERED.fullmatch(path.name)) and int(match[1]) != step:
        raise CheckpointError(f"{path / MANIFEST}: of step {step}, which is not the folder's")
    return Checkpoint(path, step, meta, {}, entries)


def _entry(facts: dict[str, Any]) -> FileEntry:
    """What the manifest says of a file. Raises KeyError, TypeError, ValueError."""
    size, shape = int(facts["bytes"]), tuple(int(length) for length in facts["shape"])
    if "sha256" in facts:  # format 1
        return FileEntry(size, shape, "sha256", max(size, 1), (str(facts["sha256"]),))
    entry = FileEntry(size, shape, str(facts["hash"]), int(facts["piece"]), tuple(str(digest) for digest in facts["digests"]))
    if entry.hash not in HASHES or entry.piece < 1 or len(entry.digests) != max(1, -(-(size - entry.header) // entry.piece)):
        raise ValueError(f"hash {entry.hash!r:.20}, {len(entry.digests)} digests of pieces of {entry.piece} bytes")
    return entry


def encoded_from(run: Path) -> dict[str, Any] | None:
    """Of a run that kgdist-encode has made: `run`, which was trained, and how many entities it knew and are new."""
    return dict(read_json(run / ENCODED)) if (run / ENCODED).is_file() else None


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
