"""Numba, with the options that all kernels share: no GIL, cached on disk, arrays that do not overlap on request.

Importing this file imports Numba (about half a second), so only kernel files do, and they are imported when first needed
(`choice`). Compiled code is kept in NUMBA_CACHE_DIR, by default ~/.cache/kgdist/numba; when nothing can be written there kernels
are compiled anew in every process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kgdist.base.log import log

Function = Callable[..., Any]


def _cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "kgdist" / "numba"


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


os.environ.setdefault("NUMBA_CACHE_DIR", os.fspath(_cache_dir()))
CACHE = _writable(Path(os.environ["NUMBA_CACHE_DIR"]))
if not CACHE:
    log.debug("%s cannot be written: kernels are compiled in every process", os.environ["NUMBA_CACHE_DIR"])

import numba  # noqa: E402  (reads the environment when imported)


def _tell_of_compiling() -> None:
    """Say once that loops are being compiled: seconds in which nothing else is seen to happen."""
    try:
        from numba.core import event

        class Listener(event.Listener):  # type: ignore[misc]
            said = False

            def on_start(self, event: Any) -> None:
                if not self.said:
                    again = f"anew each time, for {os.environ['NUMBA_CACHE_DIR']} cannot be written"
                    log.info(
                        "compiling the loops of this run, %s: up to half a minute", "once for this machine" if CACHE else again
                    )
                self.said = True

            def on_end(self, event: Any) -> None:
                """Nothing to say."""

        event.register("numba:compile", Listener())  # told of what is not in the cache
    except (ImportError, AttributeError):  # another Numba: the seconds pass in silence
        log.debug("Numba %s does not tell when it compiles", numba.__version__)


_tell_of_compiling()

# Rounding may be reordered and contracted, but NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}


def _disjoint() -> dict[str, Any]:
    """The option that promises LLVM that array arguments do not overlap; empty, with a warning, when this Numba has no such flag.

    Results are the same without it; complex distances take their gradient about ten times slower.
    """
    try:
        from numba.core.compiler import Compiler, Flags

        known = hasattr(Flags, "noalias")
    except ImportError:
        known = False
    if not known:
        log.warning("Numba %s cannot be told that arrays do not overlap: some gradients will be slow", numba.__version__)
        return {}

    class Disjoint(Compiler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)  # type: ignore[no-untyped-call]
            self.state.flags.noalias = True

    return {"pipeline_class": Disjoint}


DISJOINT = _disjoint()
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}


def kernel(function: Function) -> Function:
    """Compile for float arithmetic that may be reordered."""
    return numba.njit(**COMMON, cache=CACHE, fastmath=FAST)(function)  # type: ignore[no-any-return]


def strict(function: Function) -> Function:
    """Compile with IEEE arithmetic in the order written."""
    return numba.njit(**COMMON, cache=CACHE)(function)  # type: ignore[no-any-return]


def disjoint(function: Function) -> Function:
    """As `kernel`; the caller promises that no array that is written overlaps another argument."""
    return numba.njit(**COMMON, cache=CACHE, fastmath=FAST, **DISJOINT)(function)  # type: ignore[no-any-return]


def inlined(function: Function) -> Function:
    """A small function for the kernels of the same file; its code is part of theirs."""
    return numba.njit(**COMMON, fastmath=FAST)(function)  # type: ignore[no-any-return]
