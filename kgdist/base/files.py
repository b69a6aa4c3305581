"""Files and folders that are either whole or absent: atomic writes, `.npy` without pickle, JSON, hashes, locks, safe paths.

The recipe everywhere is a temporary beside the target -> flush -> fsync -> rename -> fsync of the folder, so that a reader, also
one after a power cut, sees the old bytes or the new ones and never a mixture.
"""

from __future__ import annotations

import contextlib
import errno
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import socket
import time
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from kgdist.base.errors import CheckpointError, KgdistError, OptionError, UsageError
from kgdist.base.log import log

PathLike = str | os.PathLike[str]
Moved = Callable[[int], None]  # called with the bytes that were read or written since it was called last

_UNFINISHED = re.compile(r"\.(?P<name>.+)\.(?P<host>[^/]+)\.(?P<process>\d+)\.[0-9a-f]{12}\.(?P<kind>tmp|old)")
_STALE = 24 * 3600  # seconds after which what a process of another machine left unfinished counts as abandoned


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

    What killed processes left of the same file is swept.
    Raises KgdistError with the reason (disk full, read-only folder); what was at `path` before is then untouched.
    """
    path = Path(path)
    temporary: Path | None = None
    try:
        sweep(path.parent, path.name)
        temporary = _beside(path, "tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(fd, mode, encoding=None if "b" in mode else "utf-8", newline=None if "b" in mode else "\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        temporary = None
        sync_folder(path.parent)
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error}); the previous file is unchanged") from error
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def save_npy(path: PathLike, array: np.ndarray) -> None:
    """Write `array` as C-ordered `.npy`, atomically."""
    with atomic_write(path) as file:
        _write_array(file, array)


def _write_array(file: IO[bytes], array: np.ndarray) -> None:
    """NumPy's own writer hands the numbers to a stream of C's, and does not hear when the last 4 KB of them find no room."""
    array = np.ascontiguousarray(array)
    if array.dtype.hasobject:
        raise ValueError("an array of Python objects is not a plain array")
    np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
    file.write(array.reshape(-1).view(np.uint8).data)


def write_npy(path: PathLike, array: np.ndarray) -> None:
    """As `save_npy`, into a folder that is being made by `whole_folders`: no temporary file, and not durable by itself."""
    try:
        with open(path, "wb") as file:
            _write_array(file, array)
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error})") from error


def write_npy_blocks(path: PathLike, shape: tuple[int, ...], dtype: np.dtype[Any], blocks: Iterable[np.ndarray]) -> None:
    """As `write_npy`, an array of that shape whose rows come block by block."""
    try:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": dtype.str, "fortran_order": False, "shape": shape})
            for block in blocks:
                file.write(np.ascontiguousarray(block, dtype).reshape(-1).view(np.uint8).data)
    except OSError as error:
        raise KgdistError(f"{path}: cannot be written ({error.strerror or error})") from error


def sync_files(folder: PathLike) -> None:
    """Make the files of `folder` and of folders in it durable, and their names. Raises OSError (disk full)."""
    for inside, _, files in os.walk(folder):
        for name in files:
            with open(os.path.join(inside, name), "rb") as file:
                os.fsync(file.fileno())
        sync_folder(inside)


@contextlib.contextmanager
def folder_for(path: PathLike) -> Iterator[Path]:
    """A folder, made with its parents where it is not there; what was made goes again when the block ends with an error and has
    left it empty. Raises OSError."""
    folder = Path(path)
    made = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    except BaseException:
        with contextlib.suppress(OSError):
            for each in made:
                each.rmdir()
        raise


@contextlib.contextmanager
def whole_folders(targets: Sequence[Path], *, replaced: Sequence[Path] = (), sync: bool = True) -> Iterator[list[Path]]:
    """Give empty folders to fill, which become `targets` when the block ends without an error: all of them, or none.

    The folders `replaced` go at that moment, and come back when the new ones cannot take their names. Until then the new ones are
    `.<name>.<host>.<process>.<random>.tmp` beside the targets, and the replaced ones are `.old` between two renames; what killed
    processes left is swept. `sync`: their files are made durable before. Raises FileExistsError when a target that is not
    replaced is there already, OSError when something cannot be written; everything is then as it was.
    """
    made = [_beside(target, "tmp") for target in targets]
    for parent in {target.parent for target in targets}:
        sweep(parent)
    try:
        for folder in made:
            folder.mkdir(parents=True)
        yield made
        for folder in made if sync else ():
            sync_files(folder)
        _take_names(made, targets, replaced)
    finally:
        for folder in made:
            shutil.rmtree(folder, ignore_errors=True)


def _take_names(made: Sequence[Path], targets: Sequence[Path], replaced: Sequence[Path]) -> None:
    moved: list[tuple[Path, Path]] = []
    taken: list[Path] = []
    try:
        for old in replaced:
            aside = _beside(old, "old")
            old.rename(aside)
            moved.append((old, aside))
        for folder, target in zip(made, targets, strict=True):
            folder.rename(target)
            taken.append(target)
    except OSError as error:
        for target in taken:
            shutil.rmtree(target, ignore_errors=True)
        for old, aside in moved:
            with contextlib.suppress(OSError):
                aside.rename(old)
        if error.errno == errno.ENOTEMPTY:  # what rename says of a folder in the way, on most systems
            raise FileExistsError(errno.EEXIST, "a folder is in the way", str(error.filename2)) from error
        raise
    for parent in {target.parent for target in targets}:
        sync_folder(parent)
    for _, aside in moved:
        shutil.rmtree(aside, ignore_errors=True)


def remove_folder(folder: Path) -> None:
    """Take a folder away at once, whatever is in it; those who have mapped its files keep them. A folder that cannot go stays."""
    with contextlib.suppress(OSError):
        aside = _beside(folder, "tmp")
        folder.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def sweep(parent: Path, name: str | None = None) -> None:
    """Remove what `atomic_write` and `whole_folders` of processes that are gone left in `parent`, of `name` alone if it is given;
    a folder that was set aside and whose name nobody took comes back."""
    for left in parent.glob(f".{'*' if name is None else glob.escape(name)}.*.*.*"):
        match = _UNFINISHED.fullmatch(left.name)
        if match is None or not _abandoned(left, match["host"], match["process"]):
            continue
        if match["kind"] == "old" and not os.path.lexists(parent / match["name"]):
            with contextlib.suppress(OSError):
                left.rename(parent / match["name"])
        elif left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                left.unlink()


def _beside(target: Path, kind: str) -> Path:
    """A new name beside `target`, which says whose it is: folders may be shared by machines."""
    return target.with_name(f".{target.name}.{_here()}.{os.getpid()}.{secrets.token_hex(6)}.{kind}")


def _here() -> str:
    """Where our process ids mean what they say: containers may share a host's name, and number their processes themselves."""
    with contextlib.suppress(OSError):
        return f"{socket.gethostname()}-{os.stat('/proc/self/ns/pid').st_ino}"
    return socket.gethostname()


