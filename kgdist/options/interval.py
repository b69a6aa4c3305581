"""How often a checkpoint is written: after so many steps, or so many minutes (`--checkpoint_interval`)."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

SHARE = 100  # of the time, one part may go into checkpoints that come by the clock
FORM = "an integer >= 0 (steps), or minutes > 0 as in 10m"
_MINUTES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)m")


def cleaned(text: str) -> str:
    """The text of an interval as it is kept. Raises ValueError for one that is none."""
    found = _MINUTES.fullmatch(text)
    if found is not None and float(found[1]) > 0:
        return f"{float(found[1]):.9f}".rstrip("0").rstrip(".") + "m"
    if re.fullmatch("[0-9]{1,9}", text):
        return str(int(text))
    raise ValueError(f"must be {FORM}, not {text!r:.60}")


ASKED: dict[str, Any] = {"form": FORM, "clean": cleaned, "metavar": "N|Nm"}  # of an option


@dataclass(frozen=True)
class Interval:
    """Every `steps` steps, or every `seconds` seconds; never where both are 0."""

    steps: int = 0
    seconds: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Interval:
        """What `cleaned` has let through."""
        return cls(seconds=60 * float(text[:-1])) if text.endswith("m") else cls(steps=int(text))


class Rhythm:
    """When the next checkpoint is due, in the one place that decides it.

    One that takes long puts the next one off, so that no more than a hundredth of the time goes into them.
    """

    def __init__(self, interval: Interval) -> None:
        self.interval = interval
        self.begin()

    def begin(self) -> None:
        """Training begins: from now on time counts."""
        self._next = time.monotonic() + self.interval.seconds

    def by_clock(self) -> bool:
        """Whether one is due now, at whatever step."""
        return self.interval.seconds > 0 and time.monotonic() >= self._next

    def due(self, step: int) -> bool:
        """Whether one is due now that so many steps are done."""
        return self.by_clock() or (self.interval.steps > 0 and step % self.interval.steps == 0)

    def written(self, seconds: float) -> None:
        """One was written, or could not be; training stood still for so long."""
        self._next = time.monotonic() + max(self.interval.seconds, SHARE * seconds)
