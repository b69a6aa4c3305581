"""A folder of files that is whole or absent, as kgdist.base.files is for one file."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import read_json, sync_folder, write_json

LIST = "export.json"  # in each folder: what it holds, and the names of its files


@contextlib.contextmanager
def whole_folder(out: Path, about: dict[str, object], *, force: bool) -> Iterator[Path]:
    """Give an empty folder that gets the name `out` when the block ends without an error; `about` goes into its export.json.

    `force` replaces a folder that was made here before, and no other: a slip in a path costs nobody his home. Raises UsageError
    when `out` cannot be made, and KgdistError when a file in it cannot be written (disk full); `out` is then as it was.
    """
    check_replaceable(out, force)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror or error}); name another folder") from error
    try:
        yield temporary
        write_json(temporary / LIST, {**about, "files": sorted(path.name for path in temporary.iterdir())})
        sync_folder(temporary)
        _take_name(temporary, out)
    except (OSError, KgdistError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or isinstance(error, UsageError):
            raise
        raise KgdistError(f"{out}: cannot be written ({cause.strerror or cause}); nothing there has changed") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(out: Path, force: bool) -> None:
    """Raise UsageError unless `out` is absent, empty, or made here before and to be replaced."""
    if not out.is_symlink() and not out.exists():
        return
    if not out.is_dir() or out.is_symlink():
        raise UsageError(f"{out}: is there and is no folder; name another one")
    inside = {path.name for path in out.iterdir()}
    if not inside:
        return
    if LIST not in inside:
        raise UsageError(f"{out}: holds other files already; name a new folder")
    if not force:
        raise UsageError(f"{out}: is there already; --force replaces it")
    saved = read_json(out / LIST)
    listed = saved.get("files") if isinstance(saved, dict) else None
    strange = inside - {LIST, *(listed if isinstance(listed, list) else ())}
    if strange:
        raise UsageError(f"{out / min(strange)}: not a file of the export that is there; move it away, or name a new folder")


def _take_name(made: Path, out: Path) -> None:
    """Rename, with what was there kept aside until the name is taken."""
    aside = out.with_name(f".{out.name}.{os.getpid()}.old")
    if out.exists():
        out.rename(aside)
    try:
        made.rename(out)
    except OSError:
        with contextlib.suppress(OSError):
            aside.rename(out)
        raise
    sync_folder(out.parent)
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def durable(path: Path) -> Iterator[IO[bytes]]:
    """Open a new file for writing and see it on disk at the end. Raises OSError."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
