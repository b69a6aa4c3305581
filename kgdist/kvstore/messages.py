"""What goes over the wire: messages of plain numbers of fixed width, several in one envelope. No sockets, no pickle.

    head         header | a line for each part | ids of the parts | squares of the parts, or the text
    values       of a message that has some: those of its parts, one part after another

From a client, frame 0 has the heads of all messages, and each message's values are a frame, which is not copied. From a server
all is one frame: values stand behind their head, from a multiple of 8 bytes on. For a libzmq (4.3.5) whose own connection is cut
drops what came from there, even between two frames of one message; then it ends the process ("Assertion failed: !_more"), or
goes on with another server's frames.

A part is rows of one table: what a step has for one server, of whatever tables, travels together, as far as their words are of
one dtype. An envelope is what one side has to say at one moment (a push, and the request for rows that are to show it); the other
side reads it in order.

`parse` is total: frames in, messages out, or ProtocolError. A length must be what the header's counts say before anything is
made of it, and arrays are views of the frames, so a lying header costs nothing. Whether ids exist and values are finite is for
the server to say.

    kind      from    parts, text
    HELLO     client  JSON: who it is, and which run, options and graph it believes in
    WELCOME   server  JSON: the same of the server; number = the last push it has applied for this client
    REFUSED   server  text: why not
    PULL      client  ids                        rows by id, in the dtype of the header
    READ      client                             rows first..first + rows, never in bfloat16
    ROWS      server  values                     the answer to PULL and READ
    ASSIGN    client  ids or first, values       rows by id, or first..first + rows, are overwritten; never in bfloat16
    PUSH      client  ids, values[, squares]     gradients for the optimiser
    ACK       server                             number = the last push applied
    GAP       server                             number = the same, after a push that came too early
    WHO       server                             a HELLO must come first
    ERROR     server  text: what is wrong with message `number`; nothing of it was applied
    BYE       client                             it will not come back
    ASK       client  arrays, JSON: a question   see kgdist.kvstore.asking
    ANSWER    server  arrays                     its answer, or a piece of it: values are its bytes from `first` on

PUSH and ASSIGN of a client are numbered 1, 2, 3, ... in one row, and "push" means either; requests are numbered apart from
them, from REQUESTS on, so that the number of an ERROR tells what it is about.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from kgdist.base.errors import ProtocolError
from kgdist.kvstore.asking import ALIGNED, ARRAYS, size_of_arrays

MAGIC = b"kgds"
PROTOCOL = 5
# magic, protocol, kind, dtype of values, client, incarnation, round, parts, number, lr, bytes of the head, of values behind it
HEADER = struct.Struct("<4sHBBIIIIQdII")
# table, bytes of an id, whether it has squares, rows, width, first
PART = struct.Struct("<IBB2xIIq")
FIRST, ARRAY = (
    struct.Struct("<Q"),
    struct.Struct("<B7xQ"),
)  # of ASK and ANSWER: see above; code of the dtype, and how many numbers
PREFIX = struct.Struct("<4sH")  # these stay where they are in every version
MOST_TOGETHER = 32  # messages in an envelope
MOST_FRAMES = 1 + MOST_TOGETHER
MOST_PARTS = 64
MOST_BYTES = 64 << 20  # of one frame
PIECE_BYTES = 4 << 20  # what a sender makes of one, at most, where rows allow it: a turn of one client costs others milliseconds
TEXT_BYTES = 4096  # of JSON or text
FP32, BF16, U8 = 1, 2, 3
ITEM: dict[int, np.dtype[Any]] = {FP32: np.dtype("<f4"), BF16: np.dtype("<u2"), U8: np.dtype("u1")}  # bfloat16 as its bits
ID_WIDTHS: dict[int, np.dtype[Any]] = {4: np.dtype("<i4"), 8: np.dtype("<i8")}


class Kind(IntEnum):
    """See above."""

    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    PULL = 4
    READ = 5
    ROWS = 6
    ASSIGN = 7
    PUSH = 8
    ACK = 9
    GAP = 10
    WHO = 11
    ERROR = 12
    BYE = 13
    ASK = 14
    ANSWER = 15


TEXTS = frozenset((Kind.HELLO, Kind.WELCOME, Kind.REFUSED, Kind.ERROR))
SIZED = frozenset((Kind.PULL, Kind.READ, Kind.ROWS, Kind.ASSIGN, Kind.PUSH))  # those with parts
NAMING = {Kind.PULL: (4, 8), Kind.PUSH: (4, 8), Kind.ASSIGN: (0, 4, 8)}  # with ids, of so many bytes
FILLED = frozenset((Kind.ROWS, Kind.ASSIGN, Kind.PUSH))  # with values
TYPED = frozenset((Kind.ASK, Kind.ANSWER))  # with arrays
DTYPES_OF = {Kind.READ: (FP32, U8), Kind.ASSIGN: (FP32, U8), Kind.PUSH: (FP32, BF16)}  # of values; the others' may be any
REQUESTS = 1 << 63
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
    values: np.ndarray | None = None  # float32[sum of rows * width], or uint16 for bfloat16, or uint8: part after part
    text: str = ""
    arrays: tuple[tuple[int, int], ...] = ()  # code of the dtype and length of each, as kgdist.kvstore.asking has them in bytes
    first: int = 0  # of these bytes, the first one here

    def answer(self, kind: Kind, *, number: int | None = None, text: str = "") -> Message:
        """A reply: the same client, incarnation and round, and the same number unless told otherwise; no parts."""
        number = self.number if number is None else number
        return self._replace(kind=kind, number=number, parts=(), values=None, text=text, arrays=(), first=0)

    def filled(self) -> Iterator[tuple[Part, np.ndarray]]:
        """Each part with its values, [rows, width]."""
        assert self.values is not None
        start = 0
        for part in self.parts:
            stop = start + part.rows * part.width
            yield part, self.values[start:stop].reshape(part.rows, part.width)
            start = stop


def bytes_of(message: Message) -> int:
    """Of values, here or in the answer: of an answer whose length nobody knows, none."""
    if message.kind in TYPED:
        return 0 if message.values is None else message.values.nbytes
    return size_of(message.parts, message.dtype)


def size_of(parts: Iterable[Part], dtype: int) -> int:
    """Bytes of the values of these parts."""
    numbers = 0
    for part in parts:
        numbers += part.rows * part.width
    return numbers * ITEM[dtype].itemsize


class Sealed(NamedTuple):
    """A message packed but for its round and number, which a session gives it each time it is sent."""

    kind: Kind
    client: int
    incarnation: int
    dtype: int
    lr: float
    parts: int  # how many
    tail: bytes  # of the head
    values: Any  # contiguous memory, or None


def seal(message: Message) -> Sealed:
    """Values must be contiguous, and are handed on without a copy. Text is cut at 4096 bytes."""
    kind, client, incarnation, _, _, dtype, lr, parts, values, text, arrays, first = message
    pieces: list[Any] = []
    for table, rows, width, first, ids, squares in parts:
        pieces.append(PART.pack(table, 0 if ids is None else ids.itemsize, squares is not None, rows, width, first))
    if kind in NAMING:
        pieces += [part.ids for part in parts if part.ids is not None]
        pieces += [part.squares for part in parts if part.squares is not None]
    elif kind in TEXTS:
        pieces.append(text.encode()[:TEXT_BYTES])
    elif kind in TYPED:
        pieces += [FIRST.pack(first), *(ARRAY.pack(*each) for each in arrays), text.encode()[:TEXT_BYTES]]
    body = None if values is None else values.view(np.uint8).data
    return Sealed(kind, client, incarnation, dtype, lr, len(parts) or len(arrays), b"".join(pieces), body)


def pack(*messages: Message) -> list[Any]:
    """The frames of a client's envelope; see `seal`."""
    return pack_stamped([(seal(message), message.round, message.number) for message in messages])