def _abandoned(left: Path, host: str, process: str) -> bool:
    if host == _here():
        return not Path(f"/proc/{process}").exists()
    with contextlib.suppress(OSError):
        return time.time() - left.stat().st_mtime > _STALE
    return False


@contextlib.contextmanager
def locked(path: PathLike, patience: float) -> Iterator[None]:
    """Hold the lock `path`, a file that stays, for the block; the system frees it when its holder dies.

    Raises KgdistError when another process has held it for `patience` seconds, or when the file cannot be made.
    """
    from filelock import FileLock, Timeout  # only here: it takes a while to import, and few need it

    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            log.info("%s: another process is using it; waiting", path)
            lock.acquire(timeout=patience)
    except Timeout as error:
        raise KgdistError(f"{path}: another process has held it for {patience:g} s; end that process first") from error
    except OSError as error:
        raise KgdistError(f"{path}: cannot be made ({error.strerror or error}); name a folder that can be written") from error
    try:
        yield
    finally:
        lock.release()


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


def sha256(path: PathLike) -> str:
    """Hex digest of a file, read in pieces."""
    digest, piece = hashlib.sha256(), memoryview(bytearray(1 << 18))  # new memory for each would cost as much as hashing it
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(piece):
            digest.update(piece[:count])
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


def writable(folder: PathLike) -> bool:
    """Whether the folder can be written in, or made: what is refused leaves nothing behind, not even a folder."""
    place = Path(folder).absolute()
    while not place.exists():
        place = place.parent
    real = os.statvfs(place).f_blocks > 0  # /proc and its like have none
    return place.is_dir() and os.access(place, os.W_OK | os.X_OK) and real


def check_output(flag: str, path: PathLike) -> None:
    """Raise OptionError, for `flag`, for a file that cannot be written: asked before the work, not after it."""
    path = Path(path)
    if path.is_dir():
        raise OptionError(flag, f"{path} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise OptionError(flag, f"there is no folder {path.parent}; make it first")
    if not writable(path.parent):
        raise OptionError(flag, f"nothing can be written in {path.parent}; name another folder")


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
