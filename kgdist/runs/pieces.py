"""Large arrays in `.npy` files, written, verified and read by several threads: in pieces, each with a digest of its own.

A piece is hashed where it is written or read, so nothing is read twice. Hashes run without Python's lock; what bounds them is the
disk, or memory.
"""

from __future__ import annotations

import hashlib
import io
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import CheckpointError
from kgdist.base.files import Moved
from kgdist.base.machine import processor, usable_cores

PIECE = 1 << 24  # bytes with one digest, one task of a thread
BLOCK = 1 << 18  # bytes copied, hashed and written at a time: they stay in the cache
THREADS = 8  # more than that do not make a disk faster
HASHES: dict[str, Callable[[], Any]] = {"sha256": hashlib.sha256, "blake2b": lambda: hashlib.blake2b(digest_size=32)}

Task = Callable[[], None]


def hash_name() -> str:
    """The hash that is fast here: sha256 where the processor has instructions for it (1.7 GB/s, else 0.3), blake2b (0.9)."""
    return "sha256" if processor()[1] & {"sha_ni", "sha2"} else "blake2b"


@dataclass(frozen=True)
class FileEntry:
    """What a manifest says of a file: its size in bytes, the array's shape, and digests of its pieces of `piece` bytes.

    The first piece has the header of the file besides.
    """

    bytes: int
    shape: tuple[int, ...]
    hash: str
    piece: int
    digests: tuple[str, ...]

    @property
    def header(self) -> int:
        """Bytes before the numbers."""
        return self.bytes - 4 * int(np.prod(self.shape, dtype=np.int64))


class Pieces:
    """Tasks on pieces of files, done together. `moved` hears of every block, from one thread at a time."""

    def __init__(self, moved: Moved) -> None:
        self._tasks: list[Task] = []
        self._lock = threading.Lock()
        self._moved = moved
        self._failed: list[BaseException] = []

    def write(self, path: Path, array: np.ndarray) -> Callable[[], FileEntry]:
        """Have float32 `array` written to a new file; what returns its entry, once it is `done`. Raises OSError."""
        array = np.ascontiguousarray(array)
        head = io.BytesIO()
        np.lib.format.write_array_header_1_0(head, np.lib.format.header_data_from_array_1_0(array))
        header, raw, name = head.getvalue(), array.reshape(-1).view(np.uint8).data, hash_name()
        with open(path, "wb") as file:
            file.write(header)
            file.truncate(len(header) + len(raw))
        starts = range(0, max(len(raw), 1), PIECE)
        digests = [""] * len(starts)

        def one(number: int) -> None:
            digest = HASHES[name]()
            if number == 0:
                digest.update(header)
                self._tell(len(header))
            start = starts[number]
            fd, block = os.open(path, os.O_WRONLY), memoryview(bytearray(BLOCK))
            try:
                for at in range(start, min(start + PIECE, len(raw)), BLOCK):
                    # A copy: whoever still changes the rows must not come between the hash and the file.
                    part = block[: min(BLOCK, len(raw) - at)]
                    part[:] = raw[at : at + len(part)]
                    digest.update(part)
                    _write_all(fd, part, len(header) + at)
                    self._tell(len(part))
                os.fdatasync(fd)  # now: who watches the progress would not hear of a flush of gigabytes for minutes
            finally:
                os.close(fd)
            digests[number] = digest.hexdigest()

        self._tasks += [lambda n=number: one(n) for number in range(len(starts))]  # type: ignore[misc]
        return lambda: FileEntry(len(header) + len(raw), array.shape, name, PIECE, tuple(digests))

    def read(self, path: Path, entry: FileEntry, into: np.ndarray | None) -> None:
        """Have a file verified, and read into float32 `into` (contiguous, of its shape) where given. Raises CheckpointError."""
        out = None if into is None else into.reshape(-1).view(np.uint8).data
        size = entry.bytes - entry.header

        def one(number: int) -> None:
            digest, start = HASHES[entry.hash](), number * entry.piece
            with open(path, "rb", buffering=0) as file:
                if number == 0:
                    digest.update(file.read(entry.header))
                    self._tell(entry.header)
                file.seek(entry.header + start)
                block = memoryview(bytearray(BLOCK)) if out is None else None
                at, stop = start, min(start + entry.piece, size)
                while at < stop:
                    part = block[: stop - at] if block is not None else out[at : min(at + BLOCK, stop)]  # type: ignore[index]
                    count = file.readinto(part)
                    if not count:
                        raise CheckpointError(f"{path}: ends after {entry.header + at} bytes")
                    digest.update(part[:count])
                    at += count
                    self._tell(count)
            if digest.hexdigest() != entry.digests[number]:
                raise CheckpointError(f"{path}: its content has changed since it was written ({entry.hash} differs)")

        self._tasks += [lambda n=number: one(n) for number in range(len(entry.digests))]  # type: ignore[misc]

    def _tell(self, count: int) -> None:
        with self._lock:
            if self._failed:
                raise self._failed[0]
            self._moved(count)

    def done(self) -> None:
        """Do it all. Raises what the first one that failed has raised, after which the others end."""
        todo, self._tasks = self._tasks, []  # they know this object: arrays would stay until Python looks for such circles
        tasks = iter(todo)

        def work() -> None:
            while not self._failed:
                with self._lock:
                    task = next(tasks, None)
                if task is None:
                    return
                try:
                    task()
                except BaseException as error:  # raised by the thread that waits
                    self._failed.append(error)

        count = min(THREADS, usable_cores(), len(todo))
        threads = [threading.Thread(target=work, name=f"kgdist-piece-{number}", daemon=True) for number in range(count)]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(1.0)
        except BaseException as error:  # Ctrl-C: they end with their block
            self._failed.append(error)
            raise
        if self._failed:
            raise self._failed[0]


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    while len(data):
        count = os.pwrite(fd, data, offset)
        data, offset = data[count:], offset + count
