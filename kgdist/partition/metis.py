"""METIS, called in the shared library of pymetis: several balance constraints, arrays as they are, other threads running on.

pymetis' own function knows one constraint only and holds Python's lock. METIS itself (Karypis, Kumar 1998, version 5.1) checks
next to nothing: ids out of range end the process, an asymmetric graph gets a nonsensical answer, a partition may stay empty. So
the graph is looked through before the call, and `kgdist.partition.assign` looks at the answer.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence

import numpy as np

from kgdist.base.errors import KgdistError, OptionError
from kgdist.base.log import bar
from kgdist.partition.graph import Adjacency

OPTIONS = 40  # METIS_NOPTIONS of metis.h; places in them:
OBJECTIVE, SEED, NUMBERING = 1, 8, 17
VOLUME = 1  # METIS_OBJTYPE_VOL
OK, MEMORY = 1, -3  # METIS_OK, METIS_ERROR_MEMORY
INSTEAD = "take --method streaming"


class Metis:
    """The two functions that divide a graph, and how wide their integers are."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Raises AttributeError where the library lacks a function, ValueError where it uses integers of an unknown width."""
        self.kway, self.recursive = library.METIS_PartGraphKway, library.METIS_PartGraphRecursive
        self._defaults = library.METIS_SetDefaultOptions
        untouched = -77
        written = np.full(2 * OPTIONS, untouched, np.int32)
        self._defaults(ctypes.c_void_p(written.ctypes.data))
        width = 4 * int(np.flatnonzero(written != untouched)[-1] + 1) // OPTIONS
        if width not in (4, 8):
            raise ValueError(f"integers of {width} bytes")
        self.integer = np.dtype(np.int32 if width == 4 else np.int64)

    def divide(
        self,
        graph: Adjacency,
        loads: np.ndarray,
        parts: int,
        tolerance: Sequence[float],
        seed: int,
        halving: bool,
        volume: bool = False,
    ) -> np.ndarray:
        """METIS' answer, int[n]; the arguments are those of `divide`. Nothing is checked but METIS' return code."""
        integer = self.integer
        options = np.empty(OPTIONS, integer)
        self._defaults(ctypes.c_void_p(options.ctypes.data))
        options[[SEED, NUMBERING]] = seed % (1 << 31), 0
        if volume:
            options[OBJECTIVE] = VOLUME
        numbers = np.array([loads.shape[0], loads.shape[1], parts, 0], integer)  # vertices, constraints, parts, the cut
        arrays = [np.ascontiguousarray(array, integer) for array in (graph.starts, graph.neighbours, loads, graph.weights)]
        starts, neighbours, weights, edges = (ctypes.c_void_p(array.ctypes.data) for array in arrays)
        uneven = np.array(tolerance, np.float32)
        answer = np.zeros(loads.shape[0], integer)
        vertices, constraints, count, cut = (
            ctypes.c_void_p(numbers.ctypes.data + place * integer.itemsize) for place in range(4)
        )
        function = self.recursive if halving else self.kway
        code = function(
            vertices,
            constraints,
            starts,
            neighbours,
            weights,
            None,  # all nodes are of one size where the volume is the objective
            edges,
            count,
            None,  # equal shares
            ctypes.c_void_p(uneven.ctypes.data),
            ctypes.c_void_p(options.ctypes.data),
            cut,
            ctypes.c_void_p(answer.ctypes.data),
        )
        if code != OK:
            reason = "not enough memory" if code == MEMORY else f"error {code}"
            raise KgdistError(f"METIS: {reason}; {INSTEAD}")
        return answer


@functools.cache
def library() -> Metis:
    """METIS. Raises OptionError where pymetis is not installed, or is one that hides it."""
    try:
        import pymetis._internal
    except ImportError as error:
        raise OptionError("--method", f"metis needs the package pymetis ({error}): pip install pymetis, or {INSTEAD}") from error
    try:
        return Metis(ctypes.CDLL(pymetis._internal.__file__))
    except (AttributeError, OSError, ValueError, IndexError) as error:
        raise OptionError(
            "--method", f"metis: this pymetis cannot be used ({error}): install 2025.2 or newer, or {INSTEAD}"
        ) from error


def divide(
    graph: Adjacency,
    loads: np.ndarray,
    parts: int,
    *,
    tolerance: Sequence[float],
    seed: int,
    halving: bool = False,
    volume: bool = False,
) -> np.ndarray:
    """int32[n] in 0..parts-1: few triples between the parts, and each of `loads` int64[n, c] about even.

    `tolerance`: largest part / average that METIS may take, for each load. `halving`: the graph is cut in two again and again,
    and not into all parts at once. `volume`: few nodes that a part gets from another, each counted once for a part, where METIS
    does not halve. The same seed gives the same answer. Ctrl-C ends the wait, METIS goes on until the process ends.

    Raises ValueError for a graph or loads that METIS would crash on, OptionError where there is no METIS, KgdistError where it
    fails.
    """
    n = len(graph.starts) - 1
    if loads.shape != (n, len(tolerance)) or loads.min(initial=0) < 0 or not 1 <= parts <= n:
        raise ValueError(f"loads of shape {loads.shape} for {n} entities and {parts} parts, or a negative one")
    fault = graph.fault()
    if fault:
        raise ValueError(f"the graph cannot be partitioned: {fault}")
    useful = loads.sum(axis=0) > 0  # METIS divides by the sum
    if halving and volume:
        raise ValueError("METIS halves for few triples between the parts only")
    if parts == 1 or not useful.any():
        return np.zeros(n, np.int32)
    metis = library()
    if metis.integer.itemsize == 4 and max(len(graph.neighbours), int(loads.sum(axis=0).max())) >= 1 << 31:
        raise OptionError("--method", f"metis: this METIS has integers of 32 bits, too few for this graph; {INSTEAD}")
    result: list[np.ndarray | BaseException] = []

    def work() -> None:
        try:
            limits = [t for t, use in zip(tolerance, useful, strict=True) if use]
            answer = metis.divide(graph, loads[:, useful], parts, limits, seed, halving, volume)
            result.append(answer.astype(np.int32))
        except BaseException as error:  # raised again where it is waited for
            result.append(error)

    thread = threading.Thread(target=work, name="METIS", daemon=True)
    thread.start()
    with bar(desc=f"METIS, {parts} parts", unit=" s") as progress:
        while thread.is_alive():
            thread.join(0.5)
            progress.update(0.5)
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]
