"""What runs on this machine: who started whom, and what it is called. Linux only."""

from __future__ import annotations

from pathlib import Path


def alive(pid: int) -> bool:
    """Whether it runs; one that has ended and was not asked for its exit code does not."""
    return _stat(pid)[0] not in "ZX"


def parent(pid: int) -> int:
    """The process that has started it; 0 when it is gone."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    """Its state, the number of its parent and so on, as proc(5) has them from the third on."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", *["0"] * 19]


def children(pid: int) -> list[int]:
    """The living processes that it has started, by age, for numbers begin again: all are asked for their parent, for kernels
    without CONFIG_PROC_CHILDREN list nobody's children."""
    found = (int(each.name) for each in Path("/proc").glob("[0-9]*"))
    return sorted((each for each in found if parent(each) == pid and alive(each)), key=lambda each: (born(each), each))


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
