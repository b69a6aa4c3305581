"""Embeddings as NumPy arrays: one `.npy` a table, and the names in the order of the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kgdist.exchange.folder import durable
from kgdist.exchange.source import Source


def write(source: Source, folder: Path) -> None:
    """`<table>.npy`, float32[n, width]."""
    for table in source.tables:
        write_array(source, table, folder / f"{table}.npy")


def write_array(source: Source, table: str, path: Path) -> None:
    """One table as a `.npy` file of format 1.0, a block of rows at a time."""
    with durable(path) as file:
        shape = source.tables[table].shape
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for rows in source.blocks(table):
            file.write(rows.astype("<f4", copy=False).data)
