"""This machine: how many cores and how much memory processes may use, and do, as far as the container goes, and its processor."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import resource
import sys
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")  # what Linux says of this process's container, version 2
QUOTA = CGROUP / "cpu.max"  # "200000 100000": microseconds of running in each so many, or "max 100000"
MEMINFO = Path("/proc/meminfo")
CPUINFO = Path("/proc/cpuinfo")
_HIGH_WATER = re.compile(rb"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


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


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next step.

    It would give large blocks back to the system each time, and the kernel would zero them again page by page: 5 % of a step of
    DistMult, two thirds of one of RESCAL. A no-op where the library is not glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        if not library.mallopt(-3, 1 << 30):  # M_MMAP_THRESHOLD of malloc.h
            library.mallopt(-3, 1 << 25)  # the most that older releases take
        library.mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def few_arenas() -> None:
    """Let all threads take memory from two places, where each would keep some of its own: before they start.

    25 to 60 MB less of 390 in kgdist-serve on FB15k, at the same speed on two cores. A no-op where the library is not glibc, or
    the user has set how many.
    """
    if "MALLOC_ARENA_MAX" in os.environ:
        return
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(-8, 2)  # M_ARENA_MAX of malloc.h


def give_back_freed_memory() -> None:
    """Give the system what the C library keeps of blocks that are free, which a start leaves many of and nothing after it needs.

    A no-op where the library is not glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def peak_of_this_process() -> int:
    """Bytes of the largest resident set so far (which counts shared pages in full).

    Linux lets `ru_maxrss` begin with what the process that started this one had; its own is in /proc.
    """
    with contextlib.suppress(OSError):
        if match := _HIGH_WATER.search(Path("/proc/self/status").read_bytes()):
            return int(match[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def used_now(pids: list[int]) -> int:
    """Bytes the processes hold together now, a page shared by n of them counted as n-ths (PSS). 0 where the system does not
    tell."""
    total = 0
    for pid in (os.getpid(), *pids):
        try:
            match = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
        except OSError:
            continue
        total += int(match[1]) * 1024 if match else 0
    return total


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
