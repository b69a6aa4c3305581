"""How loops are compiled, by Numba, and whether: a name of a loop stands for the plain function until the loop is first called.

The first call of any loop of a file imports Numba (half a second) and makes every loop of that file, which then takes the place
of its name: later calls cost what calls of compiled code cost, and files with loops are imported in no time. Compiled code is
kept in NUMBA_CACHE_DIR, by default ~/.cache/kgdist/numba; when nothing can be written there, each process compiles anew.

KGDIST_KERNELS=torch forces the torch twins of what has one, for comparison and for finding faults: comparators, losses, rows,
ranks. What only a CPU does has none, and is compiled all the same: drawing, shuffling, routing, partitioning, names by hash.
"""

from __future__ import annotations

import functools
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgdist.base.errors import KgdistError
from kgdist.base.log import log
from kgdist.base.machine import processor

if TYPE_CHECKING:
    import torch

Function = Callable[..., Any]

WANTED = os.environ.get("KGDIST_KERNELS", "numba")
COMMON: dict[str, Any] = {"nogil": True, "error_model": "numpy", "boundscheck": False}
FAST = {"reassoc", "contract", "arcp", "nsz", "afn"}  # rounding may be reordered, but NaN and infinity keep their meaning

_lock = threading.RLock()  # a loop in the making must not meet one of its file that another thread has not made yet


def compiled() -> bool:
    """Whether compiled loops do what torch could; raises ValueError on a value of KGDIST_KERNELS it does not know."""
    if WANTED not in ("numba", "torch"):
        raise ValueError(f"KGDIST_KERNELS={WANTED}: use numba or torch")
    return WANTED == "numba"


def compiled_for(*tensors: torch.Tensor) -> bool:
    """Whether compiled loops do it with these: float32, on the CPU."""
    import torch  # slow, and here already when there are tensors: loops over triples and names do without

    for each in tensors:  # asked some twenty times a step: a generator here costs a hundredth of it
        if each.dtype is not torch.float32 or not each.is_cpu:
            return False
    return compiled()


def load() -> None:
    """Import Numba now, if it will be needed, for whoever has a second to spare."""
    if compiled():
        _numba()


