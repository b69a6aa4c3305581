"""Which twin runs, Numba or torch. Numba is imported by the first question that it may be the answer to, not by this file.

The environment variable KGDIST_KERNELS=torch forces the torch twins, for comparison and for finding faults.
"""

from __future__ import annotations

import functools
import importlib
import os

import torch

from kgdist.base.log import log

WANTED = os.environ.get("KGDIST_KERNELS", "numba")


@functools.cache
def _numba_is(wanted: str) -> bool:
    if wanted not in ("numba", "torch"):
        raise ValueError(f"KGDIST_KERNELS={wanted}: use numba or torch")
    if wanted == "torch":
        return False
    try:
        importlib.import_module("kgdist.kernels.jit")
    except ImportError as error:
        log.warning("Numba cannot be used (%s): L1 and complex distances run in plain torch, many times slower", error)
        return False
    return True


def numba() -> bool:
    """Whether Numba kernels may be used in this process; raises ValueError on a value of KGDIST_KERNELS it does not know."""
    return _numba_is(WANTED)


def numba_for(*tensors: torch.Tensor) -> bool:
    """Whether Numba kernels may be used on these: float32, on the CPU."""
    for each in tensors:  # asked some twenty times a step: a generator here costs a hundredth of it
        if each.dtype is not torch.float32 or not each.is_cpu:
            return False
    return numba()
