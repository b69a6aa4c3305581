"""Where the binary form of a data set lies, whether it is still that of its sources, and how it gets there whole.

A cache is one folder of `.npy` files and `meta.json`, built under another name and renamed, so that it is whole or absent,
also with several builders at once. It lies in `.kgdist` beside the data, or in the user's cache folder where that cannot be
written. What the arrays mean is store.py's.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, DataError, KgdistError
from kgdist.base.files import read_json, sha256, sync_files, sync_folder, write_json
from kgdist.base.log import log
from kgdist.data.read.lines import check_file, reason

VERSION = 1
META = "meta.json"
VERIFY_BYTES = 256 << 20  # caches up to this size have their hashes checked at every load, larger ones their sizes only
RACY_NS = 2 * 10**9  # a file changed this shortly before it was hashed may change again with the same time stamp
STALE_S = 24 * 3600  # a build folder this old belongs to a process that died


def options_key(options: dict[str, Any]) -> str:
    """Twelve hex digits that name a set of options."""
    return hashlib.sha256(json.dumps([VERSION, options], sort_keys=True).encode()).hexdigest()[:12]


def user_cache() -> list[Path]:
    """kgdist's part of the user's cache folder (XDG_CACHE_HOME, else ~/.cache); none for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        root = os.path.expanduser("~/.cache")
    return [Path(root, "kgdist", "data")] if os.path.isabs(root) else []


def fingerprints(files: list[Path], *, hashed: bool) -> list[dict[str, Any]]:
    """Size, time of change and (if `hashed`) sha256 of each file. Raises DataError for one that cannot be read."""
    found = []
    for path in files:
        status = check_file(path, "triples" if path.suffix != ".dict" else "`id<TAB>name` lines")
        found.append({"name": path.name, "size": status.st_size, "mtime_ns": status.st_mtime_ns})
        if hashed:
            found[-1]["sha256"] = sha256(path)
    return found