def pack_stamped(messages: Iterable[tuple[Sealed, int, int]]) -> list[Any]:
    """As `pack`, of messages with the round and the number that they are to bear."""
    heads: list[bytes] = []
    frames: list[Any] = [b""]
    for (kind, client, incarnation, dtype, lr, parts, tail, values), round_, number in messages:
        size = HEADER.size + len(tail)
        heads.append(HEADER.pack(MAGIC, PROTOCOL, kind, dtype, client, incarnation, round_, parts, number, lr, size, 0))
        heads.append(tail)
        if values is not None:
            frames.append(values)
    frames[0] = b"".join(heads)
    return frames


def pack_whole(messages: Sequence[Message], memory: np.ndarray | None = None) -> Any:
    """The frame of a server's envelope. Where the last message alone has values, and they are the end of `memory` (uint8[.]), all
    else is written before them if it finds room, and the frame is a part of it; otherwise they are copied."""
    pieces: list[Any] = []
    at = filled = 0
    for message in messages:
        kind, client, incarnation, dtype, lr, parts, tail, values = seal(message)
        size, behind = HEADER.size + len(tail), 0 if values is None else len(values)
        line = kind, dtype, client, incarnation, message.round, parts, message.number, lr, size, behind
        gap = -(at + size) % ALIGNED if behind else 0
        pieces += [HEADER.pack(MAGIC, PROTOCOL, *line), tail, bytes(gap), values or b""]
        at += size + gap + behind
        filled += behind > 0
    last = messages[-1].values
    if memory is None or last is None or filled != 1 or at > len(memory) or _end(last) != _end(memory):
        return b"".join(pieces)
    frame, heads = memory[len(memory) - at :], b"".join(pieces[:-1])
    frame[: len(heads)] = np.frombuffer(heads, np.uint8)
    return frame.data


