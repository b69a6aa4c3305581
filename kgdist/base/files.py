"""Files that are either whole or absent: atomic writes, `.npy` without pickle, JSON, hashes, safe paths.

The recipe everywhere is temp file beside the target -> flush -> fsync -> rename -> fsync of the folder, so that a reader, also
one after a power cut, sees the old bytes or the new ones and never a mixture.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import tokenize
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError, UsageError

PathLike = str | os.PathLike[str]
Moved = Callable[[int], None]  # called with the bytes that were read or written since it was called last

_UMASK = re.compile(rb"^Umask:\s+([0-7]+)$", re.MULTILINE)


def unwatched(moved: int) -> None:
    """For those who do not look at how far it has come."""


def sync_folder(folder: PathLike) -> None:
    """Make renames inside `folder` durable (a no-op where folders cannot be opened)."""
    with contextlib.suppress(OSError):
        fd = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


@contextlib.contextmanager
def atomic_write(path: PathLike, mode: str = "wb", *, private: bool = False) -> Iterator[IO[Any]]:
    """Open a file that takes the name `path` only when the block ends without an error. `private`: only its owner can read it.

    Raises KgdistError with the reason (disk full, read-only folder); what was at `path` before is then untouched.
    """
    path = Path(path)
    temporary: str | None = None
    try:
        fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
        with os.fdopen(fd, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        if not private:
            os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error}); the previous file is unchanged") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _umask() -> int:
    """What this process takes away from the rights of new files.

    Asking the system by `os.umask` sets it, for all threads: where /proc does not tell, files that others make at that moment
    are private.
    """
    with contextlib.suppress(OSError):
        if match := _UMASK.search(Path("/proc/self/status").read_bytes()):
            return int(match[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def save_npy(path: PathLike, array: np.ndarray) -> None:
    """Write `array` as C-ordered `.npy`, atomically."""
    with atomic_write(path) as file:
        _write_array(file, array)


def _write_array(file: IO[bytes], array: np.ndarray) -> None:
    """NumPy's own writer hands the numbers to a stream of C's, and does not hear when the last 4 KB of them find no room."""
    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        raise ValueError("an array of Python objects is no plain array")
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.reshape(-1).view(np.uint8).data)


def write_npy(path: PathLike, array: np.ndarray) -> None:
    """As `save_npy`, into a folder that gets its name when all of it is there: no temporary file, and `sync_files` is the
    caller's."""
    try:
        with open(path, "wb") as file:
            _write_array(file, array)
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error})") from error


def sync_files(folder: PathLike) -> None:
    """Make the files of `folder` durable, and their names. Raises OSError (disk full)."""
    for path in Path(folder).iterdir():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    sync_folder(folder)


def load_npy(path: PathLike, *, mmap: bool = False) -> np.ndarray:
    """Read an array; `mmap` maps it privately (writes stay in memory).

    Raises CheckpointError for anything that is not a whole `.npy` of plain numbers.
    """
    try:
        return np.asarray(np.load(path, mmap_mode="c" if mmap else None, allow_pickle=False))
    except FileNotFoundError as error:
        raise CheckpointError(f"{os.fspath(path)}: no such file") from error
    except (OSError, ValueError, EOFError, SyntaxError, tokenize.TokenError) as error:  # a damaged header is parsed as Python
        raise CheckpointError(f"{os.fspath(path)}: not a readable .npy array ({error})") from error


def write_json(path: PathLike, value: Any, *, private: bool = False) -> None:
    """Write `value` as indented JSON, see atomic_write; NaN and infinities are refused (they are not JSON)."""
    with atomic_write(path, "w", private=private) as file:
        json.dump(value, file, indent=2, ensure_ascii=False, allow_nan=False)
        file.write("\n")


def read_json(path: PathLike) -> Any:
    """Read JSON. Raises CheckpointError naming the file and place."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{os.fspath(path)}: no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{os.fspath(path)}: not readable as JSON ({error})") from error


def sha256(path: PathLike, moved: Moved = unwatched) -> str:
    """Hex digest of a file, read in pieces."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(1 << 18))  # new memory for each would cost as much as hashing it
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
            moved(count)
    return digest.hexdigest()


def sha256_of_json(value: Any) -> str:
    """Hex digest of what JSON says, whatever spaces and order it is written in."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")).hexdigest()


def free_bytes(folder: PathLike) -> int:
    """Bytes that can still be written below `folder` (its nearest existing parent)."""
    path = Path(folder).absolute()
    while not path.exists():
        path = path.parent
    return shutil.disk_usage(path).free


def check_room(path: PathLike, need: int) -> None:
    """Raise KgdistError when `need` bytes do not fit where `path` is to be written, saying how many do."""
    if (free := free_bytes(path)) < need:
        room = f"{size(need)} needed, {size(free)} free"
        raise KgdistError(f"{os.fspath(path)}: not enough disk space ({room}); what was there before is unchanged")


def size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def safe_join(root: PathLike, *parts: str) -> Path:
    """`root/parts...`, refusing parts that are absolute or climb out. Raises UsageError."""
    for part in parts:
        pieces = part.replace("\\", "/").split("/")
        if not part or "\0" in part or ".." in pieces or os.path.isabs(part) or (len(part) > 1 and part[1] == ":"):
            raise UsageError(f"{part!r}: not a plain name inside {os.fspath(root)}")
    return Path(root).joinpath(*parts)
