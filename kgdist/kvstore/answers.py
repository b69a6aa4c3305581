"""A server's answers to questions: made by services, and sent in pieces where they are long.

How long an answer is, nobody knows before; so one that is longer than a message waits here and goes out piece by piece, as the
socket takes them, with other work in between. What waits is bounded: beyond, questions wait, and are answered when there is room;
those for which there is none either are put off, and asked again. One answer is bounded by memory alone, of which it needs twice
its length while it is made.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from kgdist.base.errors import ProtocolError
from kgdist.kvstore.asking import Service, called, described, read_arrays, reason_of, size_of_arrays, write_arrays
from kgdist.kvstore.messages import MOST_PARTS, PIECE_BYTES, Kind, Message, bytes_of

MOST_HELD = 256 << 20  # bytes of answers that wait; a question begins while there are fewer
MOST_ASKED = 64 << 20  # bytes of questions that wait; one more begins to wait while there are fewer
LEFT = 10.0  # seconds after which an answer that its asker does not take is forgotten: he asks again

Send = Callable[[bytes, Message], bool]  # to a peer; False where it takes nothing now
Key = tuple[int, int, int]  # client, incarnation, number of a question


class PutOff(ProtocolError):
    """No room for a question now: whoever asked hears nothing, and asks again after a silence."""


def _written(arrays: list[np.ndarray], memory: np.ndarray) -> np.ndarray:
    write_arrays(arrays, memory)
    return memory


class _Stream:
    """An answer on its way."""

    def __init__(self, peer: bytes, head: Message, arrays: list[np.ndarray]) -> None:
        self._peer, self._head = peer, head
        self.memory = _written(arrays, np.empty(size_of_arrays(head.arrays), np.uint8))
        self.until, self.done, self._at = time.monotonic() + LEFT, False, 0

    def sent(self, send: Send) -> bool:
        """Send the next piece; False where the socket takes nothing now."""
        piece = self.memory[self._at : self._at + PIECE_BYTES]
        if not send(self._peer, self._head._replace(values=piece if len(piece) else None, first=self._at)):
            return False
        self._at += len(piece)
        self.done = self._at == len(self.memory)
        return True


class Answers:
    """Args: services: by name, what answers (see kgdist.kvstore.asking)."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = services
        self._streams: dict[Key, _Stream] = {}
        self._waiting: dict[Key, tuple[bytes, Message]] = {}

    @property
    def busy(self) -> bool:
        """Whether anything waits to be sent, or answered."""
        return bool(self._streams or self._waiting)

    def _held(self) -> int:
        return sum(stream.memory.nbytes for stream in self._streams.values())

    def ask(self, peer: bytes, message: Message, take: Callable[[int], np.ndarray]) -> Message | None:
        """The answer to ASK where it fits into one message, in memory from `take`; else None, and it comes in `turn`. A question
        that is repeated is answered anew from its beginning. Raises PutOff, and whatever the service does."""
        key = message.client, message.incarnation, message.number
        self._streams.pop(key, None)
        self._waiting.pop(key, None)
        if self._held() >= MOST_HELD:
            asked = sum(len(each.text) + bytes_of(each) for _, each in self._waiting.values())
            if asked >= MOST_ASKED:
                raise PutOff(f"put off, for {len(self._waiting)} questions wait already")
            self._waiting[key] = peer, message
            return None
        head, arrays = self._made(message)
        if (size := size_of_arrays(head.arrays)) > PIECE_BYTES:
            self._streams[key] = _Stream(peer, head, arrays)
            return None
        return head._replace(values=_written(arrays, take(size))) if size else head

    def _made(self, message: Message) -> tuple[Message, list[np.ndarray]]:
        arrays = called(self.services, message.text, read_arrays(message.arrays, message.values))
        if len(arrays) > MOST_PARTS:
            raise ProtocolError(f"an answer of {len(arrays)} arrays: {MOST_PARTS} at most; ask about less at a time")
        return message.answer(Kind.ANSWER)._replace(arrays=described(arrays)), arrays

    def forget(self, client: int) -> None:
        """What it asked for before: it has a new connection, or none, and asks again."""
        for kept in (self._streams, self._waiting):
            for key in [key for key in kept if key[0] == client]:
                del kept[key]

    def turn(self, send: Send) -> None:
        """One piece of each answer that waits, and one more question where there is room."""
        now = time.monotonic()
        for key, stream in list(self._streams.items()):
            if stream.sent(send):
                stream.until = now + LEFT
            if stream.done or now > stream.until:
                del self._streams[key]
        if self._waiting and self._held() < MOST_HELD:
            key = next(iter(self._waiting))
            peer, message = self._waiting.pop(key)
            try:
                self._streams[key] = _Stream(peer, *self._made(message))
            except Exception as error:  # there may be no memory for what goes out either
                self._streams[key] = _Stream(peer, message.answer(Kind.ERROR, text=reason_of(error)), [])