def valid_meta(folder: Path, options: dict[str, Any], files: list[Path]) -> dict[str, Any] | None:
    """The cache's meta.json if it was built from these files with these options and is undamaged, else None (with the
    reason in the log).
    """
    if not (folder / META).exists():
        return None
    try:
        meta = read_json(folder / META)
        if meta["version"] != VERSION or meta["options"] != options:
            raise CheckpointError(f"{folder}: made by another version or for other options")
        if meta["seal"] != _seal(meta):
            raise CheckpointError(f"{folder / META}: wrong content")
        _verify(folder, meta["files"])
        return meta if _same_sources(folder, meta, files) else None
    except (CheckpointError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        log.info("cached data cannot be used and will be made again: %s", reason(error))
        return None


def _verify(folder: Path, files: dict[str, dict[str, Any]]) -> None:
    total = sum(entry["size"] for entry in files.values())
    for name, entry in files.items():
        if (folder / name).stat().st_size != entry["size"]:
            raise CheckpointError(f"{folder / name}: wrong size")
        if total <= VERIFY_BYTES and sha256(folder / name) != entry["sha256"]:
            raise CheckpointError(f"{folder / name}: wrong content")


def _same_sources(folder: Path, meta: dict[str, Any], files: list[Path]) -> bool:
    recorded = meta["sources"]
    now = fingerprints(files, hashed=False)
    if [entry["size"] for entry in recorded] != [entry["size"] for entry in now]:
        log.info("%s: the data files have changed and are read again", folder)
        return False
    trusted = [
        old["mtime_ns"] == new["mtime_ns"] and new["mtime_ns"] < old["hashed_ns"] - RACY_NS
        for old, new in zip(recorded, now, strict=True)
    ]
    if all(trusted):
        return True
    started = time.time_ns()
    now = fingerprints(files, hashed=True)
    if [entry["sha256"] for entry in recorded] != [entry["sha256"] for entry in now]:
        log.info("%s: the data files have changed and are read again", folder)
        return False
    with contextlib.suppress(KgdistError):  # saves the hashing next time; a read-only cache is as good
        _write_meta(folder, {**meta, "sources": [{**entry, "hashed_ns": started} for entry in now]})
    return True


def _seal(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps({**meta, "seal": None}, sort_keys=True).encode()).hexdigest()


def _write_meta(folder: Path, meta: dict[str, Any]) -> None:
    write_json(folder / META, {**meta, "seal": _seal(meta)})


def discard(folder: Path, build: str) -> None:
    """Mark a cache whose arrays turned out to be damaged as no cache, unless another builder has replaced it meanwhile."""
    with contextlib.suppress(CheckpointError, OSError, KeyError, TypeError):
        if read_json(folder / META)["build"] == build:
            (folder / META).unlink()


@contextlib.contextmanager
def build_folder(folders: list[Path]) -> Iterator[tuple[Path, Path]]:
    """Make an empty folder beside the first of `folders` that can be written: (folder to fill, folder it is for). It is
    removed at the end.

    Raises KgdistError if none can be written.
    """
    errors = []
    for folder in folders:
        temporary = folder.parent / f".build-{secrets.token_hex(6)}"
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary.mkdir()
        except OSError as error:
            errors.append(f"{folder.parent} ({reason(error)})")
            continue
        _sweep(folder.parent)
        try:
            yield temporary, folder
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return
    raise KgdistError(
        f"no folder for the binary form of the data can be written: {', '.join(errors)}; set XDG_CACHE_HOME to one that can"
    )


def _sweep(root: Path) -> None:
    """Remove what builders that died left behind."""
    for left in root.glob(".build-*"):
        with contextlib.suppress(OSError):
            if time.time() - left.stat().st_mtime > STALE_S:
                shutil.rmtree(left, ignore_errors=True)


def publish(temporary: Path, folder: Path, meta: dict[str, Any], hashed_ns: int, files: list[Path]) -> None:
    """Write meta.json last and give the folder its name.

    Raises DataError if a source changed while it was read, KgdistError where it cannot be written.
    """
    before = [(entry["size"], entry["mtime_ns"]) for entry in meta["sources"]]
    for path, old, new in zip(files, before, fingerprints(files, hashed=False), strict=True):
        if old != (new["size"], new["mtime_ns"]):
            raise DataError(path, "was changed while it was read; start again when it is complete")
    made = sorted(temporary.iterdir())
    contents = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in made}
    if sum(path.stat().st_size for path in made) > VERIFY_BYTES:
        try:  # what a power cut does to a smaller cache is found out when that is next read
            sync_files(temporary)
        except OSError as error:
            raise KgdistError(f"{folder}: cannot be written ({reason(error)})") from error
    sources = [{**entry, "hashed_ns": hashed_ns} for entry in meta["sources"]]
    seen = {"version": VERSION, "build": secrets.token_hex(8), "sources": sources, "files": contents}
    _write_meta(temporary, {**meta, **seen})
    for _ in range(100):
        with contextlib.suppress(OSError):
            os.rename(temporary, folder)
            sync_folder(folder.parent)
            return
        if valid_meta(folder, meta["options"], files):
            return  # another builder was first
        with contextlib.suppress(OSError):
            # Replaced arrays live on for those who have mapped them.
            os.rename(folder, temporary.with_name(temporary.name + "-old"))
        shutil.rmtree(temporary.with_name(temporary.name + "-old"), ignore_errors=True)
    raise KgdistError(f"{folder}: cannot be replaced; remove it")


class Appender:
    """Writes a `.npy` array row block by row block; the number of rows is known at the end only."""

    def __init__(self, path: Path, dtype: Any, width: int | None = None) -> None:
        self.rows = 0
        self._path, self._dtype, self._width = path, np.dtype(dtype), width
        self._content = hashlib.sha256()
        with self._reported():
            self._file = path.open("wb")
            self._header()

    def append(self, rows: np.ndarray) -> None:
        """Add `rows`, dtype[n] or dtype[n, width]. Raises KgdistError (disk full)."""
        with self._reported():
            piece = np.ascontiguousarray(rows, self._dtype).data.cast("B") if len(rows) else b""
            self._content.update(piece)
            self._file.write(piece)
        self.rows += len(rows)

    def finish(self) -> str:
        """Make the file whole, if not durable; returns the sha256 of the rows."""
        with self._reported():
            self._file.seek(0)
            self._header()
            self._file.flush()
        return self._content.hexdigest()

    def __enter__(self) -> Appender:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _header(self) -> None:
        # NumPy pads the header so that the first axis can grow in place.
        shape = (self.rows,) if self._width is None else (self.rows, self._width)
        np.lib.format.write_array_header_1_0(self._file, {"descr": self._dtype.str, "fortran_order": False, "shape": shape})

    @contextlib.contextmanager
    def _reported(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise KgdistError(f"{self._path}: cannot be written ({reason(error)})") from error
