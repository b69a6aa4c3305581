"""The memory that tables lie in: private to a process, or shared by the processes of one machine and owned by no file system.

A shared array lives in an anonymous file (`memfd`, or an unlinked temporary file where the system has none). Its descriptor is
inherited by the processes that need it, or, where memory is made while they run, opened by them through /proc, which the system
lets processes of the same user do. The memory goes when the last of them ends, however it ends, so nothing can be left
behind. Either kind can ask for huge pages: random rows then cost fewer address look-ups.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kgdist.base.errors import KgdistError

HUGE = getattr(mmap, "MADV_HUGEPAGE", None)
POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of linux/mman.h, since Linux 5.14; Python has no name for it
SETTINGS = Path("/sys/kernel/mm/transparent_hugepage")


@dataclass(frozen=True)
class SharedArray:
    """An array over an inheritable descriptor; `handle()` travels as JSON, `attach` maps it in another process."""

    fd: int
    array: np.ndarray

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: Any, *, huge: bool = False) -> SharedArray:
        """A new array of zeros, on huge pages where wanted and allowed. Raises OSError when memory is refused."""
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("kgdist")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.truncate(fd, _size(shape, dtype))
        return cls(fd, _view(mmap.mmap(fd, _size(shape, dtype)), shape, dtype, huge=huge))

    @classmethod
    def attach(cls, handle: dict[str, Any]) -> SharedArray:
        """Map the array of `handle()`; its descriptor must have been inherited under the same number, or the handle say of which
        process it is. Raises KgdistError where that one has it no more.

        All pages of inherited memory are entered into this process's page table at once, 0.2 s per GB: one by one they would slow
        the first minutes of the training. Not those of memory made at run time, for others wait meanwhile.
        """
        shape, dtype = tuple(handle["shape"]), np.dtype(handle["dtype"])
        if (pid := handle.get("pid")) is None:
            memory = mmap.mmap(handle["fd"], _size(shape, dtype))
            with contextlib.suppress(OSError, AttributeError):  # an older system enters them when they are first used
                memory.madvise(POPULATE_WRITE)
            return cls(handle["fd"], _view(memory, shape, dtype))
        try:
            fd = os.open(f"/proc/{pid:d}/fd/{handle['fd']:d}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise KgdistError(f"shared memory of process {pid}: {error.strerror}: it has ended, or is of another user") from error
        try:
            return cls(fd, _view(mmap.mmap(fd, _size(shape, dtype)), shape, dtype))
        except (OSError, ValueError) as error:
            os.close(fd)
            raise KgdistError(f"shared memory of process {pid}: descriptor {handle['fd']} is not {dtype}{list(shape)}") from error

    def handle(self, *, pid: bool = False) -> dict[str, Any]:
        """What a process needs that inherits the descriptor; with `pid`, any process of this user, while this one lives and has
        not closed it."""
        plain = {"fd": self.fd, "shape": list(self.array.shape), "dtype": self.array.dtype.str}
        return plain | ({"pid": os.getpid()} if pid else {})

    def close(self) -> None:
        """Give up the descriptor; the memory stays while any mapping does."""
        os.close(self.fd)


def private_array(shape: tuple[int, ...], dtype: Any, *, huge: bool = False) -> np.ndarray:
    """An array of zeros that is given back to the system with its last view. Raises OSError when memory is refused."""
    return _view(mmap.mmap(-1, _size(shape, dtype), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), shape, dtype, huge=huge)


def huge_pages_refused(shared: bool, settings: Path = SETTINGS) -> str | None:
    """Why this system gives no huge pages to memory that is shared (or private), and what to do; None where it gives them."""
    file = settings / ("shmem_enabled" if shared else "enabled")
    try:
        found = re.search(r"\[(\w+)\]", file.read_text(encoding="ascii"))
    except OSError:
        found = None
    if HUGE is None or found is None:
        return "this system has no transparent huge pages"
    if found[1] not in ("never", "deny"):
        return None
    root = f"as root: echo {'advise' if shared else 'madvise'} > {file}"
    return f"{file} is {found[1]}; " + (f"add --worker thread, or, {root}" if shared else root)


def _size(shape: tuple[int, ...], dtype: Any) -> int:
    """Bytes; nothing of size 0 can be mapped."""
    return max(math.prod(shape) * int(np.dtype(dtype).itemsize), 1)


def _view(memory: mmap.mmap, shape: tuple[int, ...], dtype: Any, *, huge: bool = False) -> np.ndarray:
    if huge and HUGE is not None:
        with contextlib.suppress(OSError):  # refused: ordinary pages hold the same numbers
            memory.madvise(HUGE)
    return np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape)
