"""Memory of messages is used again, but never while the transport still reads it, and the stock has a bound."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from kgdist.kvstore import buffers
from kgdist.kvstore.buffers import Buffers


@dataclass
class Tracker:
    done: bool = False


def test_memory_is_free_when_all_trackers_are_done() -> None:
    stock, trackers = Buffers(), [Tracker(), Tracker()]
    first = stock.take(100, 50, np.float32)
    assert first.shape == (100, 50) and first.dtype == np.float32 and first.flags.c_contiguous
    stock.give(first, trackers)
    for tracker in trackers:
        assert not np.shares_memory(stock.take(10, 10, np.uint16), first)
        tracker.done = True
    again = stock.take(10, 10, np.uint16)
    assert np.shares_memory(again, first) and again.dtype == np.uint16
    assert not np.shares_memory(stock.take(10, 10, np.uint16), first)


def test_the_smallest_that_fits_is_taken() -> None:
    stock = Buffers()
    pieces = [stock.take(rows, 100, np.float32) for rows in (1000, 100, 500)]
    for piece in pieces:
        stock.give(piece, [])
    assert np.shares_memory(stock.take(90, 100, np.float32), pieces[1])
    assert np.shares_memory(stock.take(90, 100, np.float32), pieces[2])
    assert np.shares_memory(stock.take(700, 100, np.float32), pieces[0])


@pytest.mark.parametrize("rows", [0, 1, 63, 1023, 1024, 1025, 100_000])
def test_any_size(rows: int) -> None:
    stock = Buffers()
    array = stock.take(rows, 1, np.float32)
    array[:] = 1
    assert array.shape == (rows, 1)
    stock.give(array, [])
    assert stock.take(rows, 1, np.float32).shape == (rows, 1)


def test_the_stock_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MOST", 100_000)
    stock = Buffers()
    for piece in [stock.take(10_000, 1, np.float32) for _ in range(5)]:
        stock.give(piece, [])
    assert sum(len(memory) for memory, _ in stock._stock) <= 100_000
