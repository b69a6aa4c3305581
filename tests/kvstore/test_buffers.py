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
    first = stock.take(20_000)
    assert first.shape == (20_000,) and first.view(np.float32).flags.aligned
    stock.give(first, trackers)
    for tracker in trackers:
        assert not np.shares_memory(stock.take(200), first)
        tracker.done = True
    assert np.shares_memory(stock.take(200), first)
    assert not np.shares_memory(stock.take(200), first)


def test_the_smallest_that_fits_is_taken() -> None:
    stock = Buffers()
    pieces = [stock.take(rows * 400) for rows in (1000, 100, 500)]
    for piece in pieces:
        stock.give(piece, [])
    assert np.shares_memory(stock.take(36000), pieces[1])
    assert np.shares_memory(stock.take(36000), pieces[2])
    assert np.shares_memory(stock.take(280000), pieces[0])


@pytest.mark.parametrize("size", [0, 1, 63, 4095, 4096, 4097, 400_000])
def test_any_size(size: int) -> None:
    stock = Buffers()
    memory = stock.take(size)
    memory[:] = 1
    assert memory.shape == (size,)
    stock.give(memory, [])
    assert stock.take(size).shape == (size,)


def test_the_stock_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "MOST", 100_000)
    stock = Buffers()
    for piece in [stock.take(40_000) for _ in range(5)]:
        stock.give(piece, [])
    assert sum(len(memory) for memory, _ in stock._stock) <= 100_000
