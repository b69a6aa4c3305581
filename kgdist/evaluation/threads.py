"""How Python and torch are set while threads of ours share the blocks of one computation: ranking, predicting, comparing."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import torch

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
