"""What goes over the wire: one or two frames a message, plain numbers of fixed width. No sockets, no pickle.

    frame 0   header | a line for each part | ids of the parts | squares of the parts, or the text
    frame 1   values of the parts, one part after another

A part is rows of one table: what a step has for one server, of whatever tables, travels together.

`parse` is total: frames in, a `Message` out, or ProtocolError. A length must be what the header's counts say before anything is
made of it, and arrays are views of the frames, so a lying header costs nothing. Whether ids exist and values are finite is for
the server to say.

    kind      from    parts, text
    HELLO     client  JSON: who it is, and which run, options and graph it believes in
    WELCOME   server  JSON: the same of the server; number = the last push it has applied for this client
    REFUSED   server  text: why not
    PULL      client  ids                        rows by id, in the dtype of the header
    READ      client                             rows first..first + rows, always float32
    ROWS      server  values                     the answer to PULL and READ
    WRITE     client  values                     rows first..first + rows are overwritten (float32)
    WRITTEN   server                             the answer to it
    PUSH      client  ids, values[, squares]     gradients for the optimiser; number = 1, 2, 3, ...
    ACK       server                             number = the last push applied
    GAP       server                             number = the same, after a push that came too early
    WHO       server                             a HELLO must come first
    ERROR     server  text: what is wrong with message `number`; nothing of it was applied
    BYE       client                             it will not come back
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from kgdist.errors import ProtocolError, one_line

MAGIC = b"kgds"
PROTOCOL = 2
# magic, protocol, kind, dtype of values, client, incarnation, round, parts, number, lr
HEADER = struct.Struct("<4sHBBIIIIQd")
# table, bytes of an id, whether it has squares, rows, width, first
PART = struct.Struct("<HBBII4xq")
PREFIX = struct.Struct("<4sH")  # these stay where they are in every version
MOST_FRAMES = 2
MOST_PARTS = 64
MOST_BYTES = 64 << 20  # of one frame
PIECE_BYTES = 16 << 20  # what a sender makes of one, at most, where rows allow it
TEXT_BYTES = 4096  # of JSON or text
FP32, BF16 = 1, 2
ITEM: dict[int, np.dtype[Any]] = {FP32: np.dtype("<f4"), BF16: np.dtype("<u2")}  # bfloat16 as its bits
ID_WIDTHS: dict[int, np.dtype[Any]] = {4: np.dtype("<i4"), 8: np.dtype("<i8")}


class Kind(IntEnum):
    """See above."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    PULL = 4
    READ = 5
    ROWS = 6
    WRITE = 7
    WRITTEN = 8
    PUSH = 9
    ACK = 10
    GAP = 11
    WHO = 12
    ERROR = 13
    BYE = 14


TEXTS = frozenset((Kind.HELLO, Kind.WELCOME, Kind.REFUSED, Kind.ERROR))
SIZED = frozenset((Kind.PULL, Kind.READ, Kind.ROWS, Kind.WRITE, Kind.PUSH))  # those with parts
NAMING = frozenset((Kind.PULL, Kind.PUSH))  # with ids
FILLED = frozenset((Kind.ROWS, Kind.WRITE, Kind.PUSH))  # with values
KINDS = {int(kind): kind for kind in Kind}


class Part(NamedTuple):
    """Rows of one table."""

    table: int
    rows: int
    width: int
    first: int = 0
    ids: np.ndarray | None = None  # int32[rows] or int64[rows]
    squares: np.ndarray | None = None  # float32[rows]


class Message(NamedTuple):
    """One message; what its kind does not have stays empty."""

    kind: Kind
    client: int = 0
    incarnation: int = 0
    round: int = 0  # of HELLO and WELCOME that it belongs to
    number: int = 0
    dtype: int = FP32
    lr: float = 0.0
    parts: tuple[Part, ...] = ()
    values: np.ndarray | None = None  # float32[sum of rows * width], or uint16 for bfloat16: part after part
    text: str = ""

    def answer(
        self, kind: Kind, *, number: int | None = None, parts: tuple[Part, ...] = (), values: np.ndarray | None = None,
        text: str = "",
    ) -> Message:  # fmt: skip
        """A reply: the same client, incarnation and round, and the same number unless told otherwise."""
        number = self.number if number is None else number
        return self._replace(kind=kind, number=number, parts=parts, values=values, text=text)

    def filled(self) -> Iterator[tuple[Part, np.ndarray]]:
        """Each part with its values, [rows, width]."""
        assert self.values is not None
        start = 0
        for part in self.parts:
            stop = start + part.rows * part.width
            yield part, self.values[start:stop].reshape(part.rows, part.width)
            start = stop


def size_of(parts: Iterable[Part], dtype: int) -> int:
    """Bytes of the values of these parts."""
    return sum(part.rows * part.width for part in parts) * ITEM[dtype].itemsize


def pack(message: Message) -> list[Any]:
    """Frames for the wire; values must be contiguous, and are handed on without a copy. Text is cut at 4096 bytes."""
    parts = message.parts
    pieces: list[Any] = [
        HEADER.pack(
            *(MAGIC, PROTOCOL, message.kind, message.dtype, message.client, message.incarnation, message.round, len(parts)),
            *(message.number, message.lr),
        )
    ]
    for part in parts:
        wide = part.ids.itemsize if part.ids is not None else 0
        pieces.append(PART.pack(part.table, wide, part.squares is not None, part.rows, part.width, part.first))
    pieces += [part.ids for part in parts if part.ids is not None]
    pieces += [part.squares for part in parts if part.squares is not None]
    if message.kind in TEXTS:
        pieces.append(message.text.encode()[:TEXT_BYTES])
    head = b"".join(pieces)
    return [head] if message.values is None else [head, message.values.view(np.uint8).data]


