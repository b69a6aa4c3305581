"""Threads that share the blocks of one computation, ranking or predicting: how they are dealt out, and how torch is set."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import TypeVar

import torch

Part = TypeVar("Part")
Made = TypeVar("Made")

# Seconds after which a thread that prepares its block lets another one start its next product: Python's own 5 ms are as long as
# the product of a small model, and cost two threads that rank by RESCAL 3 % of their speed.
SWITCH = 5e-4


@contextlib.contextmanager
def block_per_thread() -> Iterator[None]:
    """Inside, a product takes one thread: a block for each thread is faster than many threads for each product.

    Counts for the thread that enters, and for how threads take turns in the whole process; both are put back.
    """
    intra, interval = torch.get_num_threads(), sys.getswitchinterval()
    torch.set_num_threads(1)
    sys.setswitchinterval(min(SWITCH, interval))
    try:
        yield
    finally:
        torch.set_num_threads(intra)
        sys.setswitchinterval(interval)


class _Stopped(Exception):
    """Another thread failed, or the user pressed Ctrl-C."""


class Deal:
    """Parts of one computation dealt out to threads. An error, or Ctrl-C, ends all of them when they next call `check`."""

    def __init__(self) -> None:
        self._lock, self._stopped = threading.Lock(), threading.Event()

    def check(self) -> None:
        """To be called once per block; ends the thread when there is no use in going on."""
        if self._stopped.is_set():
            raise _Stopped

    def run(
        self, parts: Iterator[Part], work: Callable[[Part], int], threads: int, name: str, report: Callable[[int], object]
    ) -> None:
        """Call `work` for each of `parts` on `threads` threads called `name`, and `report` with what it gives, one at a time."""

        def serve() -> None:
            try:
                while True:
                    self.check()
                    with self._lock:
                        part = next(parts, None)
                    if part is None:
                        return
                    done = work(part)
                    with self._lock:
                        report(done)
            except _Stopped:
                return
            except BaseException:
                self._stopped.set()
                raise

        if threads <= 1:
            return serve()
        with ThreadPoolExecutor(threads, name, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            futures = [pool.submit(serve) for _ in range(threads)]
            try:
                for future in futures:
                    _result(future)  # where one fails, the others end
            finally:
                self._stopped.set()

    def in_order(self, parts: Iterator[Part], work: Callable[[Part], Made], threads: int, name: str) -> Iterator[Made]:
        """What `work` gives for each of `parts`, in their order, a few parts ahead of whoever takes it."""
        if threads <= 1:
            yield from map(work, parts)
            return
        waiting: deque[Future[Made]] = deque()
        with ThreadPoolExecutor(threads, name, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                for part in parts:
                    waiting.append(pool.submit(work, part))
                    if len(waiting) > 2 * threads:
                        yield _result(waiting.popleft())
                while waiting:
                    yield _result(waiting.popleft())
            finally:
                self._stopped.set()
                for future in waiting:
                    future.cancel()


def _result(future: Future[Made]) -> Made:
    while wait([future], timeout=1.0).not_done:
        pass
    return future.result(timeout=0)
