"""How much memory a run takes, counting shared pages once."""

from __future__ import annotations

import os
import re
import resource
import sys
from pathlib import Path

_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


def peak_of_this_process() -> int:
    """Bytes of the largest resident set so far (which counts shared pages in full)."""
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
