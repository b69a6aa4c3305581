"""Where the binary form of a data set lies, whether it is undamaged, and how it gets there whole.

A cache is one folder of `.npy` files and `meta.json`, whole or absent, also with several builders at once. Its name is a hash of
the options and one of the sizes and times of change of the files it was made from, so a file that was touched is read again. It
lies in `.kgdist` beside the data, or in the user's cache folder where that cannot be written. dataset.py says what arrays mean.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError
from kgdist.base.files import read_json, remove_folder, sha256, sync_files, whole_folders, write_json
from kgdist.base.log import log
from kgdist.data.read.lines import check_file, reason

BESIDE = ".kgdist"  # the folder of a data set that holds what was read of it
VERSION = 3  # what is found out while reading is kept, too: see build.py
META = "meta.json"
VERIFY_BYTES = 256 << 20  # caches up to this size have their hashes checked at every load, larger ones their sizes only
TICK_S = 0.02  # what the clock of a file system may take to move on
COARSE_S = 2.0  # where it counts in seconds

Stamps = list[tuple[int, int]]  # size and time of change (ns) of each file


def stamps(files: list[Path]) -> Stamps:
    """What tells one state of the files from another. Raises DataError for one that cannot be read."""
    found = [check_file(path, "triples" if path.suffix != ".dict" else "`id<TAB>name` lines") for path in files]
    return [(status.st_size, status.st_mtime_ns) for status in found]


def settled(files: list[Path]) -> Stamps:
    """As `stamps`, once every later change must show: a file that is written twice within a tick of the clock looks alike."""
    now = time.time_ns()
    ticks = [(COARSE_S if changed % 10**9 == 0 else TICK_S, changed) for _, changed in stamps(files)]
    time.sleep(max((tick for tick, changed in ticks if now - changed < tick * 1e9), default=0.0))
    return stamps(files)


def key(value: Any) -> str:
    """Twelve hex digits that name some JSON."""
    return hashlib.sha256(json.dumps([VERSION, value], sort_keys=True).encode()).hexdigest()[:12]


def user_cache() -> list[Path]:
    """kgdist's part of the user's cache folder (XDG_CACHE_HOME, else ~/.cache); none for a user without a home."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(root):
        root = os.path.expanduser("~/.cache")
    return [Path(root, "kgdist", "data")] if os.path.isabs(root) else []


def read(folder: Path) -> dict[str, Any] | None:
    """The meta.json of an undamaged cache, None where there is none. A damaged one is removed, with the reason in the log."""
    if not folder.exists():
        return None
    try:
        meta: dict[str, Any] = read_json(folder / META)
        if meta.pop("seal") != key(meta):
            raise CheckpointError(f"{folder / META}: wrong content")
        total = sum(entry["size"] for entry in meta["files"].values())
        for name, entry in meta["files"].items():
            if (folder / name).stat().st_size != entry["size"]:
                raise CheckpointError(f"{folder / name}: wrong size")
            if total <= VERIFY_BYTES and sha256(folder / name) != entry["sha256"]:
                raise CheckpointError(f"{folder / name}: wrong content")
        return meta
    except (CheckpointError, OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        discard(folder, error)
        return None


def discard(folder: Path, error: Exception) -> None:
    """Remove a damaged cache; those who have mapped its arrays keep them."""
    log.info("cached data cannot be used and will be made again: %s", reason(error))
    remove_folder(folder)


def make(folders: list[Path], fill: Callable[[Path], dict[str, Any]]) -> None:
    """Make a cache at the first of `folders` that can be written: `fill` puts the arrays into an empty folder and returns what
    meta.json tells of them. Those of earlier states of the same files go.

    Raises KgdistError if none can be written, or the disk is full.
    """
    errors = []
    for folder in folders:
        with contextlib.ExitStack() as stack:
            try:
                (made,) = stack.enter_context(whole_folders([folder], sync=False))
            except OSError as error:
                errors.append(f"{folder.parent} ({reason(error)})")
                continue
            meta = fill(made)
            arrays = sorted(made.iterdir())
            meta["files"] = {path.name: {"size": path.stat().st_size, "sha256": sha256(path)} for path in arrays}
            try:
                if sum(path.stat().st_size for path in arrays) > VERIFY_BYTES:
                    sync_files(made)  # what a power cut does to a smaller cache is found out when that is next read
                write_json(made / META, {**meta, "seal": key(meta)})
                stack.close()
            except FileExistsError:
                log.debug("%s: another process has made it meanwhile", folder)
            except OSError as error:
                raise KgdistError(f"{folder}: cannot be written ({reason(error)})") from error
        for other in folder.parent.glob(f"{folder.name.partition('-')[0]}*"):
            if other != folder:
                remove_folder(other)
        return
    raise KgdistError(
        f"no folder for the binary form of the data can be written: {', '.join(errors)}; set XDG_CACHE_HOME to one that can"
    )


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
