"""Questions that a machine answers from what lies there: a name, small arguments as JSON, and arrays, there and back.

A `Service` is what answers: called with the arguments and the arrays, it returns arrays of any number, dtype and length. Its
exceptions are told to whoever asked, and to nobody else. What a question may be, and how an answer travels, is the wire's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from kgdist.base.errors import KgdistError, ProtocolError, one_line

# code -> dtype of an array that travels; kgdist's own types are stored as these
ARRAYS: dict[int, np.dtype[Any]] = {
    code: np.dtype(name)
    for code, name in enumerate(("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8"), 1)
}
CODES = {dtype: code for code, dtype in ARRAYS.items()}
ALIGNED = 8  # an array begins at a multiple of so many bytes

Service = Callable[[dict[str, Any], list[np.ndarray]], Sequence[np.ndarray]]


class Asking(Protocol):
    """A question that is on its way."""

    def done(self) -> bool:
        """Whether the answer is here; it is looked for, and not waited for."""

    def result(self) -> list[np.ndarray]:
        """The arrays of the answer, one-dimensional, when they are here. Raises KgdistError with the service's reason."""


class Answered:
    """A question that has been answered already."""

    def __init__(self, arrays: list[np.ndarray], problem: str = "") -> None:
        self._arrays, self._problem = arrays, problem

    def done(self) -> bool:
        """See Asking."""
        return True

    def result(self) -> list[np.ndarray]:
        """See Asking."""
        if self._problem:
            raise KgdistError(self._problem)
        return self._arrays


def size_of_arrays(arrays: Iterable[tuple[int, int]]) -> int:
    """Bytes of arrays, (code of the dtype, length) each, one after another."""
    return sum(-(-count * ARRAYS[code].itemsize // ALIGNED) * ALIGNED for code, count in arrays)


def described(arrays: Sequence[np.ndarray]) -> tuple[tuple[int, int], ...]:
    """Code and length of each. Raises TypeError for a dtype that does not travel."""
    for array in arrays:
        if array.dtype not in CODES:
            raise TypeError(f"arrays of {array.dtype} do not travel: {', '.join(map(str, CODES))}")
    return tuple((CODES[array.dtype], array.size) for array in arrays)


def write_arrays(arrays: Sequence[np.ndarray], out: np.ndarray) -> None:
    """Their bytes, one array after another, into uint8[size_of_arrays]."""
    at = 0
    for array in arrays:
        out[at : at + array.nbytes] = array.reshape(-1).view(np.uint8)
        end = at + array.nbytes
        at = -(-end // ALIGNED) * ALIGNED
        out[end:at] = 0


def read_arrays(arrays: Iterable[tuple[int, int]], memory: np.ndarray | None) -> list[np.ndarray]:
    """The arrays in these bytes, views where they can be; whatever the bytes of a bool, it is True or False."""
    found, at = [], 0
    for code, count in arrays:
        dtype, size = ARRAYS[code], count * ARRAYS[code].itemsize
        part = memory[at : at + size] if memory is not None else np.empty(0, np.uint8)
        found.append(part != 0 if dtype == np.bool_ else part.view(dtype))
        at += -(-size // ALIGNED) * ALIGNED
    return found


def worded(what: str, args: Mapping[str, Any]) -> str:
    """A question in words."""
    return json.dumps([what, dict(args)])


def called(services: Mapping[str, Service], text: str, arrays: list[np.ndarray]) -> list[np.ndarray]:
    """What the service that `worded` names says. Raises ProtocolError for a question that is none."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a question is not JSON") from error
    if not isinstance(body, list) or [type(part) for part in body] != [str, dict]:
        raise ProtocolError("a question must be a name and its arguments")
    what, args = body
    if (service := services.get(what)) is None:
        raise ProtocolError(f"nobody here answers {one_line(what)[:80]!r}: {', '.join(services) or 'no services'}")
    return [np.ascontiguousarray(array).reshape(-1) for array in service(args, arrays)]


def settled(services: Mapping[str, Service], what: str, args: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> Answered:
    """The same at once, and in the same words: arguments go through JSON."""
    try:
        return Answered(called(services, worded(what, args), [np.ascontiguousarray(array).reshape(-1) for array in arrays]))
    except Exception as error:
        return Answered([], reason_of(error))


def reason_of(error: Exception) -> str:
    """An exception in the words that whoever asked is told."""
    if isinstance(error, MemoryError):
        return f"there is not enough memory for the answer, ask about less at a time ({one_line(str(error)) or 'MemoryError'})"
    return str(error) if isinstance(error, ProtocolError) else f"{type(error).__name__}: {one_line(str(error))}"
