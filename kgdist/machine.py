"""How many cores this process may use: those that the system lets it run on, as far as its container's quota goes."""

from __future__ import annotations

import os
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "200000 100000": microseconds of running in each so many, or "max 100000"


def usable_cores(quota: Path = QUOTA) -> int:
    """At least 1; a quota of two and a half cores counts as two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        running, period = quota.read_text(encoding="ascii").split()
        cores = min(cores, int(running) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no quota
        pass
    return max(1, cores)
