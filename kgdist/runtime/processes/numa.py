"""Which cores a worker runs on, where a machine has memory of several nodes: those of one node, so that it does not wander.

On a machine of one node, which is nearly every one, nothing is done: with as many workers as cores pinning them gains nothing.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def cores(text: str) -> set[int]:
    """The cores of a list as Linux writes it, `0-3,8,10-11`. Raises ValueError for anything else."""
    found: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def nodes(folder: Path = NODES) -> list[set[int]]:
    """The cores of each node in the order of the nodes; empty where the system does not tell."""
    found: dict[int, set[int]] = {}
    with contextlib.suppress(OSError, ValueError):
        for path in folder.iterdir():
            if match := re.fullmatch(r"node(\d+)", path.name):
                found[int(match[1])] = cores((path / "cpulist").read_text(encoding="ascii"))
    return [found[number] for number in sorted(found)]


def share(rank: int, machine: list[set[int]], allowed: set[int]) -> set[int] | None:
    """The cores for worker `rank`: the allowed ones of one node, nodes in turn; None where that would not narrow the choice."""
    there = [node & allowed for node in machine if node & allowed]
    return there[rank % len(there)] if len(there) > 1 else None


def pin(rank: int) -> None:
    """Keep the calling thread, and those it will start, on the node of worker `rank`."""
    if not hasattr(os, "sched_setaffinity"):
        return
    chosen = share(rank, nodes(), os.sched_getaffinity(0))
    if chosen is not None:
        with contextlib.suppress(OSError):  # a place is a matter of speed
            os.sched_setaffinity(0, chosen)