def parse(frames: Sequence[Any]) -> Message:
    """The message in these frames (anything with the buffer protocol). Raises ProtocolError for all that `pack` cannot make."""
    if not 1 <= len(frames) <= MOST_FRAMES:
        raise ProtocolError(f"a message of {len(frames)} frames: 1 or 2 are possible")
    head = memoryview(frames[0])
    if head.nbytes < PREFIX.size or bytes(head[:4]) != MAGIC:
        raise ProtocolError("not a message of kgdist")
    _, version = PREFIX.unpack_from(head)
    if version != PROTOCOL:
        raise ProtocolError(f"the other side speaks protocol version {version}, this side {PROTOCOL}: use one release everywhere")
    if head.nbytes < HEADER.size:
        raise ProtocolError(f"a header of {head.nbytes} bytes instead of {HEADER.size}")
    _, _, code, dtype, client, incarnation, round_, count, number, lr = HEADER.unpack_from(head)
    kind = KINDS.get(code)
    if kind is None or dtype not in ITEM:
        raise ProtocolError(f"no message has kind {code} and dtype {dtype}")
    if kind in (Kind.READ, Kind.WRITE) and dtype != FP32:
        raise ProtocolError(f"{kind.name} is in float32 only")
    if len(frames) != 1 + (kind in FILLED):
        raise ProtocolError(f"{kind.name} in {len(frames)} frames")
    if (kind in SIZED) != bool(count) or count > MOST_PARTS:
        raise ProtocolError(f"{kind.name} of {count} parts")
    parts = _parts(kind, head, count)
    size = size_of(parts, dtype)
    if size > MOST_BYTES:
        raise ProtocolError(f"{kind.name} of {size:,} bytes is over the limit of {MOST_BYTES >> 20} MiB")
    values = None
    if kind in FILLED:
        body = memoryview(frames[1])
        if body.nbytes != size:
            raise ProtocolError(f"{kind.name}: {body.nbytes} bytes of values instead of {size}")
        values = _array(body, ITEM[dtype])
    text = _text(head[HEADER.size :]) if kind in TEXTS else ""
    return Message(kind, client, incarnation, round_, number, dtype, lr, parts, values, text)


def _parts(kind: Kind, head: memoryview, count: int) -> tuple[Part, ...]:
    at = HEADER.size + count * PART.size
    if head.nbytes < at:
        raise ProtocolError(f"{kind.name}: {head.nbytes} bytes cannot tell of {count} parts")
    lines = [PART.unpack_from(head, HEADER.size + place * PART.size) for place in range(count)]
    for _, wide, squared, rows, width, _ in lines:
        if not width or wide not in (ID_WIDTHS if kind in NAMING else (0,)):
            raise ProtocolError(f"{kind.name}: {rows} rows of {width} numbers with ids of {wide} bytes")
        if squared > (kind is Kind.PUSH):
            raise ProtocolError(f"{kind.name}: squares that it cannot have ({squared})")
    expected = at + sum(rows * (wide + 4 * squared) for _, wide, squared, rows, _, _ in lines)
    if head.nbytes != expected and kind not in TEXTS:
        raise ProtocolError(f"{kind.name}: {head.nbytes - at} bytes of ids and squares instead of {expected - at}")
    ids: list[np.ndarray | None] = []
    for _, wide, _, rows, _, _ in lines:
        ids.append(_array(head[at : at + rows * wide], ID_WIDTHS[wide]) if wide else None)
        at += rows * wide
    parts = []
    for (table, _, squared, rows, width, first), own in zip(lines, ids, strict=True):
        squares = _array(head[at : at + 4 * rows], ITEM[FP32]) if squared else None
        at += 4 * rows * squared
        parts.append(Part(table, rows, width, first, own, squares))
    return tuple(parts)


def _array(part: memoryview, dtype: np.dtype[Any]) -> np.ndarray:
    """A view; small frames may lie at odd addresses, and are copied then."""
    array = np.frombuffer(part, dtype)
    return array if array.flags.aligned and array.flags.writeable else array.copy()


def _text(part: memoryview) -> str:
    if part.nbytes > TEXT_BYTES:
        raise ProtocolError(f"{part.nbytes} bytes of text: at most {TEXT_BYTES} are possible")
    return bytes(part).decode(errors="replace")


@dataclass(frozen=True)
class Identity:
    """What both sides of a connection must agree on; a hash is any text that is equal where the thing is."""

    version: str  # of kgdist
    run: str
    attempt: int
    config: str  # hash of the effective options
    graph: str  # hash of the partitioned graph

    def text(self, role: str, rank: int) -> str:
        """The body of HELLO and WELCOME."""
        return json.dumps(vars(self) | {"role": role, "rank": rank})

    def difference(self, text: str) -> str | None:
        """What the other side's body does not share, both values named, or None. Raises ProtocolError if it is no such body."""
        theirs = read_body(text)
        for key, mine in vars(self).items():
            if theirs[key] != mine:
                return f"{key} is {one_line(str(theirs[key]))[:80]} there and {one_line(str(mine))[:80]} here"
        return None


BODY = {"version": str, "run": str, "attempt": int, "config": str, "graph": str, "role": str, "rank": int}


def read_body(text: str) -> dict[str, Any]:
    """The JSON of HELLO or WELCOME as a flat dictionary. Raises ProtocolError."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("HELLO is not JSON") from error
    if not isinstance(body, dict) or body.keys() != BODY.keys() or any(type(body[k]) is not kind for k, kind in BODY.items()):
        raise ProtocolError(f"HELLO must say {', '.join(BODY)}, and nothing else")
    return body
