"""Vectors that stand in an .npy file of their own, a row for each row of the entities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kgdist.attributes.declaration import Attribute, Declaration, VectorKind
from kgdist.attributes.entity_files import Piece


class VectorFile:
    """The file of one attribute. Raises DataError, on the line that declares it, when it is no array of rows of numbers."""

    def __init__(self, declaration: Declaration, attribute: Attribute, file: Path) -> None:
        self.declaration, self.attribute, self.file = declaration, attribute, file
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise self._wrong(f"is not a readable .npy array ({error})") from error
        good = isinstance(array, np.memmap) and array.ndim == 2 and array.dtype.kind in "fiu" and array.shape[1]
        if np.isfortran(array):
            raise self._wrong("is in Fortran order, column by column; save np.ascontiguousarray of it")
        if not good:
            raise self._wrong(f"holds {array.dtype}{list(array.shape)}, expected rows of numbers")
        self.dtype, self.offset = array.dtype, int(array.offset)
        self.count, self.width = array.shape

    def read(self, path: Path, piece: Piece, first: int) -> Any:
        """The vectors of a piece that begins with the row `first`: pa.ListArray of float. Read and not mapped, for mapped pages
        would count as this process's memory."""
        import pyarrow as pa

        count = len(piece.lines)
        self._check_rows(first + count)
        place = self.offset + first * self.width * self.dtype.itemsize
        rows = np.fromfile(self.file, self.dtype, count * self.width, offset=place).astype(np.float32)
        if not (finite := np.isfinite(rows)).all():
            raise self._wrong(f"has a number that is not finite in row {first + int(np.flatnonzero(~finite)[0]) // self.width}")
        offsets = np.arange(0, (count + 1) * self.width, self.width, dtype=np.int32)
        return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows, pa.float32()))

    def check(self, rows: int) -> None:
        """Raises DataError unless it has a vector for each of as many rows."""
        self._check_rows(rows)
        if self.count > rows:
            raise self._wrong(f"has {self.count:,} rows, and there are {rows:,} entities")

    def _check_rows(self, least: int) -> None:
        if self.count < least:
            raise self._wrong(f"has {self.count:,} rows, fewer than there are entities")

    def _wrong(self, problem: str) -> Exception:
        return self.declaration.wrong(self.attribute, f"{self.file} {problem}")


def vectors_of(declaration: Declaration, attribute: Attribute, base: Path) -> VectorFile | None:
    """The file of an attribute that has one, relative to the folder `base`."""
    settings = attribute.settings
    if isinstance(settings, VectorKind) and settings.file is not None:
        return VectorFile(declaration, attribute, base / settings.file)
    return None
