"""How long the tests wait for what must happen. Never a measure of speed: on a slow machine all limits are longer."""

from __future__ import annotations

import os

SLOWNESS = float(os.environ.get("KGDIST_TEST_SLOWNESS", "1"))  # how many times slower than usual; scripts/slow_machine.py says 10


def patience(seconds: float) -> float:
    """`seconds` of a machine that is not slow, on this one."""
    return seconds * SLOWNESS
