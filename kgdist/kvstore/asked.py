"""Rows that were asked for: which, for which pulls, and what of them has come. No sockets."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kgdist.kernels.route import Route, scatter_rows


class Asked:
    """Rows of one table that were asked for together, each once, whichever of some pulls need it."""

    def __init__(self, routed: Route, width: int) -> None:
        self.route = routed
        self.left = 0  # messages still to come
        self._shape = len(routed.ids), width
        self._rows: np.ndarray | None = None  # float32 or the bits of bfloat16 [U, width], in the order of route.ids

    def take(self, first: int, values: np.ndarray) -> None:
        """Rows first, first + 1, ... of route.ids have come, [n, width]."""
        if len(values) == self._shape[0]:
            self._rows = values  # all of them: read where the network has put them
        else:
            if self._rows is None:
                self._rows = np.empty(self._shape, values.dtype)
            self._rows[first : first + len(values)] = values
        self.left -= 1


class Pull:
    """One pull that was announced: its part of what was asked for."""

    def __init__(self, ids: np.ndarray, asked: Asked, slots: np.ndarray) -> None:
        self.ids = ids  # int64[n]
        self.asked = asked
        self._slots = slots  # int64[n], the place of each in asked.route.ids, or -1 where it is here

    def here(self) -> np.ndarray:
        """int64[.], positions of the ids whose rows are in this memory."""
        return np.flatnonzero(self._slots < 0)

    def settle(self, out: np.ndarray) -> None:
        """The rows that have come, to the places that asked for them, float32[n, width]."""
        if self.asked._rows is not None:
            places = np.flatnonzero(self._slots >= 0)
            scatter_rows(self.asked._rows, self._slots[places], places, out)


def pulls(ids: Sequence[np.ndarray], asked: Asked) -> list[Pull]:
    """One for each of these ids, which were routed together, one after another."""
    ends = np.cumsum([len(each) for each in ids])
    return [Pull(each, asked, asked.route.slots[end - len(each) : end]) for each, end in zip(ids, ends, strict=True)]
