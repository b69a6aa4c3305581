"""Work that threads of this process share out: each does its own part, none writes what another one reads or writes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

import torch

from kgdist.base.errors import KgdistError

LIMIT = 600.0  # seconds in which all parts must be done; those in which this process stands still (Ctrl-Z) do not count
LOOK = 1.0  # seconds between two looks at them


class Crew:
    """Threads that are kept, in each of which a matrix product takes one thread: a new one pays milliseconds for its first
    product. They end with their owner."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        torch.get_num_threads()  # settles that of this thread: when first asked, torch takes what any thread has set last
        self._pool = ThreadPoolExecutor(threads, "kgdist-share", torch.set_num_threads, (1,)) if threads > 1 else None

    def __call__(self, do: Callable[[int], object]) -> None:
        """Call `do` with 0 to threads - 1, all at once. Raises what one of them raises, when all have ended; KgdistError where
        they do not end."""
        if self._pool is None:
            do(0)
            return
        futures = [self._pool.submit(do, number) for number in range(self.threads)]
        looks = 0
        while wait(futures, timeout=LOOK).not_done:
            looks += 1
            if looks * LOOK > LIMIT:
                raise KgdistError(f"threads have not ended their part of a step in {LIMIT:.0f} s")
        for future in futures:
            future.result(timeout=0)

    def close(self) -> None:
        """End the threads now."""
        if self._pool is not None:
            self._pool.shutdown()


ALONE = Crew(1)  # the thread that calls


def in_threads(threads: int, do: Callable[[int], object]) -> None:
    """The same by threads that are begun for it, which takes a tenth of a millisecond."""
    crew = Crew(threads)
    try:
        crew(do)
    finally:
        crew.close()


def part(total: int, number: int, of: int) -> slice:
    """Part `number` of `of` equal parts of range(total)."""
    return slice(total * number // of, total * (number + 1) // of)
