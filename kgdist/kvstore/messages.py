"""What goes over the wire: a header of fixed width, then up to three frames of plain numbers. No sockets, no pickle.

`parse` is total: frames in, a `Message` out, or ProtocolError. A length must be what the header's counts say before anything is
made of it, and arrays are views of the frames, so a lying header costs nothing. Whether ids exist and values are finite is for
the server to say.

    kind      from    frames beside the header
    HELLO     client  JSON: who it is, and which run, options and graph it believes in
    WELCOME   server  JSON: the same of the server; number = the last push it has applied for this client
    REFUSED   server  text: why not
    PULL      client  ids                        rows by id, in the dtype of the header
    READ      client                             rows first..first + count, always float32
    ROWS      server  values                     the answer to PULL and READ
    WRITE     client  values                     rows first..first + count are overwritten (float32)
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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from kgdist.errors import ProtocolError, one_line

MAGIC = b"kgds"
PROTOCOL = 1
# magic, protocol, kind, dtype of values, client, incarnation, round, number, table, bytes of an id, count, width, first, lr
HEADER = struct.Struct("<4sHBBIIIQHHIIqd")
PREFIX = struct.Struct("<4sH")  # these stay where they are in every version
MOST_FRAMES = 4
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


# kind -> names of its frames beside the header; squares may be left out
FRAMES: dict[Kind, tuple[str, ...]] = {kind: () for kind in Kind} | {
    Kind.HELLO: ("text",),
    Kind.WELCOME: ("text",),
    Kind.REFUSED: ("text",),
    Kind.ERROR: ("text",),
    Kind.PULL: ("ids",),
    Kind.ROWS: ("values",),
    Kind.WRITE: ("values",),
    Kind.PUSH: ("ids", "values", "squares"),
}
SIZED = (Kind.PULL, Kind.READ, Kind.ROWS, Kind.WRITE, Kind.PUSH)  # those with a count and a width
KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True)
class Message:
    """One message; what its kind does not have stays empty."""

    kind: Kind
    client: int = 0
    incarnation: int = 0
    round: int = 0  # of HELLO and WELCOME that it belongs to
    number: int = 0
    table: int = 0
    dtype: int = FP32
    count: int = 0
    width: int = 0
    first: int = 0
    lr: float = 0.0
    ids: np.ndarray | None = None  # int32[count] or int64[count]
    values: np.ndarray | None = None  # float32[count, width], or uint16 for bfloat16
    squares: np.ndarray | None = None  # float32[count]
    text: str = ""

    def answer(self, kind: Kind, **fields: Any) -> Message:
        """A reply: the same client, incarnation, round, number and table, and the same sizes where the kind has any."""
        sizes = {} if kind in SIZED else {"count": 0, "width": 0}
        return replace(self, kind=kind, **({"ids": None, "values": None, "squares": None, "text": ""} | sizes | fields))


def pack(message: Message) -> list[Any]:
    """Frames for the wire; arrays must be contiguous, and are handed on without a copy. Text is cut at 4096 bytes."""
    frames: list[Any] = []
    for name in FRAMES[message.kind]:
        part = getattr(message, name)
        if name == "text":
            frames.append(part.encode()[:TEXT_BYTES])
        elif part is not None:
            frames.append(part.reshape(-1).view(np.uint8).data)  # bytes, whatever the numbers
    wide = message.ids.itemsize if message.ids is not None else 0
    header = HEADER.pack(
        *(MAGIC, PROTOCOL, message.kind, message.dtype, message.client, message.incarnation, message.round, message.number),
        *(message.table, wide, message.count, message.width, message.first, message.lr),
    )
    return [header, *frames]


def parse(frames: Sequence[Any]) -> Message:
    """The message in these frames (anything with the buffer protocol). Raises ProtocolError for all that `pack` cannot make."""
    if not 1 <= len(frames) <= MOST_FRAMES:
        raise ProtocolError(f"a message of {len(frames)} frames: 1 to {MOST_FRAMES} are possible")
    parts = [memoryview(frame) for frame in frames]
    head = parts[0]
    if head.nbytes < PREFIX.size or bytes(head[:4]) != MAGIC:
        raise ProtocolError("not a message of kgdist")
    _, version = PREFIX.unpack(head[: PREFIX.size])
    if version != PROTOCOL:
        raise ProtocolError(f"the other side speaks protocol version {version}, this side {PROTOCOL}: use one release everywhere")
    if head.nbytes != HEADER.size:
        raise ProtocolError(f"a header of {head.nbytes} bytes instead of {HEADER.size}")
    _, _, code, dtype, client, incarnation, round_, number, table, wide, count, width, first, lr = HEADER.unpack(head)
    kind = KINDS.get(code)
    if kind is None or dtype not in ITEM:
        raise ProtocolError(f"no message has kind {code} and dtype {dtype}")
    if kind in (Kind.READ, Kind.WRITE) and dtype != FP32:
        raise ProtocolError(f"{kind.name} is in float32 only")
    names = FRAMES[kind]
    if len(parts) - 1 != len(names) and not (kind is Kind.PUSH and len(parts) == 3):
        raise ProtocolError(f"{kind.name} with {len(parts) - 1} frames beside the header instead of {len(names)}")
    if (kind in SIZED) != bool(width) or (count and kind not in SIZED):
        raise ProtocolError(f"{kind.name} with {count} rows of {width} numbers")
    if (wide in ID_WIDTHS) != ("ids" in names) or (wide and "ids" not in names):
        raise ProtocolError(f"{kind.name} with ids of {wide} bytes")
    item = ITEM[dtype].itemsize
    if count * width * item > MOST_BYTES:
        raise ProtocolError(f"{kind.name} of {count} rows of {width} numbers is over the limit of {MOST_BYTES >> 20} MiB")
    fields: dict[str, Any] = {}
    for name, part in zip(names, parts[1:], strict=False):
        if name == "text":
            fields[name] = _text(part)
            continue
        bytes_each = {"ids": wide, "values": width * item, "squares": 4}[name]
        if part.nbytes != count * bytes_each:
            raise ProtocolError(f"{kind.name}: {part.nbytes} bytes of {name} instead of {count * bytes_each}")
        if name == "ids":
            fields[name] = _array(part, ID_WIDTHS[wide])
        else:
            fields[name] = _array(part, ITEM[dtype]).reshape(count, width) if name == "values" else _array(part, ITEM[FP32])
    return Message(kind, client, incarnation, round_, number, table, dtype, count, width, first, lr, **fields)


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
