"""Rows at the very end of a table, where a loop that looks ahead could look too far."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from kgdist.kernels import prefetch
from kgdist.kernels.adagrad import adagrad_rows, gather_rows

PAGE = mmap.PAGESIZE


@pytest.fixture(params=[1, 4, 15, 16, 17, 33, 64, 100, 256])
def table(request: pytest.FixtureRequest) -> Iterator[torch.Tensor]:
    """float32[n, width] that ends where memory ends: reading or writing one number more kills the process."""
    width = int(request.param)
    size = 8 * PAGE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.munmap.argtypes, libc.mprotect.argtypes = (
        [ctypes.c_void_p, ctypes.c_size_t],
        [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int],
    )
    start = libc.mmap(None, size + PAGE, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    assert start not in (None, ctypes.c_void_p(-1).value)
    assert libc.mprotect(start + size, PAGE, 0) == 0
    rows = size // (4 * width)
    whole = np.ctypeslib.as_array((ctypes.c_float * (rows * width)).from_address(start + size - 4 * rows * width))
    whole[:] = np.arange(len(whole))
    yield torch.from_numpy(whole).view(rows, width)
    assert libc.munmap(start, size + PAGE) == 0


def test_the_last_rows(table: torch.Tensor) -> None:
    last = len(table) - 1
    for count in range(2 * prefetch.AHEAD + 2):
        ids = torch.arange(last, last - count, -1)
        assert torch.equal(gather_rows(table, ids), table[ids])
        twice = torch.cat([ids, ids.flip(0)])
        assert torch.equal(gather_rows(table, twice), table[twice])
        want = table.clone()
        want[ids] -= 0.5
        adagrad_rows(table, torch.zeros(len(table)), ids, torch.ones(count, table.shape[1]), 0.5)
        assert torch.equal(table, want)
