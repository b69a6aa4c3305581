"""Memory that several processes of one machine share, owned by nobody's file system.

An array lives in an anonymous file (`memfd`, or an unlinked temporary file where the system has none). Its descriptor is
inherited by the processes that need it; the memory goes when the last of them ends, however it ends, so nothing can be left
behind.
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SharedArray:
    """An array over an inheritable descriptor; `handle()` travels as JSON, `attach` maps it in another process."""

    fd: int
    array: np.ndarray

    @classmethod
    def allocate(cls, shape: tuple[int, ...], dtype: Any) -> SharedArray:
        """A new array of zeros. Raises OSError when memory is refused."""
        size = max(math.prod(shape) * np.dtype(dtype).itemsize, 1)
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("kgdist")
        else:
            with tempfile.TemporaryFile() as file:
                fd = os.dup(file.fileno())
        os.truncate(fd, size)
        return cls._map(fd, shape, dtype)

    @classmethod
    def attach(cls, handle: dict[str, Any]) -> SharedArray:
        """Map the array of `handle()`; its descriptor must have been inherited under the same number."""
        return cls._map(handle["fd"], tuple(handle["shape"]), np.dtype(handle["dtype"]))

    @classmethod
    def _map(cls, fd: int, shape: tuple[int, ...], dtype: Any) -> SharedArray:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        memory = mmap.mmap(fd, max(size, 1))
        return cls(fd, np.frombuffer(memory, dtype, count=math.prod(shape)).reshape(shape))

    def handle(self) -> dict[str, Any]:
        """What another process needs besides the descriptor itself."""
        return {"fd": self.fd, "shape": list(self.array.shape), "dtype": self.array.dtype.str}

    def close(self) -> None:
        """Give up the descriptor; the memory stays while any mapping does."""
        os.close(self.fd)
