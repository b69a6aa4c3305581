"""How much memory a run takes, counting shared pages once."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import resource
import sys
from pathlib import Path

from kgdist.kvstore.shared_memory import huge_pages_refused

ENTRY = 8  # bytes in which a page table has a page
_HIGH_WATER = re.compile(rb"^VmHWM:\s+(\d+) kB", re.MULTILINE)
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


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


def page_tables(mapped: int, processes: int, *, huge: bool) -> int:
    """Bytes that the system needs to map so many shared bytes into so many processes, each of which touches all of them: 0.2 %
    for each process. On huge pages, where they are wanted and granted, it is next to nothing."""
    if huge and huge_pages_refused(shared=True) is None:
        return 0
    return processes * ENTRY * -(-mapped // mmap.PAGESIZE)


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
