"""Bytes of a process put together to lines, and lines understood: JSON for programs, or text for people. Pure."""

from __future__ import annotations

import json
from typing import Any


class Lines:
    """Pieces of a byte stream put together to lines, in time linear in them."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.size = 0  # bytes that have no line end yet

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends."""
        *whole, last = data.split(b"\n")
        if whole:
            whole[0] = self.rest() + whole[0]
        self._pieces.append(last)
        self.size += len(last)
        return whole

    def rest(self) -> bytes:
        """Take what has no line end yet."""
        line = b"".join(self._pieces)
        self._pieces, self.size = [], 0
        return line


def message_of(line: bytes) -> dict[str, Any] | None:
    """The JSON object that a line is, or None when it is something else."""
    if not line.startswith(b"{"):
        return None
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def fits(value: Any, shape: Any) -> bool:
    """Whether JSON is of a shape: a type; [shape] for a list of such; a tuple of shapes for a list of those; {key: shape} for an
    object that has at least these keys."""
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(key in value and fits(value[key], inner) for key, inner in shape.items())
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        return isinstance(value, list) and len(value) == len(shape) and all(map(fits, value, shape))
    return isinstance(value, shape)


def cleaned(value: Any) -> Any:
    """JSON with every text in it fit for a terminal, see `readable`."""
    if isinstance(value, str):
        return readable(value.encode("utf-8", "replace"))
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return {key: cleaned(item) for key, item in value.items()} if isinstance(value, dict) else value


def readable(line: bytes) -> str:
    """A line for a terminal: what a bar has overwritten left out, control characters spelled out."""
    text = line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")
    return "".join(letter if letter.isprintable() or letter == "\t" else repr(letter)[1:-1] for letter in text)
