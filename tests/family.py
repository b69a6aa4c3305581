"""What runs on this machine: who started whom, and what it is called. Linux only."""

from __future__ import annotations

import os
from pathlib import Path

_ANY_KIND = 0x40000000  # __WALL of wait(2): children that tell their end by another signal, too


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended and was not asked for its exit code does not."""
    return _stat(pid)[0] not in "ZX"


def parent(pid: int) -> int:
    """The process that has started it; 0 when it is gone."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """Its state, the number of its parent and so on, as proc(5) has them from the third on."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].decode().split()
    except OSError:
        return ["X", *["0"] * 19]


def children(pid: int) -> list[int]:
    """The living processes that it has started, by age, for numbers begin again: all are asked for their parent, for kernels
    without CONFIG_PROC_CHILDREN list nobody's children."""
    if pid == os.getpid() and _childless():
        return []
    all_of_them = ((int(name), _stat(int(name))) for name in os.listdir("/proc") if name.isdigit())
    return [
        each
        for _, each in sorted((int(stat[19]), each) for each, stat in all_of_them if int(stat[1]) == pid and stat[0] not in "ZX")
    ]


def _childless() -> bool:
    """Whether this process has no child at all: one question, where a look at every process takes the time of a small test."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT | _ANY_KIND)
    except ChildProcessError:
        return True
    return False


def born(pid: int) -> int:
    """When it was started, in ticks of the system; 0 when it is gone."""
    return int(_stat(pid)[19])


def descendants(pid: int) -> list[int]:
    """Those and the ones that they have started in turn, each before its own."""
    return [found for child in children(pid) for found in (child, *descendants(child))]


def words_of(pid: int) -> str:
    """The command line of a process, empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