def _end(array: np.ndarray) -> int:
    return int(array.ctypes.data) + array.nbytes


def parse(frames: Sequence[Any]) -> list[Message]:
    """The messages in these frames (anything with the buffer protocol). Raises ProtocolError for all that `pack` cannot make."""
    if not 1 <= len(frames) <= MOST_FRAMES:
        raise ProtocolError(f"an envelope of {len(frames)} frames: 1 to {MOST_FRAMES} are possible")
    found: list[Message] = []
    heads, at, rest = memoryview(frames[0]), 0, iter(frames[1:])
    while at < heads.nbytes or not found:
        if len(found) == MOST_TOGETHER:
            raise ProtocolError(f"more than {MOST_TOGETHER} messages in an envelope")
        message, at = _one(heads, at, rest)
        found.append(message)
    if next(rest, None) is not None:
        raise ProtocolError(f"{len(frames)} frames for {', '.join(message.kind.name for message in found)}")
    return found


def _one(heads: memoryview, start: int, rest: Iterator[Any]) -> tuple[Message, int]:
    """The message whose head begins at `start`, with its values behind that or in the next frame of the rest, and where it
    ends."""
    left = heads.nbytes - start
    if left < HEADER.size:
        raise _strange(heads, start, left)
    magic, version, code, dtype, client, incarnation, round_, count, number, lr, size, behind = HEADER.unpack_from(heads, start)
    if magic != MAGIC or version != PROTOCOL:
        raise _strange(heads, start, left)
    kind = KINDS.get(code)
    if kind is None or dtype not in ITEM:
        raise ProtocolError(f"no message has kind {code} and dtype {dtype}")
    if not HEADER.size <= size <= left:
        raise ProtocolError(f"{kind.name}: a head of {size} bytes, where {left} have come")
    end = start + size
    if behind:
        end += -end % ALIGNED + behind
        rest = iter((heads[end - behind : end],))
        if end > heads.nbytes:
            raise ProtocolError(f"{kind.name}: {behind} bytes of values behind its head, where {left - size} have come")
    if kind in TEXTS:
        if count:
            raise ProtocolError(f"{kind.name} of {count} parts")
        text = _text(heads[start + HEADER.size : start + size])
        message = Message(kind, client, incarnation, round_, number, dtype, lr, (), None, text)
    elif kind in TYPED:
        bare = Message(kind, client, incarnation, round_, number, dtype, lr)
        message = _typed(bare, heads[start + HEADER.size : start + size], count, rest)
    else:
        if (kind in SIZED) != bool(count) or count > MOST_PARTS:
            raise ProtocolError(f"{kind.name} of {count} parts")
        if dtype not in DTYPES_OF.get(kind, ITEM):
            raise ProtocolError(f"{kind.name}: its values are never of dtype {dtype}")
        parts = _parts(kind, heads, start, size, count)
        values = _values(kind, parts, dtype, rest) if count else None
        message = Message(kind, client, incarnation, round_, number, dtype, lr, parts, values)
    if behind and message.values is None:
        raise ProtocolError(f"{kind.name} with {behind} bytes of values, which it does not have")
    return message, end