@functools.cache
def cached() -> bool:
    """Whether compiled code can be kept. Settles the folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    folder = os.environ.setdefault("NUMBA_CACHE_DIR", os.path.join(base, "kgdist", "numba"))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        log.debug("%s cannot be written: kernels are compiled in every process", folder)
        return False


def wide_vectors(name: str, units: frozenset[str]) -> bool:
    """Whether loops shall use AVX-512's whole width where LLVM by itself takes half of it: on Intel's Xeons it does so for the
    sake of ones whose clock fell with wide vectors, and the loops of trainings were 5 to 15 % faster with all 512 bits."""
    return "Intel" in name and "avx512f" in units


@functools.cache
def _numba() -> Any:
    """The compiler. Raises KgdistError where it cannot be imported."""
    cached()
    try:
        import llvmlite.binding

        if wide_vectors(*processor()):  # a user's own words stay
            os.environ.setdefault("NUMBA_CPU_FEATURES", f"{llvmlite.binding.get_host_cpu_features().flatten()},-prefer-256-bit")
        import numba
    except ImportError as error:
        advice = "pip install --force-reinstall numba llvmlite"
        raise KgdistError(f"Numba, which compiles the loops, cannot be imported ({error}): {advice}") from error
    # Numba reads the environment when it is imported, which others do as well (PyG): the same run would round otherwise.
    settings: Any = numba.config
    settings.CACHE_DIR = settings.CACHE_DIR or os.environ["NUMBA_CACHE_DIR"]
    settings.CPU_FEATURES = settings.CPU_FEATURES or os.environ.get("NUMBA_CPU_FEATURES")
    _listen()
    return numba


class Compiling:
    """What the main thread is compiling. An exception that a signal raises meanwhile is lost in LLVM's calls back into Python, or
    leaves a loop half made, so it waits."""

    def __init__(self) -> None:
        self.depth = 0  # a loop that calls others has them compiled in the midst of its own compilation
        self.awaited = False

    def postpones(self) -> bool:
        """Whether a handler of signals, in the main thread, is not to raise KeyboardInterrupt now: it is raised when the loop is
        compiled, seconds from now at most."""
        self.awaited |= self.depth > 0
        return self.depth > 0

    def begin(self) -> None:
        """One loop more, in whatever thread calls."""
        if threading.current_thread() is threading.main_thread():
            self.depth += 1

    def end(self) -> None:
        """One loop less. Raises KeyboardInterrupt that waited for the last of them."""
        if threading.current_thread() is threading.main_thread():
            self.depth -= 1
            if not self.depth and self.awaited:
                self.awaited = False
                raise KeyboardInterrupt


compiling = Compiling()


def _listen() -> None:
    """Say once that loops are being compiled, seconds in which nothing else is seen to happen, and let `compiling` know."""
    try:
        from numba.core import event

        class Listener(event.Listener):  # type: ignore[misc]
            said = False

            def on_start(self, event: Any) -> None:
                if not self.said:
                    again = f"again each time, because {os.environ['NUMBA_CACHE_DIR']} cannot be written"
                    often = "once for this machine" if cached() else again
                    log.info("compiling the loops of this run, %s: up to half a minute", often)
                self.said = True
                compiling.begin()

            def on_end(self, event: Any) -> None:
                compiling.end()

        event.register("numba:compile", Listener())  # told of what is not in the cache
    except (ImportError, AttributeError):  # another Numba: the seconds pass in silence
        log.debug("this Numba does not tell when it compiles")


def _save_if_possible(made: Any) -> Any:
    """The same compiled loop, which is compiled anew in the next process where the cache cannot be written: a full disk ends no
    training."""
    cache: Any = getattr(made, "_cache", None)
    save: Any = getattr(cache, "save_overload", None)
    if save is None:
        return made

    def saved(*arguments: Any) -> None:
        try:
            save(*arguments)
        except OSError as error:
            log.debug("%s: compiled code is not kept (%s)", os.environ.get("NUMBA_CACHE_DIR"), error)

    cache.save_overload = saved
    return made


@functools.cache
def promise() -> dict[str, Any]:
    """The option that promises LLVM that array arguments do not overlap; empty, with a warning, when this Numba has no such flag.

    Results are the same without it; complex distances take their gradient about ten times slower.
    """
    try:
        from numba.core.compiler import Compiler, Flags

        known = hasattr(Flags, "noalias")
    except ImportError:
        known = False
    if not known:
        log.warning("this Numba cannot be told that arrays do not overlap: some gradients will be slow")
        return {}

    class Disjoint(Compiler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)  # type: ignore[no-untyped-call]
            self.state.flags.noalias = True

    return {"pipeline_class": Disjoint}


class Loop:
    """A loop that is compiled, with these options, when it or another one of its file is first called."""

    def __init__(self, function: Function, options: Callable[[], dict[str, Any]]) -> None:
        self.function, self.options = function, options
        self._made: Function | None = None

    def __call__(self, *arguments: Any) -> Any:
        return self.made()(*arguments)

    def made(self) -> Function:
        """The compiled loop. All names of its file that stand for loops, imported ones too, come to mean the compiled ones."""
        with _lock:
            if self._made is None:
                self._made = self.make()
                names = self.function.__globals__
                names.update({name: loop.made() for name, loop in list(names.items()) if isinstance(loop, Loop)})
            return self._made

    def make(self) -> Function:
        """What Numba makes of it."""
        made: Function = _save_if_possible(_numba().njit(**COMMON, **self.options())(self.function))
        return made


class Instruction(Loop):
    """Made of LLVM's own instructions by a function of Numba's typing context and of types."""

    def __init__(self, function: Function) -> None:
        super().__init__(function, dict)

    def make(self) -> Function:
        return _numba().extending.intrinsic(self.function)  # type: ignore[no-any-return]


def kernel(function: Function) -> Function:
    """Compile for float arithmetic that may be reordered."""
    return Loop(function, lambda: {"cache": cached(), "fastmath": FAST})


def strict(function: Function) -> Function:
    """Compile with IEEE arithmetic in the order written."""
    return Loop(function, lambda: {"cache": cached()})


def disjoint(function: Function) -> Function:
    """As `kernel`; the caller promises that no array that is written overlaps another argument."""
    return Loop(function, lambda: {"cache": cached(), "fastmath": FAST} | promise())


def inlined(function: Function) -> Function:
    """A small function for other loops; its code is part of theirs."""
    return Loop(function, lambda: {"fastmath": FAST})
