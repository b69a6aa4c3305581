"""An .npy file that is written block by block, of as many rows as come in the end."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import numpy as np

HEADER = 128  # bytes, enough for any shape of two axes


class Growing:
    """A file of [rows] or [rows, width] of one dtype. It is a right .npy once `close` was called."""

    def __init__(self, path: Path, dtype: Any, width: int | None = None) -> None:
        self.dtype, self.width, self.length = np.dtype(dtype), width, 0
        self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115, closed by `close`
        self._file.write(bytes(HEADER))

    def add(self, block: np.ndarray) -> None:
        """Append rows. Raises OSError."""
        block = np.ascontiguousarray(block, self.dtype)
        self._file.write(block.reshape(-1).view(np.uint8).data)
        self.length += len(block)

    def close(self) -> None:
        """Write what the file is. Raises OSError."""
        shape = (self.length,) if self.width is None else (self.length, self.width)
        text = repr({"descr": self.dtype.str, "fortran_order": False, "shape": shape}).encode("ascii")
        head = b"\x93NUMPY\x01\x00" + (HEADER - 10).to_bytes(2, "little")  # as numpy.lib.format has it
        self._file.seek(0)
        self._file.write(head + text.ljust(HEADER - 11) + b"\n")
        self._file.close()

    def abandon(self) -> None:
        """Close it as it is; twice is the same as once."""
        self._file.close()
