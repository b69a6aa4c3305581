"""One server as a client sees it: the session of `session`, carried by a socket. Never waits; the client pumps it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from kgdist.errors import KgdistError, PeersLost, ProtocolError
from kgdist.kvstore.buffers import Buffers
from kgdist.kvstore.messages import Identity, Kind, Message, pack, parse
from kgdist.kvstore.security import CONNECTED, STRANGER, Wire
from kgdist.kvstore.session import ClientSession, Entry

ROUNDS = 6  # tries to get an answer before a silent server counts as lost

Answer = Callable[[Message], None]


@dataclass
class _Load:
    """What an entry of the session carries."""

    message: Message
    answer: Answer | None = None
    memory: np.ndarray | None = None  # of Buffers, that the message's values lie in
    trackers: list[Any] | None = None


class Connection:
    """A client's connection to one server.

    Args:
        place: host:port, for errors.
        hello: the HELLO of this client.
        window: pushes that may be unconfirmed.
        patience: seconds of silence after which the server counts as lost, once it has welcomed us.
        first_patience: the same before.
    """

    def __init__(
        self, place: str, wire: Wire, hello: Message, buffers: Buffers, *, window: int, patience: float, first_patience: float
    ) -> None:
        self.place = place
        self.wire = wire
        self.sent = self.received = 0  # bytes of frames
        self._hello = hello
        self._buffers = buffers
        self._patience = patience
        self._session = ClientSession(window, retry=patience / ROUNDS, patience=first_patience, now=time.monotonic())
        self.room, self.waiting, self.unconfirmed = self._session.room, self._session.waiting, self._session.unconfirmed
        self.blocked = False  # the socket would take no more

    @property
    def open(self) -> bool:
        """Whether the server has welcomed us."""
        return self._session.open

    def push(self, message: Message, memory: np.ndarray) -> None:
        """Send a push when possible; `memory` of its values goes back to the buffers when it is confirmed. Needs room."""
        self._session.push(_Load(message, memory=memory), time.monotonic())

    def request(self, message: Message, answer: Answer) -> None:
        """Send PULL, READ or WRITE when possible; `answer` is called once, by `pump`."""
        self._session.request(_Load(message, answer), time.monotonic())

    def pump(self) -> None:
        """Receive what has arrived and send what can be sent.

        Raises PeersLost after too long a silence, KgdistError with the server's reason when it refuses us or a message of ours.
        """
        for event in self.wire.events():
            if event == CONNECTED:
                self._session.begin(time.monotonic())
            elif event == STRANGER:
                raise KgdistError(f"{self.place}: what listens there is no server of this run, or has other keys")
        while (frames := self.wire.receive()) is not None:
            self.received += sum(len(frame) for frame in frames)
            self._receive(frames)
        try:
            self._session.tick(time.monotonic())
        except PeersLost as error:
            raise PeersLost(f"{self.place}: {error}") from error
        self.transmit()

    def transmit(self) -> None:
        """Send what can be sent."""
        self.blocked = False
        while (entry := self._session.next()) is not None:
            frames = pack(self._stamped(entry))
            trackers = self.wire.send(frames)
            if trackers is None:
                self.blocked = True
                return
            self.sent += sum(len(frame) for frame in frames)
            if entry.payload is not None:
                entry.payload.trackers = (entry.payload.trackers or []) + trackers
            self._session.sent()

    def _stamped(self, entry: Entry) -> Message:
        message = self._hello if entry.payload is None else entry.payload.message
        client, incarnation = self._hello.client, self._hello.incarnation
        return message._replace(client=client, incarnation=incarnation, round=self._session.round, number=entry.number)

    def _receive(self, frames: list[Any]) -> None:
        try:
            message = parse(frames)
            if message.kind in (Kind.ERROR, Kind.REFUSED):
                raise KgdistError(f"{self.place}: {message.kind.name.lower()}: {message.text}")
            done = self._session.receive(message.kind, message.number, message.round, time.monotonic())
        except ProtocolError as error:
            raise ProtocolError(f"{self.place}: {error}") from error
        except PeersLost as error:
            raise PeersLost(f"{self.place}: {error}") from error
        if message.kind is Kind.WELCOME:
            self._session.patience = self._patience
        for entry in done:
            load: _Load = entry.payload
            if load.answer is not None:
                if message.kind is Kind.ROWS and (came := _sizes(message)) != (asked := _sizes(load.message)):
                    raise ProtocolError(f"{self.place}: rows of tables {came} where {asked} were asked for")
                load.answer(message)
            elif load.memory is not None:
                self._buffers.give(load.memory, load.trackers or [])

    def close(self) -> None:
        """Say goodbye, if that is possible at once."""
        if self.open:
            self.wire.send(pack(self._hello._replace(kind=Kind.BYE, text="")))
        self.wire.close()


def _sizes(message: Message) -> list[tuple[int, int, int]]:
    """(table, rows, width) of each part."""
    return [part[:3] for part in message.parts]


def hello(identity: Identity, role: str, client: int, incarnation: int) -> Message:
    """The HELLO of a client."""
    return Message(Kind.HELLO, client, incarnation, text=identity.text(role, client))
