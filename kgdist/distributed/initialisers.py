"""Tables that are filled where they live: functions that a server finds by their names, and the memory that it shares.

Nothing is pickled. A server has run the same script up to `initialize`, so that whatever the script has declared until then has
the same name there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from kgdist.base.errors import UsageError
from kgdist.kvstore.shared_memory import SharedArray

if TYPE_CHECKING:
    import torch


def mapped(handle: dict[str, Any]) -> np.ndarray:
    """The array that another process has shared. Raises KgdistError where it has it no more."""
    memory = SharedArray.attach(handle)
    memory.close()  # what is mapped stays
    return memory.array


def path_of(function: Callable[..., Any]) -> str:
    """`module:name` of a function, by which a server finds it. Raises UsageError for one that has no name of its own."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", "")
    if not module or not name or "<" in name:
        what = "is looked up by its name in the servers: write it with def at the top of the script, before initialize()"
        raise UsageError(f"init_func {name or type(function).__name__} {what}")
    return f"{module}:{name}"


def function_at(path: str) -> Callable[..., Any]:
    """What `path_of` named, of a module that this process has imported. Raises UsageError."""
    module, _, name = path.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise UsageError(f"init_func {name} of {module} is not known in the server: declare it before initialize()")
    return found  # type: ignore[no-any-return]


def initialised(initialiser: Callable[..., Any], shape: tuple[int, ...], dtype: torch.dtype, name: str) -> torch.Tensor:
    """What an initialiser makes of the shape and dtype of the rows of a machine. Raises UsageError where it fails, or where that
    is no tensor of this shape and dtype."""
    import torch

    wanted = str(dtype).removeprefix("torch.")
    try:
        given = initialiser(shape, dtype)
    except Exception as error:
        told = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise UsageError(f"{name!r}: init_func(shape, dtype) failed, for {list(shape)} and {wanted}: {told}") from error
    if not isinstance(given, torch.Tensor) or tuple(given.shape) != shape or given.dtype != dtype:
        is_tensor = isinstance(given, torch.Tensor)
        what = f"{str(given.dtype).removeprefix('torch.')}{list(given.shape)}" if is_tensor else f"a {type(given).__name__}"
        raise UsageError(f"{name!r}: its init_func gave {what}, not {wanted}{list(shape)}")
    return given


def filled(rows: np.ndarray, name: str, dtype: str | None, initialiser: Callable[..., Any]) -> None:
    """Fill the rows of one machine with what `initialiser` makes. Raises UsageError, see `initialised`."""
    import torch

    wanted = getattr(torch, dtype) if dtype else torch.from_numpy(rows[:0]).dtype
    given = initialised(initialiser, tuple(rows.shape), wanted, name)
    if wanted == torch.bfloat16:  # NumPy has none, but other 16 bits
        given = given.view(torch.int16)
    rows[...] = given.numpy().view(rows.dtype)
