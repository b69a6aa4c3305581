"""Memory that messages are made in, used again once the transport has let go of it. Not for what is received.

New memory for every message would be given by the system page by page, which costs as much as filling it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MOST = 256 << 20  # bytes kept for later


class Buffers:
    """A stock of pieces of memory."""

    def __init__(self) -> None:
        self._stock: list[tuple[np.ndarray, list[Any]]] = []  # uint8[.], and the trackers that must be done before it is free

    def take(self, size: int) -> np.ndarray:
        """uint8[size], aligned for any number, of any contents."""
        free = [
            (len(memory), place)
            for place, (memory, trackers) in enumerate(self._stock)
            if len(memory) >= size and all(tracker.done for tracker in trackers)
        ]
        memory = self._stock.pop(min(free)[1])[0] if free else np.empty(max(4096, size + size // 4), np.uint8)
        return memory[:size]

    def give(self, array: np.ndarray, trackers: list[Any]) -> None:
        """Take back an array of `take`, free once all trackers are done."""
        memory = array
        while memory.base is not None:
            memory = memory.base
        self._stock.append((memory, trackers))
        while sum(len(piece) for piece, _ in self._stock) > MOST:
            del self._stock[0]  # the transport keeps what it still needs


class Loan:
    """Memory of `Buffers` that several messages lie in: given back when none of its users needs it any more."""

    def __init__(self, buffers: Buffers, memory: np.ndarray, users: int) -> None:
        self._buffers, self._memory, self._users = buffers, memory, users
        self._trackers: list[Any] = []

    def give(self, trackers: list[Any]) -> None:
        """One user needs it no more, once these trackers are done."""
        self._trackers += trackers
        self._users -= 1
        if not self._users:
            self._buffers.give(self._memory, self._trackers)
