"""This machine: how many cores this process may use, as far as its container's quota goes, and what its processor is."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "200000 100000": microseconds of running in each so many, or "max 100000"

CPUINFO = Path("/proc/cpuinfo")


def usable_cores(quota: Path = QUOTA) -> int:
    """At least 1; a quota of two and a half cores counts as two."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        running, period = quota.read_text(encoding="ascii").split()
        cores = min(cores, int(running) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # no quota
        pass
    return max(1, cores)


def processor(file: Path = CPUINFO) -> tuple[str, frozenset[str]]:
    """Name of the processor, and the instruction sets that it says it has, as Linux calls them (avx2, avx512f, amx_bf16)."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.machine(), frozenset(flags[1].split() if flags else ())
