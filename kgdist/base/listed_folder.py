"""A folder that a command makes: whole or absent, with a list of its files, and replaced only where it was made here."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path

from kgdist.base.errors import KgdistError, UsageError
from kgdist.base.files import read_json, sweep, whole_folders, write_json

LIST = "export.json"  # in each folder of an export: what it holds, and the names of its files


@contextlib.contextmanager
def listed_folder(
    out: Path, about: dict[str, object], *, force: bool, listing: str = LIST, besides: Collection[str] = ()
) -> Iterator[Path]:
    """Give an empty folder that gets the name `out` when the block ends without an error; what `about` holds by then goes into
    its file `listing`.

    `force` replaces a folder that was made here before, and no other: a slip in a path costs nobody his home. Files `besides`
    those of the list may have come into it since. Raises UsageError when `out` cannot be made, and KgdistError when a file in it
    cannot be written (disk full); `out` is then as it was.
    """
    sweep(out.parent)
    check_replaceable(out, force, listing, besides)
    with contextlib.ExitStack() as stack:
        try:
            (folder,) = stack.enter_context(whole_folders([out], replaced=[out] if out.exists() else []))
        except OSError as error:
            raise UsageError(f"{out}: cannot be written ({error.strerror or error}); name another folder") from error
        try:
            yield folder
            write_json(folder / listing, {**about, "files": sorted(path.name for path in folder.iterdir())})
            stack.close()
        except (OSError, KgdistError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            if not isinstance(cause, OSError) or isinstance(error, UsageError):
                raise
            raise KgdistError(f"{out}: cannot be written ({cause.strerror or cause}); nothing there has changed") from error


def check_replaceable(out: Path, force: bool, listing: str = LIST, besides: Collection[str] = ()) -> None:
    """Raise UsageError unless `out` is absent, empty, or made here before and to be replaced."""
    if not out.is_symlink() and not out.exists():
        return
    if not out.is_dir() or out.is_symlink():
        raise UsageError(f"{out}: exists and is not a folder; name another one")
    inside = {path.name for path in out.iterdir()}
    if not inside:
        return
    if listing not in inside:
        raise UsageError(f"{out}: holds other files already; name a new folder")
    if not force:
        raise UsageError(f"{out}: is there already; --force replaces it")
    saved = read_json(out / listing)
    listed = saved.get("files") if isinstance(saved, dict) else None
    strange = inside - {listing, *besides, *(listed if isinstance(listed, list) else ())}
    if strange:
        raise UsageError(f"{out / min(strange)}: was not written by the command that wrote {out}; move it, or name a new folder")
