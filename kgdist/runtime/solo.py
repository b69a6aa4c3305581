"""The link between a training loop and its session, where both are in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from kgdist.runtime.course import Course
from kgdist.runtime.observe import Observer
from kgdist.training.step import Losses


class Alone(Protocol):
    """A session that trains in its own process."""

    course: Course
    observer: Observer
    steps: list[int]  # that are done: one number
    best: dict[str, Any]  # see `Place`
    meeting: Callable[[int], bool]

    def say(self, line: str) -> None:
        """A line of the log."""


class SoloControl:
    """`Control` of a loop in this process."""

    def __init__(self, session: Alone) -> None:
        self.session = session
        self.sums, self.positives = np.zeros(4), 0
        self.say = session.say

    def stopping(self) -> bool:
        return self.session.course.stopping()

    def lowered(self) -> int:
        return int(self.session.best["lowered"])

    def report(self, step: int, positives: int, losses: Losses) -> None:
        self.sums += (losses.positive, losses.negative, losses.total, losses.regularization)
        self.positives += positives
        self.session.steps = [step]
        self.session.observer.update(step, self.positives, self.sums)

    def meeting(self, step: int) -> bool:
        return self.session.meeting(step) or self.session.course.rhythm.by_clock()

    def meet(self, step: int) -> None:
        self.session.steps = [step]
        self.session.course.meet(step)
