"""Saving what would be lost otherwise: again and again, while memory still holds it and somebody can make room."""

from __future__ import annotations

import time
from collections.abc import Callable

from kgdist.base.log import log

AGAIN = 30.0  # seconds between two tries
PATIENCE = 600.0  # seconds in which it must succeed


class Insist:
    """All calls together have PATIENCE seconds, from the first one on."""

    def __init__(self) -> None:
        self._deadline = 0.0

    def __call__(self, work: Callable[[], list[str]], hurry: Callable[[], bool], rest: Callable[[], None]) -> list[str]:
        """Do what returns its problems until it has none; the problems of the last try.

        Once only when there is a `hurry`. `rest` lets a moment pass, and what must go on meanwhile.
        """
        self._deadline = self._deadline or time.monotonic() + PATIENCE
        while problems := work():
            left = self._deadline - time.monotonic()
            if hurry() or left <= 0:
                break
            for line in problems:
                log.warning("%s; the embeddings are kept in memory: another try in %g s, for %.0f s more", line, AGAIN, left)
            pause = time.monotonic() + min(AGAIN, left)
            while time.monotonic() < pause and not hurry():
                rest()
        return problems