def _values(kind: Kind, parts: tuple[Part, ...], dtype: int, rest: Iterator[Any]) -> np.ndarray | None:
    """Those of a message of these parts, where its kind has some, from the next frame."""
    wanted = size_of(parts, dtype)
    if wanted > MOST_BYTES:
        raise ProtocolError(f"{kind.name} of {wanted:,} bytes is over the limit of {MOST_BYTES >> 20} MiB")
    if kind not in FILLED:
        return None
    body = next(rest, b"")
    if (come := len(body)) != wanted:
        raise ProtocolError(f"{kind.name}: {come} bytes of values instead of {wanted}")
    return _array(body, ITEM[dtype], wanted // ITEM[dtype].itemsize, 0)


def _strange(heads: memoryview, start: int, left: int) -> ProtocolError:
    """What to say of a head that is not one of ours."""
    if left < PREFIX.size or heads[start : start + 4] != MAGIC:
        return ProtocolError("not a message of kgdist")
    _, version = PREFIX.unpack_from(heads, start)
    if version != PROTOCOL:
        return ProtocolError(
            f"the other side speaks protocol version {version}, this side {PROTOCOL}: use one release everywhere"
        )
    return ProtocolError(f"a header of {left} bytes instead of {HEADER.size}")


def _parts(kind: Kind, heads: memoryview, start: int, size: int, count: int) -> tuple[Part, ...]:
    """The parts of the head of `size` bytes at `start`."""
    at, end = start + HEADER.size, start + size
    if end < at + count * PART.size:
        raise ProtocolError(f"{kind.name}: {size} bytes cannot describe {count} parts")
    lines, of_ids, of_squares = [], 0, 0
    widths = NAMING.get(kind, (0,))
    for _ in range(count):
        line = PART.unpack_from(heads, at)
        _, wide, squared, rows, width, _ = line
        if not width or wide not in widths:
            raise ProtocolError(f"{kind.name}: {rows} rows of {width} numbers with ids of {wide} bytes")
        if squared > (kind is Kind.PUSH):
            raise ProtocolError(f"{kind.name}: squares that it cannot have ({squared})")
        of_ids += rows * wide
        of_squares += 4 * rows * squared
        lines.append(line)
        at += PART.size
    if end - at != of_ids + of_squares:
        raise ProtocolError(f"{kind.name}: {end - at} bytes of ids and squares instead of {of_ids + of_squares}")
    behind, parts = at + of_ids, []
    for table, wide, squared, rows, width, first in lines:
        ids = _array(heads, ID_WIDTHS[wide], rows, at) if wide else None
        squares = _array(heads, ITEM[FP32], rows, behind) if squared else None
        at += rows * wide
        behind += 4 * rows * squared
        parts.append(Part(table, rows, width, first, ids, squares))
    return tuple(parts)


def _typed(message: Message, tail: memoryview, count: int, rest: Iterator[Any]) -> Message:
    """ASK or ANSWER, from what is behind its header and its values. An answer may be of any length: nothing is made of it."""
    kind, at = message.kind, FIRST.size + count * ARRAY.size
    if count > MOST_PARTS or tail.nbytes < at:
        raise ProtocolError(f"{kind.name}: {tail.nbytes} bytes cannot describe {count} arrays")
    (first,), arrays = FIRST.unpack_from(tail), tuple(ARRAY.iter_unpack(tail[FIRST.size : at]))
    if any(code not in ARRAYS for code, _ in arrays):
        raise ProtocolError(f"{kind.name}: arrays of dtypes {[code for code, _ in arrays]}")
    wanted, values = size_of_arrays(arrays), None
    if wanted:
        body = next(rest, b"")
        come = len(body)
        whole = kind is Kind.ASK and (come != wanted or first)
        if whole or not 0 < come <= min(wanted - first, MOST_BYTES):
            raise ProtocolError(f"{kind.name}: {come} bytes of values from {first} on, of {wanted:,}")
        values = _array(body, ITEM[U8], come, 0)
        if values.ctypes.data % ALIGNED:  # what becomes of these bytes is numbers of up to eight
            values = values.copy()
    elif first:
        raise ProtocolError(f"{kind.name}: values from {first} on, of none")
    return message._replace(arrays=arrays, first=first, values=values, text=_text(tail[at:]))


def _array(memory: Any, dtype: np.dtype[Any], count: int, offset: int) -> np.ndarray:
    """A view; small frames may lie at odd addresses, and are copied then."""
    array = np.frombuffer(memory, dtype, count, offset)
    flags = array.flags
    return array if flags.aligned and flags.writeable else array.copy()


def _text(part: memoryview) -> str:
    if part.nbytes > TEXT_BYTES:
        raise ProtocolError(f"{part.nbytes} bytes of text: at most {TEXT_BYTES} are possible")
    return bytes(part).decode(errors="replace")
