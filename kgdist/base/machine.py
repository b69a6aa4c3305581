"""This machine: how many cores and how much memory this process may use, as far as its container goes, and its processor."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # what Linux says of this process's container, version 2
QUOTA = CGROUP / "cpu.max"  # "200000 100000": microseconds of running in each so many, or "max 100000"
MEMINFO = Path("/proc/meminfo")
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


def memory_limit() -> int | None:
    """Bytes that this process's container may take in all; None where nothing limits it."""
    return _number("memory.max")  # or the word "max"


def free_memory() -> int | None:
    """Bytes that processes can still take: of the machine, or of the container where its limit leaves less. None where the system
    does not tell.

    What a container keeps of files is counted as free, as Linux counts it for the machine: it is given back when it is wanted.
    """
    free = [1024 * kilobytes for name, kilobytes in _lines(MEMINFO) if name == "MemAvailable"]
    limit, taken = memory_limit(), _number("memory.current")
    if limit is not None and taken is not None:
        files = sum(count for name, count in _lines(CGROUP / "memory.stat") if name in ("active_file", "inactive_file"))
        free.append(max(0, limit - max(0, taken - files)))
    return min(free, default=None)


def _number(name: str) -> int | None:
    """The number in a file of the container; None where there is no such file, or a word in it."""
    try:
        return int((CGROUP / name).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _lines(file: Path) -> list[tuple[str, int]]:
    """The lines of a name and a number in one of Linux's own files; none where there is no such file."""
    try:
        text = file.read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return [(name, int(number)) for name, number in re.findall(r"^(\w+):?\s+(\d+)", text, re.MULTILINE)]


def processor(file: Path = CPUINFO) -> tuple[str, frozenset[str]]:
    """Name of the processor, and the instruction sets that it says it has, as Linux calls them (avx2, avx512f, amx_bf16)."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.machine(), frozenset(flags[1].split() if flags else ())
