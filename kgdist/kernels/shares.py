"""Work that threads of this process share out: each does its own part, none writes what another one reads or writes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

LIMIT = 600.0  # seconds in which all parts must be done


def in_threads(threads: int, do: Callable[[int], object]) -> None:
    """Call `do` with 0 to threads - 1, all at once, each in a thread in which a matrix product takes one. Raises what one of them
    raises, when all have ended. Threads are begun anew, which takes a tenth of a millisecond: none is left to be ended."""
    if threads == 1:
        do(0)
        return
    with ThreadPoolExecutor(threads, "kgdist-share", torch.set_num_threads, (1,)) as pool:
        futures = [pool.submit(do, number) for number in range(threads)]
        wait(futures, timeout=LIMIT)
        for future in futures:
            future.result(timeout=0)


def part(total: int, number: int, of: int) -> slice:
    """Part `number` of `of` equal parts of range(total)."""
    return slice(total * number // of, total * (number + 1) // of)
